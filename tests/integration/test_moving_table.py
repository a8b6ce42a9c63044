"""A table that is made of a topic: a row that changes there changes the join from then on, at every speed."""

import secrets
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import riverrun as rr
from riverrun.model.pipeline import Speed
from riverrun.streams.run.planner import MOVING_TABLE_BATCH_MS
from riverrun.testing.pytest_plugin import KafkaUnderTest
from support.cluster import wait_for
from support.streaming import make_pipeline, newest

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(600)]
WAIT_SECONDS = 240.0


class Reading(rr.Event):
    house_id: str = rr.key()
    number: int


class Owner(rr.Event):
    house_id: str = rr.key()
    owner: str


@pytest.mark.parametrize("speed", ["near-real-time", "real-time"])
def test_a_row_that_changes_changes_the_join(
    speed: Speed, spark: SparkSession, kafka: KafkaUnderTest, tmp_path: Path
) -> None:
    name = f"moving_{secrets.token_hex(4)}"
    app = rr.App(name)
    app.topic(f"{name}_readings", Reading)
    owners = app.topic(f"{name}_owners", Owner, compact=True)
    app.table("owners", owners)
    query = f"select number, house_id, owner from {name}_readings join owners using (house_id)"  # noqa: S608
    app.sql(f"{name}_owned", query, key="number")
    told: list[str] = []
    pipeline = make_pipeline(spark, app, kafka.connection, tmp_path, speed=speed, every="0 s", notice=told.append)
    plan = pipeline.plan.for_stream(f"{name}_owned")
    assert plan.speed == speed
    if speed == "real-time":
        assert plan.every_ms == MOVING_TABLE_BATCH_MS
        assert "a change of owners counts after at most 5 s" in plan.notes[-1]
    stop = threading.Event()
    running = threading.Thread(target=pipeline.run, args=(stop,), daemon=True)
    with rr.Producer(connection=kafka.connection) as producer:
        producer.send(owners, Owner(house_id="a", owner="Ada"))
        producer.send(owners, Owner(house_id="b", owner="Bo"))
        running.start()
        number = [0]

        def last(house: str) -> dict[str, Any]:
            """Somebody reads the meters, and this is the last row of a house."""
            for each in ("a", "b"):
                number[0] += 1
                producer.send(f"{name}_readings", Reading(house_id=each, number=number[0]))
            rows = newest(kafka.connection, f"{name}_owned", ["number"]).values()
            mine = [row for row in rows if row["house_id"] == house]
            return max(mine, key=lambda each: each["number"], default={"owner": "", "number": 0})

        try:
            wait_for(lambda: last("a")["owner"] == "Ada", WAIT_SECONDS, "nothing was joined")
            producer.send(owners, Owner(house_id="a", owner="Zoe"))
            began = time.monotonic()
            wait_for(lambda: last("a")["owner"] == "Zoe", WAIT_SECONDS, "the change did not count")
            print(f"{speed}: a change counted after {time.monotonic() - began:.1f} s")
            producer.send(f"{name}_owners", None, key=b"b")
            before = [-1]

            def gone() -> bool:
                of_b, of_a = last("b")["number"], last("a")["number"]
                same, before[0] = of_b == before[0], of_b
                return bool(same and of_a > of_b + 10)

            wait_for(gone, WAIT_SECONDS, "a deleted row still joins")
        finally:
            stop.set()
            running.join(60)
    assert not running.is_alive()
