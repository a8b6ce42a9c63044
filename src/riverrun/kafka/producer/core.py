"""The internals of `Producer` and `AsyncProducer`: their clients, enqueueing records, metrics, closing.

It has no reference to the producer that uses it, so that it can be cleaned up after one that was dropped.
"""

import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from confluent_kafka import KafkaError as ClientError
from confluent_kafka import KafkaException, Message

from riverrun.errors import DeliveryError, RecordTooLargeError, RiverrunError
from riverrun.kafka.connection import Connection
from riverrun.kafka.producer.client import ProducerClient
from riverrun.kafka.producer.delivery import KEPT_BYTES, KEPT_RECORDS, delivery_error
from riverrun.kafka.producer.metrics import ProducerMetrics, read_latencies
from riverrun.kafka.producer.options import ProducerOptions
from riverrun.kafka.producer.record_serializer import RecordSerializer
from riverrun.model.units import format_size

# How many records are sent between two polls for reports.
POLL_EVERY = 64
CHUNK_RECORDS = 256

# What the client's produce() takes: topic, value, key, partition, report, (report by its other name), timestamp, headers.
ProduceArguments = tuple[
    str, bytes | None, str | bytes | None, int, Callable[[ClientError | None, Message], None], None, int, Any
]
KeyFunction = Callable[[Any], str | bytes | None]


