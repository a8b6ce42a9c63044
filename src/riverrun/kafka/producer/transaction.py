"""Transactions: several records, in any topics, and the offsets they came from; all of them or none.

    with Producer(transactional_id="transfers") as producer:
        with producer.transaction() as tx:
            tx.send_soon(accounts, Withdrawal(…))
            tx.send_soon(accounts, Deposit(…))

Leaving the block commits; an exception in it aborts. Readers of committed records see all of them or none. The cluster
knows a producer by its transactional id: a new one with the same id takes over, and the old one gets ProducerFencedError at
its next step.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from confluent_kafka import Consumer as RawConsumer
from confluent_kafka import KafkaError as ClientError
from confluent_kafka import KafkaException
from confluent_kafka import Producer as RawProducer
from confluent_kafka import TopicPartition as ClientPartition

from riverrun.errors import ProducerFencedError, RiverrunError, TransactionError, UsageError
from riverrun.kafka.producer.delivery import Delivery, Receipt
from riverrun.kafka.producer.record_serializer import Headers
from riverrun.model.cluster_state import TopicPartition
from riverrun.model.topic import Topic

if TYPE_CHECKING:
    from riverrun.kafka.consumer.consumer import Consumer
    from riverrun.kafka.producer.client import ProducerClient
    from riverrun.kafka.producer.producer import Producer

# How long one step may ignore Ctrl-C. Steps that take longer are resumed.
_STEP_SECONDS = 0.5


class Transaction:
    """One transaction, from `with` to its end. Its records are sent by its own methods, which are the producer's."""

    def __init__(self, producer: "Producer") -> None:
        self._producer = producer
        self._client: ProducerClient = producer._core.client
        self._open = False

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
        """Like `Producer.send`. The record is written, but readers of committed records see it only after the commit."""
        self._check_open()
        return self._producer.send(topic, value, key=key, partition=partition, headers=headers, timestamp=timestamp)

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
        """Like `Producer.send_soon`. A failed delivery makes the commit fail, so there is no need to check each."""
        self._check_open()
        return self._producer.send_soon(
            topic, value, key=key, partition=partition, headers=headers, timestamp=timestamp, on_delivery=on_delivery
        )

    def send_all(
        self, topic: Topic[Any] | str, values: Iterable[Any], *, key: Callable[[Any], str | bytes | None] | None = None
    ) -> int:
        """Like `Producer.send_all`."""
        self._check_open()
        return self._producer.send_all(topic, values, key=key)

    def commit_offsets(
        self, consumer: "Consumer[Any] | RawConsumer", offsets: Mapping[TopicPartition, int] | None = None
    ) -> None:
        """Make what the consumer has handed out part of the transaction: read, transform and write exactly once. `offsets`
        says where a raw client stands, if that is known better than by the last record it gave.

        The consumer must not commit by itself (`commit="manual"`). When the transaction is aborted it must read again what
        it had: let the exception end it, or seek.
        """
        self._check_open()
        positions, group = _consumer_positions(consumer)
        if offsets is not None:
            positions = [ClientPartition(*partition, offset) for partition, offset in offsets.items()]
        if not positions:
            return
        deadline = time.monotonic() + self._client.request_timeout
        doing = "adding offsets to the transaction"
        try:
            self._client.request(lambda raw, s: raw.send_offsets_to_transaction(positions, group, s), deadline, doing)
        except RiverrunError as error:
            if isinstance(error, ProducerFencedError):
                raise
            raise TransactionError(f"Offsets were not added to the transaction: {error.what}", found=error.found,
                                   hint=error.hint, **error.fields) from error  # fmt: skip

    # --- lifecycle ----------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Begin. `with` does it."""
        producer = self._producer
        if not producer._core.transactional:
            raise UsageError(
                "This producer has no transactional_id",
                expected='Producer(transactional_id="…"), a name that stays the same when the program starts again',
            )
        if producer._transaction is not None:
            raise UsageError("A transaction of this producer is open already", hint="Commit or abort it first")
        producer._core.init_transactions()
        self._step("beginning a transaction", lambda raw: raw.begin_transaction(), time.monotonic())
        producer._set_transaction(self)
        self._open = True

    def commit(self) -> None:
        """Make everything visible at once. TransactionError: it was aborted instead, and nothing is visible."""
        self._check_open()
        deadline = time.monotonic() + self._producer.options.transaction_timeout_seconds + 5
        try:
            self._step("committing a transaction", lambda raw: raw.commit_transaction(_STEP_SECONDS), deadline)
        except ProducerFencedError:
            self._end()
            raise
        except _NeedsAbortError as problem:
            cause = self._client.take_failure() or problem.error
            self.abort()
            raise TransactionError(
                f"The transaction was aborted, and none of its records are visible: {cause.what}",
                found=cause.found,
                hint=cause.hint,
                **cause.fields,
            ) from cause
        except RiverrunError as error:
            self._end()
            raise TransactionError(
                "It is not known whether the transaction was committed",
                found=error.found or error.what,
                hint="Close this producer; a new one with the same transactional_id settles it before it begins",
                **error.fields,
            ) from error
        self._end()

    def abort(self) -> None:
        """Give everything up. If the cluster cannot be reached, it aborts after `transaction_timeout_seconds` by itself."""
        if not self._open:
            return
        deadline = time.monotonic() + self._client.request_timeout
        try:
            self._step("aborting a transaction", lambda raw: raw.abort_transaction(_STEP_SECONDS), deadline)
        except _NeedsAbortError as problem:
            raise problem.error from problem
        finally:
            self._end()

    def __enter__(self) -> Self:
        self.begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            if self._open:
                self.commit()
            return
        try:
            self.abort()
        except ProducerFencedError:
            pass  # the producer that took over has aborted it
        except RiverrunError as problem:
            error.add_note(f"The transaction could not be aborted, the cluster will do it by itself: {problem}")

    def _end(self) -> None:
        self._open = False
        self._producer._set_transaction(None)
        client = self._client
        if client.queued and not client.closed:
            client.raw.purge(blocking=False)
            client.drain(time.monotonic() + 5)
        # What an aborted transaction did not deliver is reported by the error that aborted it.
        client.failures.discard()

    def _check_open(self) -> None:
        if not self._open:
            raise UsageError("This transaction is not open", hint="Use it inside its `with`")

    def _step(self, doing: str, action: Callable[[RawProducer], None], deadline: float) -> None:
        """Do one step, again and again if the client says that it may work."""
        while True:
            try:
                self._client.call(action)
                return
            except KafkaException as problem:
                error = problem.args[0]
                explained = self._client.explain(problem, doing)
                if isinstance(explained, ProducerFencedError) or error.fatal():
                    raise (
                        explained if isinstance(explained, ProducerFencedError) else _as_transaction_error(explained)
                    ) from problem
                if error.txn_requires_abort():
                    raise _NeedsAbortError(explained) from problem
                retriable = error.retriable() or error.code() in {ClientError._TIMED_OUT, ClientError._PREV_IN_PROGRESS}
                if not retriable or time.monotonic() >= deadline:
                    raise explained from problem
                self._client.poll()


