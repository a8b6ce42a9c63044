"""The producer for asyncio, without a cluster: nothing blocks the loop, and what is not delivered is told."""

import asyncio
import threading
import time
from typing import Any, Self

import pytest

from riverrun.config import KafkaSettings
from riverrun.errors import BrokerUnreachableError, DeliveryError, QueueFullError, UsageError
from riverrun.kafka.connection import Connection
from riverrun.kafka.producer.aio import AsyncProducer
from riverrun.kafka.producer.transaction import Transaction
from riverrun.model.event import Event, key
from riverrun.model.topic import Topic

NOWHERE = Connection(KafkaSettings(bootstrap_servers="127.0.0.1:1", request_timeout_seconds=1))


class Order(Event):
    id: str = key()


ORDERS = Topic("orders", Order)
EVENT = Order(id="o1")


def lonely(**options: Any) -> AsyncProducer:
    """A producer that knows the topic orders, and has nobody to send its records to."""
    producer = AsyncProducer(NOWHERE, **{"delivery_timeout_seconds": 30, **options})
    producer._core.client._partitions["orders"] = 2
    return producer


class Ticks:
    """Counts how often the loop came round while something else was waited for."""

    def __init__(self) -> None:
        self.count = 0

    async def __aenter__(self) -> Self:
        self._task = asyncio.ensure_future(self._tick())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(0.01)
            self.count += 1


def test_a_missing_cluster_does_not_block_the_loop() -> None:
    async def main() -> None:
        async with AsyncProducer(NOWHERE) as producer, Ticks() as ticks:
            with pytest.raises(BrokerUnreachableError, match="Connection refused"):
                await producer.send("t", b"")
        assert ticks.count > 20

    asyncio.run(main())


def test_a_full_queue_does_not_block_the_loop() -> None:
    async def main() -> None:
        producer = lonely(queue_records=10, queue_timeout_seconds=0.5)
        async with Ticks() as ticks:
            for _ in range(10):
                await producer.send_soon(ORDERS, EVENT)
            with pytest.raises(QueueFullError) as caught:
                await producer.send_soon(ORDERS, EVENT)
        assert ticks.count > 10
        assert caught.value.fields["queued"] >= 10
        with pytest.raises(DeliveryError, match="10 records were not delivered"):
            await producer.close(0)

    asyncio.run(main())


def test_failures_are_told_by_the_delivery_or_by_flush() -> None:
    async def main() -> None:
        async with lonely(delivery_timeout_seconds=0.3) as producer:
            asked, ignored = await producer.send_soon(ORDERS, EVENT), await producer.send_soon(ORDERS, EVENT)
            assert not asked.done()
            with pytest.raises(UsageError, match="Await the delivery"):
                asked.exception()
            with pytest.raises(DeliveryError, match="not acknowledged in time"):
                await asked
            assert isinstance(asked.exception(), DeliveryError)
            with pytest.raises(DeliveryError, match="1 record was not delivered"):
                await producer.flush()
            assert isinstance(ignored.exception(), DeliveryError)
            await producer.flush()

    asyncio.run(main())


def test_leaving_after_an_exception_keeps_it() -> None:
    async def main() -> None:
        async with lonely(delivery_timeout_seconds=0.3) as producer:
            await producer.send_soon(ORDERS, EVENT)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as caught:
        asyncio.run(main())
    assert "1 record was not delivered" in caught.value.__notes__[0]


def test_a_timeout_ends_a_wait_and_not_the_record() -> None:
    async def main() -> None:
        producer = lonely()
        started = time.monotonic()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await producer.send(ORDERS, EVENT)
        assert time.monotonic() - started < 2
        assert producer.metrics().queued == 1
        with pytest.raises(DeliveryError, match="1 record is still on the way"):
            await producer.flush(0.1)
        with pytest.raises(DeliveryError, match="1 record was not delivered"):
            await producer.close(0)
        with pytest.raises(UsageError, match="closed"):
            await producer.send(ORDERS, EVENT)

    asyncio.run(main())


def test_other_tasks_run_while_one_sends_all_the_time() -> None:
    async def main() -> None:
        producer = lonely()
        ran = asyncio.ensure_future(asyncio.sleep(0))
        for _ in range(1000):
            await producer.send_soon(ORDERS, EVENT)
        assert ran.done()
        with pytest.raises(DeliveryError, match="1000 records"):
            await producer.close(0)

    asyncio.run(main())


def test_a_transaction_that_is_cancelled_while_it_begins_does_not_stay_open(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting, gate = threading.Event(), threading.Event()
    ended: list[str] = []

    def begin(transaction: Transaction) -> None:
        waiting.set()
        assert gate.wait(5)
        transaction._producer._set_transaction(transaction)
        transaction._open = True

    def step(_transaction: Transaction, doing: str, *_: Any) -> None:
        ended.append(doing)

    monkeypatch.setattr(Transaction, "begin", begin)
    monkeypatch.setattr(Transaction, "_step", step)

    async def main() -> None:
        async with lonely(transactional_id="transfers") as producer:
            task = asyncio.ensure_future(producer.transaction().__aenter__())
            await asyncio.to_thread(waiting.wait, 5)
            task.cancel()
            await asyncio.sleep(0.05)
            gate.set()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert ended == ["aborting a transaction"]
            # Another one can begin.
            async with producer.transaction():
                pass
        assert ended == ["aborting a transaction", "committing a transaction"]

    asyncio.run(main())
