"""The producer for asyncio: the same guarantees, and nothing blocks the event loop.

    async with AsyncProducer() as producer:
        receipt = await producer.send(readings, Reading(…))
        delivery = await producer.send_soon(readings, Reading(…))    # waits only while the queue is full
        receipt = await delivery

A cancelled `send` may have sent: the record is in flight, and if it fails nobody has received the error, so `flush` or
`close` raises it.
"""

import asyncio
import contextlib
import itertools
import threading
import time
from collections import deque
from collections.abc import AsyncIterable, Callable, Generator, Iterable
from datetime import datetime
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

from confluent_kafka import KafkaError as ClientError
from confluent_kafka import Message

from riverrun.errors import RiverrunError, UsageError
from riverrun.kafka.connection import Connection
from riverrun.kafka.consumer.aio import AsyncConsumer
from riverrun.kafka.producer.client import ProducerClient
from riverrun.kafka.producer.core import CHUNK_RECORDS, BulkSend, KeyFunction
from riverrun.kafka.producer.delivery import Delivery, Receipt
from riverrun.kafka.producer.metrics import ProducerMetrics
from riverrun.kafka.producer.options import ProducerKeywords
from riverrun.kafka.producer.producer import HURRY_SECONDS, Producer
from riverrun.kafka.producer.record_serializer import Headers
from riverrun.kafka.producer.transaction import Transaction
from riverrun.model.topic import Topic

T = TypeVar("T")

# How long a task may wait before it checks again, for what nobody signals (a deadline, a client that was closed).
_RECHECK_SECONDS = 0.1


class AsyncDelivery(Delivery, gc=False, eq=False):
    """One record in flight. `await` returns its Receipt or raises; done(), result() and exception() do not wait."""

    _notifier: "_DeliveryNotifier | None" = None
    _waiter: asyncio.Future[None] | None = None

    def result(self, timeout: float | None = 0) -> Receipt:
        self._refuse_to_wait(timeout)
        return super().result(0)

    def exception(self, timeout: float | None = 0) -> RiverrunError | None:
        self._refuse_to_wait(timeout)
        return super().exception(0)

    def _refuse_to_wait(self, timeout: float | None) -> None:
        if timeout != 0 or self._message is None:
            raise UsageError(
                "A record's outcome is not known yet, and asking must not block", hint="Await the delivery"
            )

    def __await__(self) -> Generator[Any, None, Receipt]:
        # First create the waiter, then check; the report comes in another thread and does it the other way round.
        if self._waiter is None:
            self._waiter = asyncio.get_running_loop().create_future()
        while self._message is None and len(self._client):
            if self._notifier is not None:
                self._notifier.wake()
            yield from asyncio.wait({self._waiter}, timeout=_RECHECK_SECONDS).__await__()
        self._settled()
        return self.result()

    def __call__(self, error: ClientError | None, message: Message) -> None:
        super().__call__(error, message)
        if self._waiter is not None and self._notifier is not None:
            self._notifier.settled.append(self._waiter)


