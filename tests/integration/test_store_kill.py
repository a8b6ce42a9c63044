"""Kill -9 of the embedded store's process, again and again, under load: its rows are the topic's, exactly."""

import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer

import riverrun
from riverrun.config.spec import StoreSettings
from riverrun.store.embedded import EmbeddedStore
from riverrun.testing import KafkaUnderTest
from support import storing
from support.storing import caught_up, load

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

KILLS = 20
SEED = 6
HOUSES = 40
# Enough that the store is never through before it is killed for the last time.
RATE = 4_000


class Load(threading.Thread):
    """Numbered events, and updates of houses of which the highest number is the last, until it is told to stop."""

    def __init__(self, servers: str, topic: str, updates: str) -> None:
        super().__init__(daemon=True)
        self.servers, self.topic, self.updates = servers, topic, updates
        self.over = threading.Event()
        self.sent = 0
        self.left = -1
        self.last: dict[tuple[str, int], int] = {}

    def run(self) -> None:
        producer = Producer({"bootstrap.servers": self.servers, "enable.idempotence": True, "linger.ms": 5})
        chance, begun = random.Random(SEED), time.monotonic()
        while not self.over.is_set():
            for _ in range(200):
                number, house, minute = self.sent, f"house-{chance.randrange(HOUSES)}", chance.randrange(50)
                value = {"id": number, "at": "2026-01-01T00:00:00.000000Z", "note": house}
                self._send(producer, self.topic, json.dumps(value).encode(), house)
                self._send(producer, self.updates, load(house, number, minute), f"{house}-{minute}")
                self.last[house, minute] = number
                self.sent += 1
            producer.poll(0)
            time.sleep(max(0.0, begun + self.sent / RATE - time.monotonic()))
        self.left = producer.flush(60)

    def _send(self, producer: Producer, topic: str, value: bytes, key: str) -> None:
        while True:
            try:
                producer.produce(topic, value, key=key)
                return
            except BufferError:
                producer.poll(0.1)


def start(servers: str, folder: Path, topic: str, updates: str, log: Path) -> "subprocess.Popen[bytes]":
    program = Path(storing.__file__).with_name("store_process.py")
    paths = [str(Path(riverrun.__file__).parents[1]), str(program.parents[1])]
    with log.open("ab") as errors:
        return subprocess.Popen(
            [sys.executable, str(program), servers, str(folder), topic, updates],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
            stdout=subprocess.PIPE,
            stderr=errors,
        )


@pytest.mark.timeout(300)
def test_rows_are_the_topics_after_any_kill(
    kafka: KafkaUnderTest, kafka_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic, updates = kafka_topic("events", partitions=3), kafka_topic("updates", partitions=2)
    folder, log, chance = tmp_path / "store", tmp_path / "store.log", random.Random(SEED)
    sender = Load(kafka.bootstrap_servers, topic, updates)
    sender.start()
    for _ in range(KILLS):
        with start(kafka.bootstrap_servers, folder, topic, updates, log) as process:
            try:
                assert process.stdout is not None
                # From before it is open to well into its work.
                if chance.random() < 0.8:
                    assert process.stdout.readline() == b"open\n", log.read_text()
                time.sleep(chance.uniform(0, 0.8))
            finally:
                process.kill()
    sender.over.set()
    sender.join()
    assert sender.left == 0
    with EmbeddedStore(folder, kafka.connection, StoreSettings(memory_mb=256)) as store:
        # The first of them may have been killed before it had made its tables.
        store.apply([storing.events(topic), storing.loads(updates)])
        caught_up(store, events=sender.sent, loads=len(sender.last), seconds=120)
        found = store.query("SELECT count(*) AS n, count(DISTINCT id) AS ids, min(id) AS a, max(id) AS z FROM events")
        assert found.rows.to_pylist() == [{"n": sender.sent, "ids": sender.sent, "a": 0, "z": sender.sent - 1}]
        rows = store.query('SELECT house, minute, "load" AS kw FROM loads').rows.to_pylist()
        assert {(row["house"], row["minute"].minute): row["kw"] for row in rows} == sender.last
        assert store.rejected_rows() == []
