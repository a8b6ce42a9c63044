"""Send posted records: those of a request together, without blocking, each with its own outcome.

For servers of many requests at once. A record costs a small object and no `Delivery` of its own; the callback is called
once, when the last record of the request has its delivery report.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any, Unpack

from confluent_kafka import KafkaError as ClientError
from confluent_kafka import KafkaException, Message

from riverrun.errors import RiverrunError
from riverrun.kafka.connection import Connection
from riverrun.kafka.producer.client import ProducerClient
from riverrun.kafka.producer.core import POLL_EVERY
from riverrun.kafka.producer.metrics import ProducerMetrics
from riverrun.kafka.producer.options import ProducerKeywords
from riverrun.kafka.producer.producer import Producer

HeaderList = list[tuple[str, str | bytes | None]]
# The sender also serves reports, which is fastest; but not if so many are queued that their reports would slow it down.
_MAX_QUEUED_TO_POLL = 5000


class RequestDelivery:
    """The records of one request. By their numbers: their positions (partition, offset), or errors."""

    def __init__(self, client: ProducerClient, count: int, on_complete: Callable[[], None]) -> None:
        self.positions: list[tuple[int, int] | None] = [None] * count
        self.errors: dict[int, RiverrunError] = {}
        self._errors_by_code: dict[int, RiverrunError] = {}
        self._client = client
        self._on_complete = on_complete
        self._expected_reports = -1
        self._reported = 0
        # For the producer: how many were added, and how many of them the client took.
        self.added = 0
        self.sent = 0

    def report(self, number: int, error: ClientError | None, message: Message) -> None:
        """The client's delivery report, called by the thread that polls."""
        if error is None:
            self.positions[number] = (message.partition() or 0, message.offset() or 0)
        else:
            self._client.failures.total += 1
            # One error for all that failed alike: one for each of 100,000 records took 300 MB and a minute.
            code = error.code()
            explained = self._errors_by_code.get(code) or self._client.failures.explain(message)
            if explained is not None:
                self._errors_by_code[code] = self.errors[number] = explained
        self._client.reported += 1
        self._reported += 1
        if self._reported == self._expected_reports:
            self._on_complete()

    def close(self) -> None:
        """No more are sent. Both sides count first and compare then, so that one of them sees the end; maybe both do."""
        self._expected_reports = self.sent
        if self._reported == self.sent:
            self._on_complete()


class _DeliveryReport:
    __slots__ = ("_delivery", "_number")

    def __init__(self, delivery: RequestDelivery, number: int) -> None:
        self._delivery = delivery
        self._number = number

    def __call__(self, error: ClientError | None, message: Message) -> None:
        self._delivery.report(self._number, error, message)


class RequestProducer:
    """A producer for posted records: bytes and keys that were checked before. For one thread; close it in the end."""

    def __init__(self, connection: Connection, **options: Unpack[ProducerKeywords]) -> None:
        self._producer = Producer(connection, **options)
        self._core = self._producer._core

    def check_topic(self, topic: str, seconds: float) -> None:
        """Wait until the cluster confirms that it has this topic; TopicNotFoundError, BrokerUnreachableError."""
        self._core.client.check_topic(topic, -1, seconds)

    def ping(self, topic: str, seconds: float) -> None:
        """Make a request to the cluster; BrokerUnreachableError when it does not answer within so many seconds."""
        client = self._core.client
        client.request(
            lambda raw, left: raw.list_topics(topic, left), time.monotonic() + seconds, f"looking for {topic}"
        )

    def has_capacity(self, count: int) -> bool:
        """Whether so many more records fit into the queue. More than its size fit only if it is empty."""
        queued = self._core.client.queued
        return queued + count <= self._core.options.queue_records or not queued

    def begin(self, count: int, on_complete: Callable[[], None]) -> RequestDelivery:
        """A request of so many records. `on_complete` is called when all have their answers: by another thread, maybe twice,
        maybe before `end` returns."""
        return RequestDelivery(self._core.client, count, on_complete)

    def add(
        self,
        delivery: RequestDelivery,
        topic: str,
        records: Sequence[tuple[str | bytes | None, bytes]],
        headers: HeaderList,
    ) -> bool:
        """Add the next records of a request, in their order. False if the queue became full on the way: then the rest has
        QueueFullError, and no more may be added."""
        client = self._core.client
        record_headers: Any = headers or None
        first = delivery.added
        delivery.added += len(records)
        for number, (key, value) in enumerate(records, first):
            record = (topic, value, key, -1, _DeliveryReport(delivery, number), None, 0, record_headers)
            try:
                client.produce(*record)
            except BufferError:
                queue_full = client.queue_full_error(time.monotonic())
                delivery.errors |= dict.fromkeys(range(number, len(delivery.positions)), queue_full)
                return False
            except (KafkaException, TypeError) as error:
                produce_error = self._core.produce_error(error, client, record)
                if not isinstance(produce_error, RiverrunError):
                    raise produce_error from error
                delivery.errors[number] = produce_error
                continue
            delivery.sent += 1
            client.sent += 1
            client.bytes += len(value)
            if client.sent % POLL_EVERY == 0 and client.queued < _MAX_QUEUED_TO_POLL:
                client.poll()
        return True

    def end(self, delivery: RequestDelivery) -> None:
        """All records of the request were added."""
        delivery.close()
        client = self._core.client
        if client.asleep:
            client.wake()

    def metrics(self) -> ProducerMetrics:
        return self._producer.metrics()

    def close(self, timeout_seconds: float | None = None) -> None:
        self._producer.close(timeout_seconds)
