"""Topics filled with numbers, and what a group has committed, for tests of consumers."""

import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Producer

from riverrun.kafka.admin.admin import Admin
from riverrun.kafka.connection import Connection
from riverrun.kafka.consumer.consumer import Consumer
from riverrun.model.cluster_state import TopicPartition


@dataclass
class Bench:
    """One topic, one group, and a cluster."""

    connection: Connection
    make_topic: Callable[..., str]
    partitions: int = 1
    topic: str = ""
    group: str = field(default_factory=lambda: f"group-{secrets.token_hex(4)}")

    def __post_init__(self) -> None:
        self.admin = Admin(self.connection)
        self.topic = self.topic or self.make_topic(partitions=self.partitions)

    def place(self, partition: int = 0) -> TopicPartition:
        return TopicPartition(self.topic, partition)

    def fill(self, count: int, *, first: int = 0, keys: int = 7, partition: int | None = None) -> None:
        """The numbers from `first` on, as JSON; by default number n is in partition n % partitions, with key n % keys."""
        numbers = range(first, first + count)
        self.send(
            (b"%d" % number, b"k%d" % (number % keys), number % self.partitions if partition is None else partition)
            for number in numbers
        )

    def send(self, records: Iterable[tuple[bytes | None, bytes | None, int]], **more: Any) -> None:
        """(value, key, partition) each; returns when all are acknowledged."""
        # Idempotent: else a batch that is sent again, as to a topic whose leader is not chosen yet, may come after the next.
        producer = Producer(self.connection.properties({"linger.ms": 5, "enable.idempotence": True}))
        problems: list[Any] = []
        for number, (value, key, partition) in enumerate(records):
            producer.produce(
                self.topic,
                value,
                key,
                partition,
                on_delivery=lambda error, _: problems.append(error) if error else None,
                **more,
            )
            if number % 10_000 == 9_999:
                producer.flush()
        assert producer.flush(60) == 0
        assert problems == []

    def consumer(self, **options: Any) -> Consumer[Any]:
        """A consumer of the topic by the group; ends at the end unless told to follow."""
        group = options.pop("group", self.group)
        return Consumer(self.topic, group=group, connection=self.connection, **{"follow": False, **options})

    def committed(self, group: str | None = None) -> dict[int, int]:
        """partition → the group's committed offset."""
        return {place.partition: offset for place, offset in self.admin.committed_offsets(group or self.group).items()}

    def rest(self, **options: Any) -> list[int]:
        """What the group would read now, without committing it."""
        with self.consumer(commit="manual", **options) as consumer:
            return sorted(record.value for record in consumer)
