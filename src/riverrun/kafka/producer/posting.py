"""Sending what others have posted: the records of a request together, without blocking, each with its own outcome.

For who serves many at once. A record costs a small object and no delivery of its own; who waits is told once, when the last
record of the request has its answer.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any, Unpack

from confluent_kafka import KafkaError as ClientError
from confluent_kafka import KafkaException, Message

from riverrun.errors import RiverrunError
from riverrun.kafka.connection import Connection
from riverrun.kafka.producer.client import Client
from riverrun.kafka.producer.core import POLL_EVERY
from riverrun.kafka.producer.metrics import ProducerMetrics
from riverrun.kafka.producer.options import ProducerKeywords
from riverrun.kafka.producer.producer import Producer

Headers = list[tuple[str, str | bytes | None]]
# Who sends also serves reports, which is fastest; but not where so many wait that their reports would keep it from its work.
_SERVED = 5000


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
        # For the poster: how many it was given, and how many of them the client took.
        self.given = 0
        self.sent = 0

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

    def close(self) -> None:
        """No more are sent. Both sides count first and look then, so that one of them sees the end; maybe both do."""
        self._taken = self.sent
        if self._reported == self.sent:
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

    def look_up(self, topic: str, seconds: float) -> None:
        """Wait until the cluster has said that it has this topic; TopicNotFoundError, BrokerUnreachableError."""
        self._core.client.check(topic, -1, seconds)

    def reach(self, topic: str, seconds: float) -> None:
        """Ask the cluster anew; BrokerUnreachableError when it does not answer within so many seconds."""
        client = self._core.client
        client.ask(lambda raw, left: raw.list_topics(topic, left), time.monotonic() + seconds, f"looking for {topic}")

    def has_room(self, count: int) -> bool:
        """Whether so many records more may wait. More than may ever wait have room where nothing else waits."""
        queued = self._core.client.queued
        return queued + count <= self._core.options.queue_records or not queued

    def begin(self, count: int, done: Callable[[], None]) -> Posted:
        """A request of so many records. `done` is called when all have their answers: by another thread, maybe twice, maybe
        before `end` returns."""
        return Posted(self._core.client, count, done)

    def add(
        self, posted: Posted, topic: str, records: Sequence[tuple[str | bytes | None, bytes]], headers: Headers
    ) -> bool:
        """Take the next records of a request, in their order. False where the queue got full on the way: then the rest has
        QueueFullError, and no more are to be added."""
        client = self._core.client
        fixed: Any = headers or None
        first = posted.given
        posted.given += len(records)
        for number, (key, value) in enumerate(records, first):
            record = (topic, value, key, -1, _Report(posted, number), None, 0, fixed)
            try:
                client.produce(*record)
            except BufferError:
                full = client.full(time.monotonic())
                posted.errors |= dict.fromkeys(range(number, len(posted.places)), full)
                return False
            except (KafkaException, TypeError) as error:
                refused = self._core.refused(error, client, record)
                if not isinstance(refused, RiverrunError):
                    raise refused from error
                posted.errors[number] = refused
                continue
            posted.sent += 1
            client.sent += 1
            client.bytes += len(value)
            if client.sent % POLL_EVERY == 0 and client.queued < _SERVED:
                client.poll()
        return True

    def end(self, posted: Posted) -> None:
        """All records of the request were added."""
        posted.close()
        client = self._core.client
        if client.asleep:
            client.wake()

    def metrics(self) -> ProducerMetrics:
        return self._producer.metrics()

    def close(self, timeout_seconds: float | None = None) -> None:
        self._producer.close(timeout_seconds)
