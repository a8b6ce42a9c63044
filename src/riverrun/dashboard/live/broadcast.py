"""Broadcasts one state to all viewers: changes since the last read are sent as one frame of bytes, encoded once.

A viewer that missed a frame gets the whole state. Without viewers nothing is read.
"""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import msgspec

from riverrun.dashboard.live.tile_feed import internal_error
from riverrun.errors import RiverrunError, StoreUnavailableError

PING_SECONDS = 10.0
MAX_VIEWERS = 200
# How many requests are worked on at once, and how many may be pending.
WORK_THREADS = 3
MAX_PENDING = 16

_LOG = logging.getLogger(__name__)
T = TypeVar("T")


class BroadcastViewer:
    """One open page."""

    def __init__(self, broadcast: "Broadcast") -> None:
        self.wake = asyncio.Event()
        self._broadcast = broadcast

    async def messages(self) -> AsyncGenerator[bytes, None]:
        """Server-sent events, until the broadcast closes or the caller stops iterating."""
        broadcast = self._broadcast
        broadcast.join(self)
        try:
            yield b"retry: 1000\n\n" + sse_event("hello", {"now": now_ms()})
            await broadcast.ready.wait()
            frame_number = broadcast.frame_number
            yield broadcast.snapshot()
            while not broadcast.closed:
                try:
                    await asyncio.wait_for(self.wake.wait(), PING_SECONDS)
                except TimeoutError:
                    yield sse_event("ping", {"now": now_ms()})
                    continue
                self.wake.clear()
                if frame_number == broadcast.frame_number:
                    continue
                missed, frame_number = broadcast.frame_number - frame_number, broadcast.frame_number
                yield broadcast.frame if missed == 1 else broadcast.snapshot()
        finally:
            broadcast.leave(self)


class Broadcast:
    """Used in one event loop. A subclass defines how to read the state, what has changed, and when to read again."""

    def __init__(self, name: str) -> None:
        self.ready = asyncio.Event()
        self.closed = False
        self.frame_number = 0
        self.frame = b""
        self.reads = 0
        self._name = name
        self._state: dict[str, Any] = {}
        self._viewers: set[BroadcastViewer] = set()
        self._read_task: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._read_lock = asyncio.Lock()
        self._read_pool = ThreadPoolExecutor(1, thread_name_prefix=f"riverrun-{name}")
        self._work_pool = ThreadPoolExecutor(WORK_THREADS, thread_name_prefix=f"riverrun-{name}-work")
        self._pending = 0

    async def _read_state(self) -> dict[str, Any]:
        """Read the current state."""
        raise NotImplementedError

    def _diff(self, before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
        """The update for a page that has `before`."""
        raise NotImplementedError

    async def _wait_for_next(self, seconds_taken: float) -> None:
        """Wait until the next read is due; the last one took `seconds_taken`."""
        raise NotImplementedError

    # --- live ---

    def add_viewer(self) -> BroadcastViewer:
        """Add a viewer; StoreUnavailableError when there are too many."""
        if self.closed:
            raise StoreUnavailableError("The server is closing")
        if len(self._viewers) >= MAX_VIEWERS:
            raise StoreUnavailableError(f"{MAX_VIEWERS} pages look on already", hint="Close some of them")
        return BroadcastViewer(self)

    def join(self, viewer: BroadcastViewer) -> None:
        self._viewers.add(viewer)
        self._loop = asyncio.get_running_loop()
        if self._read_task is None or self._read_task.done():
            self._read_task = asyncio.create_task(self._read_loop())

    def leave(self, viewer: BroadcastViewer) -> None:
        self._viewers.discard(viewer)

    async def _read_loop(self) -> None:
        while self._viewers and not self.closed:
            began = time.monotonic()
            try:
                await self.refresh()
            except Exception:  # noqa: BLE001  -- a page keeps the last state, and it is tried again
                _LOG.exception("looking at the %s failed", self._name)
            await self._wait_for_next(time.monotonic() - began)
        # A later viewer must not get an old state.
        self.ready.clear()

    async def refresh(self) -> dict[str, Any]:
        """Read once; returns the whole state."""
        async with self._read_lock:
            self.reads += 1
            state = await self._read_state()
            change = self._diff(self._state, state)
            self._state = state
            self.ready.set()
            if change:
                self.frame = sse_event("frame", {"now": now_ms(), **change})
                self.frame_number += 1
                for viewer in self._viewers:
                    viewer.wake.set()
        return state

    def snapshot(self) -> bytes:
        return sse_event("frame", {"now": now_ms(), "whole": True, **self._state})

    # --- work for requests ---

    async def _run_in_pool(self, work: Callable[[], T]) -> T:
        if self.closed or self._pending >= MAX_PENDING:
            raise StoreUnavailableError("Too much is asked for at once", hint="Try again in a moment")
        self._pending += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._work_pool, work)
        except RiverrunError:
            raise
        except Exception as error:
            _LOG.exception("a request to the %s failed", self._name)
            raise internal_error(error) from error
        finally:
            self._pending -= 1

    # --- closing ---

    def request_close(self) -> None:
        """As `close`, from any thread, and without waiting."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.close)
        else:
            self.close()

    def close(self) -> None:
        """End every viewer's stream, and stop reading."""
        self.closed = True
        if self._read_task is not None:
            self._read_task.cancel()
        self.ready.set()
        for viewer in self._viewers:
            viewer.wake.set()
        for pool in (self._read_pool, self._work_pool):
            pool.shutdown(wait=False, cancel_futures=True)


def now_ms() -> int:
    return round(time.time() * 1000)


def sse_event(name: str, content: Mapping[str, Any]) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + msgspec.json.encode(content) + b"\n\n"
