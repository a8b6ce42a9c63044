"""A stream that is replayed while data flows: one cut, every record on one side of it, and readers that notice nothing."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import pytest
from confluent_kafka import Consumer, Producer
from pyspark.sql import SparkSession

from riverrun.app import App, load_app
from riverrun.config import KafkaSettings, Project, Settings, StreamSettings
from riverrun.config.stream_state import StreamState
from riverrun.errors import (
    AlreadyRunningError,
    OffsetOutOfRangeError,
    RiverrunError,
    StreamChangedError,
    TopicExistsError,
    UsageError,
)
from riverrun.kafka.admin.admin import Admin
from riverrun.kafka.connection import Connection
from riverrun.model.cluster_state import TopicPartition
from riverrun.model.progress import PipelineProgress
from riverrun.store.catalog import Catalog
from riverrun.streams.checkpoint import read_checkpoint_status
from riverrun.streams.compile.compiler import compile_app
from riverrun.streams.compile.sources import KafkaRecordSource
from riverrun.streams.evolve.replay import Replay
from riverrun.streams.evolve.replay_request import ReplayRequest, cancel_replay, make_replay_request
from riverrun.streams.generations import Generation, checkpoint_path, read_generations
from riverrun.streams.pipeline import Pipeline, build_checked_graph, checkpoints_location, streams_folder
from riverrun.streams.verify.verifier import Verdict, Verifier
from riverrun.testing.pytest_plugin import local_kafka
from support.shell import Shell
from support.streaming import SETTINGS, make_pipeline, run_streams

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(600)]

PIPELINE = """
from datetime import datetime
import riverrun as rr
from pyspark.sql import functions as F

app = rr.App("town")

class Reading(rr.Event):
    house_id: str = rr.key()
    number: int
    at: datetime = rr.event_time(late="5 seconds")

readings = app.topic("readings", Reading, partitions=2)

@app.stream
def kept(readings):
    return readings.where("number % 10 > 0").withColumn("version", F.lit(1))

@app.stream(emit="final")
def minutes(readings):
    return readings.groupBy(F.window("at", "1 minute").alias("minute")).agg(F.count("*").alias("n"))
"""
HISTORY, BACK = 4000, timedelta(hours=2)
MOST_SECONDS = 240.0


def wait_for(condition: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + MOST_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"waited {MOST_SECONDS:g} s for {what}"
        time.sleep(0.1)


@dataclass
class Town:
    """A cluster, a pipeline file, and records that are numbered from 0."""

    root: Path
    connection: Connection
    spark: SparkSession
    sent: int = 0
    begin: datetime = field(default_factory=lambda: datetime.now(UTC) - BACK)

    @property
    def app(self) -> App:
        return load_app(self.root / "app.py")

    @property
    def admin(self) -> Admin:
        return Admin(self.connection)

    def folder(self, stream: str) -> Path:
        return streams_folder(Project(self.root), self.app) / stream

    def send_history(self) -> None:
        """Two hours, as Kafka's record time and the events themselves say."""
        producer = self._producer()
        for _ in range(HISTORY):
            at = self.begin + BACK * self.sent / HISTORY
            self._send(producer, at, timestamp=round(at.timestamp() * 1000))
        producer.flush()

    def _producer(self) -> Producer:
        # Without idempotence a batch that is sent again may come after the next one.
        return Producer(self.connection.properties({"linger.ms": 5, "enable.idempotence": True}))

    def send(self, count: int) -> None:
        """Ten minutes more."""
        producer = self._producer()
        for number in range(count):
            self._send(producer, self.begin + BACK + timedelta(minutes=10) * number / count)
        producer.flush()

    def _send(self, producer: Producer, at: datetime, timestamp: int | None = None) -> None:
        house = f"h{self.sent % 7}"
        value = {"house_id": house, "number": self.sent, "at": at.isoformat()}
        when = timestamp if timestamp is not None else round(time.time() * 1000)
        producer.produce("readings", json.dumps(value), house, timestamp=when)
        self.sent += 1

    @contextmanager
    def flow(self) -> Iterator[None]:
        """Records all along; their event time runs thirty times as fast as the clock, so that windows end."""
        stop = threading.Event()

        def feed() -> None:
            producer = self._producer()
            first = self.sent
            while not stop.wait(0.02):
                self._send(producer, self.begin + BACK + timedelta(seconds=(self.sent - first) * 0.6))
                producer.poll(0)
            producer.flush()

        thread = threading.Thread(target=feed)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def wish(self, stream: str, asked: str) -> ReplayRequest:
        return make_replay_request(self.app, SETTINGS, Project(self.root), stream, asked)

    def replay(
        self, stream: str, asked: str, stop: threading.Event | None = None, settings: Settings = SETTINGS
    ) -> Generation | None:
        wish, project = self.wish(stream, asked), Project(self.root)
        with wish.replay.lock():
            graph = build_checked_graph(wish.app)
            work = Replay(wish, graph, self.spark, self.connection, settings=settings, project=project)
            work.prepare()
            return work.run(stop or threading.Event())

    def verify(self, stream: str) -> Verdict:
        done = compile_app(
            build_checked_graph(self.app), self.spark, KafkaRecordSource(self.spark, self.connection)
        ).require()
        checkpoint = checkpoint_path(checkpoints_location(SETTINGS, Project(self.root), self.app), self.folder(stream))
        earlier = [read_generation.topic for read_generation in read_generations(self.folder(stream))[-1:]]
        verifier = Verifier(done, self.connection, self.admin)
        return verifier.verify(stream, read_checkpoint_status(Path(checkpoint), stream), earlier=earlier)

    def rows(self, topic: str) -> list[tuple[TopicPartition, int, dict[str, Any]]]:
        """All committed rows of a topic, in the order of each partition."""
        consumer = Consumer(
            self.connection.properties({
                "group.id": "rows", "auto.offset.reset": "earliest", "enable.partition.eof": True,
                "isolation.level": "read_committed", "enable.auto.commit": False,
            })
        )  # fmt: skip
        found, ended = [], 0
        parts = len(self.admin.topic(topic).partitions)
        consumer.subscribe([topic])
        while ended < parts:
            message = consumer.poll(10)
            assert message is not None
            if message.error():
                ended += 1
                continue
            place = TopicPartition(topic, message.partition() or 0)
            found.append((place, message.offset() or 0, json.loads(message.value() or b"")))
        consumer.close()
        return found


