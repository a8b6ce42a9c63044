"""Commits of a consumer: those nobody waited for, and those of other threads."""

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from riverrun.errors import CommitError
from riverrun.kafka.consumer.aio import AsyncConsumer
from riverrun.model.cluster_state import TopicPartition
from unit.kafka.fake_client import NOWHERE, FakeClient

A = TopicPartition("t", 0)


def test_the_last_commit_nobody_waited_for_is_sent_before_the_consumer_leaves(client: FakeClient) -> None:
    client.logs[A] = range(5)
    client.silent = True
    with client.consumer(commit="manual") as consumer:
        for _ in range(2):
            next(consumer)
            # The first one is on its way, and the second has to wait for it.
            consumer.commit(wait=False)
        next(consumer)
        assert client.requests == [{A: 1}]
        client.silent = False
    # The third record was never committed by whoever is to do it.
    assert client.committed_offsets == {A: 2}


def test_a_commit_nobody_waited_for_that_is_not_answered_is_said_when_the_consumer_leaves(client: FakeClient) -> None:
    client.logs[A] = range(5)
    client.silent = True
    consumer = client.consumer(commit="manual", close_seconds=0.1)
    next(consumer)
    consumer.commit(wait=False)
    with pytest.raises(CommitError, match=r"no answer for t\[0\]@1"):
        consumer.close()
    assert client.closed


def test_manual_commits_are_the_only_ones(client: FakeClient) -> None:
    client.logs[A] = range(5)
    with client.consumer(commit="manual", follow=False) as consumer:
        assert len(list(consumer)) == 5
    assert client.requests == []


# --- from other threads -----------------------------------------------------------------------------------------------


class Loop:
    """A thread that reads; its poll is held up until it is let go."""

    def __init__(self, client: FakeClient, **options: Any) -> None:
        self.seen: list[int] = []
        self.inside, self.gate = threading.Event(), threading.Event()
        self.consumer = client.consumer(commit="manual", **options)
        client.logs[A] = range(1)
        client.committed_offsets[A] = 0
        self._thread = threading.Thread(target=self._read)
        self._thread.start()
        until(lambda: self.seen == [0])
        client.in_poll.append(self._held_up)
        client.logs[A] = range(5)
        assert self.inside.wait(5)

    def _read(self) -> None:
        for record in self.consumer:
            self.seen.append(record.value)

    def _held_up(self) -> None:
        self.inside.set()
        assert self.gate.wait(10)

    def end(self) -> None:
        self.gate.set()
        until(lambda: len(self.seen) >= 5)
        self.consumer.stop()
        self._thread.join(5)
        self.consumer.close()


def until(fact: Callable[[], bool]) -> None:
    end = time.monotonic() + 5
    while not fact():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_a_commit_of_another_thread_keeps_out_of_the_client_while_one_reads(client: FakeClient) -> None:
    loop = Loop(client)
    done: list[str] = []

    def commit() -> None:
        loop.consumer.commit()
        done.append("committed")

    thread = threading.Thread(target=commit)
    thread.start()
    # Longer than the client would let it wait.
    time.sleep(1.2)
    assert done == []
    loop.gate.set()
    thread.join(5)
    loop.end()
    assert done == ["committed"]
    assert {A: 1} in client.requests
    assert loop.seen == [0, 1, 2, 3, 4]


def test_a_commit_of_another_thread_that_does_not_wait_is_sent_by_the_one_that_reads(client: FakeClient) -> None:
    loop = Loop(client)
    began = time.monotonic()
    loop.consumer.commit(wait=False)
    assert time.monotonic() - began < 0.5
    assert client.requests == []
    loop.end()
    assert {A: 1} in client.requests
    assert loop.seen == [0, 1, 2, 3, 4]


def test_a_commit_of_another_thread_gets_through_while_the_loop_has_a_record_in_hand(client: FakeClient) -> None:
    client.logs[A] = range(3)
    with client.consumer(commit="manual", follow=False) as consumer:
        next(consumer)
        thread = threading.Thread(target=consumer.commit)
        thread.start()
        thread.join(5)
        assert client.committed_offsets == {A: 1}
        assert [record.value for record in consumer] == [1, 2]


def test_a_commit_that_waits_ends_in_time_though_the_client_is_busy(client: FakeClient) -> None:
    loop = Loop(client)
    loop.consumer._subscription.timeout = 0.3
    began = time.monotonic()
    with pytest.raises(CommitError, match=r"within 0\.3 s"):
        loop.consumer.commit()
    assert time.monotonic() - began < 2
    loop.consumer._subscription.timeout = 5
    loop.end()


# --- asyncio ----------------------------------------------------------------------------------------------------------


def test_a_task_commits_in_the_thread_that_reads(client: FakeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    client.logs[A] = range(3)
    threads: list[str] = []
    send = client.commit

    def note(*arguments: Any, **keywords: Any) -> None:
        threads.append(threading.current_thread().name)
        send(*arguments, **keywords)

    monkeypatch.setattr(client, "commit", note)

    async def main() -> list[int]:
        async with AsyncConsumer("t", group="g", connection=NOWHERE, follow=False, commit="manual") as consumer:
            seen = []
            async for record in consumer:
                seen.append(record.value)
                await consumer.commit()
            return seen

    assert asyncio.run(main()) == [0, 1, 2]
    assert len(threads) == 3
    assert {name.split("_")[0] for name in threads} == {"riverrun-read"}


def test_a_batch_that_is_not_waited_for_any_more_keeps_nobody_from_committing_and_leaving(client: FakeClient) -> None:
    client.logs[A] = range(3)

    async def main() -> None:
        async with AsyncConsumer("t", group="g", connection=NOWHERE, commit="manual") as consumer:
            batches = consumer.batches(3)
            assert len(await anext(batches)) == 3
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await anext(batches)
            async with asyncio.timeout(5):
                await consumer.commit()

    asyncio.run(asyncio.wait_for(main(), 10))
    assert client.committed_offsets == {A: 3}
