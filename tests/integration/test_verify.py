"""`verify` says equal when it is, and finds what a test puts wrong on purpose, each by its name."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as ClientPartition
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from riverrun.app import App, load_app
from riverrun.config import KafkaSettings
from riverrun.kafka.admin.admin import Admin
from riverrun.kafka.connection import Connection
from riverrun.kafka.exactly_once import BATCH_HEADER
from riverrun.kafka.reading.partition_reader import PartitionReader, resolve_offset_ranges
from riverrun.model.cluster_state import TopicPartition
from riverrun.model.positions import EARLIEST
from riverrun.streams.checkpoint import read_checkpoint_status
from riverrun.streams.compile.compiler import compile_app
from riverrun.streams.compile.sources import KafkaRecordSource
from riverrun.streams.pipeline import build_checked_graph
from riverrun.streams.run.progress import read_record_counts
from riverrun.streams.run.row_identity import IDENTITY_HEADER
from riverrun.streams.verify.verifier import Verdict, Verifier, _equal
from riverrun.testing.pytest_plugin import local_kafka
from support.streaming import run_streams

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300)]

PIPELINE = """
import random
from datetime import datetime
import riverrun as rr
from pyspark.sql import functions as F

app = rr.App("city")

class Reading(rr.Event):
    house_id: str = rr.key()
    load_kw: float = rr.field(ge=0)
    at: datetime = rr.event_time(late="1 minute")

readings = app.topic("readings", Reading, partitions=2)

@app.stream
def high(readings):
    return readings.where("load_kw > 2")

@app.stream
def per_house(readings):
    return readings.groupBy(F.window("at", "1 minute").alias("minute"), "house_id").agg(F.avg("load_kw").alias("load_kw"))

@app.stream(emit="final")
def final(readings):
    return readings.groupBy(F.window("at", "1 minute").alias("minute")).agg(F.sum("load_kw").alias("load_kw"))

@app.stream
def busy(per_house):
    return per_house.where("load_kw > 1.9")

@app.stream(emit="final", key="minute")
def minutes(readings):
    sums = readings.groupBy(F.window("at", "1 minute").alias("span")).agg(F.sum("load_kw").alias("load_kw"))
    return sums.select(F.col("span.start").alias("minute"), "load_kw")

@app.stream
def noisy(readings):
    return readings.withColumn("noise", F.rand())
