"""A device whose clock is years ahead makes everybody else's records late: nothing is counted any more, and that is said."""

import secrets
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import riverrun as rr
from riverrun.app import load_app
from riverrun.kafka.admin.admin import Admin
from riverrun.testing import KafkaUnderTest
from support.streaming import run_streams

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300)]

PIPELINE = """
from datetime import datetime
from pyspark.sql import functions as F
import riverrun as rr

app = rr.App("clock_X")

class Scan(rr.Event):
    depot: str = rr.key()
    at: datetime = rr.event_time(late="1 minute")

app.topic("scans_X", Scan)

@app.stream
def load_X(scans_X):
    return scans_X.groupBy(F.window("at", "1 minute").alias("minute"), "depot").agg(F.count("*").alias("scans"))
"""


def test_a_batch_that_is_late_as_a_whole_is_said(kafka: KafkaUnderTest, spark: SparkSession, tmp_path: Path) -> None:
    mark = f"_{secrets.token_hex(3)}"
    file = tmp_path / "app.py"
    file.write_text(PIPELINE.replace("_X", mark))
    load_app(file).apply(kafka.connection)

    def run(*times: datetime) -> list[str]:
        said: list[str] = []
        with rr.Producer(kafka.connection) as producer:
            for at in times:
                producer.send(f"scans{mark}", {"depot": "DUB1", "at": at.isoformat()})
        run_streams(spark, file, kafka.connection, tmp_path, speed="near-real-time", notice=said.append)
        return said

    now = datetime(2026, 11, 18, 6, 40, tzinfo=UTC)
    assert run(now, datetime(2036, 1, 1, tzinfo=UTC)) == []
    (said,) = run(now, now.replace(minute=41))
    assert said.startswith(f"load{mark} takes nothing: all records of its last batch were too late")
    assert "the watermark is 2035-12-31T23:59:00.000Z" in said
    Admin(kafka.connection).delete_topics([f"scans{mark}", f"load{mark}"])
