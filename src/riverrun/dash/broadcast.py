"""One state for all who look on: what changed since the last look goes out as one frame of bytes, made once.

Who has missed a frame gets the whole state. While nobody looks on, nothing is looked at.
"""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import msgspec

from riverrun.dash.feed import unexpected
from riverrun.errors import RiverrunError, StoreUnavailableError

PING_SECONDS = 10.0
MOST_VIEWERS = 200
# What is worked on at once for requests, and what may wait for its turn.
THREADS = 3
MOST_WAITING = 16

_LOG = logging.getLogger(__name__)
T = TypeVar("T")


class Viewer:
    """One page that looks on."""

    def __init__(self, shown: "Broadcast") -> None:
        self.wake = asyncio.Event()
        self._shown = shown

    async def messages(self) -> AsyncGenerator[bytes, None]:
        """Server-sent events, until the end of it or until the caller stops asking."""
        shown = self._shown
        shown.join(self)
        try:
            yield b"retry: 1000\n\n" + event("hello", {"now": now_ms()})
            await shown.seen.wait()
            number = shown.number
            yield shown.whole()
            while not shown.closed:
                try:
                    await asyncio.wait_for(self.wake.wait(), PING_SECONDS)
                except TimeoutError:
                    yield event("ping", {"now": now_ms()})
                    continue
                self.wake.clear()
                if number == shown.number:
                    continue
                behind, number = shown.number - number, shown.number
                yield shown.frame if behind == 1 else shown.whole()
        finally:
            shown.leave(self)


class Broadcast:
    """Used in one event loop. A subclass says how to look, what has changed, and how long to wait for the next look."""

    def __init__(self, name: str) -> None:
        self.seen = asyncio.Event()
        self.closed = False
        self.number = 0
        self.frame = b""
        self.looks = 0
        self._name = name
        self._state: dict[str, Any] = {}
        self._viewers: set[Viewer] = set()
        self._watching: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._looking = asyncio.Lock()
        self._looker = ThreadPoolExecutor(1, thread_name_prefix=f"riverrun-{name}")
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix=f"riverrun-{name}-work")
        self._waiting = 0

    async def _look(self) -> dict[str, Any]:
        """The state as it is now."""
        raise NotImplementedError

    def _difference(self, before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
        """What a page has to be told that knows `before`."""
        raise NotImplementedError

    async def _rest(self, took: float) -> None:
        """Until it is time for the next look; the last one took so many seconds."""
        raise NotImplementedError

    # --- live ---

    def look_on(self) -> Viewer:
        """A new viewer; StoreUnavailableError when there are too many."""
        if self.closed:
            raise StoreUnavailableError("The server is closing")
        if len(self._viewers) >= MOST_VIEWERS:
            raise StoreUnavailableError(f"{MOST_VIEWERS} pages look on already", hint="Close some of them")
        return Viewer(self)

    def join(self, viewer: Viewer) -> None:
        self._viewers.add(viewer)
        self._loop = asyncio.get_running_loop()
        if self._watching is None or self._watching.done():
            self._watching = asyncio.create_task(self._watch())

    def leave(self, viewer: Viewer) -> None:
        self._viewers.discard(viewer)

    async def _watch(self) -> None:
        while self._viewers and not self.closed:
            began = time.monotonic()
            try:
                await self.refresh()
            except Exception:  # noqa: BLE001  -- a page keeps the last state, and it is tried again
                _LOG.exception("looking at the %s failed", self._name)
            await self._rest(time.monotonic() - began)
        # Who comes later is not shown what was true before.
        self.seen.clear()

    async def refresh(self) -> dict[str, Any]:
        """Look once; the whole state."""
        async with self._looking:
            self.looks += 1
            state = await self._look()
            change = self._difference(self._state, state)
            self._state = state
            self.seen.set()
            if change:
                self.frame = event("frame", {"now": now_ms(), **change})
                self.number += 1
                for each in self._viewers:
                    each.wake.set()
        return state

    def whole(self) -> bytes:
        return event("frame", {"now": now_ms(), "whole": True, **self._state})

    # --- work for requests ---

    async def _work(self, work: Callable[[], T]) -> T:
        if self.closed or self._waiting >= MOST_WAITING:
            raise StoreUnavailableError("Too much is asked for at once", hint="Try again in a moment")
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, work)
        except RiverrunError:
            raise
        except Exception as error:
            _LOG.exception("a request to the %s failed", self._name)
            raise unexpected(error) from error
        finally:
            self._waiting -= 1

    # --- the end ---

    def end(self) -> None:
        """As `close`, from any thread, and without waiting."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.close)
        else:
            self.close()

    def close(self) -> None:
        """End every viewer's stream, and look no more."""
        self.closed = True
        if self._watching is not None:
            self._watching.cancel()
        self.seen.set()
        for each in self._viewers:
            each.wake.set()
        for pool in (self._looker, self._pool):
            pool.shutdown(wait=False, cancel_futures=True)


def now_ms() -> int:
    return round(time.time() * 1000)


def event(name: str, content: Mapping[str, Any]) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + msgspec.json.encode(content) + b"\n\n"
