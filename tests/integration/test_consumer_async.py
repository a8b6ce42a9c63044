"""The consumer for asyncio, on a real broker."""

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

import riverrun as rr
from riverrun.errors import HandlerError, TopicNotFoundError, UsageError
from riverrun.kafka.consumer.aio import AsyncConsumer
from riverrun.testing.pytest_plugin import KafkaUnderTest
from support.consuming import Bench

pytestmark = pytest.mark.kafka


@pytest.fixture
def bench(kafka: KafkaUnderTest, kafka_topic: Callable[..., str]) -> Bench:
    return Bench(kafka.connection, kafka_topic, partitions=3)


def consumer(bench: Bench, **options: Any) -> AsyncConsumer[Any]:
    return AsyncConsumer(bench.topic, group=bench.group, connection=bench.connection, **{"follow": False, **options})


async def ignore(_record: rr.Record[Any]) -> None:
    pass


async def collect(records: AsyncIterator[Any]) -> list[Any]:
    return [record async for record in records]


def test_a_loop_reads_all_and_commits_what_it_read(bench: Bench) -> None:
    bench.fill(3000)

    async def main() -> list[int]:
        async with consumer(bench) as reading:
            return [record.value async for record in reading]

    assert sorted(asyncio.run(main())) == list(range(3000))
    assert bench.committed() == {0: 1000, 1: 1000, 2: 1000}


def test_an_exception_leaves_the_record_in_hand(bench: Bench) -> None:
    bench.fill(10, partition=0)

    async def main() -> None:
        async with consumer(bench) as reading:
            async for record in reading:
                _ = 1 / (record.value - 4)

    with pytest.raises(ZeroDivisionError):
        asyncio.run(main())
    assert bench.committed()[0] == 4


@pytest.mark.parametrize("options", [{"commit": "record"}, {"delivery": "at-most-once"}, {"commit": "batch"}])
def test_commits_come_when_they_were_asked_for(bench: Bench, options: dict[str, Any]) -> None:
    bench.fill(3, partition=0)
    ahead = 1 if "delivery" in options else 0

    async def main() -> None:
        async with consumer(bench, **options) as reading:
            async for record in reading:
                if options != {"commit": "batch"}:
                    assert bench.committed().get(0, 0) == record.offset + ahead

    asyncio.run(main())
    assert bench.committed()[0] == 3


def test_batches_and_manual_commits(bench: Bench) -> None:
    bench.fill(2500)

    async def main() -> list[int]:
        async with consumer(bench, commit="manual") as reading:
            sizes = []
            async for batch in reading.batches(1000):
                sizes.append(len(batch))
                if len(sizes) == 2:
                    await reading.commit()
            return sizes

    assert asyncio.run(main()) == [1000, 1000, 500]
    assert sum(bench.committed().values()) == 2000


def test_the_loop_is_never_blocked(bench: Bench) -> None:
    async def main() -> float:
        gaps: list[float] = []

        async def tick() -> None:
            last = time.monotonic()
            while True:
                await asyncio.sleep(0.005)
                now = time.monotonic()
                gaps.append(now - last)
                last = now

        ticking = asyncio.create_task(tick())
        async with consumer(bench, follow=True) as reading:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1):
                    await anext(reading)
        ticking.cancel()
        return max(gaps)

    assert asyncio.run(main()) < 0.5


def test_a_wait_that_is_cancelled_loses_nothing(bench: Bench) -> None:
    async def main() -> list[int]:
        seen: list[int] = []
        async with consumer(bench, follow=True) as reading:
            for _ in range(30):
                try:
                    async with asyncio.timeout(0.01):
                        seen.append((await anext(reading)).value)
                except TimeoutError:
                    pass
            await asyncio.to_thread(bench.fill, 300)
            while len(seen) < 300:
                try:
                    async with asyncio.timeout(0.003):
                        while True:
                            seen.append((await anext(reading)).value)
                except TimeoutError:
                    pass
        return seen

    assert sorted(asyncio.run(main())) == list(range(300))
    assert sum(bench.committed().values()) == 300


