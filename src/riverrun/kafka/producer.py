"""Sending records: synchronously, asynchronously, many at once, in transactions.

    with Producer() as producer:
        receipt = producer.send(readings, Reading(…))          # waits: where it is, or an error
        delivery = producer.send_soon(readings, Reading(…))    # does not wait; .result() does
        count = producer.send_all(readings, many_readings)     # the fast way

What is taken is delivered or reported. Records are acknowledged by all in-sync replicas and written once, in the order they
were sent per partition, whatever is retried on the way. Kafka's own timestamp is the time of sending, not the event's: a
topic that keeps records for 7 days would otherwise drop replayed history at once. The event's time is in the event.
"""

import itertools
import logging
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterable
from datetime import datetime
from types import TracebackType
from typing import Any, Self, Unpack

from confluent_kafka import KafkaError as ClientError
from confluent_kafka import KafkaException, Message

from riverrun.errors import DeliveryError, RecordTooLargeError, RiverrunError, UsageError
from riverrun.kafka.connection import Connection, connect
from riverrun.kafka.delivery import (
    KEPT_BYTES,
    KEPT_RECORDS,
    Delivery,
    Receipt,
    delivery_error,
)
from riverrun.kafka.metrics import ProducerMetrics, read_latencies
from riverrun.kafka.outgoing import Headers, Route, milliseconds_of
from riverrun.kafka.producer_client import Client
from riverrun.kafka.producer_options import ProducerKeywords, ProducerOptions
from riverrun.kafka.transaction import Transaction
from riverrun.model.event import Event
from riverrun.model.quantity import size_text
from riverrun.model.topic import Topic

log = logging.getLogger("riverrun.kafka.producer")

# How many records are sent between two looks at the reports. More gains nothing measurable; the queue has 100,000.
_POLL_EVERY = 64
_CHUNK = 256
_ROUTES = 1000
# Leaving after Ctrl-C: time for what is on its way to a healthy cluster, and no more.
_HURRY_SECONDS = 5.0

# What the client's produce() takes: topic, value, key, partition, report, (report by its other name), timestamp, headers.
_Record = tuple[
    str, bytes | None, str | bytes | None, int, Callable[[ClientError | None, Message], None], None, int, Any
]


