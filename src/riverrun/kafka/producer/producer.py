"""Sending records: synchronously, asynchronously, many at once, in transactions.

    with Producer() as producer:
        receipt = producer.send(readings, Reading(…))          # waits: where it is, or an error
        delivery = producer.send_soon(readings, Reading(…))    # does not wait; .result() does
        count = producer.send_all(readings, many_readings)     # the fast way

What is taken is delivered or reported. Records are acknowledged by all in-sync replicas and written once, in the order they
were sent per partition, whatever is retried on the way. Kafka's own timestamp is the time of sending, not the event's: a
topic that keeps records for 7 days would otherwise drop replayed history at once. The event's time is in the event.
"""

import logging
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable
from datetime import datetime
from types import TracebackType
from typing import Any, Self, Unpack

from confluent_kafka import KafkaException

from riverrun.errors import RiverrunError, UsageError
from riverrun.kafka.connection import Connection, connection_of
from riverrun.kafka.producer.core import POLL_EVERY, Core, Record
from riverrun.kafka.producer.delivery import Delivery, Receipt
from riverrun.kafka.producer.metrics import ProducerMetrics
from riverrun.kafka.producer.options import ProducerKeywords, ProducerOptions
from riverrun.kafka.producer.outgoing import Headers, Route, Way, milliseconds_of
from riverrun.kafka.producer.transaction import Transaction
from riverrun.model.topic import Topic

log = logging.getLogger("riverrun.kafka.producer")

_ROUTES = 1000
# Leaving after Ctrl-C: time for what is on its way to a healthy cluster, and no more.
HURRY_SECONDS = 5.0

_NO_WAY: Way = (None, "", lambda _: b"", lambda _: None, [])


