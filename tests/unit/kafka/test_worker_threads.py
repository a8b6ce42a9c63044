"""Handlers that would do nothing when they are called are refused before the first record."""

import functools
from collections.abc import Iterator

import pytest

from riverrun.errors import UsageError
from riverrun.kafka.consumer.worker_threads import check_sync_handler


async def awaited(record: object) -> None:
    """Does nothing until it is awaited."""


def generated(record: object) -> Iterator[None]:
    yield


class Callable:
    async def __call__(self, record: object) -> None:
        """Likewise."""


class Plain:
    def __call__(self, record: object) -> None:
        """A handler."""

    def handle(self, record: object) -> None:
        """Another."""


@pytest.mark.parametrize("handler", [awaited, functools.partial(awaited), Callable()])
def test_an_async_handler_is_for_the_async_consumer(handler: object) -> None:
    with pytest.raises(UsageError, match="AsyncConsumer"):
        check_sync_handler(handler)  # type: ignore[arg-type]


def test_a_generator_does_nothing_when_called() -> None:
    with pytest.raises(UsageError, match="generator"):
        check_sync_handler(generated)


@pytest.mark.parametrize("handler", [Plain(), Plain().handle, lambda _: None, functools.partial(print, 1), [].append])
def test_anything_that_acts_when_called_will_do(handler: object) -> None:
    check_sync_handler(handler)  # type: ignore[arg-type]
