"""A batch that fails when its rows are written already is computed again, and its rows are there once."""

import json
import secrets
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import riverrun as rr
from riverrun.kafka.connection import Connection
from riverrun.kafka.producer.producer import Producer
from riverrun.model.pipeline import Speed
from riverrun.streams.books import Books
from riverrun.streams.sink import ExactSink
from riverrun.testing import KafkaUnderTest
from support.streaming import run_streams

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
        ("near-real-time", ExactSink, "_write", True),
        # As on a cluster: Spark's workers write.
        ("near-real-time", ExactSink, "_write", False),
        ("batch", ExactSink, "_write", True),
        ("batch", Books, "whole", True),
    ],
)
def test_rows_are_there_once(
    spark: SparkSession, kafka: KafkaUnderTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    speed: Speed, owner: type, name: str, local: bool,
) -> None:  # fmt: skip
    monkeypatch.setattr("riverrun.streams.running.is_local", lambda _: local)
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
    assert streams["kept"].account.out == RECORDS * 4 // 5
    assert not list(tmp_path.rglob("batch-run.json"))