class ProducerCore:
    """The clients of a producer and what they share."""

    def __init__(self, connection: Connection, options: ProducerOptions) -> None:
        self.options = options
        self.transactional = bool(options.transactional_id)
        self._request_timeout = connection.settings.request_timeout_seconds
        self._properties = options.client_properties(connection)
        self._create_lock = threading.Lock()
        self._transactions_initialized = False
        self._latencies: tuple[float | None, float | None] = (None, None)
        self._bulk_client: ProducerClient | None = None
        self.client = self._create_client(self._properties, statistics=options.on_metrics is not None)

    def _create_client(self, properties: dict[str, Any], *, statistics: bool) -> ProducerClient:
        if statistics:
            properties = {**properties, "statistics.interval.ms": round(self.options.metrics_seconds * 1000)}
        return ProducerClient(
            properties,
            user_properties=self.options.properties,
            request_timeout=self._request_timeout,
            on_statistics=self._on_statistics if statistics else None,
        )

    def bulk_client(self) -> ProducerClient:
        """The client of `send_all`: it reports failures only, which the library can only do for a whole client. A
        transaction has one client for everything."""
        with self._create_lock:
            if self.transactional or self.client.closed:
                return self.client
            if self._bulk_client is None:
                self._bulk_client = self._create_client(
                    {**self._properties, "delivery.report.only.error": True}, statistics=False
                )
            return self._bulk_client

    def clients(self) -> list[ProducerClient]:
        return [self.client] if self._bulk_client is None else [self.client, self._bulk_client]

    def init_transactions(self) -> None:
        """Take over the transactional id, once: the previous owner is fenced, and its open transaction aborted."""
        if not self._transactions_initialized:
            deadline = time.monotonic() + self.client.request_timeout
            self.client.request(lambda raw, seconds: raw.init_transactions(seconds), deadline, "joining transactions")
            self._transactions_initialized = True

    # --- sending ------------------------------------------------------------------------------------------------------

    def enqueue(self, client: ProducerClient, record: ProduceArguments) -> None:
        """Put a record into the queue. BufferError when it is full."""
        try:
            client.produce(*record)
        except (KafkaException, TypeError) as error:
            raise self.produce_error(error, client, record) from error
        client.sent = count = client.sent + 1
        client.bytes += len(record[1] or b"")
        if count % POLL_EVERY == 0:
            client.poll()

    def enqueue_when_space(self, client: ProducerClient, record: ProduceArguments) -> None:
        """The same, waiting for queue space."""
        started = time.monotonic()
        while True:
            client.wait_for_queue_space(started, started + self.options.queue_timeout_seconds)
            with contextlib.suppress(BufferError):
                return self.enqueue(client, record)

    def produce_error(
        self, error: KafkaException | TypeError, client: ProducerClient, record: ProduceArguments
    ) -> BaseException:
        """The error for a record that the client did not take."""
        if isinstance(error, TypeError):
            # Header names are text here. If the library says otherwise, it was Ctrl-C that hit while it checked.
            return KeyboardInterrupt() if "header key" in str(error) else error
        topic, data, key = record[0], record[1], record[2]
        if error.args and error.args[0] == ClientError.MSG_SIZE_TOO_LARGE:
            size = len(data or b"") + len(key or b"")
            limit = int(self._properties.get("message.max.bytes", 1_000_000))
            return RecordTooLargeError(
                f"A record for {topic} is too large; it was not sent",
                expected=f"at most {format_size(limit)} ({limit} bytes)",
                found=f"{format_size(size)} ({size} bytes)",
                hint='Send less, or raise the limit here (Producer(properties={"message.max.bytes": …})) and the topic\'s '
                "max.message.bytes",
                topic=topic,
                size=size,
                limit=limit,
            )
        if error.args and error.args[0] == ClientError._FATAL:
            client.poll()  # which receives the reason, if it was not reported yet
            error = KafkaException(client.failures.fatal or error.args[0])
        return client.translate(error, f"sending to {topic}", topic=topic)

    def begin_bulk_send(self, serializer: RecordSerializer, key: KeyFunction | None) -> "BulkSend":
        """Prepare a `send_all`."""
        client = self.bulk_client()
        client.refuse_in_callback("wait")
        if client is not self.client:
            client.check_topic(serializer.name, -1)
        return BulkSend(self, client, serializer, key)

    def send_all(self, serializer: RecordSerializer, values: Iterable[Any], key: KeyFunction | None) -> int:
        bulk_send = self.begin_bulk_send(serializer, key)
        if bulk_send.client is not self.client:
            # What was sent before stays before: the two clients do not wait for each other by themselves.
            self.client.drain(time.monotonic() + self.delivery_wait_seconds)
        try:
            self._send_all(bulk_send, values)
            left = bulk_send.client.drain(time.monotonic() + self.delivery_wait_seconds)
        except Exception as error:
            # An error of the values' own, or a full queue: what was taken is delivered, and what was not is noted.
            bulk_send.add_failure_note(error, bulk_send.client.drain(time.monotonic() + self.delivery_wait_seconds))
            raise
        except BaseException:
            bulk_send.detach()  # Ctrl-C: no time to wait
            raise
        return bulk_send.result(left)

    def _send_all(self, bulk_send: "BulkSend", values: Iterable[Any]) -> None:
        source = iter(values)
        while not bulk_send.failed and (chunk := list(itertools.islice(source, CHUNK_RECORDS))):
            started = 0.0
            while (taken := bulk_send.enqueue(chunk)) < len(chunk):
                chunk = chunk[taken:]
                started = time.monotonic() if taken or not started else started
                bulk_send.client.wait_for_queue_space(started, started + self.options.queue_timeout_seconds)
            bulk_send.client.poll()

    # --- waiting, closing, metrics ------------------------------------------------------------------------------------

    @property
    def delivery_wait_seconds(self) -> float:
        """Seconds after which a record must have its delivery report, with some to spare."""
        return self.options.delivery_timeout_seconds + 5

    def flush(self, timeout: float | None) -> None:
        deadline = time.monotonic() + (self.delivery_wait_seconds if timeout is None else timeout)
        left = sum(client.drain(deadline) for client in self.clients())
        self.raise_failures(left)

    def raise_failures(self, left: int) -> None:
        """Raise what was not reported yet; `left` records have no delivery report."""
        for client in self.clients():
            error = client.take_failure()
            if error is not None:
                raise error
        if left:
            raise DeliveryError(
                f"{left} record{'s are' if left != 1 else ' is'} still on the way",
                hint="Flush again, or wait longer",
                count=left,
            )

    def close(self, timeout: float | None) -> RiverrunError | None:
        deadline = time.monotonic() + (self.delivery_wait_seconds if timeout is None else timeout)
        errors = [client.close(deadline) for client in self.clients()]
        return next((error for error in errors if error is not None), None)

    def metrics(self) -> ProducerMetrics:
        clients = self.clients()
        sent = sum(client.sent for client in clients)
        failed = sum(client.failures.total for client in clients)
        queued = sum(client.queued for client in clients)
        queue, broker = self._latencies
        return ProducerMetrics(
            sent=sent,
            acknowledged=max(sent - failed - queued, 0),
            failed=failed,
            queued=queued,
            bytes=sum(client.bytes for client in clients),
            latency_ms=queue + broker if queue is not None and broker is not None else None,
            queue_ms=queue,
            broker_ms=broker,
        )

    def _on_statistics(self, statistics: str) -> None:
        self._latencies = read_latencies(statistics)
        if self.options.on_metrics is not None:
            try:
                self.options.on_metrics(self.metrics())
            except Exception as problem:  # noqa: BLE001  -- whatever the user's callback raises is raised by flush or close
                self.client.failures.callback_failed(problem)