class Live:
    """`riverrun run` in a thread, with the lock and the state file that tell others of it."""

    def __init__(self, town: Town) -> None:
        self.notices: list[str] = []
        self.last: PipelineProgress | None = None
        self.stop = threading.Event()
        self.error: BaseException | None = None
        self.pipeline: Pipeline = make_pipeline(
            town.spark, town.app, town.connection, town.root, every="0 s", notice=self.notices.append
        )
        self._state = StreamState(Project(town.root), "app.py")
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def _run(self) -> None:
        try:
            with self._state as state:
                self.pipeline.progress.pid = os.getpid()

                def changed(progress: PipelineProgress) -> None:
                    self.last = progress
                    state.write(progress)

                self.pipeline.run(self.stop, changed)
        except BaseException as error:  # noqa: BLE001  -- raised where it is waited for
            self.error = error

    def wait_until_read(self, town: Town) -> None:
        def done() -> bool:
            streams = self.last.streams if self.last else []
            return bool(streams) and all(stream.phase == "running" and stream.lag == 0 for stream in streams) and all(
                stream.caught_up for stream in self.pipeline.streams
            )  # fmt: skip

        wait_for(done, f"all {town.sent} records to be read")

    def wait_until_over(self) -> None:
        self._thread.join(MOST_SECONDS)
        assert not self._thread.is_alive()

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        self._thread.join()
        if self.error is not None:
            raise self.error


class Reader:
    """A plain consumer of a topic that knows nothing of generations."""

    def __init__(self, town: Town, topic: str, seen: list[dict[str, Any]] | None = None) -> None:
        self.seen = seen if seen is not None else []
        self._stop = threading.Event()
        self._consumer = Consumer(
            town.connection.properties({
                "group.id": f"plain-{topic}", "auto.offset.reset": "earliest", "isolation.level": "read_committed",
            })
        )  # fmt: skip
        self._consumer.subscribe([topic])
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._stop.is_set():
            message = self._consumer.poll(0.2)
            if message is not None and message.error() is None:
                self.seen.append(json.loads(message.value() or b""))
        self._consumer.close()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