class Producer:
    """Sends records. Safe to share between threads; not between processes.

    Keywords are those of `ProducerOptions`: what may wait, for how long, how it is packed.
    """

    def __init__(self, connection: Connection | None = None, **options: Unpack[ProducerKeywords]) -> None:
        self.options = ProducerOptions(**options)
        self.connection = connection or connect()
        self._core = _Core(self.connection, self.options)
        self._route_cache: dict[int | str, Route] = {}
        self._transaction: Transaction | None = None
        self._finalizer = weakref.finalize(self, _abandon, self._core)

    # --- sending ------------------------------------------------------------------------------------------------------

    def send(
        self,
        topic: Topic[Any] | str,
        value: Any,
        *,
        key: str | bytes | None = None,
        partition: int | None = None,
        headers: Headers | None = None,
        timestamp: datetime | int | None = None,
    ) -> Receipt:
        """Send one record and wait until the cluster has it. `value` is an event of the topic's class; for a topic without
        one an event, bytes, text or anything JSON can carry. `key` overrides the event's own."""
        self._core.client.refuse_in_callback("wait")
        delivery = Delivery(self._core.client, None)
        self._send(delivery, topic, value, key=key, partition=partition, headers=headers, timestamp=timestamp)
        return delivery.result()

    def send_soon(
        self,
        topic: Topic[Any] | str,
        value: Any,
        *,
        key: str | bytes | None = None,
        partition: int | None = None,
        headers: Headers | None = None,
        timestamp: datetime | int | None = None,
        on_delivery: Callable[[Delivery], Any] | None = None,
    ) -> Delivery:
        """Take one record and return at once, unless the queue is full. `on_delivery` is called with the settled delivery,
        by the thread that sends or waits or by one of the producer's own, never two at a time."""
        client = self._core.client
        delivery = Delivery(client, on_delivery)
        self._send(delivery, topic, value, key=key, partition=partition, headers=headers, timestamp=timestamp)
        if client.asleep:
            client.wake()
        return delivery

    def _send(
        self,
        delivery: Delivery,
        topic: Topic[Any] | str,
        value: Any,
        *,
        key: str | bytes | None,
        partition: int | None,
        headers: Headers | None,
        timestamp: datetime | int | None,
    ) -> None:
        core = self._core
        if core.transactional and self._transaction is None:
            self._refuse_outside_transaction()
        route = self._route_cache.get(topic if type(topic) is str else id(topic)) or self._route(topic)
        if headers is None and key is None and value is not None and route.headers is not None:
            data, key, headers = route.encode(value), route.key_of(value), route.headers
        else:
            data, key, headers = route.record(value, key, headers)
        if partition is not None:
            core.client.check(route.name, partition)
        place = -1 if partition is None else partition
        when = 0 if timestamp is None else milliseconds_of(timestamp)
        core.take(core.client, (route.name, data, key, place, delivery._report, None, when, headers))

    def send_all(
        self, topic: Topic[Any] | str, values: Iterable[Any], *, key: Callable[[Any], str | bytes | None] | None = None
    ) -> int:
        """Send all values and wait until the cluster has them; how many there were. Takes from `values` as fast as the
        queue allows, so it may be endless or larger than memory.

        DeliveryError when some were not delivered: no more are taken then, and its fields say how many were `taken`,
        `acknowledged` and not (`count`). When `values` itself or a value's check raises, what was taken before is delivered
        first.
        """
        if self._core.transactional and self._transaction is None:
            self._refuse_outside_transaction()
        return self._core.send_all(self._route(topic), values, key)

    def _route(self, topic: Topic[Any] | str) -> Route:
        """How to send to this topic; looks it up on the cluster when it is used for the first time."""
        cache_key: int | str = topic if isinstance(topic, str) else id(topic)
        route = self._route_cache.get(cache_key)
        if route is None:
            route = Route(topic)
            self._core.client.check(route.name, -1)
            if len(self._route_cache) >= _ROUTES:
                self._route_cache.clear()
            self._route_cache[cache_key] = route
        return route

    def transaction(self) -> Transaction:
        """`with producer.transaction() as tx: tx.send(…)`: all its records or none. Needs `transactional_id`."""
        return Transaction(self)

    def _refuse_outside_transaction(self) -> None:
        raise UsageError(
            "This producer has a transactional_id and sends in transactions only",
            hint="Write `with producer.transaction() as tx: tx.send(…)`",
        )

    # --- the rest of its life -----------------------------------------------------------------------------------------

    def flush(self, timeout: float | None = None) -> None:
        """Wait until everything taken so far has its answer. Raises what nobody was told of: failed deliveries
        (DeliveryError) and callbacks that raised (HandlerError). `timeout` seconds, by default as long as a record may
        take; then DeliveryError says how many are still on their way."""
        self._core.flush(timeout)

    def metrics(self) -> ProducerMetrics:
        """What was counted until now. Cheap."""
        return self._core.metrics()

    def close(self, timeout: float | None = None) -> None:
        """Flush, and free everything. Records that are not delivered after `timeout` seconds (by default, as long as a
        record may take) are given up; DeliveryError tells of them. Closing twice does nothing."""
        if self._transaction is not None:
            self._transaction.abort()
        error = self._core.close(timeout)
        self._finalizer.detach()
        if error is not None:
            raise error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
            return
        hurry = None if isinstance(error, Exception) else min(_HURRY_SECONDS, self.options.delivery_timeout_seconds)
        try:
            self.close(hurry)
        except RiverrunError as problem:
            # The body's own error goes on; what closing has to say goes with it.
            error.add_note(f"While the producer was closed after this: {problem}")


