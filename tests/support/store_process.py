"""An embedded store as a program that is killed: `python store_process.py SERVERS FOLDER TOPIC UPDATES`.

Prints a line when it is open, then follows until it ends.
"""

import sys
import time
from pathlib import Path

from riverrun.config import KafkaSettings
from riverrun.config.spec import StoreSettings
from riverrun.kafka.connection import Connection
from riverrun.store.embedded import EmbeddedStore
from support.storing import events, loads


def main() -> None:
    servers, folder, topic, updates = sys.argv[1:]
    connection = Connection(KafkaSettings(bootstrap_servers=servers))
    with EmbeddedStore(Path(folder), connection, StoreSettings(memory_mb=256)) as store:
        store.apply([events(topic), loads(updates)])
        print("open", flush=True)
        while True:
            time.sleep(1)


if __name__ == "__main__":
    main()