def test_seeking_pausing_and_lag(bench: Bench) -> None:
    bench.fill(30)

    async def main() -> None:
        async with consumer(bench) as reading:
            assert sum((await reading.lag()).values()) == 30
            assert len(await collect(reading)) == 30
            await reading.seek_to_beginning(0)
            await reading.pause(0)
            await reading.resume(0)
            assert [record.offset async for record in reading] == list(range(10))
            await reading.seek(1, 7)
            await reading.seek_to_end(2)
            assert [record.offset async for record in reading] == [7, 8, 9]
            assert reading.position() == dict.fromkeys(reading.partitions, 10)
            assert reading.metrics().handled == 43

    asyncio.run(main())


def test_handlers_run_side_by_side_within_their_order(bench: Bench) -> None:
    bench.fill(600, keys=20)
    busy: Counter[Any] = Counter()
    most, overlaps, order = 0, [], []

    async def handle(record: rr.Record[Any]) -> None:
        nonlocal most
        lane = (record.partition, record.key)
        busy[lane] += 1
        if busy[lane] > 1:
            overlaps.append(lane)
        most = max(most, sum(busy.values()))
        await asyncio.sleep(0.002)
        order.append((lane, record.offset))
        busy[lane] -= 1

    async def main() -> Any:
        async with consumer(bench) as reading:
            return await reading.run(handle, concurrency=50, order="key")

    metrics = asyncio.run(main())
    assert (metrics.handled, metrics.lag, overlaps) == (600, 0, [])
    assert 10 < most <= 50
    for lane in busy:
        offsets = [offset for each, offset in order if each == lane]
        assert offsets == sorted(offsets)
    assert bench.rest() == []


def test_errors_are_retried_buried_or_stop_it(bench: Bench) -> None:
    bench.fill(10, partition=0)
    tries: Counter[int] = Counter()

    async def handle(record: rr.Record[Any]) -> None:
        tries[record.value] += 1
        if record.value == 3 or (record.value == 5 and tries[5] < 3):
            raise ConnectionError

    async def main(**options: Any) -> Any:
        async with consumer(bench) as reading:
            return await reading.run(handle, retry=rr.Retry(times=2, first_seconds=0.01), **options)

    with pytest.raises(HandlerError) as caught:
        asyncio.run(main())
    assert caught.value.fields["offset"] == 3
    assert bench.committed()[0] == 3
    metrics = asyncio.run(main(on_error="dead-letter"))
    assert (metrics.handled, metrics.dead, tries[5]) == (6, 1, 3)
    assert bench.committed()[0] == 10


def test_cancelling_run_cancels_handlers_and_commits_what_was_done(bench: Bench) -> None:
    bench.fill(100)
    cancelled: list[int] = []
    stuck = asyncio.Semaphore(0)

    async def handle(record: rr.Record[Any]) -> None:
        if record.offset >= 5:
            stuck.release()
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                cancelled.append(record.offset)
                raise

    async def main() -> None:
        async with consumer(bench, follow=True) as reading:
            task = asyncio.create_task(reading.run(handle))
            for _ in range(3):
                await stuck.acquire()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    began = time.monotonic()
    asyncio.run(main())
    assert time.monotonic() - began < 20
    assert cancelled == [5, 5, 5]
    assert bench.committed() == {0: 5, 1: 5, 2: 5}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_run_gracefully(bench: Bench, number: signal.Signals) -> None:
    bench.fill(300)
    before = signal.getsignal(number)

    async def handle(record: rr.Record[Any]) -> None:
        if record.value == 30:
            os.kill(os.getpid(), number)
        await asyncio.sleep(0.01)

    async def main() -> Any:
        async with consumer(bench, follow=True) as reading:
            return await reading.run(handle, concurrency=3)

    metrics = asyncio.run(main())
    assert 30 < metrics.handled < 300
    assert sum(bench.committed().values()) == metrics.handled
    assert signal.getsignal(number) is before


def test_mistakes_are_said_as_by_the_other_consumer(bench: Bench) -> None:
    async def main() -> None:
        async with AsyncConsumer(f"not-{bench.topic}", group="g", connection=bench.connection) as reading:
            with pytest.raises(TopicNotFoundError):
                await anext(reading)
        closed = consumer(bench)
        await closed.close()
        with pytest.raises(UsageError, match="closed"):
            await anext(closed)
        async with consumer(bench) as reading:
            with pytest.raises(UsageError):
                await reading.run(ignore, concurrency=0)

    asyncio.run(main())