class _DeliveryNotifier:
    """Wakes tasks after reports were served, from whatever thread served them."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.settled: deque[asyncio.Future[None]] = deque()
        self._thread = threading.get_ident()
        self._waiting: set[asyncio.Future[None]] = set()
        self._clients: list[ProducerClient] = []

    def watch(self, client: ProducerClient) -> None:
        if client not in self._clients:
            self._clients.append(client)
            client.after_poll = self.notify

    def wake(self) -> None:
        for client in self._clients:
            if client.asleep:
                client.wake()

    def notify(self) -> None:
        """Called after each poll, in the thread that polled."""
        if not self.settled and not self._waiting:
            return
        if threading.get_ident() == self._thread:
            self._notify_waiters()
        else:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                self.loop.call_soon_threadsafe(self._notify_waiters)

    def _notify_waiters(self) -> None:
        while self.settled:
            waiter = self.settled.popleft()
            if not waiter.done():
                waiter.set_result(None)
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(None)

    async def wait(self) -> None:
        """Wait until something was served, or a moment has passed."""
        waiter = self.loop.create_future()
        self._waiting.add(waiter)
        try:
            self.wake()
            await asyncio.wait({waiter}, timeout=_RECHECK_SECONDS)
        finally:
            self._waiting.discard(waiter)


class AsyncProducer:
    """Sends records from asyncio. Keywords are those of `ProducerOptions`. Belongs to the loop it is first used in."""

    def __init__(self, connection: Connection | str | None = None, **options: Unpack[ProducerKeywords]) -> None:
        self._producer = Producer(connection, **options)
        self._core = self._producer._core
        self._lazy_notifier: _DeliveryNotifier | None = None
        self._sent = 0

    @property
    def _notifier(self) -> _DeliveryNotifier:
        if self._lazy_notifier is None:
            self._lazy_notifier = _DeliveryNotifier()
            self._lazy_notifier.watch(self._core.client)
        return self._lazy_notifier

    async def send(
        self,
        topic: Topic[Any] | str,
        value: Any,
        *,
        key: str | bytes | None = None,
        partition: int | None = None,
        headers: Headers | None = None,
        timestamp: datetime | int | None = None,
    ) -> Receipt:
        """Send one record and wait until the cluster has it; see `Producer.send`."""
        client = self._core.client
        client.urgent += 1
        try:
            return await (
                await self.send_soon(topic, value, key=key, partition=partition, headers=headers, timestamp=timestamp)
            )
        finally:
            client.urgent -= 1

    async def send_soon(
        self,
        topic: Topic[Any] | str,
        value: Any,
        *,
        key: str | bytes | None = None,
        partition: int | None = None,
        headers: Headers | None = None,
        timestamp: datetime | int | None = None,
    ) -> AsyncDelivery:
        """Enqueue one record; waits while the queue is full, and for the cluster when a topic is used for the first time."""
        producer, client, notifier = self._producer, self._core.client, self._notifier
        if not producer._knows(topic, partition):
            await _in_thread(lambda: producer._look_up(topic, partition))
        delivery = AsyncDelivery(client, None, None, 0, notifier)
        record = producer._record(
            delivery, topic, value, key=key, partition=partition, headers=headers, timestamp=timestamp
        )
        started = 0.0
        while True:
            try:
                self._core.enqueue(client, record)
                break
            except BufferError:
                started = await self._wait_for_space(client, started)
        self._sent += 1
        if client.asleep:
            client.wake()
        if self._sent % CHUNK_RECORDS == 0:
            await asyncio.sleep(0)  # let other tasks run
        return delivery

    async def send_all(
        self,
        topic: Topic[Any] | str,
        values: Iterable[Any] | AsyncIterable[Any],
        *,
        key: KeyFunction | None = None,
    ) -> int:
        """Send all values and wait until the cluster has them; see `Producer.send_all`. Values that come one by one (from
        an asynchronous iterator) are sent as they come."""
        producer, core = self._producer, self._core
        producer._refuse_outside_transaction()
        if not producer._knows(topic, None):
            await _in_thread(lambda: producer._look_up(topic, None))
        bulk_send = await _in_thread(lambda: core.begin_bulk_send(producer._serializer(topic), key))
        self._notifier.watch(bulk_send.client)
        if bulk_send.client is not core.client:
            await self._drain([core.client], core.delivery_wait_seconds)
        try:
            if isinstance(values, AsyncIterable):
                async for value in values:
                    await self._enqueue(bulk_send, [value])
                    if bulk_send.failed:
                        break
            else:
                source = iter(values)
                while not bulk_send.failed and (chunk := list(itertools.islice(source, CHUNK_RECORDS))):
                    await self._enqueue(bulk_send, chunk)
                    await asyncio.sleep(0)
            left = await self._drain([bulk_send.client], core.delivery_wait_seconds)
        except Exception as error:
            bulk_send.add_failure_note(error, await self._drain([bulk_send.client], core.delivery_wait_seconds))
            raise
        except BaseException:
            bulk_send.detach()  # cancelled: no time to wait
            raise
        return bulk_send.result(left)

    async def _enqueue(self, bulk_send: BulkSend, chunk: list[Any]) -> None:
        started = 0.0
        while (taken := bulk_send.enqueue(chunk)) < len(chunk):
            chunk = chunk[taken:]
            started = await self._wait_for_space(bulk_send.client, 0.0 if taken else started)
        bulk_send.client.poll()

    async def _wait_for_space(self, client: ProducerClient, started: float) -> float:
        """Wait for space in a queue that is full since `started` (0: now), which is returned."""
        started = started or time.monotonic()
        if time.monotonic() >= started + self._core.options.queue_timeout_seconds:
            raise client.queue_full_error(started)
        await self._notifier.wait()
        return started

    async def _drain(self, clients: list[ProducerClient], seconds: float) -> int:
        """Wait until every record has its delivery report; returns the number of those without when the time is over."""
        deadline = time.monotonic() + seconds
        for client in clients:
            client.urgent += 1
        try:
            while (left := sum(len(client) for client in clients)) and time.monotonic() < deadline:
                await self._notifier.wait()
        finally:
            for client in clients:
                client.urgent -= 1
        return left

    def transaction(self) -> "AsyncTransaction":
        """`async with producer.transaction() as tx: await tx.send(…)`: all its records or none."""
        return AsyncTransaction(self, self._producer.transaction())

    async def flush(self, timeout_seconds: float | None = None) -> None:
        """Wait until everything enqueued so far has its delivery report; see `Producer.flush`."""
        left = await self._drain(
            self._core.clients(), self._core.delivery_wait_seconds if timeout_seconds is None else timeout_seconds
        )
        self._core.raise_failures(left)

    def metrics(self) -> ProducerMetrics:
        return self._core.metrics()

    async def close(self, timeout_seconds: float | None = None) -> None:
        """Flush, and free everything; see `Producer.close`."""
        if self._producer._transaction is not None:
            await _in_thread(self._producer._transaction.abort)
        await self._drain(
            self._core.clients(), self._core.delivery_wait_seconds if timeout_seconds is None else timeout_seconds
        )
        await _in_thread(lambda: self._producer.close(0))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            await self.close()
            return
        hurry = min(HURRY_SECONDS, self._core.options.delivery_timeout_seconds)
        try:
            await self.close(None if isinstance(error, Exception) else hurry)
        except RiverrunError as problem:
            error.add_note(f"While the producer was closed after this: {problem}")


class AsyncTransaction:
    """One transaction of an AsyncProducer; see `Transaction`."""

    def __init__(self, producer: AsyncProducer, transaction: Transaction) -> None:
        self._producer = producer
        self._transaction = transaction

    async def send(self, topic: Topic[Any] | str, value: Any, **options: Any) -> Receipt:
        """Like `AsyncProducer.send`."""
        self._transaction._check_open()
        return await self._producer.send(topic, value, **options)

    async def send_soon(self, topic: Topic[Any] | str, value: Any, **options: Any) -> AsyncDelivery:
        """Like `AsyncProducer.send_soon`."""
        self._transaction._check_open()
        return await self._producer.send_soon(topic, value, **options)

    async def send_all(
        self, topic: Topic[Any] | str, values: Iterable[Any] | AsyncIterable[Any], *, key: KeyFunction | None = None
    ) -> int:
        """Like `AsyncProducer.send_all`."""
        self._transaction._check_open()
        return await self._producer.send_all(topic, values, key=key)

    async def commit_offsets(self, consumer: AsyncConsumer[Any]) -> None:
        """Like `Transaction.commit_offsets`."""
        await _in_thread(lambda: self._transaction.commit_offsets(consumer._consumer))

    async def abort(self) -> None:
        """Give everything up."""
        await _in_thread(self._transaction.abort)

    async def __aenter__(self) -> Self:
        try:
            await _in_thread(self._transaction.begin)
        except BaseException as error:
            # Cancelled after it had begun: nobody else would end it.
            await self.__aexit__(type(error), error, error.__traceback__)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await _in_thread(lambda: self._transaction.__exit__(kind, error, trace))


async def _in_thread(work: Callable[[], T]) -> T:
    """Run a blocking call (each has a deadline) in a thread. When cancelled meanwhile, it is completed first: a commit that
    nobody waits for would still happen."""
    task = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        if not task.cancelled() and (problem := task.exception()) is not None:
            raise asyncio.CancelledError from problem
        raise