class BulkSend:
    """One `send_all`: its own failures, counted apart from all others."""

    def __init__(
        self, core: ProducerCore, client: ProducerClient, serializer: RecordSerializer, key: KeyFunction | None
    ) -> None:
        self.client = client
        self.taken = 0
        self.failed = 0
        self._core = core
        self._serializer = serializer
        self._key = key
        self._failed_messages: list[Message] = []
        self._failed_bytes = 0
        self._detached = False

    def enqueue(self, chunk: list[Any]) -> int:
        """Put values into the queue until it is full; returns how many."""
        if self._serializer.headers is not None and self._key is None:
            return self._enqueue_events(chunk)
        done = 0
        try:
            for value in chunk:
                data, key, headers = self._serializer.serialize(value, self._key(value) if self._key else None, None)
                try:
                    self._core.enqueue(
                        self.client, (self._serializer.name, data, key, -1, self._report, None, 0, headers)
                    )
                except BufferError:
                    break
                done += 1
        finally:
            self.taken += done
        return done

    def _enqueue_events(self, chunk: list[Any]) -> int:
        """The loop that decides how fast `send_all` is: events of the topic's class, nothing looked up twice."""
        client, name, report = self.client, self._serializer.name, self._report
        produce, encode, key_of, headers = (
            client.produce,
            self._serializer.encode,
            self._serializer.key_of,
            self._serializer.headers,
        )
        size = done = 0
        try:
            for event in chunk:
                data = encode(event)
                key = key_of(event)
                try:
                    produce(name, data, key, -1, report, None, 0, headers)
                except BufferError:
                    break
                except (KafkaException, TypeError) as error:
                    raise self._core.produce_error(
                        error, client, (name, data, key, -1, report, None, 0, headers)
                    ) from error
                done += 1
                size += len(data)  # type: ignore[arg-type]
        finally:
            client.sent += done
            client.bytes += size
            self.taken += done
        return done

    def _report(self, error: ClientError | None, message: Message) -> None:
        if error is not None:
            self.failed += 1
            self.client.failures.total += 1
            if self._detached:
                self.client.failures.add(message)
            elif len(self._failed_messages) < KEPT_RECORDS and self._failed_bytes + len(message) <= KEPT_BYTES:
                self._failed_messages.append(message)
                self._failed_bytes += len(message)
        self.client.reported += 1  # last: if Ctrl-C comes in between, the record counts as unreported

    def result(self, left: int) -> int:
        """How many were sent; DeliveryError when some failed or (`left`) have no delivery report."""
        if self.failed or left:
            raise self._delivery_error(left)
        return self.taken

    def add_failure_note(self, error: BaseException, left: int) -> None:
        """Add a note to the `error` that ended it: what else was not delivered."""
        if self.failed or left:
            error.add_note(f"Of the {self.taken} records taken before this: {self._delivery_error(left)}")

    def detach(self) -> None:
        """It ended early: its failures are raised by the producer's flush or close."""
        self._detached = True
        for message in self._failed_messages:
            self.client.failures.add(message)

    def _delivery_error(self, left: int) -> DeliveryError:
        count = self.failed + left
        records = [self.client.failures.undelivered(message) for message in self._failed_messages]
        return delivery_error(count, records, taken=self.taken, acknowledged=self.taken - count)
