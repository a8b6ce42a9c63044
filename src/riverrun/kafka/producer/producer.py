"""Send records: synchronously, asynchronously, many at once, in transactions.

    with Producer() as producer:
        receipt = producer.send(readings, Reading(…))          # waits: where it is, or an error
        delivery = producer.send_soon(readings, Reading(…))    # does not wait; .result() does
        count = producer.send_all(readings, many_readings)     # the fast way

What is enqueued is delivered or reported. Records are acknowledged by all in-sync replicas and written once, in the order
they were sent per partition, whatever is retried on the way. Kafka's own timestamp is the time of sending, not the event's:
a topic that keeps records for 7 days would otherwise drop replayed history at once. The event's time is in the event.
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
from riverrun.kafka.connection import Connection, as_connection
from riverrun.kafka.producer.core import POLL_EVERY, ProduceArguments, ProducerCore
from riverrun.kafka.producer.delivery import Delivery, Receipt
from riverrun.kafka.producer.metrics import ProducerMetrics
from riverrun.kafka.producer.options import ProducerKeywords, ProducerOptions
from riverrun.kafka.producer.record_serializer import FastPath, Headers, RecordSerializer, milliseconds_of
from riverrun.kafka.producer.transaction import Transaction
from riverrun.model.topic import Topic

log = logging.getLogger("riverrun.kafka.producer")

_MAX_SERIALIZERS = 1000
# Leaving after Ctrl-C: time for what is in flight to a healthy cluster, and no more.
HURRY_SECONDS = 5.0

_NO_FAST_PATH: FastPath = (None, "", lambda _: b"", lambda _: None, [])


class Producer:
    """Sends records. Safe to share between threads; not between processes.

    Keywords are those of `ProducerOptions`: the size of the queue, timeouts, compression.
    """

    def __init__(self, connection: Connection | str | None = None, **options: Unpack[ProducerKeywords]) -> None:
        self.options = ProducerOptions(**options)
        self.connection = as_connection(connection)
        self._core = ProducerCore(self.connection, self.options)
        self._serializers: dict[int | str, RecordSerializer] = {}
        self._transaction: Transaction | None = None
        self._client = self._core.client
        self._fast_paths: dict[int, FastPath] = {}
        self._last_fast_path = _NO_FAST_PATH
        self._finalizer = weakref.finalize(self, _close_abandoned, self._core)

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
        self._enqueue(
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
        """Enqueue one record and return at once, unless the queue is full. `on_delivery` is called with the settled
        delivery, by the thread that sends or waits or by one of the producer's own, never two at a time."""
        client = self._client
        delivery = Delivery(client, on_delivery)
        fast_path = self._last_fast_path
        if fast_path[0] is not topic:
            fast_path = self._last_fast_path = self._fast_paths.get(id(topic), _NO_FAST_PATH)
        plain = key is None and partition is None and headers is None and timestamp is None and value is not None
        if (
            plain and fast_path is not _NO_FAST_PATH
        ):  # an event, sent as it is: the same as below, in a third of the time
            _, name, encode, key_of, own_headers = fast_path
            data, key = encode(value), key_of(value)
            try:
                client.produce(name, data, key, -1, delivery, None, 0, own_headers)
            except BufferError:
                self._enqueue((name, data, key, -1, delivery, None, 0, own_headers))
            except (KafkaException, TypeError) as error:
                raise self._core.produce_error(
                    error, client, (name, data, key, -1, delivery, None, 0, own_headers)
                ) from error
            else:
                client.sent = count = client.sent + 1
                client.bytes += len(data)
                if count % POLL_EVERY == 0:
                    client.poll()
        else:
            record = self._record(
                delivery, topic, value, key=key, partition=partition, headers=headers, timestamp=timestamp
            )
            self._enqueue(record)
        if client.asleep:
            client.wake()
        return delivery

    def _enqueue(self, record: ProduceArguments) -> None:
        try:
            self._core.enqueue(self._core.client, record)
        except BufferError:
            self._core.enqueue_when_space(self._core.client, record)

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
    ) -> ProduceArguments:
        """The arguments to send, checked. Waits for the cluster when a topic is used for the first time."""
        self._refuse_outside_transaction()
        serializer = self._serializer(topic)
        if headers is None and key is None and value is not None and serializer.headers is not None:
            data, key, headers = serializer.encode(value), serializer.key_of(value), serializer.headers
        else:
            data, key, headers = serializer.serialize(value, key, headers)
        if partition is None:
            partition = -1
        else:
            self._core.client.check_topic(serializer.name, partition)
        when = 0 if timestamp is None else milliseconds_of(timestamp)
        return (serializer.name, data, key, partition, delivery, None, when, headers)

    def send_all(
        self, topic: Topic[Any] | str, values: Iterable[Any], *, key: Callable[[Any], str | bytes | None] | None = None
    ) -> int:
        """Send all values and wait until the cluster has them; returns how many there were. Takes from `values` as fast as
        the queue allows, so it may be endless or larger than memory.

        DeliveryError when some were not delivered: no more are taken then, and its fields say how many were `taken`,
        `acknowledged` and not (`count`). When `values` itself or a value's check raises, what was taken before is delivered
        first.
        """
        self._refuse_outside_transaction()
        return self._core.send_all(self._serializer(topic), values, key)

    def _knows(self, topic: Topic[Any] | str, partition: int | None) -> bool:
        """Whether `_record` needs no request to the cluster."""
        return partition is None and (topic if type(topic) is str else id(topic)) in self._serializers

    def _look_up(self, topic: Topic[Any] | str, partition: int | None) -> None:
        self._core.client.check_topic(self._serializer(topic).name, -1 if partition is None else partition)

    def _serializer(self, topic: Topic[Any] | str) -> RecordSerializer:
        """The serializer of this topic; looks it up on the cluster when it is used for the first time."""
        cache_key: int | str = topic if isinstance(topic, str) else id(topic)
        serializer = self._serializers.get(cache_key)
        if serializer is None:
            serializer = RecordSerializer(topic, self.connection.registry)
            self._core.client.check_topic(serializer.name, -1)
            if serializer.wire_format is not None:
                serializer.wire_format.prepare()
            if len(self._serializers) >= _MAX_SERIALIZERS:
                self._serializers.clear()
                self._fast_paths.clear()
            self._serializers[cache_key] = serializer
        if serializer.fast_path is not None and id(topic) not in self._fast_paths:
            self._fast_paths[id(topic)] = serializer.fast_path
            self._last_fast_path = _NO_FAST_PATH
        return serializer

    def transaction(self) -> Transaction:
        """`with producer.transaction() as tx: tx.send(…)`: all its records or none. Needs `transactional_id`."""
        return Transaction(self)

    def _set_transaction(self, transaction: Transaction | None) -> None:
        """Set the transaction of what follows, or none. A transactional producer has no fast paths outside of one."""
        self._transaction = transaction
        if transaction is None:
            self._fast_paths, self._last_fast_path = {}, _NO_FAST_PATH

    def _refuse_outside_transaction(self) -> None:
        if self._core.transactional and self._transaction is None:
            raise UsageError(
                "This producer has a transactional_id and sends in transactions only",
                hint="Write `with producer.transaction() as tx: tx.send(…)`",
            )

    # --- flush, metrics, close ----------------------------------------------------------------------------------------

    def flush(self, timeout_seconds: float | None = None) -> None:
        """Wait until everything enqueued so far has its delivery report. Raises what was not reported yet: failed deliveries
        (DeliveryError) and callbacks that raised (HandlerError). Waits `timeout_seconds`, by default as long as a record may
        take; then DeliveryError says how many are still in flight."""
        self._core.flush(timeout_seconds)

    def metrics(self) -> ProducerMetrics:
        """The counts until now. Cheap."""
        return self._core.metrics()

    def close(self, timeout_seconds: float | None = None) -> None:
        """Flush, and free everything. Records that are not delivered after `timeout_seconds` (by default, as long as a
        record may take) are given up, with a DeliveryError. Closing twice does nothing."""
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
            # The body's own error is raised; the closing error is added as a note.
            error.add_note(f"While the producer was closed after this: {problem}")


def _close_abandoned(core: ProducerCore) -> None:
    """Close a producer that was dropped without closing, or at the end of the interpreter."""
    if any(client.in_callback() for client in core.clients()):
        threading.Thread(target=_close_abandoned, args=(core,)).start()  # a callback cannot wait for deliveries
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
