"""What the producer's tests share: an event, a look into a topic by the bare client, a broker that can be paused."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from confluent_kafka import Consumer, Message, TopicPartition

from riverrun.config import KafkaSettings
from riverrun.kafka.probe import create_topic
from riverrun.model.event import Event, event_time, key, schema_of
from riverrun.testing.pytest_plugin import KafkaUnderTest, local_kafka

MakeTopic = Callable[..., str]
NOON = datetime(2020, 1, 1, 12, tzinfo=UTC)


class Reading(Event):
    house_id: str = key()
    number: int
    at: datetime = event_time(late="1 minute")


SCHEMA = schema_of(Reading)


def reading(number: int = 0, house: str = "") -> Reading:
    return Reading(house_id=house or f"house-{number % 17}", number=number, at=NOON)


def numbers(messages: list[Message]) -> list[int]:
    return [SCHEMA.decode(message.value() or b"").number for message in messages]


def values(messages: list[Message]) -> list[bytes | None]:
    return [message.value() for message in messages]


def read(kafka: KafkaUnderTest, topic: str, *, committed: bool = True) -> list[Message]:
    """All records of a topic, partition by partition in order."""
    found = list(stream(kafka, topic, committed=committed))
    return sorted(found, key=lambda each: ((each.partition() or 0), (each.offset() or 0)))


def stream(kafka: KafkaUnderTest, topic: str, *, committed: bool = True) -> Iterator[Message]:
    """The records of a topic as the bare client sees them, until the end of each partition."""
    properties = {
        "group.id": "check",
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
        "enable.partition.eof": True,
        "isolation.level": "read_committed" if committed else "read_uncommitted",
    }
    consumer = Consumer(kafka.connection.properties(properties))
    try:
        partitions = consumer.list_topics(topic, timeout=10).topics[topic].partitions
        consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
        ended: set[int | None] = set()
        deadline = time.monotonic() + 120
        while len(ended) < len(partitions):
            assert time.monotonic() < deadline
            for message in consumer.consume(10_000, timeout=1.0):
                if message.error() is None:
                    yield message
                else:
                    ended.add(message.partition())
    finally:
        consumer.close()


class Fragile:
    """A broker of its own, to be stopped in the middle of things without disturbing others."""

    def __init__(self, kafka: KafkaUnderTest) -> None:
        self.kafka = kafka
        self.connection = kafka.connection

    def topic(self, name: str) -> str:
        create_topic(self.connection.properties(), name, partitions=1, config={})
        return name

    @contextmanager
    def paused(self) -> Iterator[None]:
        """The broker does not move, and its connections stay open."""
        assert self.kafka.local is not None
        pid = self.kafka.local.brokers[0].pid
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)


@contextmanager
def fragile_kafka(root: Path) -> Iterator[Fragile]:
    with local_kafka(root, KafkaSettings()) as running:
        settings = KafkaSettings(bootstrap_servers=running.bootstrap_servers)
        yield Fragile(KafkaUnderTest(running.bootstrap_servers, settings, running))
