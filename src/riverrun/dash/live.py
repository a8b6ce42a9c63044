"""The hub: what changed in the store becomes what changes on pages.

A `Feed` is a tile under the filters that reach it; it is asked once, for all who look at it, when a table it reads has
changed. A `View` is a dashboard under a page's filters. What its tiles have to say within a moment goes out as one frame
of bytes, made once for all its viewers. Who has missed a frame is not sent it later: they get the newest state instead.
"""

import asyncio
import hashlib
import logging
import time
import zlib
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, suppress
from datetime import datetime
from functools import cached_property, partial
from typing import Any, TypeVar

import msgspec

from riverrun._version import __version__
from riverrun.dash.feed import COSTS, Feed, Outcome, Scene, error_for_page, unexpected
from riverrun.dash.queries import Filters, find_table, has_history, parse, reaches, resolved, tables_read
from riverrun.errors import QueryError, RiverrunError, StoreUnavailableError, UsageError
from riverrun.model.dashboard import Dashboard, Tile
from riverrun.model.near import nearest
from riverrun.model.table import TableSpec
from riverrun.store.contract import Limits, Standing, Store

# How often a tile is asked at most, and the share of one core that all of them may take together.
MOST_A_SECOND = 10.0
MOST_SHARE = 0.5
# How often the store is looked at for changes; less often where looking is dear.
LOOK_SECONDS = 0.025
LOOK_SHARE = 0.1
MOST_LOOK_SECONDS = 1.0
# What comes within this time is one frame.
FRAME_SECONDS = 0.025
TABLES_SECONDS = 1.0
PING_SECONDS = 10.0
# The state of a whole page is made once for all who want it within this time.
WHOLE_SECONDS = 0.1
PRESS_LEVEL = 4
# A view outlives its last viewer by this: somebody who reloads finds it warm.
LINGER_SECONDS = 15.0
RETRY_SECONDS = 2.0
OLDEST_SECONDS = 60.0
MOST_VIEWERS = 500
MOST_FEEDS = 2000
THREADS = 3
# So long a number's way back is asked for; where questions are dear it is a shorter way.
MOST_WAY_SECONDS = 5.0

_LOG = logging.getLogger(__name__)
T = TypeVar("T")


class View:
    """A dashboard under the filters of a page."""

    def __init__(self, board: Dashboard, filters: Filters, feeds: Sequence[Feed]) -> None:
        self.board = board
        self.filters = dict(filters)
        self.feeds = feeds
        self.viewers: set[Viewer] = set()
        self.number = 0
        self.frame = Frame(b"")
        self.ends: asyncio.TimerHandle | None = None
        self._told = dict.fromkeys(feeds, (0, 0))
        self._timer: asyncio.TimerHandle | None = None
        self._quiet: asyncio.TimerHandle | None = None
        self._whole = (0.0, 0, Frame(b""))
        self._notes: dict[str, Any] = {}

    def soon(self, **notes: Any) -> None:
        """Something has changed: a frame goes out in a moment."""
        self._notes |= notes
        if self._timer is None and self.viewers:
            self._timer = asyncio.get_running_loop().call_later(FRAME_SECONDS, self._send)

    def _send(self) -> None:
        self._timer = None
        tiles = []
        for feed in self.feeds:
            now = (feed.version, feed.touches)
            if self._told[feed] != now:
                tiles.append(feed.since(self._told[feed][0]))
                self._told[feed] = now
        notes, self._notes = self._notes, {}
        if not tiles and not notes:
            return
        self._give(_event("frame", {"now": _now(), "tiles": tiles} | notes))

    def _give(self, message: bytes) -> None:
        """Send it to all. After a while without anything to send they hear that we are still here."""
        self.frame = Frame(message)
        self.number += 1
        for each in self.viewers:
            each.wake.set()
        self.listen()

    def listen(self) -> None:
        if self._quiet is not None:
            self._quiet.cancel()
        self._quiet = None
        if self.viewers:
            later = asyncio.get_running_loop().call_later
            self._quiet = later(PING_SECONDS, lambda: self._give(_event("ping", {"now": _now()})))

    def whole(self, notes: Mapping[str, Any]) -> "Frame":
        """The newest state of everything. Its versions tell a page which changes it has already.

        Many who come at once, as they do after a break, get the same one.
        """
        made, number, frame = self._whole
        now = time.monotonic()
        if number != self.number or now - made > WHOLE_SECONDS:
            tiles = [each.state for each in self.feeds if each.version]
            frame = Frame(_event("frame", {"now": _now(), "whole": True, "tiles": tiles, **notes}))
            self._whole = (now, self.number, frame)
        return frame

    def close(self) -> None:
        for timer in (self._timer, self._quiet, self.ends):
            if timer is not None:
                timer.cancel()