class Producer:
    """Sends records. Safe to share between threads; not between processes.

    Keywords are those of `ProducerOptions`: what may wait, for how long, how it is packed.
    """

    def __init__(self, connection: Connection | str | None = None, **options: Unpack[ProducerKeywords]) -> None:
        self.options = ProducerOptions(**options)
        self.connection = connection_of(connection)
        self._core = Core(self.connection, self.options)
        self._routes: dict[int | str, Route] = {}
        self._transaction: Transaction | None = None
        self._client = self._core.client
        self._ways: dict[int, Way] = {}
        self._last_way = _NO_WAY
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
        self._take(
            self._record(delivery, topic, value, key=key, partition=partition, headers=headers, timestamp=timestamp)
        )
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
        client = self._client
        delivery = Delivery(client, on_delivery)
        way = self._last_way
        if way[0] is not topic:
            way = self._last_way = self._ways.get(id(topic), _NO_WAY)
        plain = key is None and partition is None and headers is None and timestamp is None and value is not None
        if plain and way is not _NO_WAY:  # an event, sent as it is: the same as below, in a third of the time
            _, name, encode, key_of, fixed = way
            data, key = encode(value), key_of(value)
            try:
                client.produce(name, data, key, -1, delivery, None, 0, fixed)
            except BufferError:
                self._take((name, data, key, -1, delivery, None, 0, fixed))
            except (KafkaException, TypeError) as error:
                raise self._core.refused(error, client, (name, data, key, -1, delivery, None, 0, fixed)) from error
            else:
                client.sent = count = client.sent + 1
                client.bytes += len(data)
                if count % POLL_EVERY == 0:
                    client.poll()
        else:
            record = self._record(
                delivery, topic, value, key=key, partition=partition, headers=headers, timestamp=timestamp
            )
            self._take(record)
        if client.asleep:
            client.wake()
        return delivery

    def _take(self, record: Record) -> None:
        try:
            self._core.take(self._core.client, record)
        except BufferError:
            self._core.take_when_there_is_room(self._core.client, record)

    def _record(
        self,
        delivery: Delivery,
        topic: Topic[Any] | str,
        value: Any,
        *,
        key: str | bytes | None,
        partition: int | None,
        headers: Headers | None,
        timestamp: datetime | int | None,
    ) -> Record:
        """What is to be sent, checked. Waits for the cluster when a topic is used for the first time."""
        self._refuse_outside_transaction()
        route = self._route(topic)
        if headers is None and key is None and value is not None and route.headers is not None:
            data, key, headers = route.encode(value), route.key_of(value), route.headers
        else:
            data, key, headers = route.record(value, key, headers)
        if partition is None:
            partition = -1
        else:
            self._core.client.check(route.name, partition)
        when = 0 if timestamp is None else milliseconds_of(timestamp)
        return (route.name, data, key, partition, delivery, None, when, headers)

    def send_all(
        self, topic: Topic[Any] | str, values: Iterable[Any], *, key: Callable[[Any], str | bytes | None] | None = None
    ) -> int:
        """Send all values and wait until the cluster has them; how many there were. Takes from `values` as fast as the
        queue allows, so it may be endless or larger than memory.

        DeliveryError when some were not delivered: no more are taken then, and its fields say how many were `taken`,
        `acknowledged` and not (`count`). When `values` itself or a value's check raises, what was taken before is delivered
        first.
        """
        self._refuse_outside_transaction()
        return self._core.send_all(self._route(topic), values, key)

    def _knows(self, topic: Topic[Any] | str, partition: int | None) -> bool:
        """Whether `_record` can do without asking the cluster."""
        return partition is None and (topic if type(topic) is str else id(topic)) in self._routes

    def _look_up(self, topic: Topic[Any] | str, partition: int | None) -> None:
        self._core.client.check(self._route(topic).name, -1 if partition is None else partition)

    def _route(self, topic: Topic[Any] | str) -> Route:
        """How to send to this topic; looks it up on the cluster when it is used for the first time."""
        cache_key: int | str = topic if isinstance(topic, str) else id(topic)
        route = self._routes.get(cache_key)
        if route is None:
            route = Route(topic, self.connection.registry)
            self._core.client.check(route.name, -1)
            if route.wire is not None:
                route.wire.prepare()
            if len(self._routes) >= _ROUTES:
                self._routes.clear()
                self._ways.clear()
            self._routes[cache_key] = route
        if route.way is not None and id(topic) not in self._ways:
            self._ways[id(topic)] = route.way
            self._last_way = _NO_WAY
        return route

    def transaction(self) -> Transaction:
        """`with producer.transaction() as tx: tx.send(…)`: all its records or none. Needs `transactional_id`."""
        return Transaction(self)

    def _enter(self, transaction: Transaction | None) -> None:
        """What follows is part of this transaction, or of none. A producer that needs one has no ways without."""
        self._transaction = transaction
        if transaction is None:
            self._ways, self._last_way = {}, _NO_WAY

    def _refuse_outside_transaction(self) -> None:
        if self._core.transactional and self._transaction is None:
            raise UsageError(
                "This producer has a transactional_id and sends in transactions only",
                hint="Write `with producer.transaction() as tx: tx.send(…)`",
            )

    # --- the rest of its life -----------------------------------------------------------------------------------------

    def flush(self, timeout_seconds: float | None = None) -> None:
        """Wait until everything taken so far has its answer. Raises what nobody was told of: failed deliveries
        (DeliveryError) and callbacks that raised (HandlerError). Waits `timeout_seconds`, by default as long as a record
        may take; then DeliveryError says how many are still on their way."""
        self._core.flush(timeout_seconds)

    def metrics(self) -> ProducerMetrics:
        """What was counted until now. Cheap."""
        return self._core.metrics()

    def close(self, timeout_seconds: float | None = None) -> None:
        """Flush, and free everything. Records that are not delivered after `timeout_seconds` (by default, as long as a
        record may take) are given up; DeliveryError tells of them. Closing twice does nothing."""
        if self._transaction is not None:
            self._transaction.abort()
        error = self._core.close(timeout_seconds)
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
        hurry = None if isinstance(error, Exception) else min(HURRY_SECONDS, self.options.delivery_timeout_seconds)
        try:
            self.close(hurry)
        except RiverrunError as problem:
            # The body's own error goes on; what closing has to say goes with it.
            error.add_note(f"While the producer was closed after this: {problem}")


def _abandon(core: Core) -> None:
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
