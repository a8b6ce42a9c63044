"""A batch that fails when its rows are written already is computed again, and its rows are there once."""

import json
import secrets
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import riverrun as rr
from riverrun.errors import BatchChangedError, CheckpointError, StreamCodeError, StreamFailedError
from riverrun.kafka.admin.admin import Admin
from riverrun.kafka.commit_markers import OutputTopic, last_committed_marker, max_tasks
from riverrun.kafka.connection import Connection
from riverrun.kafka.exactly_once import abort_open_transactions
from riverrun.kafka.producer.producer import Producer
from riverrun.model.pipeline import Speed
from riverrun.streams.run.progress import ProgressTracker
from riverrun.streams.run.sink import ExactlyOnceSink
from riverrun.testing import KafkaUnderTest
from support.part_failures import PARTITIONS, Rounds
from support.streaming import make_pipeline, run_streams

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300)]

RECORDS = 500


class Reading(rr.Event):
    house_id: str = rr.key()
    number: int


class Broken:
    """What it stands before fails once, after its work is done."""

    def __init__(self, work: Any) -> None:
        self.work = work
        self.calls = 0

    def __call__(self, *arguments: Any) -> None:
        self.work(*arguments)
        self.calls += 1
        if self.calls == 1:
            raise ConnectionError("the disk of the books is gone")


def written(connection: Connection, topic: str) -> Counter[int]:
    with rr.Consumer(topic, connection=connection, follow=False) as consumer:
        return Counter(json.loads(record.raw or b"")["number"] for record in consumer)


@pytest.mark.parametrize(
    ("speed", "owner", "name", "local"),
    [
        ("near-real-time", ExactlyOnceSink, "_write", True),
        # As on a cluster: Spark's workers write.
        ("near-real-time", ExactlyOnceSink, "_write", False),
        ("batch", ExactlyOnceSink, "_write", True),
        ("batch", ProgressTracker, "record_full_run", True),
    ],
)
def test_rows_are_there_once(
    spark: SparkSession, kafka: KafkaUnderTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    speed: Speed, owner: type, name: str, local: bool,
) -> None:  # fmt: skip
    monkeypatch.setattr("riverrun.streams.run.running_stream.is_local", lambda _: local)
    mark = secrets.token_hex(4)
    app = rr.App(f"once_{mark}")
    readings = app.topic(f"readings_{mark}", Reading, partitions=3)
    app.sql("kept", f"SELECT * FROM readings_{mark} WHERE number % 5 > 0", topic=f"kept_{mark}")  # noqa: S608
    app.apply(kafka.connection)
    with Producer(kafka.connection) as producer:
        for number in range(RECORDS):
            producer.send_soon(readings, Reading(house_id=f"h{number % 20}", number=number))
    broken = Broken(getattr(owner, name))
    # A function, so that it is bound to its object.
    monkeypatch.setattr(owner, name, lambda *arguments: broken(*arguments))  # noqa: PLW0108
    streams = run_streams(spark, app, kafka.connection, tmp_path, speed=speed)
    assert broken.calls >= 2
    assert streams["kept"].restarts == 1
    assert written(kafka.connection, f"kept_{mark}") == {number: 1 for number in range(RECORDS) if number % 5}
    assert streams["kept"].record_counts.out == RECORDS * 4 // 5
    assert not list(tmp_path.rglob("batch-run.json"))


