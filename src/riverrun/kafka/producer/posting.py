"""Sending what others have posted: the records of a request together, without blocking, each with its own outcome.

For who serves many at once. A record costs a small object and no delivery of its own; who waits is told once, when the last
record of the request has its answer.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any, Unpack

from confluent_kafka import KafkaError as ClientError
from confluent_kafka import Message

from riverrun.errors import RiverrunError
from riverrun.kafka.connection import Connection
from riverrun.kafka.producer.client import Client
from riverrun.kafka.producer.metrics import ProducerMetrics
from riverrun.kafka.producer.options import ProducerKeywords
from riverrun.kafka.producer.producer import Producer

Headers = list[tuple[str, str | bytes | None]]


class Posted:
    """The records of one request. By their numbers: where they are (partition, offset), or why not."""

    def __init__(self, client: Client, count: int, done: Callable[[], None]) -> None:
        self.places: list[tuple[int, int] | None] = [None] * count
        self.errors: dict[int, RiverrunError] = {}
        self._explained: dict[int, RiverrunError] = {}
        self._client = client
        self._done = done
        self._taken = -1
        self._reported = 0

    def report(self, number: int, error: ClientError | None, message: Message) -> None:
        """The client's report, by the thread that polls it."""
        if error is None:
            self.places[number] = (message.partition() or 0, message.offset() or 0)
        else:
            self._client.failures.total += 1
            # One error for all that failed alike: one for each of 100,000 records took 300 MB and a minute.
            code = error.code()
            found = self._explained.get(code) or self._client.failures.explain(message)
            if found is not None:
                self._explained[code] = self.errors[number] = found
        self._client.reported += 1
        self._reported += 1
        if self._reported == self._taken:
            self._done()

    def close(self, taken: int) -> None:
        """No more are sent. Both sides count first and look then, so that one of them sees the end; maybe both do."""
        self._taken = taken
        if self._reported == taken:
            self._done()


class _Report:
    __slots__ = ("_number", "_posted")

    def __init__(self, posted: Posted, number: int) -> None:
        self._posted = posted
        self._number = number

    def __call__(self, error: ClientError | None, message: Message) -> None:
        self._posted.report(self._number, error, message)


class Poster:
    """A producer for posted records: bytes and keys that were checked before. For one thread; close it in the end."""

    def __init__(self, connection: Connection, **options: Unpack[ProducerKeywords]) -> None:
        self._producer = Producer(connection, **options)
        self._core = self._producer._core

    def look_up(self, topic: str) -> None:
        """Wait until the cluster has said that it has this topic; TopicNotFoundError, BrokerUnreachableError."""
        self._core.client.check(topic, -1)

    def reach(self, topic: str, seconds: float) -> None:
        """Ask the cluster anew; BrokerUnreachableError when it does not answer within so many seconds."""
        client = self._core.client
        client.ask(lambda raw, left: raw.list_topics(topic, left), time.monotonic() + seconds, f"looking for {topic}")

    def has_room(self, count: int) -> bool:
        """Whether so many records more may wait. More than may ever wait have room where nothing else waits."""
        queued = self._core.client.queued
        return queued + count <= self._core.options.queue_records or not queued

    def post(
        self,
        topic: str,
        records: Sequence[tuple[str | bytes | None, bytes]],
        headers: Headers,
        done: Callable[[], None],
    ) -> Posted:
        """Take the records, in their order. `done` is called when all have their answers: by another thread, maybe twice,
        maybe before this returns. Where the queue gets full on the way, the rest has QueueFullError."""
        client = self._core.client
        posted = Posted(client, len(records), done)
        fixed: Any = headers or None
        taken = 0
        for number, (key, value) in enumerate(records):
            try:
                self._core.take(client, (topic, value, key, -1, _Report(posted, number), None, 0, fixed))
            except BufferError:
                full = client.full(time.monotonic())
                posted.errors |= dict.fromkeys(range(number, len(records)), full)
                break
            except RiverrunError as error:
                posted.errors[number] = error
            else:
                taken += 1
        posted.close(taken)
        if client.asleep:
            client.wake()
        return posted

    def metrics(self) -> ProducerMetrics:
        return self._producer.metrics()

    def close(self, timeout_seconds: float | None = None) -> None:
        self._producer.close(timeout_seconds)