@pytest.fixture
def town(spark: SparkSession, tmp_path: Path) -> Iterator[Town]:
    (tmp_path / "app.py").write_text(PIPELINE)
    with local_kafka(tmp_path / "kafka", KafkaSettings()) as kafka:
        connection = Connection(KafkaSettings(bootstrap_servers=kafka.bootstrap_servers))
        found = Town(tmp_path, connection, spark)
        found.app.apply(connection)
        yield found


def check_kept(town: Town, made: Generation, seen: list[dict[str, Any]]) -> None:
    """Every record once in the stream's topic, the old code's before the cut, the new code's after it; all that the new
    code made of the records since the beginning of the replay is in the two topics."""
    rows = town.rows("kept")
    wanted = {n: 1 for n in range(town.sent) if n % 10}
    assert Counter(row["number"] for _, _, row in rows) == wanted
    assert Counter(row["number"] for row in seen) == wanted
    for place, offset, row in rows:
        assert row["version"] == (2 if offset >= made.first[place.partition] else 1)
    by_house = defaultdict(list)
    for _, _, row in rows:
        by_house[row["house_id"]].append(row["number"])
    assert all(numbers == sorted(numbers) for numbers in by_house.values())
    side = [row for _, _, row in town.rows(made.topic)]
    assert len(side) == made.rows > 0
    assert {row["version"] for row in side} == {2}
    new = Counter(row["number"] for row in side) + Counter(row["number"] for _, _, row in rows if row["version"] == 2)
    oldest = min(new)
    assert new == {n: 1 for n in range(oldest, town.sent) if n % 10}
    assert HISTORY / 2 <= oldest <= HISTORY / 2 + 1


def test_an_hour_is_replayed_while_data_flows(town: Town) -> None:
    town.send_history()
    with town.flow(), Reader(town, "kept") as reader, Live(town) as live:
        wait_for(lambda: live.last and all(stream.batch >= 0 for stream in live.last.streams), "the streams to run")
        minutes = town.replay("minutes", "1 hour ago")
        assert minutes is not None
        assert abs(minutes.since_ms / 1000 - (time.time() - 3600)) < MOST_SECONDS
        wait_for(
            lambda: live.last and all(stream.phase == "running" for stream in live.last.streams), "the next generation"
        )
        # With another stream that could not go on, the pipeline would end at the swap.
        both = PIPELINE.replace("F.lit(1)", "F.lit(2)").replace('"1 minute")', '"2 minutes")')
        (town.root / "app.py").write_text(both)
        with pytest.raises(StreamChangedError, match="minutes cannot go on with it"):
            town.replay("kept", "1 hour ago")
        # The pipeline file is changed, and the running one knows nothing of it.
        (town.root / "app.py").write_text(PIPELINE.replace("F.lit(1)", "F.lit(2)"))
        kept = town.replay("kept", (town.begin + BACK / 2).isoformat())
        assert kept is not None
        live.wait_until_over()
        assert live.pipeline.outdated
    with Reader(town, "kept", reader.seen) as reader, Live(town) as again:
        again.wait_until_read(town)
        wait_for(lambda: len(reader.seen) >= sum(n % 10 > 0 for n in range(town.sent)), "the reader")
    check_kept(town, kept, reader.seen)
    # A window that is final is sent once, by one of the two generations, and none is left out.
    starts = [row["minute"]["start"] for _, _, row in town.rows("minutes")]
    assert len(set(starts)) == len(starts) > 100
    times = sorted(datetime.fromisoformat(start) for start in starts)
    assert {after - before for before, after in pairwise(times)} == {timedelta(minutes=1)}
    for name in ("kept", "minutes"):
        verdict = town.verify(name)
        assert verdict.state == "equal", verdict
        assert verdict.generation == read_generations(town.folder(name))[-1].query


# Runs the command line and kills it where a test says.
KILLED = """
import os, signal, sys
from riverrun.streams.{module} import {owner} as owner
real = owner.{name}
def die(*arguments, **named):
    if {after}:
        real(*arguments, **named)
    os.kill(os.getpid(), signal.SIGKILL)
owner.{name} = die
from riverrun.cli.main import run
sys.exit(run(sys.argv[1:]))
"""