"""
BEGIN = datetime(2026, 3, 1, 18, tzinfo=UTC)


@dataclass
class City:
    """An app that has run over some readings, and its cluster."""

    app: App
    connection: Connection
    root: Path
    spark: SparkSession

    @property
    def admin(self) -> Admin:
        return Admin(self.connection)

    def send(self, count: int, *, start: int = 0) -> None:
        """In transactions, whose markers take offsets and are no records."""
        producer = Producer(self.connection.properties({"transactional.id": "city"}))
        producer.init_transactions(30)
        for begin in range(start, start + count, 100):
            producer.begin_transaction()
            for number in range(begin, min(begin + 100, start + count)):
                at = (BEGIN + timedelta(seconds=number // 3)).isoformat()
                reading = {"house_id": f"h{number % 7}", "load_kw": number % 40 / 10, "at": at}
                producer.produce("readings", json.dumps(reading), f"h{number % 7}")
            producer.commit_transaction(30)

    def run(self) -> None:
        run_streams(self.spark, self.app, self.connection, self.root, speed="near-real-time")

    def verify(self, name: str, late: int | None = None) -> Verdict:
        done = compile_app(
            build_checked_graph(self.app), self.spark, KafkaRecordSource(self.spark, self.connection)
        ).require()
        checkpoint = self.root / ".riverrun" / "streams" / self.app.name / "checkpoints" / name
        account, _ = read_record_counts(checkpoint.parent.parent / name / "record_counts.json")
        verifier = Verifier(done, self.connection, self.admin)
        return verifier.verify(
            name, read_checkpoint_status(checkpoint, name), late=account.late if late is None else late
        )

    def records_in(self, topic: str) -> int:
        """Counted one by one."""
        with PartitionReader(self.connection, resolve_offset_ranges(self.admin, [topic], start=EARLIEST)) as reader:
            return sum(len(batch) for batch in reader)


@pytest.fixture(scope="module")
def city(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[City]:
    root = tmp_path_factory.mktemp("verify")
    (root / "app.py").write_text(PIPELINE)
    with local_kafka(root / "kafka", KafkaSettings()) as kafka:
        connection = Connection(KafkaSettings(bootstrap_servers=kafka.bootstrap_servers))
        found = City(load_app(root / "app.py"), connection, root, spark)
        found.app.apply(connection)
        found.send(3000)
        found.run()
        found.send(2000, start=3000)
        found.run()
        yield found


def offsets_in(city: City, topic: str) -> int:
    return sum(city.admin.offsets(city.admin.topic(topic).topic_partitions, "latest").values())


def record(city: City, topic: str) -> tuple[int, int, bytes, bytes, Any]:
    """The last record of a topic that a stream wrote."""
    consumer = Consumer(city.connection.properties({"group.id": "x", "enable.partition.eof": True}))
    last = None
    try:
        for part in range(len(city.admin.topic(topic).partitions)):
            consumer.assign([ClientPartition(topic, part, 0)])
            while (message := consumer.poll(10)) is not None and message.error() is None:
                last = message
    finally:
        consumer.close()
    assert last is not None
    partition, offset, key, value = last.partition(), last.offset(), last.key(), last.value()
    assert partition is not None
    assert offset is not None
    assert key is not None
    assert value is not None
    return partition, offset, key, value, last.headers()


@pytest.mark.parametrize("name", ["high", "per_house", "final", "busy"])
def test_what_is_right_is_equal(city: City, name: str) -> None:
    verdict = city.verify(name)
    assert (verdict.state, verdict.late, verdict.wrong, verdict.shown) == ("equal", 0, {}, [])
    # Both inputs were written by transactions: what is called records are records, not offsets.
    source = "per_house" if name == "busy" else "readings"
    assert verdict.records == city.records_in(source) < offsets_in(city, source)
    assert verdict.equal == verdict.rows > 0


def test_rows_of_windows_that_are_open_are_not_called_missing_where_they_cannot_be_told(city: City) -> None:
    verdict = city.verify("minutes")
    assert verdict.state == "unproved"
    assert "may be of windows that are still open" in verdict.unproved


@pytest.mark.parametrize(
    ("left", "right", "same"),
    [
        ("array(0.1D + 0.2D, 1D)", "array(0.3D, 1D)", True),
        ("array(0.3D)", "array(0.3D, 1D)", False),
        ("array(0.3D)", "array(0.4D)", False),
        ("array(null, 1D)", "array(null, 1D)", True),
        ("array(null, 1D)", "array(2D, 1D)", False),
        ("cast(null as array<double>)", "cast(null as array<double>)", True),
        ("cast(null as array<double>)", "array(1D)", False),
    ],
)
def test_lists_are_equal_within_a_billionth_too(spark: SparkSession, left: str, right: str, same: bool) -> None:
    rows = spark.range(1).select(F.expr(left).alias("l"), F.expr(right).alias("r"))
    (found,) = rows.select(_equal(F.col("l"), F.col("r"), rows.schema["l"].dataType).alias("same")).collect()
    assert found["same"] is same


def test_code_that_is_not_deterministic_is_named(city: City) -> None:
    verdict = city.verify("noisy")
    assert verdict.state == "differs"
    assert "not deterministic" in verdict.causes[0]


def test_a_row_that_somebody_corrupts_is_found(city: City) -> None:
    topic = "per_house"
    partition, _, key, value, headers = record(city, topic)
    row = json.loads(value) | {"load_kw": 99.0}
    producer = Producer(city.connection.properties())
    producer.produce(topic, json.dumps(row), key, partition=partition, headers=headers)
    producer.flush()
    verdict = city.verify("per_house")
    assert verdict.wrong == {"differs": 1}
    (shown,) = verdict.shown
    assert (shown.key, json.loads(shown.found)["load_kw"]) == (key.decode(), 99.0)
    assert json.loads(shown.expected)["load_kw"] == json.loads(value)["load_kw"]
    assert shown.partition == partition
    assert any("somebody else" in cause for cause in verdict.causes)
    assert dict(headers)[BATCH_HEADER].decode().startswith(verdict.generation)


def test_a_row_that_is_twice_is_found(city: City) -> None:
    topic = "high"
    partition, _, key, value, headers = record(city, topic)
    producer = Producer(city.connection.properties())
    producer.produce(topic, value, key, partition=partition, headers=headers)
    producer.flush()
    verdict = city.verify("high")
    assert verdict.wrong == {"twice": 1}
    assert verdict.shown[0].key == key.decode()


def test_rows_that_somebody_removes_are_found(city: City) -> None:
    topic = "final"
    before = city.verify("final").rows
    city.admin.delete_records({TopicPartition(topic, 0): 3})
    verdict = city.verify("final")
    assert set(verdict.wrong) == {"missing"}
    assert verdict.rows == before
    assert verdict.equal == before - verdict.wrong["missing"]
    assert all(each.found == "" and each.expected for each in verdict.shown)
    assert any("are gone" in cause for cause in verdict.causes)


def test_rows_that_were_sent_in_real_time_prove_nothing(city: City) -> None:
    producer = Producer(city.connection.properties())
    producer.produce("final", b"{}", b"k", headers=[(IDENTITY_HEADER, b"1")])
    producer.flush()
    verdict = city.verify("final")
    assert verdict.state == "unproved"
    assert "sent in real time" in verdict.unproved


def test_rows_that_lack_late_records_are_explained_by_them(city: City) -> None:
    city.send(4)  # of windows that are long over
    city.run()
    verdict = city.verify("per_house")
    # The other one is the row that was corrupted above.
    assert (verdict.late, verdict.wrong) == (4, {"differs": 1})
    assert verdict.equal + 5 == verdict.rows
    # As if one had not been counted: then something else is wrong.
    verdict = city.verify("per_house", late=3)
    assert (verdict.state, verdict.late, verdict.wrong) == ("differs", 0, {"differs": 5})
    assert "dropped 3 late rows" in verdict.causes[0]


def test_input_that_is_gone_is_said(city: City) -> None:
    city.admin.delete_records({TopicPartition("readings", 0): 10})
    verdict = city.verify("high")
    assert verdict.state == "unproved"
    assert "10 of the records" in verdict.unproved