class Frame:
    """Bytes for many: as they are and, for those who take that, pressed. Each is made once."""

    # The head of a gzip file; what follows are blocks that stand for themselves, so that all viewers can have the same ones.
    HEAD = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"

    def __init__(self, plain: bytes) -> None:
        self.plain = plain

    @cached_property
    def pressed(self) -> bytes:
        return press(self.plain)


def press(plain: bytes) -> bytes:
    """A piece of a compressed stream that refers to nothing before it."""
    made = zlib.compressobj(PRESS_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
    return made.compress(plain) + made.flush(zlib.Z_FULL_FLUSH)


class Viewer:
    """One page that looks on."""

    def __init__(self, hub: "Hub", view: View) -> None:
        self.wake = asyncio.Event()
        self._hub = hub
        self._view = view

    async def messages(self, *, pressed: bool = False) -> AsyncIterator[bytes]:
        """Server-sent events, until the hub closes or the caller stops asking. `pressed`: as gzip."""
        head = Frame.HEAD if pressed else b""
        async with aclosing(self._frames()) as frames:
            async for frame in frames:
                yield head + frame.pressed if pressed else frame.plain
                head = b""

    async def _frames(self) -> AsyncGenerator[Frame]:
        hub, view = self._hub, self._view
        hub.join(view, self)
        try:
            yield Frame(b"retry: 1000\n\n" + _event("hello", {"now": _now(), "revision": hub.revision}))
            number = view.number
            yield view.whole(hub.notes)
            while not hub.closed:
                await self.wake.wait()
                self.wake.clear()
                if number == view.number:
                    continue
                # One frame behind is the usual thing; who is further behind has no use for the frames between.
                behind, number = view.number - number, view.number
                yield view.frame if behind == 1 else view.whole(hub.notes)
        finally:
            hub.leave(view, self)


class Hub:
    """Serves the dashboards of one app from one store. Used in one event loop; starts with its first viewer."""

    def __init__(
        self, store: Store, dashboards: Mapping[str, Dashboard], app: str = "", *, most_a_second: float = MOST_A_SECOND
    ) -> None:
        self.app = app
        self.dashboards = dict(dashboards)
        self.closed = False
        self.scene = Scene({}, {})
        self._store = store
        self._least_seconds = 1 / most_a_second
        self._views: dict[tuple[object, ...], View] = {}
        self._feeds: dict[tuple[object, ...], Feed] = {}
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="riverrun-dash")
        self._slots: asyncio.Semaphore | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._watching: asyncio.Task[None] | None = None
        self._wanted = asyncio.Event()
        self._seen = asyncio.Event()
        self._trouble: RiverrunError | None = None
        self._oldest: dict[str, tuple[float, int]] = {}
        self._tables_told = 0.0
        content = {name: each.as_dict() for name, each in self.dashboards.items()}
        self.revision = hashlib.sha256(msgspec.json.encode([__version__, app, content])).hexdigest()[:12]

    # --- viewers ---

    async def look_on(self, board: str, filters: Filters) -> Viewer:
        """A new viewer. UsageError names what is wrong with the request, StoreUnavailableError when there are too many."""
        found = self.board(board)
        await self.ready()
        self.check_filters(found, filters)
        if sum(len(each.viewers) for each in self._views.values()) >= MOST_VIEWERS:
            raise StoreUnavailableError(f"{MOST_VIEWERS} pages look on already", hint="Close some of them")
        view = self._view(found, filters)
        self._wanted.set()
        # Who goes away before the first message never joins, and so never leaves.
        self._linger(view)
        return Viewer(self, view)

    def join(self, view: View, viewer: Viewer) -> None:
        if view.ends is not None:
            view.ends.cancel()
            view.ends = None
        view.viewers.add(viewer)
        if len(view.viewers) == 1:
            view.listen()

    def leave(self, view: View, viewer: Viewer) -> None:
        view.viewers.discard(viewer)
        if not view.viewers:
            view.listen()
        self._linger(view)

    @property
    def viewers(self) -> dict[str, int]:
        """How many pages look at each dashboard."""
        found = dict.fromkeys(self.dashboards, 0)
        for view in self._views.values():
            found[view.board.name] += len(view.viewers)
        return found

    def _linger(self, view: View) -> None:
        if not view.viewers and view.ends is None and not self.closed:
            view.ends = asyncio.get_running_loop().call_later(LINGER_SECONDS, self._end, view)

    def board(self, name: str) -> Dashboard:
        if name in self.dashboards:
            return self.dashboards[name]
        near = nearest(name, self.dashboards)
        raise UsageError(
            f"There is no dashboard {name!r}",
            expected=", ".join(self.dashboards) or "one that is declared in the pipeline file",
            hint=f"Did you mean {near!r}?" if near else "",
        )

    def check_filters(self, board: Dashboard, filters: Filters) -> None:
        known = board.filters | {self.by_of(each) for each in board.tiles} - {""}
        for name in filters:
            if name not in known:
                raise UsageError(
                    f"{board.name} has no filter {name!r}", expected=", ".join(sorted(known)) or "no filter"
                )

    def by_of(self, tile: Tile) -> str:
        """The column a tile is by, where the table says it and the file does not."""
        if tile.by or not tile.asks or tile.is_sql or tile.source not in self.scene.specs:
            return tile.by
        try:
            return resolved(tile, self.scene.specs[tile.source]).by
        except QueryError:
            return ""

    def _view(self, board: Dashboard, filters: Filters) -> View:
        key = (board.name, frozenset(filters.items()))
        if key not in self._views:
            tiles = [each for each in board.tiles if each.asks and (not each.when or each.when in filters)]
            if len(self._feeds) + len(tiles) > MOST_FEEDS:
                raise StoreUnavailableError("Too many different pages are looked at", hint="Try again in a while")
            feeds = [self._feed(board, each, filters) for each in tiles]
            self._views[key] = view = View(board, filters, feeds)
            for feed in feeds:
                feed.views.add(view)
        return self._views[key]

    def _feed(self, board: Dashboard, tile: Tile, filters: Filters) -> Feed:
        reaching = {name: value for name, value in filters.items() if self._reaches(tile, name)}
        key = (board.name, tile.name, frozenset(reaching.items()))
        if key not in self._feeds:
            self._feeds[key] = feed = Feed(board, tile, reaching)
            feed.tasks.append(asyncio.create_task(self._keep_asking(feed)))
        return self._feeds[key]

    def _reaches(self, tile: Tile, column: str) -> bool:
        specs = [self.scene.specs[name] for name in self.tables_of(tile) if name in self.scene.specs]
        return not specs or any(reaches(tile, spec, column) for spec in specs)

    def tables_of(self, tile: Tile) -> list[str]:
        """The store's names of the tables a tile reads; nothing for those that are not there."""
        if not tile.asks:
            return []
        with suppress(QueryError):
            names = tables_read(parse(tile.source, str(tile))) if tile.is_sql else {tile.source}
            found = []
            for name in sorted(names):
                with suppress(QueryError):
                    found.append(find_table(name, self.scene.specs, str(tile)).name)
            return found
        return []

    def _end(self, view: View) -> None:
        """Nobody has looked for a while: its tiles are asked no more, unless another view has them."""
        view.close()
        self._views = {key: each for key, each in self._views.items() if each is not view}
        for feed in view.feeds:
            feed.views.discard(view)
        for key in [key for key, each in self._feeds.items() if not each.views]:
            for task in self._feeds.pop(key).tasks:
                task.cancel()
        if not self._views:
            self._wanted.clear()

    def end(self) -> None:
        """As `close`, from any thread, and without waiting. A server that is asked to stop waits for its streams."""
        if self._loop is not None and not self._loop.is_closed():
            asyncio.run_coroutine_threadsafe(self.close(), self._loop)

    async def close(self) -> None:
        """End every viewer's stream and all that runs."""
        self.closed = True
        tasks = [task for feed in self._feeds.values() for task in feed.tasks]
        if self._watching is not None:
            tasks.append(self._watching)
        for task in tasks:
            task.cancel()
        for view in self._views.values():
            view.close()
            for each in view.viewers:
                each.wake.set()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._views.clear()
        self._feeds.clear()
        self._pool.shutdown(wait=False, cancel_futures=True)

    # --- the past ---

    async def look_back(self, board: str, tile: str, filters: Filters, at: datetime) -> dict[str, Any]:
        """A tile's state as of a time."""
        found = self.board(board)
        await self.ready()
        self.check_filters(found, filters)
        wanted = found.tile(tile)
        if wanted is None or not wanted.asks:
            raise UsageError(
                f"{board} has no tile {tile!r}", expected=", ".join(each.name for each in found.tiles if each.asks)
            )
        feed = Feed(found, wanted, {name: value for name, value in filters.items() if self._reaches(wanted, name)})
        head = {"tile": wanted.name, "at": round(at.timestamp() * 1000)}
        try:
            figures = await self._in_slot(lambda: feed.look_back(self._store, self.scene, at))
        except RiverrunError as error:
            return head | {"error": error_for_page(error)}
        return head | figures.as_dict()

    # --- following the store ---

    async def ready(self) -> None:
        """The store has been looked at once."""
        if self.closed:
            raise StoreUnavailableError("The dashboards' server is closing")
        if self._watching is None:
            self._loop = asyncio.get_running_loop()
            self._slots = asyncio.Semaphore(THREADS - 1)
            self._watching = asyncio.create_task(self._watch())
        elif not self._wanted.is_set():
            # Nobody has looked for a while, and so neither has the hub.
            with suppress(RiverrunError):
                self._follow(await self._in_thread(self._look))
        await self._seen.wait()

    async def _watch(self) -> None:
        costs: deque[float] = deque(maxlen=COSTS)
        while True:
            began = time.monotonic()
            trouble: RiverrunError | None = None
            try:
                self._follow(await self._in_thread(self._look))
            except RiverrunError as error:
                trouble = error
            except Exception as error:  # noqa: BLE001  -- pages hear of it, and it is tried again
                _LOG.exception("looking at the store failed")
                trouble = unexpected(error)
            self._say_trouble(trouble)
            self._seen.set()
            if trouble is not None:
                await asyncio.sleep(MOST_LOOK_SECONDS)
                continue
            costs.append(time.monotonic() - began)
            # The least of the last few: the others waited for a core as well, and a look is cheap.
            await asyncio.sleep(min(MOST_LOOK_SECONDS, max(LOOK_SECONDS, min(costs) / LOOK_SHARE)))
            await self._wanted.wait()

    def _look(self) -> Scene:
        specs = dict(self._store.tables)
        return Scene(specs, {each.table: each for each in self._store.standing()})

    def _follow(self, scene: Scene) -> None:
        before, self.scene = self.scene, scene
        new_tables = before.specs != scene.specs
        changed = {name for name, each in scene.standings.items() if _mark(each) != _mark(before.standings.get(name))}
        stirred = new_tables or any(
            _state(each) != _state(before.standings.get(name)) for name, each in scene.standings.items()
        )
        if not changed and not stirred:
            return
        for feed in self._feeds.values():
            if new_tables or not feed.tables or feed.tables & changed:
                feed.dirty.set()
        now = time.monotonic()
        if stirred or now - self._tables_told >= TABLES_SECONDS:
            self._tables_told = now
            for view in self._views.values():
                view.soon(tables=self.notes["tables"])
            for name, spec in scene.specs.items():
                if now - self._oldest.get(name, (-OLDEST_SECONDS, 0))[0] >= OLDEST_SECONDS:
                    self._oldest[name] = (now, self._oldest.get(name, (0.0, 0))[1])
                    self._pool.submit(self._look_for_oldest, spec)

    def _look_for_oldest(self, spec: TableSpec) -> None:
        """Where the retained range begins."""
        time_column, name = spec.time.replace('"', '""'), spec.name.replace('"', '""')
        with suppress(RiverrunError):
            answer = self._store.ask(f'select min("{time_column}") as oldest from "{name}"', Limits(seconds=5))  # noqa: S608
            oldest = answer.rows.column(0).to_pylist()[0] if answer.rows.num_rows else None
            if oldest is not None:
                self._oldest[spec.name] = (time.monotonic(), round(oldest.timestamp() * 1000))

    @property
    def notes(self) -> dict[str, Any]:
        """What a page knows besides its tiles: where the tables stand, and whether the store answers."""
        tables = {
            name: {
                "state": each.state,
                "detail": each.detail,
                "lag": each.lag,
                "newest": round(each.newest * 1000),
                "oldest": self._oldest.get(name, (0.0, 0))[1],
                "updated": round(each.updated * 1000),
                "history": name in self.scene.specs and has_history(self.scene.specs[name]),
            }
            for name, each in self.scene.standings.items()
        }
        return {"tables": tables, "trouble": error_for_page(self._trouble) if self._trouble else None}

    def _say_trouble(self, error: RiverrunError | None) -> None:
        if (self._trouble is None) != (error is None):
            for view in self._views.values():
                view.soon(trouble=error_for_page(error) if error else None)
        self._trouble = error

    # --- asking ---

    async def _keep_asking(self, feed: Feed) -> None:
        while True:
            await feed.dirty.wait()
            feed.dirty.clear()
            outcome: Outcome = await self._in_slot(lambda: feed.ask(self._store, self.scene))
            self._take(feed, outcome)
            if outcome.error is not None and outcome.error.retryable:
                await asyncio.sleep(RETRY_SECONDS)
                feed.dirty.set()
                continue
            # With many tiles, or dear ones, each waits longer: together they take their share and no more.
            rest = feed.cost * len(self._feeds) / MOST_SHARE
            await asyncio.sleep(max(self._least_seconds, min(rest, 10.0)))

    def _take(self, feed: Feed, outcome: Outcome) -> None:
        if feed.take(outcome):
            for view in feed.views:
                view.soon()
        if feed.tile.kind == "number" and feed.version == 1 and outcome.error is None:
            feed.tasks.append(asyncio.create_task(self._go_back(feed)))

    async def _go_back(self, feed: Feed) -> None:
        """Find a number's way to where it is, once, from its table's own past, newest first."""
        scene = self.scene
        if not all(has_history(scene.specs[each]) for each in feed.tables):
            return
        began = time.monotonic()
        for moment in feed.way.missing():
            if time.monotonic() - began > MOST_WAY_SECONDS:
                break
            try:
                value = await self._in_slot(partial(feed.value_at, self._store, scene, moment))
            except RiverrunError:
                return
            feed.way.add(moment, value)
        feed.dirty.set()

    async def _in_slot(self, work: Callable[[], T]) -> T:
        if self._slots is None:
            self._slots = asyncio.Semaphore(THREADS - 1)
        async with self._slots:
            return await self._in_thread(work)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)


def _mark(standing: Standing | None) -> tuple[object, ...]:
    """What differs when a table has other rows than before."""
    if standing is None:
        return ()
    return tuple(sorted(standing.positions.items())), standing.updated, standing.rows


def _state(standing: Standing | None) -> str:
    """What a page says of a table; whether it is a little behind is not worth a word."""
    return standing.state if standing is not None and standing.state in {"settling", "failing"} else ""


def _now() -> int:
    return round(time.time() * 1000)


def _event(name: str, content: Mapping[str, Any]) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + msgspec.json.encode(content) + b"\n\n"
