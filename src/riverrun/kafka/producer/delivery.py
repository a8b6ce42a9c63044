"""The outcome of a record: where it is (`Receipt`), a pending one (`Delivery`), or why it failed (`Undelivered`)."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec
from confluent_kafka import KafkaError as ClientError
from confluent_kafka import KafkaException, Message

from riverrun.errors import DeliveryError, HandlerError, RecordTooLargeError, RiverrunError
from riverrun.kafka.error_mapping import translate
from riverrun.model.units import format_size

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverrun.kafka.producer.client import ProducerClient

# Undelivered records that an error carries: enough to see what they have in common, few enough to keep in memory.
KEPT_RECORDS = 100
KEPT_BYTES = 16 * 2**20

_PURGED_CODES = frozenset({ClientError._PURGE_QUEUE, ClientError._PURGE_INFLIGHT})

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Receipt:
    """Where the cluster stored a record. `timestamp` is Kafka's own, which retention uses: the time it was sent."""

    topic: str
    partition: int
    offset: int
    timestamp: datetime

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}]@{self.offset}"


@dataclass(frozen=True, slots=True)
class Undelivered:
    """A record that was not acknowledged, and why. `partition` is None when it had none yet."""

    topic: str
    partition: int | None
    key: bytes | None
    value: bytes | None
    error: RiverrunError


def receipt_of(message: Message) -> Receipt:
    topic, partition, offset = message.topic(), message.partition(), message.offset()
    _, milliseconds = message.timestamp()
    return Receipt(
        topic or "",
        partition if partition is not None else -1,
        offset if offset is not None else -1,
        _EPOCH + timedelta(milliseconds=max(milliseconds, 0)),
    )


def _report_error(error: ClientError, message: Message, bootstrap_servers: str) -> RiverrunError:
    """The error of one record's delivery report, as one of ours."""
    topic = message.topic() or ""
    fields: dict[str, Any] = {"topic": topic, "partition": message.partition(), "kafka_error": error.name()}
    explained: RiverrunError
    if error.code() == ClientError._MSG_TIMED_OUT:
        explained = DeliveryError(
            f"A record for {topic} was not acknowledged in time",
            hint="It may or may not have been written. Check the cluster (`riverrun status`), or raise "
            "delivery_timeout_seconds",
            **fields,
        )
    elif error.code() == ClientError._PURGE_QUEUE:
        explained = DeliveryError(
            f"A record for {topic} was given up before it was sent: its producer closed, or its transaction was aborted",
            **fields,
        )
    elif error.code() == ClientError._PURGE_INFLIGHT:
        explained = DeliveryError(
            f"A record for {topic} was given up on its way (it may or may not have been written): its producer closed, or "
            "its transaction was aborted",
            **fields,
        )
    elif error.code() == ClientError.MSG_SIZE_TOO_LARGE:
        explained = RecordTooLargeError(
            f"The cluster refused a batch of records for {topic}, or one record in it, as too large",
            found=f"{error.str()}; this record has {format_size(len(message.value() or b''))}",
            hint="Raise max.message.bytes of the topic, or keep batches below it: "
            'Producer(properties={"batch.size": …})',
            **fields,
        )
    else:
        explained = translate(error, f"sending to {topic}", bootstrap=bootstrap_servers, **fields)
    explained.__cause__ = KafkaException(error)
    return explained


class Delivery(msgspec.Struct, gc=False, eq=False):
    """One record in flight, as `send_soon` returns it. Settled when the cluster has answered, or will not.

    A failure that is not asked for here, and that no `on_delivery` received, is raised by the producer's next `flush` or
    `close`.
    """

    # A struct that the garbage collector ignores, and its own report callback: a tenth of the time of `send_soon`, as
    # 100,000 may be in flight.
    _client: ProducerClient
    _callback: Callable[[Delivery], Any] | None = None
    _message: Message | None = None
    _unseen: int = 0

    def done(self) -> bool:
        """Whether the outcome is known."""
        if self._message is None:
            self._client.poll()
        return self._message is not None

    def result(self, timeout: float | None = None) -> Receipt:
        """The record's receipt. Waits up to `timeout` seconds (TimeoutError: not known yet), by default without limit."""
        error = self.exception(timeout)
        if error is not None:
            raise error
        return receipt_of(self._settled())

    def exception(self, timeout: float | None = None) -> RiverrunError | None:
        """Why the record was not delivered, or None. Waits as `result` does."""
        if self._message is None:
            self._client.wait_for(self, timeout)
        message = self._settled()
        if self._unseen:
            self._client.failures.forget(message, self._unseen)
            self._unseen = 0
        return self._client.failures.explain(message)

    def _settled(self) -> Message:
        if self._message is None:
            raise DeliveryError(
                "The outcome of a record is not known: the program was interrupted as it was reported",
                hint="Look for it in the topic before sending it again",
            )
        return self._message

    def __call__(self, error: ClientError | None, message: Message) -> None:
        """The client's delivery report, called while it is polled, once. Not for users."""
        self._message = message
        if error is not None:
            self._client.failures.total += 1
            if self._callback is None:
                self._unseen = self._client.failures.add(message)
        if self._callback is not None:
            callback, self._callback = self._callback, None
            try:
                callback(self)
            except Exception as problem:  # noqa: BLE001  -- whatever the user's callback raises is raised by flush or close
                self._client.failures.callback_failed(problem)
        self._client.reported += 1  # last: if Ctrl-C comes in between, the record counts as unreported

    def __repr__(self) -> str:
        if self._message is None:
            return "<Delivery pending>"
        error = self._message.error()
        return f"<Delivery {receipt_of(self._message)}>" if error is None else f"<Delivery failed: {error.name()}>"


