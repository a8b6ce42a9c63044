"""The producer for asyncio against a real broker."""

import asyncio
import itertools
import os
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from riverrun.errors import DeliveryError, RecordTooLargeError, TopicNotFoundError, UsageError
from riverrun.kafka.producer.aio import AsyncDelivery, AsyncProducer
from riverrun.model.topic import Topic
from riverrun.testing.pytest_plugin import KafkaUnderTest
from support.producing import MakeTopic, Reading, numbers, read, reading, values

pytestmark = pytest.mark.kafka


def test_asyncio_sends(kafka: KafkaUnderTest, kafka_topic: MakeTopic) -> None:
    topic = Topic(kafka_topic(), Reading)

    async def main() -> None:
        async with AsyncProducer(kafka.connection) as producer:
            assert (await producer.send(topic, reading(0))).offset == 0
            deliveries = [await producer.send_soon(topic, reading(n)) for n in range(1, 1000)]
            assert (await deliveries[500]).offset == 501
            assert await deliveries[500] == await deliveries[500]
            receipts = await asyncio.gather(*deliveries)
            assert [receipt.offset for receipt in receipts] == list(range(1, 1000))
            assert all(delivery.done() for delivery in deliveries)
            receipts = await asyncio.gather(*(producer.send(topic, reading(n)) for n in range(1000, 1100)))
            assert sorted(receipt.offset for receipt in receipts) == list(range(1000, 1100))
            assert producer.metrics().acknowledged == 1100

    asyncio.run(main())
    assert numbers(read(kafka, topic.name)) == list(range(1100))


def test_asyncio_latency(kafka: KafkaUnderTest, kafka_topic: MakeTopic) -> None:
    """Waiting for one record after the other does not linger, and other tasks go on meanwhile."""

    async def main() -> None:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                await asyncio.sleep(0.001)
                ticks += 1

        async with AsyncProducer(kafka.connection, linger_ms=1000) as producer:
            await producer.send(topic, b"")
            ticking = asyncio.create_task(tick())
            started = time.monotonic()
            for _ in range(20):
                await producer.send(topic, b"")
            assert time.monotonic() - started < 3
            ticking.cancel()
        assert ticks >= 3

    topic = kafka_topic()
    asyncio.run(main())


def test_asyncio_send_all(kafka: KafkaUnderTest, kafka_topic: MakeTopic) -> None:
    topic = Topic(kafka_topic(), Reading)

    async def slowly() -> AsyncIterator[Reading]:
        for n in range(20_011, 20_021):
            await asyncio.sleep(0.001)
            yield reading(n)

    async def main() -> None:
        async with AsyncProducer(kafka.connection, linger_ms=100) as producer:
            for n in range(10):
                await producer.send_soon(topic, reading(n))
            assert await producer.send_all(topic, (reading(n) for n in range(10, 20_010))) == 20_000
            await producer.send(topic, reading(20_010))
            assert await producer.send_all(topic, slowly()) == 10

    asyncio.run(main())
    assert numbers(read(kafka, topic.name)) == list(range(20_021))


def test_asyncio_errors(kafka: KafkaUnderTest, kafka_topic: MakeTopic) -> None:
    small = kafka_topic(config={"max.message.bytes": "2000"})

    async def main() -> None:
        async with AsyncProducer(kafka.connection) as producer:
            with pytest.raises(TopicNotFoundError):
                await producer.send("no-such-topic", b"")
            with pytest.raises(RecordTooLargeError):
                await producer.send(small, os.urandom(5000))
            delivery = await producer.send_soon(small, os.urandom(5000))
            with pytest.raises(UsageError, match="Await the delivery"):
                delivery.result()
            with pytest.raises(RecordTooLargeError):
                await delivery
            await producer.flush()
            await producer.send_soon(small, os.urandom(5000))
            with pytest.raises(DeliveryError, match="1 record was not delivered"):
                await producer.flush()
            with pytest.raises(DeliveryError, match="1 record was not delivered"):
                await producer.send_all(small, [os.urandom(5000)])
        with pytest.raises(UsageError, match="closed"):
            await producer.send(small, b"")

    asyncio.run(main())


def test_asyncio_cancellation_loses_nothing(kafka: KafkaUnderTest, kafka_topic: MakeTopic) -> None:
    topic, small = kafka_topic(), kafka_topic("small", config={"max.message.bytes": "2000"})

    async def main() -> None:
        async with AsyncProducer(kafka.connection, linger_ms=300) as producer:
            await producer.send(topic, b"first")
            delivery = await producer.send_soon(topic, b"second")
            waiting = asyncio.ensure_future(_awaited(delivery))
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert (await delivery).offset == 1, "cancelling who waits does not cancel what is sent"

            await producer.send(small, b"")
            sending = asyncio.ensure_future(producer.send(small, os.urandom(5000)))
            await asyncio.sleep(0)
            sending.cancel()
            with pytest.raises(asyncio.CancelledError):
                await sending
            with pytest.raises(DeliveryError, match="1 record was not delivered"):
                await producer.flush()

            enough = asyncio.Event()

            def endless() -> Iterator[bytes]:
                for n in itertools.count():
                    yield b"many"
                    if n == 5000:
                        enough.set()

            many = asyncio.ensure_future(producer.send_all(topic, endless()))
            await enough.wait()
            many.cancel()
            with pytest.raises(asyncio.CancelledError):
                await many
            await producer.flush()
            assert producer.metrics().failed == 1

    asyncio.run(main())
    found = values(read(kafka, topic))
    assert found[:2] == [b"first", b"second"]
    assert set(found[2:]) == {b"many"}


async def _awaited(delivery: AsyncDelivery) -> Any:
    return await delivery


def test_asyncio_transactions(kafka: KafkaUnderTest, kafka_topic: MakeTopic) -> None:
    topic = kafka_topic()

    async def fail(producer: AsyncProducer) -> None:
        async with producer.transaction() as tx:
            await tx.send(topic, b"5")
            raise ZeroDivisionError

    async def main() -> None:
        async with AsyncProducer(kafka.connection, transactional_id=topic) as producer:
            with pytest.raises(UsageError, match="in transactions only"):
                await producer.send(topic, b"")
            async with producer.transaction() as tx:
                await tx.send(topic, b"1")
                await tx.send_soon(topic, b"2")
                assert await tx.send_all(topic, [b"3", b"4"]) == 2
            with pytest.raises(ZeroDivisionError):
                await fail(producer)
            async with producer.transaction() as tx:
                await tx.send(topic, b"6")
                await tx.abort()
            async with producer.transaction() as tx:
                await tx.send(topic, b"7")

    asyncio.run(main())
    assert values(read(kafka, topic)) == [b"1", b"2", b"3", b"4", b"7"]


def test_asyncio_cancelled_in_a_transaction(kafka: KafkaUnderTest, kafka_topic: MakeTopic) -> None:
    topic = kafka_topic()

    async def main() -> None:
        async with AsyncProducer(kafka.connection, transactional_id=topic) as producer:
            sent = asyncio.Event()

            async def work() -> None:
                async with producer.transaction() as tx:
                    await tx.send(topic, b"never")
                    sent.set()
                    await asyncio.sleep(60)

            task = asyncio.ensure_future(work())
            await sent.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            async with producer.transaction() as tx:
                await tx.send(topic, b"after")

    asyncio.run(main())
    assert values(read(kafka, topic)) == [b"after"]
    assert values(read(kafka, topic, committed=False)) == [b"never", b"after"]