class _Core:
    """What a producer is made of, without the producer: it must be possible to tidy up after one that was dropped."""

    def __init__(self, connection: Connection, options: ProducerOptions) -> None:
        self.options = options
        self.transactional = bool(options.transactional_id)
        self._connection = connection
        self._properties = options.client_properties(connection)
        self._joined = False
        self._bulk: Client | None = None
        self._latencies: tuple[float | None, float | None] = (None, None)
        self.client = self._make(self._properties, statistics=options.on_metrics is not None)

    def _make(self, properties: dict[str, Any], *, statistics: bool) -> Client:
        if statistics:
            properties = {**properties, "statistics.interval.ms": round(self.options.metrics_seconds * 1000)}
        return Client(
            properties,
            given=self.options.properties,
            request_timeout=self._connection.settings.request_timeout_seconds,
            on_statistics=self._on_statistics if statistics else None,
        )

    def bulk(self) -> Client:
        """The client of `send_all`: it reports failures only, which saves a tenth of the time of sending. Transactions
        have one client for all, and so do producers that were closed."""
        if self.transactional or self.client.closed:
            return self.client
        if self._bulk is None:
            self._bulk = self._make({**self._properties, "delivery.report.only.error": True}, statistics=False)
        return self._bulk

    def join_transactions(self) -> None:
        """Take the transactional id over, once: whoever had it before is fenced off, and its open transaction aborted."""
        if not self._joined:
            deadline = time.monotonic() + self.client.request_timeout
            self.client.ask(lambda raw, seconds: raw.init_transactions(seconds), deadline, "joining transactions")
            self._joined = True

    def clients(self) -> list[Client]:
        return [self.client] if self._bulk is None else [self.client, self._bulk]

    # --- sending ------------------------------------------------------------------------------------------------------

    def take(self, client: Client, record: _Record) -> None:
        """Put a record into the queue; wait for room when it is full."""
        try:
            client.produce(*record)
        except BufferError:
            self.take_when_there_is_room(client, record)
        except KafkaException as error:
            raise self.refused(error, client, record) from error
        client.sent = count = client.sent + 1
        client.bytes += len(record[1] or b"") + len(record[2] or b"")
        if count % _POLL_EVERY == 0:
            client.poll()

    def take_when_there_is_room(self, client: Client, record: _Record) -> None:
        started = time.monotonic()
        while True:
            client.wait_for_room(started, started + self.options.queue_timeout_seconds)
            try:
                client.produce(*record)
            except BufferError:
                continue
            except KafkaException as error:
                raise self.refused(error, client, record) from error
            return

    def refused(self, error: KafkaException, client: Client, record: _Record) -> RiverrunError:
        """The client did not take a record."""
        topic, data, key = record[0], record[1], record[2]
        if error.args and error.args[0] == ClientError.MSG_SIZE_TOO_LARGE:
            size = len(data or b"") + len(key or b"")
            limit = int(self._properties.get("message.max.bytes", 1_000_000))
            return RecordTooLargeError(
                f"A record for {topic} is too large; it was not sent",
                expected=f"at most {size_text(limit)} ({limit} bytes)",
                found=f"{size_text(size)} ({size} bytes)",
                hint='Send less, or raise the limit here (Producer(properties={"message.max.bytes": …})) and the topic\'s '
                "max.message.bytes",
                topic=topic,
                size=size,
                limit=limit,
            )
        return client.translate(error, f"sending to {topic}", topic=topic)

    def send_all(self, route: Route, values: Iterable[Any], key: Callable[[Any], str | bytes | None] | None) -> int:
        client = self.bulk()
        client.refuse_in_callback("wait")
        if client is not self.client:
            client.check(route.name, -1)
            # What was sent before stays before: the two clients do not wait for each other by themselves.
            self.client.drain(time.monotonic() + self.patience)
        return _Many(self, client, route, key).send(values)

    # --- the rest -----------------------------------------------------------------------------------------------------

    @property
    def patience(self) -> float:
        """Seconds after which a record must have its answer, with some to spare."""
        return self.options.delivery_timeout_seconds + 5

    def flush(self, timeout: float | None) -> None:
        deadline = time.monotonic() + (self.patience if timeout is None else timeout)
        left = sum(client.drain(deadline) for client in self.clients())
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
        deadline = time.monotonic() + (self.patience if timeout is None else timeout)
        found = [client.close(deadline) for client in self.clients()]
        return next((error for error in found if error is not None), None)

    def metrics(self) -> ProducerMetrics:
        clients = self.clients()
        sent, failed, queued = (
            sum(client.sent for client in clients),
            sum(client.failures.total for client in clients),
            sum(client.queued for client in clients),
        )
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