class DeliveryFailures:
    """Undelivered records that were not reported to anybody yet, and callbacks that raised. Bounded."""

    def __init__(self, bootstrap_servers: str) -> None:
        self.total = 0
        self.fatal: ClientError | None = None
        self._bootstrap_servers = bootstrap_servers
        self._lock = threading.Lock()
        self._generation = 1
        self._unseen = 0
        self._kept: dict[int, Message] = {}
        self._kept_bytes = 0
        self._callback_errors = 0
        self._first_callback_error: Exception | None = None

    def explain(self, message: Message) -> RiverrunError | None:
        """Why this record was not delivered; None when it was."""
        error = message.error()
        if error is None:
            return None
        if self.fatal is not None and error.code() in _PURGED_CODES:
            error = self.fatal  # the client dropped its records because of this
        return _report_error(error, message, self._bootstrap_servers)

    def undelivered(self, message: Message) -> Undelivered:
        partition, error = message.partition(), self.explain(message)
        if error is None:
            raise ValueError("this record was delivered")
        return Undelivered(
            message.topic() or "",
            partition if partition is not None and partition >= 0 else None,
            message.key(),
            message.value(),
            error,
        )

    def add(self, message: Message) -> int:
        """Count a failed record that was not reported yet; returns the generation to `forget` it by."""
        with self._lock:
            self._unseen += 1
            if len(self._kept) < KEPT_RECORDS and self._kept_bytes + len(message) <= KEPT_BYTES:
                self._kept[id(message)] = message
                self._kept_bytes += len(message)
            return self._generation

    def forget(self, message: Message, generation: int) -> None:
        """Drop this record, because its outcome was asked for."""
        with self._lock:
            if generation == self._generation:
                self._unseen -= 1
                if self._kept.pop(id(message), None) is not None:
                    self._kept_bytes -= len(message)

    def callback_failed(self, problem: Exception) -> None:
        with self._lock:
            self._callback_errors += 1
            self._first_callback_error = self._first_callback_error or problem

    def discard(self) -> None:
        """Drop failures that a transaction's own error has reported."""
        with self._lock:
            self._clear()

    def _clear(self) -> tuple[int, list[Message]]:
        unseen, kept = self._unseen, list(self._kept.values())
        self._unseen, self._kept, self._kept_bytes = 0, {}, 0
        self._generation += 1
        return unseen, kept

    def take_error(self) -> RiverrunError | None:
        """The error for everything not reported until now, once; None when there is nothing."""
        with self._lock:
            unseen, kept = self._clear()
            callbacks, first = self._callback_errors, self._first_callback_error
            self._callback_errors, self._first_callback_error = 0, None
        problem: RiverrunError | None = None
        if first is not None:
            problem = HandlerError(
                f"{callbacks} on_delivery callback{'s' if callbacks != 1 else ''} failed",
                found=f"first {type(first).__name__}: {first}".rstrip("."),
                count=callbacks,
            )
            problem.__cause__ = first
        if unseen:
            records = [self.undelivered(message) for message in kept]
            error = delivery_error(unseen, records)
            if problem is not None:
                error.add_note(str(problem))
            return error
        return problem


def delivery_error(count: int, records: list[Undelivered], **fields: Any) -> DeliveryError:
    """The error about `count` undelivered records, of which `records` are the first."""
    first = records[0].error if records else None
    error = DeliveryError(
        f"{count} record{'s' if count != 1 else ''} {'were' if count != 1 else 'was'} not delivered",
        found=f"first: {first.what}" + (f" ({first.found})" if first.found else "") if first else "",
        hint=first.hint if first else "",
        undelivered=records,
        count=count,
        **fields,
    )
    error.__cause__ = first
    return error
