"""Rows of real-time streams say which they are: equal rows of two records are two, one that is sent again is the same."""

import secrets
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import riverrun as rr
from riverrun.app import App
from riverrun.kafka.admin.admin import Admin
from riverrun.kafka.connection import Connection
from riverrun.kafka.producer.producer import Producer
from riverrun.model.cluster_state import TopicPartition
from riverrun.testing import KafkaUnderTest
from support.killing import committed
from support.streaming import make_pipeline

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300)]

EQUAL = 3


class Reading(rr.Event):
    house_id: str = rr.key()
    offset: int


def app_of(mark: str) -> tuple[App, dict[str, int]]:
    """An app, and how many rows each of its streams makes of `EQUAL` records in each of its two topics."""
    app = rr.App(f"identity_{mark}")
    first = app.topic(f"first_{mark}", Reading, partitions=1)
    second = app.topic(f"second_{mark}", Reading, partitions=1)
    app.sql("plain", f"SELECT house_id, offset + 1 AS offset FROM {first.name} WHERE offset > 0", topic=f"plain_{mark}")  # noqa: S608
    app.sql("many", f"SELECT house_id, explode(array(7, 7)) AS tag FROM {first.name}", topic=f"many_{mark}")  # noqa: S608
    union = f"SELECT * FROM {first.name} UNION ALL SELECT * FROM {second.name}"  # noqa: S608
    app.sql("merged", union, topic=f"merged_{mark}")
    return app, {f"plain_{mark}": EQUAL, f"many_{mark}": 2 * EQUAL, f"merged_{mark}": 2 * EQUAL}


def app_of_generators(mark: str) -> tuple[App, dict[str, int]]:
    """The same of operators that make several rows of one record, two of which are equal."""
    app = rr.App(f"generators_{mark}")
    first = app.topic(f"first_{mark}", Reading, partitions=1)
    made = {
        "inlined": ("inline(array(struct(7, 'a'), struct(7, 'a'), struct(8, 'a'))) AS (tag, name)", 3),
        "stacked": ("stack(3, 7L, 'a', 7L, 'a', offset, null) AS (tag, name)", 3),
        "short": ("stack(2, 7, 'a', 7) AS (tag, name)", 2),
        "tupled": ("json_tuple('{\"a\": 1}', 'a') AS (tag)", 1),
    }
    for name, (columns, _) in made.items():
        app.sql(name, f"SELECT house_id, {columns} FROM {first.name}", topic=f"{name}_{mark}")  # noqa: S608
    return app, {f"{name}_{mark}": count * EQUAL for name, (_, count) in made.items()}


def run_until(spark: SparkSession, app: App, connection: Connection, root: Path, rows: dict[str, int]) -> None:
    """Run in real time until so many rows are in the topics, and stop in the middle of the batch."""
    stop, late = threading.Event(), threading.Event()
    admin, places = Admin(connection), {name: TopicPartition(name, 0) for name in rows}

    def look(_: object) -> None:
        there = admin.offsets(list(places.values()), "latest")
        if all(there[places[name]] >= count for name, count in rows.items()):
            stop.set()

    notices: list[str] = []
    pipeline = make_pipeline(spark, app, connection, root, speed="real-time", notice=notices.append)
    assert {stream.plan.speed for stream in pipeline.streams} == {"real-time"}

    def give_up() -> None:
        late.set()
        stop.set()

    timer = threading.Timer(120, give_up)
    timer.start()
    pipeline.run(stop, look)
    timer.cancel()
    assert not late.is_set(), f"not all rows came: {admin.offsets(list(places.values()), 'latest')} {notices}"


@pytest.mark.parametrize("make", [app_of, app_of_generators])
def test_equal_rows_of_two_records_are_two_and_a_row_that_is_sent_again_is_one(
    spark: SparkSession, kafka: KafkaUnderTest, tmp_path: Path, make: Callable[[str], tuple[App, dict[str, int]]]
) -> None:
    app, rows = make(secrets.token_hex(4))
    app.apply(kafka.connection)
    with Producer(kafka.connection) as producer:
        for topic in app.topics.values():
            for _ in range(EQUAL):
                producer.send_soon(topic, Reading(house_id="h1", offset=1))
    run_until(spark, app, kafka.connection, tmp_path, rows)
    # Nothing was committed: all rows are sent a second time.
    run_until(spark, app, kafka.connection, tmp_path, {name: 2 * count for name, count in rows.items()})
    for name, count in rows.items():
        found = Counter(row["_id"] for row in committed(kafka.connection, name)[0])
        assert list(found.values()) == [2] * count, (name, found)
