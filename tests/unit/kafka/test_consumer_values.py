"""Values that cannot be read while records are handled in parallel: no worker dies of them, and `run` ends."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from riverrun.errors import HandlerError, RecordUnreadableError, RegistryRefusedError, RegistryUnavailableError
from riverrun.kafka.consumer.aio import AsyncConsumer
from riverrun.kafka.consumer.consumer import Consumer
from riverrun.kafka.consumer.options import ConsumerMetrics
from riverrun.kafka.consumer.retry import Retry
from riverrun.model.cluster_state import TopicPartition
from riverrun.model.event import Event
from riverrun.model.topic import Topic
from unit.kafka.fake_client import NOWHERE, FakeClient

A = TopicPartition("t", 0)
DEEP = b"[" * 5000 + b"]" * 5000
QUICK = Retry(times=2, first_seconds=0.01)


class Priced(Event):
    currency: str

    def __post_init__(self) -> None:
        _ = {"EUR": 1.0}[self.currency]


Run = Callable[..., tuple[list[Any], ConsumerMetrics]]


def in_threads(topic: Any, load: Callable[[bytes], Any] | None = None, **options: Any) -> Any:
    seen: list[Any] = []
    with Consumer(topic, group="g", connection=NOWHERE, follow=False) as consumer:
        if load is not None:
            consumer._decoder._loads["t"] = load
        metrics = consumer.run(lambda record: seen.append(record.value), workers=2, retry=QUICK, **options)
    return seen, metrics


def in_tasks(topic: Any, load: Callable[[bytes], Any] | None = None, **options: Any) -> Any:
    seen: list[Any] = []

    async def handle(record: Any) -> None:
        seen.append(record.value)

    async def main() -> ConsumerMetrics:
        async with AsyncConsumer(topic, group="g", connection=NOWHERE, follow=False) as consumer:
            if load is not None:
                consumer._consumer._decoder._loads["t"] = load
            return await consumer.run(handle, retry=QUICK, **options)

    return seen, asyncio.run(main())


BOTH = pytest.mark.parametrize("run", [in_threads, in_tasks])


@BOTH
def test_brackets_without_end_are_one_unreadable_record(client: FakeClient, run: Run) -> None:
    client.logs[A] = range(3)
    client.values[A] = {1: DEEP}
    seen, metrics = run("t", on_unreadable="skip")
    assert (seen, metrics.skipped, metrics.retried) == ([0, 2], 1, 0)
    assert client.committed_offsets == {A: 3}


@BOTH
def test_what_an_event_does_not_take_is_unreadable_whatever_it_raises(client: FakeClient, run: Run) -> None:
    client.logs[A] = range(2)
    client.values[A] = {0: b'{"currency":"EUR"}', 1: b'{"currency":"XXX"}'}
    with pytest.raises(RecordUnreadableError, match=r"t\[0\]@1 is not a Priced. Found KeyError: 'XXX'"):
        run(Topic("t", Priced))
    assert client.committed_offsets == {A: 1}


class Registry:
    """Does not answer the first times."""

    def __init__(self, failures: list[Exception]) -> None:
        self.failures = failures

    def load(self, raw: bytes) -> int:
        if self.failures:
            raise self.failures.pop(0)
        return int(raw)


@BOTH
def test_a_registry_that_does_not_answer_is_asked_again(client: FakeClient, run: Run) -> None:
    client.logs[A] = range(3)
    registry = Registry([RegistryUnavailableError("It is down"), RegistryUnavailableError("It is down")])
    seen, metrics = run("t", registry.load, on_unreadable="skip")
    assert (seen, metrics.retried, metrics.skipped) == ([0, 1, 2], 2, 0)


@BOTH
def test_a_registry_that_lets_nobody_in_is_an_error_of_handling_and_no_bad_record(client: FakeClient, run: Run) -> None:
    client.logs[A] = range(3)
    registry = Registry([RegistryRefusedError("Not you") for _ in range(3)])
    with pytest.raises(HandlerError, match="could not be handled after 3 attempts") as caught:
        run("t", registry.load, on_unreadable="skip")
    assert isinstance(caught.value.__cause__, RegistryRefusedError)
    assert client.committed_offsets == {}