def killed(town: Town, arguments: list[str], **where: Any) -> None:
    environ = {**Shell(town.root, town.connection.bootstrap_servers).environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", KILLED.format(**where), *arguments],
        cwd=town.root, env=environ, capture_output=True, timeout=MOST_SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()


def test_a_column_that_is_new_is_in_the_catalog_with_the_generation_that_has_it(town: Town) -> None:
    """No pipeline has run with the new code yet, and a store that starts now reads the new rows once."""
    town.send_history()
    run_streams(town.spark, town.app, town.connection, town.root, only=["kept"])
    (town.root / "app.py").write_text(
        PIPELINE.replace("F.lit(1)", "F.lit(2)).withColumn('tens', F.expr('number / 10')")
    )
    made = town.replay("kept", "")
    assert made is not None
    with Catalog(town.connection, "town") as catalog:
        table = catalog.refresh()["kept"]
    assert table.generations == (made.as_table_generation(),)
    assert table.column("tens") is not None


def test_a_replay_that_is_killed_goes_on(town: Town) -> None:
    """Nobody runs the stream meanwhile, and its topic goes on getting records that only the next generation reads."""
    run = partial(run_streams, town.spark, town.app, town.connection, town.root, only=["minutes"])
    town.send_history()
    run()
    before = len(town.rows("minutes"))
    town.send(500)
    command = ["replay", "app.py", "minutes", "--from", "0"]
    # When rows are written, and Spark does not know that they are.
    killed(town, command, module="run.sink", owner="ExactlyOnceSink", name="write", after=True)
    assert town.wish("minutes", "").state["planned"]
    with pytest.raises(UsageError, match="from 0 is not finished"):
        town.replay("minutes", "1")
    # When the swap is decided, and nothing of it is done.
    killed(town, command, module="evolve.replay", owner="Replay", name="_finish", after=False)
    assert read_generations(town.folder("minutes")) == []
    assert len(town.rows("minutes")) == before
    run()
    (made,) = read_generations(town.folder("minutes"))
    # The store is told, and that all of its rows are replaced.
    with Catalog(town.connection, "town") as catalog:
        assert catalog.refresh()["minutes"].generations == (made.as_table_generation(),)
    assert made.since_ms == 0
    assert town.verify("minutes").state == "equal"
    old, new = ([row["minute"]["start"] for _, _, row in town.rows(each)] for each in ("minutes", made.topic))
    assert len(old) == len(set(old)) > before
    # The same records by the same code: the corrected history is the old one.
    assert sorted(new) == sorted(old)[:before]
    assert not town.wish("minutes", "").replay.swap.exists()
    assert not town.admin.topics([f"town.minutes.replay{each}" for each in (".marks", "")], config=False)
    assert "town.minutes.replay" not in town.admin.group_names()
    check_mistakes(town)


def check_mistakes(town: Town) -> None:
    """Each in one message, and the stream as it was."""

    def refused(kind: type[RiverrunError], text: str, stream: str, asked: str) -> None:
        with pytest.raises(kind, match=text):
            town.replay(stream, asked)
        assert not town.wish("minutes", "").state

    stood = read_generations(town.folder("minutes"))
    refused(UsageError, "Did you mean minutes", "minuts", "")
    refused(UsageError, "--from cannot be understood", "minutes", "the day before")
    refused(UsageError, "no record from latest on", "minutes", "latest")
    with pytest.raises(UsageError, match="has not finished a batch yet"):
        town.wish("kept", "").check()
    with pytest.raises(UsageError, match="no replay of minutes to cancel"):
        cancel_replay(town.wish("minutes", ""), town.admin)
    town.admin.create_topic("minutes.3", partitions=1, replicas=1, config={})
    refused(TopicExistsError, "riverrun topics delete minutes.3", "minutes", "")
    town.admin.delete_topics(["minutes.3"])
    with pytest.raises(UsageError, match="runs batch, and cannot be replayed"):
        town.replay("minutes", "", settings=replace(SETTINGS, streams=StreamSettings(speed="batch")))
    # It is stopped before it has done anything, and removed.
    stop = threading.Event()
    stop.set()
    assert town.replay("minutes", "", stop) is None
    assert town.admin.topics(["minutes.3"])
    with town.wish("minutes", "").replay.lock(), pytest.raises(AlreadyRunningError, match="under way"):
        town.replay("minutes", "")
    assert cancel_replay(town.wish("minutes", ""), town.admin) == "minutes.3"
    assert not town.admin.topics(["minutes.3"])
    town.admin.delete_records({TopicPartition("readings", 0): 10})
    refused(OffsetOutOfRangeError, "--from beginning", "minutes", "5")
    assert read_generations(town.folder("minutes")) == stood
