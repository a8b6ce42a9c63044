"""The mall's sensors post by HTTP; whoever takes it is killed with -9 meanwhile. Each record is in the topic, once."""

import json
import shutil
import subprocess
import sys
from collections import Counter
from functools import partial
from itertools import islice
from pathlib import Path

import pytest

from riverrun.app import load_app
from riverrun.config import KafkaSettings
from riverrun.kafka.connection import Connection
from riverrun.testing.pytest_plugin import local_kafka
from support.cluster import wait_for
from support.connecting import records_in
from support.connector_child import taking
from support.shell import Shell
from support.usecases import EXAMPLES, modules_of

EVENTS, KILLS = 6000, 3

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(600)]


def test_nothing_is_lost_or_counted_twice_whoever_is_killed(tmp_path: Path) -> None:
    root = tmp_path / "mall"
    shutil.copytree(EXAMPLES / "mall", root)
    with (
        local_kafka(tmp_path / "kafka", KafkaSettings()) as running,
        modules_of("mall") as modules,
    ):
        connection = Connection(KafkaSettings(bootstrap_servers=running.bootstrap_servers))
        load_app(root / "app.py").apply(connection)
        records = list(islice(modules.source.events(seed=6), EVENTS))
        good = Counter(
            (record.sensor, record.number, record.at.isoformat())
            for record in records
            if isinstance(record, modules.app.Count)
        )

        def in_topic() -> "Counter[tuple[str, int, str]]":
            values = [modules.app.counts.schema.decode(each.value()) for each in records_in(connection, "counts")]
            return Counter((value.sensor, value.number, value.at.isoformat()) for value in values)

        def there(least: int) -> bool:
            return in_topic().total() >= least

        command = [sys.executable, "source.py", "--rate", "400", "--seed", "6", "--events", str(EVENTS)]
        with taking(root, running.bootstrap_servers) as child:
            environ = Shell(root, running.bootstrap_servers).environ
            with subprocess.Popen(command, cwd=root, env=environ, stdout=subprocess.PIPE, text=True) as source:
                try:
                    for turn in range(1, KILLS + 1):
                        wait_for(partial(there, turn * EVENTS // 5), 120, "nothing comes")
                        child.kill()
                        child.start()
                    said, _ = source.communicate(timeout=300)
                finally:
                    source.kill()
        assert source.returncode == 0
        told = json.loads(said)
        assert in_topic() == good
    assert told["events"] == EVENTS
    assert told["acknowledged"] == good.total()
    assert told["refused"] == EVENTS - good.total() > 0
    # It had to try again, and held what it had meanwhile.
    assert told["tried_again"] >= KILLS
