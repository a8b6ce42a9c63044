"""A broker that stands still, as in a long pause or a network that swallows everything: nothing is lost, nothing grows."""

import asyncio
import gc
import itertools
import threading
import time
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from riverrun.errors import DeliveryError, QueueFullError, TransactionError
from riverrun.kafka.producer.aio import AsyncProducer
from riverrun.kafka.producer.producer import Producer
from riverrun.model.topic import Topic
from support.producing import SCHEMA, Fragile, Reading, fragile_kafka, read, reading, stream, values

pytestmark = [pytest.mark.kafka, pytest.mark.slow]


@pytest.fixture(scope="module")
def fragile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fragile]:
    with fragile_kafka(tmp_path_factory.mktemp("fragile")) as broker:
        yield broker


def test_a_paused_broker_holds_the_producer_back_and_nothing_is_lost(fragile: Fragile) -> None:
    """A million records, and resident memory stays within what ProducerOptions says of its defaults."""
    topic = Topic(fragile.topic("held-back"), Reading)
    count, taken = 1_000_000, 0
    me = psutil.Process()

    def many() -> Iterator[Reading]:
        nonlocal taken
        for taken in range(count):
            yield reading(taken)

    with Producer(fragile.connection) as producer:
        producer.send_all(topic, [reading(-1)])
        gc.collect()
        before = me.memory_info().rss
        sent: list[int] = []
        with fragile.paused():
            worker = threading.Thread(target=lambda: sent.append(producer.send_all(topic, many())))
            worker.start()
            deadline = time.monotonic() + 60
            while producer.metrics().sent < 100_000:
                assert time.monotonic() < deadline
                time.sleep(0.05)
            full = producer.metrics().sent
            time.sleep(2)
            grown = me.memory_info().rss - before
            assert producer.metrics().sent == full <= 100_001, "held back"
            assert taken < 101_000, "and so is what it takes from"
        worker.join(120)
        assert sent == [count]
    assert grown < (41 + 64 + 5) * 2**20
    expected = itertools.count(-1)
    for message in stream(fragile.kafka, "held-back"):
        assert SCHEMA.decode(message.value() or b"").number == next(expected)
    assert next(expected) == count


def test_a_full_queue_and_a_paused_broker(fragile: Fragile) -> None:
    fragile.topic("full")
    with Producer(fragile.connection, queue_records=100, queue_timeout_seconds=0.5) as producer:
        producer.send("full", b"")
        with fragile.paused():
            for _ in range(100):
                producer.send_soon("full", b"x")
            with pytest.raises(QueueFullError) as caught:
                producer.send_soon("full", b"one more")
            assert caught.value.fields["queued"] >= 100
        producer.flush()
    assert len(read(fragile.kafka, "full")) == 101


def test_closing_while_the_broker_is_paused_tells_what_was_not_delivered(fragile: Fragile) -> None:
    fragile.topic("unclosed")
    producer = Producer(fragile.connection)
    producer.send("unclosed", b"first")
    with fragile.paused():
        for n in range(10):
            producer.send_soon("unclosed", f"{n}")
        started = time.monotonic()
        with pytest.raises(DeliveryError, match="10 records were not delivered") as caught:
            producer.close(0.5)
        assert time.monotonic() - started < 8
        assert [each.value for each in caught.value.undelivered] == [f"{n}".encode() for n in range(10)]
        assert "may or may not have been written" in str(caught.value)


def test_a_paused_broker_and_a_transaction(fragile: Fragile) -> None:
    """Whether a commit happened may be unknown; it is said, and the next producer of that id settles it."""
    fragile.topic("commits")
    options: dict[str, Any] = {"transactional_id": "commits", "transaction_timeout_seconds": 3}
    producer = Producer(fragile.connection, **options)
    with producer.transaction() as tx:
        tx.send("commits", b"first")
    tx = producer.transaction()
    tx.begin()
    tx.send("commits", b"second")
    with (
        fragile.paused(),
        pytest.raises(TransactionError, match="not known whether the transaction was committed"),
    ):
        tx.commit()
    producer.close()
    with Producer(fragile.connection, **options) as again, again.transaction() as tx:
        tx.send("commits", b"third")
    found = values(read(fragile.kafka, "commits"))
    assert found in ([b"first", b"third"], [b"first", b"second", b"third"])


def test_asyncio_back_pressure(fragile: Fragile) -> None:
    fragile.topic("async-full")

    async def main() -> None:
        async with AsyncProducer(fragile.connection, queue_records=50, queue_timeout_seconds=0.5) as producer:
            await producer.send("async-full", b"")
            with fragile.paused():
                for _ in range(50):
                    await producer.send_soon("async-full", b"x")
                started = time.monotonic()
                with pytest.raises(QueueFullError):
                    await producer.send_soon("async-full", b"one more")
                assert time.monotonic() - started > 0.5
            await producer.flush()

    asyncio.run(main())
    assert len(read(fragile.kafka, "async-full")) == 51
