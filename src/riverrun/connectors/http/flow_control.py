"""Keeps the event loop free and every response in time: capacity for records is checked before they are read, long work runs
in slices and one request at a time, and calls to Kafka run in threads of their own."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable
from typing import Protocol, Self

from riverrun.connectors.http.request_body import ContentHeaders
from riverrun.connectors.http.responses import (
    KAFKA_RETRY_SECONDS,
    RequestRejectedError,
    rejection_for,
    too_many_requests,
)
from riverrun.errors import BrokerUnreachableError, RiverrunError

# How long one slice of work may block the event loop.
SLICE_SECONDS = 0.002
# A larger body is processed one at a time, in slices.
LARGE_BYTES = 32 * 1024
# The usual minimum size of a record, and the ratio of gzip: to estimate how many there are.
_RECORD_BYTES = 100
_GZIP_RATIO = 8


class _ProducerQueue(Protocol):
    def has_capacity(self, count: int) -> bool: ...


class QueueCapacity:
    """Records that may wait for Kafka: those in the producer's queue, and those of requests that were read."""

    def __init__(self, queue: _ProducerQueue) -> None:
        self._queue = queue
        self.reserved = 0

    def check(self, count: int) -> None:
        """Rejected with 429 when there is no capacity."""
        if not self._queue.has_capacity(self.reserved + count):
            raise too_many_requests("Kafka is slower than the records come; nothing of this request was taken")

    def reserve(self, count: int) -> None:
        """Rejected with 429 when there is no capacity."""
        self.check(count)
        self.reserved += count


class Reservation:
    """The capacity that one request has reserved, in a `with`. Released when its records are in the producer's queue."""

    def __init__(self, capacity: QueueCapacity) -> None:
        self._capacity = capacity
        self._held = 0

    def resize(self, count: int) -> None:
        if count > self._held:
            self._capacity.reserve(count - self._held)
        else:
            self._capacity.reserved -= self._held - count
        self._held = count

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.resize(0)


def estimate_records(content_headers: ContentHeaders, max_records: int) -> int:
    """About how many records a body has, by its headers alone."""
    size = (content_headers.content_length or 0) * (_GZIP_RATIO if content_headers.gzipped else 1)
    return min(max_records, 1 + size // _RECORD_BYTES)


class LoopYielder:
    """Yields to other tasks of the event loop after each slice of work."""

    def __init__(self) -> None:
        self._clock = asyncio.get_running_loop().time
        self._until = self._clock() + SLICE_SECONDS

    async def yield_if_due(self) -> None:
        if self._clock() >= self._until:
            await asyncio.sleep(0)
            self._until = self._clock() + SLICE_SECONDS


class LargeRequestLock:
    """Large requests are processed one after the other, in the order they came: side by side they would all be late."""

    def __init__(self) -> None:
        self._lock: asyncio.Lock | None = None

    @contextlib.asynccontextmanager
    async def acquire(self, size: int, deadline: float) -> AsyncIterator[None]:
        """Rejected when its turn does not come before the deadline: nothing of it was taken."""
        if size <= LARGE_BYTES:
            yield
            return
        if self._lock is None:
            self._lock = asyncio.Lock()
        try:
            async with asyncio.timeout_at(deadline):
                await self._lock.acquire()
        except TimeoutError:
            raise too_many_requests("Too many requests wait for their turn; nothing of this one was taken") from None
        try:
            yield
        finally:
            self._lock.release()


class SingleFlight:
    """Calls to Kafka, one at a time for each name, each in a thread of its own: concurrent callers share the result. A
    thread ends by the call's own timeout, and never delays the end of the process."""

    def __init__(self) -> None:
        self._in_flight: dict[str, asyncio.Future[None]] = {}

    async def call(self, name: str, function: Callable[[], None], deadline: float) -> None:
        """Raises what the call raises. Rejected with 503 without an answer before the deadline (of the loop's clock)."""
        result = self._in_flight.get(name)
        if result is None:
            result = self._in_flight[name] = _run_in_thread(function, f"riverrun-ingest-{name}")
            result.add_done_callback(lambda _: self._in_flight.pop(name, None))
        try:
            async with asyncio.timeout_at(deadline):
                await asyncio.shield(result)
        except TimeoutError:
            raise RequestRejectedError(
                503,
                BrokerUnreachableError.code,
                "Kafka does not answer; nothing was taken",
                retry_after=KAFKA_RETRY_SECONDS,
            ) from None
        except RiverrunError as error:
            raise rejection_for(error) from error


def _run_in_thread(function: Callable[[], None], name: str) -> asyncio.Future[None]:
    loop = asyncio.get_running_loop()
    result: asyncio.Future[None] = loop.create_future()
    # Retrieve the error, as maybe nobody awaits it any more.
    result.add_done_callback(lambda done: done.cancelled() or done.exception())

    def set_outcome(error: Exception | None) -> None:
        if result.done():
            return
        if error is None:
            result.set_result(None)
        else:
            result.set_exception(error)

    def run() -> None:
        problem: Exception | None = None
        try:
            function()
        except Exception as error:  # noqa: BLE001  -- raised to the caller
            problem = error
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
            loop.call_soon_threadsafe(set_outcome, problem)

    threading.Thread(target=run, name=name, daemon=True).start()
    return result
