"""Topics that are fed in bursts, as devices and people feed them: Spark's tasks read what came and do not wait for more.

Benches feed steadily, where a fetch always finds the next record. Between bursts the broker holds a fetch back, and Spark
asks for offsets behind it: most of every batch was that wait, and no test and no bench had a feed with pauses.
"""

import itertools
import json
import secrets
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import riverrun as rr
from riverrun.kafka.admin.admin import Admin
from riverrun.streams.compile.sources import KafkaRecordSource
from riverrun.testing.pytest_plugin import KafkaUnderTest

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300)]

# What Kafka's clients wait for by default, and a pause that is longer: every record is a batch, and the last for a while.
KAFKAS_WAIT_MS, PAUSE_SECONDS = 500, 1.0
BATCHES, DEADLINE_SECONDS = 10, 200


@contextmanager
def fed_in_bursts(kafka: KafkaUnderTest, topic: str) -> Iterator[None]:
    """A record, then a pause, again and again."""
    stop = threading.Event()

    def feed() -> None:
        with rr.Producer(connection=kafka.connection) as producer:
            for burst in itertools.count():
                producer.send(topic, {"burst": burst})
                if stop.wait(PAUSE_SECONDS):
                    return

    feeder = threading.Thread(target=feed, daemon=True)
    feeder.start()
    try:
        yield
    finally:
        stop.set()
        feeder.join()


def batches(query: StreamingQuery) -> list[int]:
    """The milliseconds of the jobs of each batch that read something."""
    reports = [json.loads(report.json) for report in query.recentProgress]
    return [report["durationMs"]["addBatch"] for report in reports if report["numInputRows"]]


def test_a_batch_does_not_wait_for_records_that_have_not_come(
    kafka: KafkaUnderTest, spark: SparkSession, tmp_path: Path
) -> None:
    """Our source beside the same one with the wait of Kafka's clients, at the same time, on the same topic."""
    topic = f"bursts-{secrets.token_hex(4)}"
    Admin(kafka.connection).create_topic(topic, partitions=1, replicas=1, config={})

    def start(name: str, options: Mapping[str, str]) -> StreamingQuery:
        rows = KafkaRecordSource(spark, kafka.connection, options=options).read_stream(topic)
        writer = rows.writeStream.format("noop").trigger(processingTime="0 seconds")
        return writer.option("checkpointLocation", str(tmp_path / name)).start()

    ours = start("ours", {})
    kafkas = start("kafkas", {"kafka.fetch.max.wait.ms": str(KAFKAS_WAIT_MS)})
    ends = time.monotonic() + DEADLINE_SECONDS
    try:
        with fed_in_bursts(kafka, topic):
            while min(len(batches(query)) for query in (ours, kafkas)) < BATCHES:
                assert time.monotonic() < ends, "too few batches to say anything"
                time.sleep(0.2)
        quickest, held_up = min(batches(ours)), min(batches(kafkas))
    finally:
        for query in (ours, kafkas):
            query.stop()
    # A busy machine makes both slow, and the quickest of ten is still without the wait.
    assert quickest < held_up - KAFKAS_WAIT_MS / 2, f"ours {batches(ours)} ms, with Kafka's wait {batches(kafkas)} ms"
