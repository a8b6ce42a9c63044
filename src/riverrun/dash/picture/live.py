"""The pipeline picture, live: looked at once a second for all who look on, and not at all while nobody does.

What changed since the last look goes out as one frame of bytes, made once. Who has missed a frame gets the whole picture.
"""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

import msgspec

from riverrun.dash.feed import unexpected
from riverrun.dash.picture.details import Choice, Details
from riverrun.dash.picture.figures import Figures, Seen
from riverrun.errors import RiverrunError, StoreUnavailableError
from riverrun.model.shape import Shape

LOOK_SECONDS = 1.0
PING_SECONDS = 10.0
MOST_VIEWERS = 200
# Details that are looked up at once, and that may wait for their turn.
THREADS = 3
MOST_WAITING = 16
# What a page is told of the pipeline.
_ABOUT = ("state", "file", "started_at", "ended_at", "detail")

_LOG = logging.getLogger(__name__)
T = TypeVar("T")


class Looking(Protocol):
    """What a picture is drawn from; both are called in a thread, one at a time."""

    def look(self, topics: Sequence[str]) -> Seen: ...

    def shape(self) -> tuple[Shape | None, bool]: ...

    def close(self) -> None: ...


class Viewer:
    """One page that looks on."""

    def __init__(self, picture: "Picture") -> None:
        self.wake = asyncio.Event()
        self._picture = picture

    async def messages(self) -> AsyncGenerator[bytes, None]:
        """Server-sent events, until the picture closes or the caller stops asking."""
        picture = self._picture
        picture.join(self)
        try:
            yield b"retry: 1000\n\n" + _event("hello", {"now": _now()})
            await picture.seen.wait()
            number = picture.number
            yield picture.whole()
            while not picture.closed:
                try:
                    await asyncio.wait_for(self.wake.wait(), PING_SECONDS)
                except TimeoutError:
                    yield _event("ping", {"now": _now()})
                    continue
                self.wake.clear()
                if number == picture.number:
                    continue
                behind, number = picture.number - number, picture.number
                yield picture.frame if behind == 1 else picture.whole()
        finally:
            picture.leave(self)


class Picture:
    """The picture of one app's pipeline. Used in one event loop; `declared` is what the pipeline file says, where there is
    one, and `viewers` gives how many look at each dashboard."""

    def __init__(
        self,
        app: str,
        source: Looking,
        details: Details,
        *,
        declared: Shape | None = None,
        viewers: Callable[[], Mapping[str, int]] = dict,
        look_seconds: float = LOOK_SECONDS,
    ) -> None:
        self.app = app
        self.shape = declared or Shape()
        self.seen = asyncio.Event()
        self.closed = False
        self.number = 0
        self.frame = b""
        self.looks = 0
        self._source = source
        self._details = details
        self._declared = declared
        self._dashboard_viewers = viewers
        self._look_seconds = look_seconds
        self._figures = Figures()
        self._state: dict[str, Any] = {}
        self._viewers: set[Viewer] = set()
        self._watching: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._looking = asyncio.Lock()
        self._looker = ThreadPoolExecutor(1, thread_name_prefix="riverrun-picture")
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="riverrun-details")
        self._waiting = 0

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
            except Exception:  # noqa: BLE001  -- a page keeps the last picture, and it is tried again
                _LOG.exception("looking at the pipeline failed")
            await asyncio.sleep(max(0.05, self._look_seconds - (time.monotonic() - began)))
        # Who comes later is not shown what was true before.
        self.seen.clear()

    async def refresh(self) -> dict[str, Any]:
        """Look once; the whole picture."""
        async with self._looking:
            state = await self._look()
            change = difference(self._state, state)
            self._state = state
            self.seen.set()
            if change:
                self.frame = _event("frame", {"now": _now(), **change})
                self.number += 1
                for each in self._viewers:
                    each.wake.set()
        return state

    async def _look(self) -> dict[str, Any]:
        viewers = dict(self._dashboard_viewers())
        self.looks += 1
        run = asyncio.get_running_loop().run_in_executor
        shape, seen = await run(self._looker, self._look_at_all)
        self.shape = shape
        about = {name: seen.pipeline.get(name, "") for name in _ABOUT} if seen.pipeline is not None else None
        return {
            "app": self.app,
            "shape": shape.as_dict(),
            "pipeline": about,
            "troubles": list(seen.troubles),
            "nodes": self._figures.of(shape, seen, viewers),
        }

    def _look_at_all(self) -> tuple[Shape, Seen]:
        ran, runs = self._source.shape()
        # What runs is shown as it runs; else what the file says now, and without one what ran last.
        shape = (ran if runs and ran is not None else self._declared or ran) or Shape()
        return shape, self._source.look(shape.names("topic"))

    def whole(self) -> bytes:
        return _event("frame", {"now": _now(), "whole": True, **self._state})

    # --- details ---

    async def of(self, kind: str, name: str) -> dict[str, Any]:
        shape = await self._known_shape()
        return await self._work(lambda: self._details.of(shape, kind, name))

    async def records(self, topic: str, count: int) -> dict[str, Any]:
        shape = await self._known_shape()
        return await self._work(lambda: self._details.records(shape, topic, count))

    async def dead(self, topic: str, reason: str) -> dict[str, Any]:
        shape = await self._known_shape()
        return await self._work(lambda: self._details.dead(shape, topic, reason))

    async def redrive(self, topic: str, choice: Choice, *, dry_run: bool) -> dict[str, Any]:
        shape = await self._known_shape()
        return await self._work(lambda: self._details.redrive(shape, topic, choice, dry_run=dry_run))

    async def _known_shape(self) -> Shape:
        if not self.seen.is_set():
            await self.refresh()
            if not self._viewers:
                self.seen.clear()
        return self.shape

    async def _work(self, work: Callable[[], T]) -> T:
        if self.closed or self._waiting >= MOST_WAITING:
            raise StoreUnavailableError("Too much is asked for at once", hint="Try again in a moment")
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, work)
        except RiverrunError:
            raise
        except Exception as error:
            _LOG.exception("details of the pipeline failed")
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
        self._source.close()
        for pool in (self._looker, self._pool):
            pool.shutdown(wait=False, cancel_futures=True)


def difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """What a page has to be told: of nodes, the figures that changed; a figure that is gone is None."""
    change = {name: value for name, value in now.items() if name != "nodes" and before.get(name) != value}
    old: Mapping[str, Mapping[str, Any]] = before.get("nodes", {})
    nodes = {}
    for id_, figures in now["nodes"].items():
        known = old.get(id_, {})
        fresh = {name: value for name, value in figures.items() if known.get(name, ...) != value}
        fresh |= {name: None for name in known if name not in figures}
        if fresh:
            nodes[id_] = fresh
    if nodes:
        change["nodes"] = nodes
    return change


def _now() -> int:
    return round(time.time() * 1000)


def _event(name: str, content: Mapping[str, Any]) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + msgspec.json.encode(content) + b"\n\n"
