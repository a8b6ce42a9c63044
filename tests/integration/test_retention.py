"""Retention: a topic drops old segments, read or not; a reader who fell behind is told how many records are gone."""

import time
from collections.abc import Callable

import pytest

import riverrun as rr
from riverrun.errors import OffsetOutOfRangeError
from riverrun.kafka.admin.admin import Admin
from riverrun.model.cluster_state import TopicPartition
from riverrun.testing.pytest_plugin import KafkaUnderTest

SHORT = {
    "retention.ms": "1000",
    "segment.ms": "500",
    # The smallest there is; ten thousand records of a hundred bytes fill several.
    "segment.bytes": str(1024 * 1024),
    "file.delete.delay.ms": "100",
}
COUNT = 50_000


def wait_until_dropped(admin: Admin, place: TopicPartition) -> int:
    """Until retention has removed records from the partition (the broker looks every ten seconds); how many."""
    deadline = time.monotonic() + 60
    while (first := admin.offsets([place], "earliest")[place]) < COUNT // 2:
        assert time.monotonic() < deadline, f"only {first} records were dropped"
        time.sleep(0.2)
    return first


@pytest.mark.slow
def test_a_reader_who_fell_behind_is_told_and_goes_on_or_stops(
    kafka: KafkaUnderTest, kafka_topic: Callable[..., str]
) -> None:
    topic = kafka_topic(config=SHORT)
    place, group = TopicPartition(topic, 0), f"slow-{topic}"
    admin = Admin(kafka.connection)
    with rr.Producer(kafka.connection, compression="none") as producer:
        producer.send_all(topic, ({"n": n, "text": "x" * 80} for n in range(COUNT)))
        with rr.Consumer(topic, group=group, connection=kafka.connection, commit="record") as consumer:
            for record in consumer:
                if record.offset == 9:
                    break
        # Only closed segments are dropped: a later record closes the last one.
        time.sleep(0.6)
        producer.send(topic, {"n": COUNT, "text": "the last"})
        read_to = admin.committed_offsets(group)[place]
        first = wait_until_dropped(admin, place)

        with (
            pytest.raises(OffsetOutOfRangeError) as caught,
            rr.Consumer(topic, group=group, connection=kafka.connection, on_gone="stop") as consumer,
        ):
            next(iter(consumer))
        now_first = admin.offsets([place], "earliest")[place]
        gone = caught.value.fields
        assert first - read_to <= gone["count"] <= now_first - read_to
        assert str(gone["count"]) in str(caught.value).replace(",", "")
        assert str(place) in str(caught.value)

        assert admin.committed_offsets(group)[place] == read_to, "what it did not read, it does not commit"
        told: list[OffsetOutOfRangeError] = []
        with rr.Consumer(
            topic, group=group, connection=kafka.connection, on_gone=told.append, follow=False
        ) as consumer:
            producer.send(topic, {"n": COUNT + 1, "text": "one more"})
            rest = [record.offset for record in consumer]
            assert consumer.metrics().gone == told[0].fields["count"]
        assert rest == list(range(rest[0], rest[-1] + 1))
        assert rest[0] == read_to + told[0].fields["count"], "what is gone and what is read are everything"