def test_one_part_of_a_batch_fails_and_the_others_do_not(
    spark: SparkSession, kafka: KafkaUnderTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each part in turn, when all others are committed: Spark numbers the parts of the rerun in another order."""
    monkeypatch.setattr("riverrun.streams.run.running_stream.is_local", lambda _: False)
    rounds = Rounds(tmp_path, kafka.connection, name=f"turns_{secrets.token_hex(4)}", seed=1)
    rounds.make_topics()
    for part in (0, PARTITIONS - 1):
        rounds.plan(part, "fail", part)
        with pytest.raises(StreamCodeError, match=f"partition {part} fails"):
            run_streams(spark, rounds.app, kafka.connection, tmp_path)
        run_streams(spark, rounds.app, kafka.connection, tmp_path)
        assert rounds.wrong() == ([], [])


class Numbers:
    """An app with one stream of numbered readings."""

    def __init__(self, connection: Connection, folder: Path, stream: Any) -> None:
        mark = secrets.token_hex(4)
        self.connection, self.folder = connection, folder
        self.app = rr.App(f"numbers_{mark}")
        self.readings = self.app.topic(f"readings_{mark}", Reading, partitions=3)
        self.output = f"kept_{mark}"
        self.target = OutputTopic(
            connection.properties(), self.output, f"{self.app.name}.kept.marks", f"{self.app.name}.kept", ""
        )
        stream(self.app, self.readings.name, self.output)
        self.app.apply(connection)
        self.sent = 0

    def send(self, count: int, topic: str = "") -> None:
        with Producer(self.connection) as producer:
            for number in range(self.sent, self.sent + count):
                producer.send_soon(
                    self.app.topics[topic or self.readings.name], Reading(house_id=f"h{number % 20}", number=number)
                )
        self.sent += count

    def parts(self) -> set[int]:
        """Of how many parts the batches were that the newest marks are of."""
        parts = range(max_tasks(len(Admin(self.connection).topic(self.target.marker_topic).partitions)))
        abort_open_transactions(self.target, parts)
        marks = [last_committed_marker(self.target, part) for part in parts]
        return {mark.batch.tasks for mark in marks if mark is not None}


def all_of_them(app: rr.App, topic: str, output: str) -> None:
    app.sql("kept", f"SELECT * FROM {topic}", topic=output)  # noqa: S608


def cut_off(work: Any) -> Any:
    """A write after which the process ends, as far as Spark can tell: its rows are there, and nothing more happens."""

    def write(*arguments: Any) -> None:
        work(*arguments)
        raise CheckpointError("the power is off")

    return write


def test_a_batch_that_was_cut_off_is_finished_before_a_stream_goes_on_in_real_time(
    spark: SparkSession, kafka: KafkaUnderTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = Numbers(kafka.connection, tmp_path, all_of_them)
    numbers.send(100)
    with monkeypatch.context() as patched:
        patched.setattr(ExactlyOnceSink, "_write", cut_off(ExactlyOnceSink._write))
        with pytest.raises(CheckpointError, match="the power is off"):
            run_streams(spark, numbers.app, kafka.connection, tmp_path)
    stop, notices = threading.Event(), list[str]()
    pipeline = make_pipeline(spark, numbers.app, kafka.connection, tmp_path, speed="real-time", notice=notices.append)
    stream = pipeline.streams[0]

    def stop_in_the_first_batch(_: object) -> None:
        query = stream._query
        if stream.plan.speed == "real-time" and query is not None and query.status["isTriggerActive"]:
            stop.set()

    timer = threading.Timer(120, stop.set)
    timer.start()
    pipeline.run(stop, stop_in_the_first_batch)
    timer.cancel()
    numbers.send(100)
    run_streams(spark, numbers.app, kafka.connection, tmp_path)
    assert written(kafka.connection, numbers.output) == dict.fromkeys(range(200), 1)
    assert any("finishes a batch that was cut off" in notice for notice in notices)


@pytest.mark.parametrize("local", [True, False])
def test_a_stream_that_failed_between_two_batches_goes_on(
    spark: SparkSession, kafka: KafkaUnderTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, local: bool
) -> None:
    """As when Kafka is away while nothing comes in: whoever wrote the batch before is ready for the next one."""
    monkeypatch.setattr("riverrun.streams.run.running_stream.is_local", lambda _: local)
    numbers = Numbers(kafka.connection, tmp_path, all_of_them)
    numbers.send(100)
    notices = list[str]()
    pipeline = make_pipeline(spark, numbers.app, kafka.connection, tmp_path, every="0 s", notice=notices.append)
    stream, stop = pipeline.streams[0], threading.Event()

    def fail_once(_: object) -> None:
        if numbers.sent == 100 and stream.progress.record_counts.out == 100:
            stream.fail(StreamFailedError("No broker said where the topic ends"))
            numbers.send(100)

    timer = threading.Timer(240, stop.set)
    timer.start()
    try:
        pipeline.run(stop, fail_once, until_caught_up=True)
    finally:
        timer.cancel()
    assert not stop.is_set(), notices
    assert (numbers.sent, stream.progress.restarts) == (200, 1), notices
    assert written(kafka.connection, numbers.output) == dict.fromkeys(range(200), 1)


def test_a_batch_that_is_planned_anew_with_other_records_is_refused(
    spark: SparkSession, kafka: KafkaUnderTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = Numbers(kafka.connection, tmp_path, all_of_them)
    numbers.send(100)
    with monkeypatch.context() as patched:
        patched.setattr(ExactlyOnceSink, "_write", cut_off(ExactlyOnceSink._write))
        with pytest.raises(CheckpointError, match="the power is off"):
            run_streams(spark, numbers.app, kafka.connection, tmp_path)
    (planned,) = tmp_path.rglob("offsets/0")
    planned.unlink()
    (planned.parent / ".0.crc").unlink(missing_ok=True)
    numbers.send(100)
    with pytest.raises(BatchChangedError, match="Rows of batch 0"):
        run_streams(spark, numbers.app, kafka.connection, tmp_path)
    assert written(kafka.connection, numbers.output) == dict.fromkeys(range(100), 1)


def merged(app: rr.App, topic: str, output: str) -> None:
    app.topic(f"{topic}_more", Reading, partitions=2)
    app.sql("kept", f"SELECT * FROM {topic} UNION ALL SELECT * FROM {topic}_more", topic=output)  # noqa: S608


def test_a_batch_of_two_topics_is_the_same_when_it_is_computed_again(
    spark: SparkSession, kafka: KafkaUnderTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With new records in one of them, in the other, and in both; the first batch and later ones."""
    numbers = Numbers(kafka.connection, tmp_path, merged)
    first, second = numbers.app.topics
    for local, topics in ((False, [second]), (True, [first]), (False, [first, second])):
        monkeypatch.setattr("riverrun.streams.run.running_stream.is_local", lambda _, local=local: local)
        for topic in topics:
            numbers.send(20, topic)
        with monkeypatch.context() as patched:
            patched.setattr(ExactlyOnceSink, "_write", cut_off(ExactlyOnceSink._write))
            with pytest.raises(CheckpointError, match="the power is off"):
                run_streams(spark, numbers.app, kafka.connection, tmp_path)
        run_streams(spark, numbers.app, kafka.connection, tmp_path)
        assert written(kafka.connection, numbers.output) == dict.fromkeys(range(numbers.sent), 1)


def by_house(app: rr.App, topic: str, output: str) -> None:
    app.sql("kept", f"SELECT /*+ REPARTITION(house_id) */ * FROM {topic}", topic=output)  # noqa: S608


def by_chance(app: rr.App, topic: str, output: str) -> None:
    app.sql("kept", f"SELECT /*+ REPARTITION(3) */ * FROM {topic}", topic=output)  # noqa: S608


@pytest.mark.parametrize(("stream", "parts"), [(by_house, 0), (by_chance, 1)])
def test_parts_are_the_same_each_time(
    spark: SparkSession, kafka: KafkaUnderTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stream: Any, parts: int
) -> None:
    """As many as there are shuffle partitions, whatever Spark measures; one where rows go to parts by where they stood."""
    monkeypatch.setattr("riverrun.streams.run.running_stream.is_local", lambda _: False)
    parts = parts or int(str(spark.conf.get("spark.sql.shuffle.partitions")))
    numbers = Numbers(kafka.connection, tmp_path, stream)
    numbers.send(100)
    run_streams(spark, numbers.app, kafka.connection, tmp_path)
    assert numbers.parts() == {parts}
    assert written(kafka.connection, numbers.output) == dict.fromkeys(range(100), 1)