class _NeedsAbortError(Exception):
    """This transaction can only be aborted, and why."""

    def __init__(self, error: RiverrunError) -> None:
        super().__init__(str(error))
        self.error = error


def _consumer_positions(consumer: "Consumer[Any] | RawConsumer") -> tuple[list[ClientPartition], Any]:
    """The next offsets to read, and the group metadata that the cluster needs to accept them."""
    if isinstance(consumer, RawConsumer):
        positions = [
            client_partition
            for client_partition in consumer.position(consumer.assignment())
            if client_partition.offset >= 0
        ]
        return positions, consumer.consumer_group_metadata()
    if not consumer.group or consumer.options.commit != "manual":
        raise UsageError(
            "This consumer's offsets cannot be part of a transaction",
            expected='Consumer(…, group="…", commit="manual")',
            found=f'commit="{consumer.options.commit}"' if consumer.group else "no group",
        )
    offsets = consumer._buffer.done | consumer._buffer.delivered_positions()
    positions = [ClientPartition(*partition, offset) for partition, offset in offsets.items()]
    return positions, consumer._subscription.client.consumer_group_metadata()


def _as_transaction_error(error: RiverrunError) -> TransactionError:
    return TransactionError(
        error.what, found=error.found, hint="Make a new producer: this one cannot go on", **error.fields
    )