class _Many:
    """One `send_all`: its own failures, counted apart from everybody else's."""

    def __init__(
        self, core: _Core, client: Client, route: Route, key: Callable[[Any], str | bytes | None] | None
    ) -> None:
        self._core = core
        self._client = client
        self._route = route
        self._key = key
        self._taken = 0
        self._failed = 0
        self._kept: list[Message] = []
        self._kept_bytes = 0
        self._over = False

    def send(self, values: Iterable[Any]) -> int:
        try:
            self._take_all(values)
            left = self._drain()
        except Exception as error:
            # An error of the values' own, or the queue is full: what was taken is delivered, and what was not is told.
            if (left := self._drain()) or self._failed:
                error.add_note(f"Of the {self._taken} records taken before this: {self._undelivered(left)}")
            raise
        except BaseException:
            # Ctrl-C: no time to wait. Failures that come now are told by the producer's flush or close.
            self._over = True
            for message in self._kept:
                self._client.failures.add(message)
            raise
        if self._failed or left:
            raise self._undelivered(left)
        return self._taken

    def _drain(self) -> int:
        return self._client.drain(time.monotonic() + self._core.patience)

    def _take_all(self, values: Iterable[Any]) -> None:
        client, route, report = self._client, self._route, self._report
        plain = route.headers is not None and self._key is None
        source = iter(values)
        while not self._failed and (chunk := list(itertools.islice(source, _CHUNK))):
            if plain:
                self._take_events(chunk)
            else:
                for value in chunk:
                    data, key, headers = route.record(value, self._key(value) if self._key else None, None)
                    self._core.take(client, (route.name, data, key, -1, report, None, 0, headers))
                    self._taken += 1
            client.poll()

    def _take_events(self, chunk: list[Event]) -> None:
        """The loop that decides how fast `send_all` is: events of the topic's class, nothing looked up twice."""
        core, client, name, report = self._core, self._client, self._route.name, self._report
        produce, encode, key_of, headers = client.produce, self._route.encode, self._route.key_of, self._route.headers
        size = done = 0
        try:
            for event in chunk:
                data = encode(event)
                key = key_of(event)
                try:
                    produce(name, data, key, -1, report, None, 0, headers)
                except BufferError:
                    core.take_when_there_is_room(client, (name, data, key, -1, report, None, 0, headers))
                except KafkaException as error:
                    raise core.refused(error, client, (name, data, key, -1, report, None, 0, headers)) from error
                done += 1
                size += len(data)  # type: ignore[arg-type]
        finally:
            client.sent += done
            client.bytes += size
            self._taken += done

    def _report(self, error: ClientError | None, message: Message) -> None:
        self._client.reported += 1
        if error is None:
            return
        self._failed += 1
        self._client.failures.total += 1
        if self._over:
            self._client.failures.add(message)
        elif len(self._kept) < KEPT_RECORDS and self._kept_bytes + len(message) <= KEPT_BYTES:
            self._kept.append(message)
            self._kept_bytes += len(message)

    def _undelivered(self, left: int) -> DeliveryError:
        count = self._failed + left
        records = [self._client.failures.record(message) for message in self._kept]
        return delivery_error(count, records, taken=self._taken, acknowledged=self._taken - count)


def _abandon(core: _Core) -> None:
    """A producer was dropped, or the interpreter ends, and nobody closed it."""
    if any(client.in_callback() for client in core.clients()):
        threading.Thread(target=_abandon, args=(core,)).start()  # a callback cannot wait for deliveries
        return
    if all(client.closed for client in core.clients()):
        return  # in a forked child, where there is nothing to close
    queued = sum(client.queued for client in core.clients())
    error = core.close(None)
    if error is not None:
        log.error("A producer was not closed, and records are lost: %s", error)
    elif queued:
        log.warning("A producer was not closed; %d records were waiting, and have been delivered now", queued)
    warnings.warn("a riverrun.Producer was not closed: use `with`, or close()", ResourceWarning, stacklevel=2)
