"""Records are counted as records, in topics that are written by transactions and in those that are not."""

import contextlib
import secrets
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from riverrun.config import Project
from riverrun.dashboard.topology.reader import TopicOffsets
from riverrun.kafka.admin.admin import Admin
from riverrun.kafka.producer.producer import Producer
from riverrun.kafka.reading.record_counter import TopicCounter, count_records
from riverrun.testing import KafkaUnderTest
from support.shell import Shell

pytestmark = pytest.mark.kafka

Write = Callable[[str, int], None]


@pytest.fixture(params=["plain", "transactions", "aborted"])
def write(request: pytest.FixtureRequest, kafka: KafkaUnderTest) -> Write:
    """Write so many records: one by one, in transactions of three, or in such with aborted ones between."""

    def send(topic: str, count: int) -> None:
        values: Sequence[bytes] = [b"%d" % number for number in range(count)]
        if request.param == "plain":
            with Producer(kafka.connection) as producer:
                for value in values:
                    producer.send(topic, value)
            return
        with Producer(kafka.connection, transactional_id=f"{topic}.{secrets.token_hex(4)}") as producer:
            for at in range(0, count, 3):
                with producer.transaction() as transaction:
                    for value in values[at : at + 3]:
                        transaction.send(topic, value)
                if request.param == "aborted":
                    with contextlib.suppress(KeyError):
                        _abort(producer, topic)

    return send


def _abort(producer: Producer, topic: str) -> None:
    with producer.transaction() as transaction:
        transaction.send(topic, b"never")
        raise KeyError


def test_records_are_counted_and_not_offsets(
    kafka: KafkaUnderTest, kafka_topic: Callable[..., str], write: Write, request: pytest.FixtureRequest
) -> None:
    topic, admin = kafka_topic(partitions=2), Admin(kafka.connection)
    write(topic, 30)
    places = admin.topic(topic).topic_partitions
    ends = admin.offsets(places, "latest")
    assert sum(count_records(kafka.connection, {place: (0, ends[place]) for place in places}).values()) == 30
    plain = request.node.callspec.params["write"] == "plain"
    assert (sum(ends.values()) == 30) is plain
    assert count_records(kafka.connection, {places[0]: (5, 5)}) == {places[0]: 0}


def test_a_topic_that_is_looked_at_has_its_records_or_about_so_many(
    kafka: KafkaUnderTest, kafka_topic: Callable[..., str], write: Write
) -> None:
    topic, admin = kafka_topic(partitions=1), Admin(kafka.connection)
    write(topic, 60)
    places = admin.topic(topic).topic_partitions
    first, ends = admin.offsets(places, "earliest"), admin.offsets(places, "latest")
    counter = TopicCounter(kafka.connection, seconds=1000)
    found = counter.count(topic, first, ends)
    assert (found.records, found.exact) == (60, True)
    # What came since is taken to be like what was there.
    write(topic, 60)
    later = counter.count(topic, first, admin.offsets(places, "latest"))
    assert not later.exact
    assert 115 <= later.records <= 125
    sampled = TopicCounter(kafka.connection, offsets=30).count(topic, first, admin.offsets(places, "latest"))
    assert not sampled.exact
    assert 90 <= sampled.records <= 150


def test_the_pipeline_page_has_the_same(kafka: KafkaUnderTest, kafka_topic: Callable[..., str], write: Write) -> None:
    topic = kafka_topic(partitions=2)
    write(topic, 45)
    looking = TopicOffsets(kafka.connection)
    try:
        deadline = time.monotonic() + 30
        # The first look has the offsets, those after it the count as well.
        while (found := looking.read([topic])[0].get(topic)) is None or found.count is None:
            assert time.monotonic() < deadline
        assert (found.count.records, found.count.exact) == (45, True)
    finally:
        looking.close()


def test_what_is_cheap_to_know_is_called_offsets(
    kafka: KafkaUnderTest, kafka_topic: Callable[..., str], write: Write, tmp_path: Path
) -> None:
    topic, admin = kafka_topic(partitions=1), Admin(kafka.connection)
    write(topic, 12)
    (place,) = admin.topic(topic).topic_partitions
    group, end = f"reader-{topic}", admin.offsets([place], "latest")[place]
    admin.alter_group_offsets(group, {place: 0})
    shell = Shell(Project(tmp_path).root, kafka.bootstrap_servers)
    (row,) = [each for each in shell.fine("topics", "--json").json if each["topic"] == topic]
    assert row["offsets"] == end >= 12
    assert "records" not in row
    assert shell.fine("groups", "describe", group, "--json").json["lag"] == end
    moved = shell.fine("offsets", "move", group, "--to-latest", "--yes").err
    assert f"{end} skipped" in moved
    assert "record" not in moved
