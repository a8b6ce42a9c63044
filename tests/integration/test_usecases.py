"""The use cases on a real broker, at three speeds: every figure is what plain Python finds in the same records.

`RIVERRUN_TEST_EVENTS=1000000 script/test tests/integration/test_usecases.py` does it over a million records each.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import riverrun as rr
from riverrun.app import load_app
from riverrun.config import KafkaSettings
from riverrun.demo.comparison import Key, Row, StreamCheck, differences
from riverrun.kafka.admin.admin import Admin
from riverrun.kafka.connection import Connection
from riverrun.model.pipeline import Speed
from riverrun.streams.run.running_stream import INITIAL_BATCH_SIZE
from riverrun.testing.pytest_plugin import local_kafka
from support.checked_cases import USE_CASES, UseCase
from support.connecting import records_in
from support.connector_child import taking
from support.shell import Shell
from support.streaming import run_streams
from support.usecases import EXAMPLES, modules_of

EVENTS = int(os.environ.get("RIVERRUN_TEST_EVENTS", "20000"))
# Of a run, on a crowded machine.
MOST_SECONDS = 800.0

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(900)]


@dataclass
class Played:
    """A cluster with a use case's records in it, and what they come to by plain Python."""

    case: UseCase
    connection: Connection
    root: Path
    broken: int
    checks: tuple[StreamCheck, ...]
    expected: dict[str, dict[Key, Row]]
    # The stream and partition of a result: the next offset that was not looked at yet.
    seen: dict[tuple[str, int], int]


@pytest.fixture(scope="module", params=USE_CASES, ids=lambda case: case.name)
def played(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Played]:
    case: UseCase = request.param
    with local_kafka(tmp_path_factory.mktemp("kafka"), KafkaSettings()) as running, modules_of(case.name) as modules:
        connection = Connection(KafkaSettings(bootstrap_servers=running.bootstrap_servers))
        root = tmp_path_factory.mktemp("project") / case.name
        shutil.copytree(EXAMPLES / case.name, root)
        load_app(root / "app.py").apply(connection)
        records = case.records(modules, EVENTS)
        good = case.good(modules, records)
        fill(case.tables(modules), connection)
        send(modules.app.app.topics[case.topic], [*records, case.last(good)], connection)
        checks = case.checks(modules)
        expected = {check.stream: check.expected_rows(good) for check in checks}
        yield Played(case, connection, root, len(records) - len(good), checks, expected, {})


def send(topic: "rr.Topic[Any]", records: list[Any], connection: Connection) -> None:
    with rr.Producer(connection) as producer:
        for record in records:
            # What is no event goes by the topic's name: it would be refused.
            producer.send_soon(topic.name if isinstance(record, bytes) else topic, record)


def fill(tables: dict[str, dict[str, Any]], connection: Connection) -> None:
    """Put rows into the topics of tables."""
    with rr.Producer(connection) as producer:
        for topic, rows in tables.items():
            for key, row in rows.items():
                producer.send_soon(topic, json.dumps(row).encode(), key=key)


def rows(played: Played, check: StreamCheck) -> list[dict[str, Any]]:
    """What a stream has written since its rows were last asked for, without what it says of the closing event."""
    found = []
    with rr.Consumer(check.stream, connection=played.connection, follow=False) as consumer:
        for record in consumer:
            place = (check.stream, record.partition)
            if record.offset >= played.seen.get(place, 0):
                played.seen[place] = record.offset + 1
                found.append(json.loads(record.raw or b"{}"))
    return [row for row in found if not played.case.closed(row)]


@pytest.mark.parametrize("speed", ["batch", "near-real-time", "real-time"])
def test_every_speed_comes_to_the_same_figures(played: Played, spark: SparkSession, speed: Speed) -> None:
    names = [check.stream for check in played.checks]
    file = played.root / "app.py"
    streams = run_streams(
        spark, file, played.connection, played.root, speed=speed, only=names, fresh=names, seconds=MOST_SECONDS
    )
    for check in played.checks:
        account = streams[check.stream].record_counts
        assert (account.read, account.dead_letters) == (EVENTS + 1, played.broken), check.stream
        # From its second bite of a backlog on, a stream with windows may call late what another partition has overtaken.
        if EVENTS <= INITIAL_BATCH_SIZE:
            assert account.late == 0, check.stream
        found = check.rows(rows(played, check))
        assert differences(played.expected[check.stream], found) == [], f"{check.stream}, {speed}"
    assert all(played.expected.values())


def stored(played: Played) -> int:
    """How many records the source's topics hold. Offsets would not say: those of transactions count marks, too."""
    return sum(len(records_in(played.connection, each)) for each in played.case.fed)


def end(played: Played) -> int:
    admin = Admin(played.connection)
    places = admin.topics([played.case.topic], config=False)[played.case.topic].topic_partitions
    return sum(admin.offsets(places, "latest").values())


@pytest.fixture
def taken(played: Played) -> Iterator[None]:
    """Where the source posts, somebody takes it."""
    with taking(played.root, played.connection.bootstrap_servers) if played.case.by_http else nullcontext():
        yield


@pytest.mark.usefixtures("taken")
def test_the_source_sends_and_stops_when_it_is_told_to(played: Played) -> None:
    """After the speeds: these records come on top."""
    before, begin = stored(played), end(played)
    shell = Shell(played.root, played.connection.bootstrap_servers)
    with subprocess.Popen(
        [sys.executable, "source.py", "--rate", "300"],
        cwd=played.root,
        env=shell.environ,
        stdout=subprocess.PIPE,
        text=True,
    ) as source:
        try:
            deadline = time.monotonic() + 120
            while end(played) < begin + 150:
                assert time.monotonic() < deadline
                assert source.poll() is None
            source.terminate()
            said, _ = source.communicate(timeout=60)
        finally:
            source.kill()
    assert source.returncode == 0
    assert json.loads(said)["acknowledged"] == stored(played) - before > 50
    few = [sys.executable, "source.py", "--rate", "10000", "--events", "50", "--seed", "9"]
    done = subprocess.run(
        few, cwd=played.root, env=shell.environ, capture_output=True, text=True, timeout=120, check=True
    )
    assert json.loads(done.stdout)["events"] == 50
