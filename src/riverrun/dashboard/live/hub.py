"""The dashboard hub: pushes changes in the store to open pages.

A `TileFeed` is a tile with the filters that apply to it; it is queried once, for all its viewers, when a table it reads has
changed. A `DashboardView` is a dashboard with a page's filters. Changes of its tiles within a short time are sent as one
frame of bytes, encoded once for all its viewers. Frames a viewer missed are not re-sent: they get the newest state instead.
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
from riverrun.dashboard.live.tile_feed import (
    COST_SAMPLES,
    StoreSnapshot,
    TileFeed,
    TileResult,
    error_for_page,
    internal_error,
)
from riverrun.dashboard.tiles.queries import (
    Filters,
    filter_applies,
    find_table,
    has_history,
    parse,
    resolve_columns,
    tables_read,
)
from riverrun.errors import QueryError, RiverrunError, StoreUnavailableError, UsageError
from riverrun.model.dashboard import Dashboard, Tile
from riverrun.model.suggest import nearest
from riverrun.model.table import TableSpec
from riverrun.store.contract import QueryLimits, Store, TableStatus

# How often a tile is queried at most, and the share of one core that all tiles may use together.
MAX_UPDATES_PER_SECOND = 10.0
MAX_QUERY_SHARE = 0.5
# How often the store is polled for changes; less often where polling is expensive.
POLL_SECONDS = 0.025
MAX_POLL_SHARE = 0.1
MAX_POLL_SECONDS = 1.0
# Changes within this time are one frame.
FRAME_SECONDS = 0.025
TABLE_STATUS_SECONDS = 1.0
PING_SECONDS = 10.0
# A snapshot of a whole page is reused for all viewers who need it within this time.
SNAPSHOT_REUSE_SECONDS = 0.1
GZIP_LEVEL = 4
# A view is kept this long after its last viewer, so that reloading a page is fast.
LINGER_SECONDS = 15.0
RETRY_SECONDS = 2.0
RANGE_START_SECONDS = 60.0
MAX_VIEWERS = 500
MAX_FEEDS = 2000
QUERY_THREADS = 3
# How long a number's sparkline is queried for; where queries are slow it gets fewer points.
MAX_HISTORY_SECONDS = 5.0

_LOG = logging.getLogger(__name__)
T = TypeVar("T")


class DashboardView:
    """A dashboard with the filters of a page."""

    def __init__(self, board: Dashboard, filters: Filters, feeds: Sequence[TileFeed]) -> None:
        self.board = board
        self.filters = dict(filters)
        self.feeds = feeds
        self.viewers: set[DashboardViewer] = set()
        self.frame_number = 0
        self.frame = EventFrame(b"")
        self.expiry_timer: asyncio.TimerHandle | None = None
        self._sent_versions = dict.fromkeys(feeds, (0, 0))
        self._frame_timer: asyncio.TimerHandle | None = None
        self._ping_timer: asyncio.TimerHandle | None = None
        self._snapshot = (0.0, 0, EventFrame(b""))
        self._notes: dict[str, Any] = {}

    def schedule_frame(self, **notes: Any) -> None:
        """Note a change: a frame is sent after `FRAME_SECONDS`."""
        self._notes |= notes
        if self._frame_timer is None and self.viewers:
            self._frame_timer = asyncio.get_running_loop().call_later(FRAME_SECONDS, self._send)

    def _send(self) -> None:
        self._frame_timer = None
        tiles = []
        for feed in self.feeds:
            versions = (feed.version, feed.refreshes)
            if self._sent_versions[feed] != versions:
                tiles.append(feed.since(self._sent_versions[feed][0]))
                self._sent_versions[feed] = versions
        notes, self._notes = self._notes, {}
        if not tiles and not notes:
            return
        self._publish(_sse_event("frame", {"now": _now(), "tiles": tiles} | notes))

    def _publish(self, message: bytes) -> None:
        """Send a message to all viewers. After `PING_SECONDS` without one they get a ping."""
        self.frame = EventFrame(message)
        self.frame_number += 1
        for viewer in self.viewers:
            viewer.wake.set()
        self.start_pings()

    def start_pings(self) -> None:
        if self._ping_timer is not None:
            self._ping_timer.cancel()
        self._ping_timer = None
        if self.viewers:
            later = asyncio.get_running_loop().call_later
            self._ping_timer = later(PING_SECONDS, lambda: self._publish(_sse_event("ping", {"now": _now()})))

    def snapshot(self, notes: Mapping[str, Any]) -> "EventFrame":
        """The newest state of all tiles. Its versions tell a page which changes it already has.

        Viewers that connect at the same time, as after an outage, get the same snapshot.
        """
        made_at, number, frame = self._snapshot
        now = time.monotonic()
        if number != self.frame_number or now - made_at > SNAPSHOT_REUSE_SECONDS:
            tiles = [feed.state for feed in self.feeds if feed.version]
            frame = EventFrame(_sse_event("frame", {"now": _now(), "whole": True, "tiles": tiles, **notes}))
            self._snapshot = (now, self.frame_number, frame)
        return frame

    def close(self) -> None:
        for timer in (self._frame_timer, self._ping_timer, self.expiry_timer):
            if timer is not None:
                timer.cancel()


class EventFrame:
    """A frame for many viewers: plain and, for those who accept it, gzipped. Each is encoded once."""

    # The header of a gzip file. The blocks after it are independent, so that all viewers can get the same ones.
    GZIP_HEADER = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"

    def __init__(self, plain: bytes) -> None:
        self.plain = plain

    @cached_property
    def gzipped(self) -> bytes:
        return deflate_block(self.plain)


def deflate_block(plain: bytes) -> bytes:
    """Compress a block of a deflate stream that refers to nothing before it."""
    compressor = zlib.compressobj(GZIP_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
    return compressor.compress(plain) + compressor.flush(zlib.Z_FULL_FLUSH)


class DashboardViewer:
    """One open page."""

    def __init__(self, hub: "DashboardHub", view: DashboardView) -> None:
        self.wake = asyncio.Event()
        self._hub = hub
        self._view = view

    async def messages(self, *, gzipped: bool = False) -> AsyncIterator[bytes]:
        """Server-sent events, until the hub closes or the caller stops iterating."""
        head = EventFrame.GZIP_HEADER if gzipped else b""
        async with aclosing(self._frames()) as frames:
            async for frame in frames:
                yield head + frame.gzipped if gzipped else frame.plain
                head = b""

    async def _frames(self) -> AsyncGenerator[EventFrame]:
        hub, view = self._hub, self._view
        hub.join(view, self)
        try:
            yield EventFrame(b"retry: 1000\n\n" + _sse_event("hello", {"now": _now(), "revision": hub.revision}))
            number = view.frame_number
            yield view.snapshot(hub.notes)
            while not hub.closed:
                await self.wake.wait()
                self.wake.clear()
                if number == view.frame_number:
                    continue
                # One frame behind is normal; a viewer further behind does not need the frames between.
                missed, number = view.frame_number - number, view.frame_number
                yield view.frame if missed == 1 else view.snapshot(hub.notes)
        finally:
            hub.leave(view, self)


class DashboardHub:
    """Serves the dashboards of one app from one store. Used in one event loop; starts with its first viewer."""

    def __init__(
        self,
        store: Store,
        dashboards: Mapping[str, Dashboard],
        app: str = "",
        *,
        max_updates_per_second: float = MAX_UPDATES_PER_SECOND,
    ) -> None:
        self.app = app
        self.dashboards = dict(dashboards)
        self.closed = False
        self.snapshot = StoreSnapshot({}, {})
        self._store = store
        self._min_seconds = 1 / max_updates_per_second
        self._views: dict[tuple[object, ...], DashboardView] = {}
        self._feeds: dict[tuple[object, ...], TileFeed] = {}
        self._pool = ThreadPoolExecutor(QUERY_THREADS, thread_name_prefix="riverrun-dashboard")
        self._slots: asyncio.Semaphore | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._poll_task: asyncio.Task[None] | None = None
        self._poll_now = asyncio.Event()
        self._polled = asyncio.Event()
        self._error: RiverrunError | None = None
        self._range_starts: dict[str, tuple[float, int]] = {}
        self._tables_sent_at = 0.0
        content = {name: dashboard.as_dict() for name, dashboard in self.dashboards.items()}
        self.revision = hashlib.sha256(msgspec.json.encode([__version__, app, content])).hexdigest()[:12]

    # --- viewers ---

    async def add_viewer(self, board: str, filters: Filters) -> DashboardViewer:
        """Add a viewer. UsageError when the request is wrong, StoreUnavailableError when there are too many viewers."""
        dashboard = self.board(board)
        await self.wait_until_polled()
        self.check_filters(dashboard, filters)
        if sum(len(open_view.viewers) for open_view in self._views.values()) >= MAX_VIEWERS:
            raise StoreUnavailableError(f"{MAX_VIEWERS} pages look on already", hint="Close some of them")
        view = self._view(dashboard, filters)
        self._poll_now.set()
        # A viewer that disconnects before the first message never joins, and so never leaves.
        self._expire_later(view)
        return DashboardViewer(self, view)

    def join(self, view: DashboardView, viewer: DashboardViewer) -> None:
        if view.expiry_timer is not None:
            view.expiry_timer.cancel()
            view.expiry_timer = None
        view.viewers.add(viewer)
        if len(view.viewers) == 1:
            view.start_pings()

    def leave(self, view: DashboardView, viewer: DashboardViewer) -> None:
        view.viewers.discard(viewer)
        if not view.viewers:
            view.start_pings()
        self._expire_later(view)

    @property
    def viewers(self) -> dict[str, int]:
        """How many pages show each dashboard."""
        counts = dict.fromkeys(self.dashboards, 0)
        for view in self._views.values():
            counts[view.board.name] += len(view.viewers)
        return counts

    def _expire_later(self, view: DashboardView) -> None:
        if not view.viewers and view.expiry_timer is None and not self.closed:
            view.expiry_timer = asyncio.get_running_loop().call_later(LINGER_SECONDS, self._close_view, view)

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
        known = board.filters | {self.by_column(tile) for tile in board.tiles} - {""}
        for name in filters:
            if name not in known:
                raise UsageError(
                    f"{board.name} has no filter {name!r}", expected=", ".join(sorted(known)) or "no filter"
                )

    def by_column(self, tile: Tile) -> str:
        """The tile's `by` column, resolved from the table if the file does not name it."""
        if tile.by or not tile.has_query or tile.is_sql or tile.source not in self.snapshot.specs:
            return tile.by
        try:
            return resolve_columns(tile, self.snapshot.specs[tile.source]).by
        except QueryError:
            return ""

    def _view(self, board: Dashboard, filters: Filters) -> DashboardView:
        key = (board.name, frozenset(filters.items()))
        if key not in self._views:
            tiles = [tile for tile in board.tiles if tile.has_query and (not tile.when or tile.when in filters)]
            if len(self._feeds) + len(tiles) > MAX_FEEDS:
                raise StoreUnavailableError("Too many different pages are looked at", hint="Try again in a while")
            feeds = [self._feed(board, tile, filters) for tile in tiles]
            self._views[key] = view = DashboardView(board, filters, feeds)
            for feed in feeds:
                feed.views.add(view)
        return self._views[key]

    def _feed(self, board: Dashboard, tile: Tile, filters: Filters) -> TileFeed:
        tile_filters = {name: value for name, value in filters.items() if self._filter_applies(tile, name)}
        key = (board.name, tile.name, frozenset(tile_filters.items()))
        if key not in self._feeds:
            self._feeds[key] = feed = TileFeed(board, tile, tile_filters)
            feed.tasks.append(asyncio.create_task(self._query_loop(feed)))
        return self._feeds[key]

    def _filter_applies(self, tile: Tile, column: str) -> bool:
        specs = [self.snapshot.specs[name] for name in self.tables_of(tile) if name in self.snapshot.specs]
        return not specs or any(filter_applies(tile, spec, column) for spec in specs)

    def tables_of(self, tile: Tile) -> list[str]:
        """The store's names of the tables a tile reads, without those that do not exist."""
        if not tile.has_query:
            return []
        with suppress(QueryError):
            names = tables_read(parse(tile.source, str(tile))) if tile.is_sql else {tile.source}
            names_in_store = []
            for name in sorted(names):
                with suppress(QueryError):
                    names_in_store.append(find_table(name, self.snapshot.specs, str(tile)).name)
            return names_in_store
        return []

    def _close_view(self, view: DashboardView) -> None:
        """Close a view without viewers: its tiles are not queried any more, unless another view has them."""
        view.close()
        self._views = {key: other_view for key, other_view in self._views.items() if other_view is not view}
        for feed in view.feeds:
            feed.views.discard(view)
        for key in [key for key, feed in self._feeds.items() if not feed.views]:
            for task in self._feeds.pop(key).tasks:
                task.cancel()
        if not self._views:
            self._poll_now.clear()

    def request_close(self) -> None:
        """As `close`, from any thread, and without waiting. A server that stops waits for its open streams."""
        if self._loop is not None and not self._loop.is_closed():
            asyncio.run_coroutine_threadsafe(self.close(), self._loop)

    async def close(self) -> None:
        """End every viewer's stream and all tasks."""
        self.closed = True
        tasks = [task for feed in self._feeds.values() for task in feed.tasks]
        if self._poll_task is not None:
            tasks.append(self._poll_task)
        for task in tasks:
            task.cancel()
        for view in self._views.values():
            view.close()
            for viewer in view.viewers:
                viewer.wake.set()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._views.clear()
        self._feeds.clear()
        self._pool.shutdown(wait=False, cancel_futures=True)

    # --- past states ---

    async def tile_state_at(self, board: str, tile: str, filters: Filters, at: datetime) -> dict[str, Any]:
        """A tile's state as of a time."""
        dashboard = self.board(board)
        await self.wait_until_polled()
        self.check_filters(dashboard, filters)
        declared_tile = dashboard.tile(tile)
        if declared_tile is None or not declared_tile.has_query:
            raise UsageError(
                f"{board} has no tile {tile!r}",
                expected=", ".join(other_tile.name for other_tile in dashboard.tiles if other_tile.has_query),
            )
        feed = TileFeed(
            dashboard,
            declared_tile,
            {name: value for name, value in filters.items() if self._filter_applies(declared_tile, name)},
        )
        head = {"tile": declared_tile.name, "at": round(at.timestamp() * 1000)}
        try:
            data = await self._run_in_slot(lambda: feed.data_at(self._store, self.snapshot, at))
        except RiverrunError as error:
            return head | {"error": error_for_page(error)}
        return head | data.as_dict()

    # --- polling the store ---

    async def wait_until_polled(self) -> None:
        """Wait until the store has been polled once."""
        if self.closed:
            raise StoreUnavailableError("The dashboards' server is closing")
        if self._poll_task is None:
            self._loop = asyncio.get_running_loop()
            self._slots = asyncio.Semaphore(QUERY_THREADS - 1)
            self._poll_task = asyncio.create_task(self._poll_loop())
        elif not self._poll_now.is_set():
            # Without viewers the hub does not poll, so its snapshot is old.
            with suppress(RiverrunError):
                self._apply_snapshot(await self._run_in_thread(self._poll_store))
        await self._polled.wait()

    async def _poll_loop(self) -> None:
        costs: deque[float] = deque(maxlen=COST_SAMPLES)
        while True:
            began = time.monotonic()
            poll_error: RiverrunError | None = None
            try:
                self._apply_snapshot(await self._run_in_thread(self._poll_store))
            except RiverrunError as error:
                poll_error = error
            except Exception as error:  # noqa: BLE001  -- pages show it, and it is tried again
                _LOG.exception("looking at the store failed")
                poll_error = internal_error(error)
            self._publish_error(poll_error)
            self._polled.set()
            if poll_error is not None:
                await asyncio.sleep(MAX_POLL_SECONDS)
                continue
            costs.append(time.monotonic() - began)
            # The least of the last few: the others also waited for a core, and a poll itself is cheap.
            await asyncio.sleep(min(MAX_POLL_SECONDS, max(POLL_SECONDS, min(costs) / MAX_POLL_SHARE)))
            await self._poll_now.wait()

    def _poll_store(self) -> StoreSnapshot:
        specs = dict(self._store.tables)
        return StoreSnapshot(specs, {status.table: status for status in self._store.table_statuses()})

    def _apply_snapshot(self, snapshot: StoreSnapshot) -> None:
        before, self.snapshot = self.snapshot, snapshot
        new_tables = before.specs != snapshot.specs
        changed = {
            name
            for name, status in snapshot.statuses.items()
            if _row_version(status) != _row_version(before.statuses.get(name))
        }
        has_status_change = new_tables or any(
            _state(status) != _state(before.statuses.get(name)) for name, status in snapshot.statuses.items()
        )
        if not changed and not has_status_change:
            return
        for feed in self._feeds.values():
            if new_tables or not feed.tables or feed.tables & changed:
                feed.dirty.set()
        now = time.monotonic()
        if has_status_change or now - self._tables_sent_at >= TABLE_STATUS_SECONDS:
            self._tables_sent_at = now
            for view in self._views.values():
                view.schedule_frame(tables=self.notes["tables"])
            for name, spec in snapshot.specs.items():
                if now - self._range_starts.get(name, (-RANGE_START_SECONDS, 0))[0] >= RANGE_START_SECONDS:
                    self._range_starts[name] = (now, self._range_starts.get(name, (0.0, 0))[1])
                    self._pool.submit(self._load_range_start, spec)

    def _load_range_start(self, spec: TableSpec) -> None:
        """Query where the table's retained range begins."""
        time_column, name = spec.time.replace('"', '""'), spec.name.replace('"', '""')
        with suppress(RiverrunError):
            result = self._store.query(f'select min("{time_column}") as oldest from "{name}"', QueryLimits(seconds=5))  # noqa: S608
            oldest = result.rows.column(0).to_pylist()[0] if result.rows.num_rows else None
            if oldest is not None:
                self._range_starts[spec.name] = (time.monotonic(), round(oldest.timestamp() * 1000))

    @property
    def notes(self) -> dict[str, Any]:
        """What a page gets besides its tiles: the status of the tables, and whether the store answers."""
        tables = {
            name: {
                "state": status.state,
                "detail": status.detail,
                "lag": status.lag,
                "newest": round(status.newest * 1000),
                "oldest": self._range_starts.get(name, (0.0, 0))[1],
                "updated": round(status.updated * 1000),
                "history": name in self.snapshot.specs and has_history(self.snapshot.specs[name]),
            }
            for name, status in self.snapshot.statuses.items()
        }
        return {"tables": tables, "trouble": error_for_page(self._error) if self._error else None}

    def _publish_error(self, error: RiverrunError | None) -> None:
        if (self._error is None) != (error is None):
            for view in self._views.values():
                view.schedule_frame(trouble=error_for_page(error) if error else None)
        self._error = error

    # --- querying ---

    async def _query_loop(self, feed: TileFeed) -> None:
        while True:
            await feed.dirty.wait()
            feed.dirty.clear()
            result: TileResult = await self._run_in_slot(lambda: feed.run_query(self._store, self.snapshot))
            self._apply_result(feed, result)
            if result.error is not None and result.error.retryable:
                await asyncio.sleep(RETRY_SECONDS)
                feed.dirty.set()
                continue
            # With many tiles, or expensive ones, each waits longer, so that together they stay within their share.
            pause_seconds = feed.cost * len(self._feeds) / MAX_QUERY_SHARE
            await asyncio.sleep(max(self._min_seconds, min(pause_seconds, 10.0)))

    def _apply_result(self, feed: TileFeed, result: TileResult) -> None:
        if feed.apply(result):
            for view in feed.views:
                view.schedule_frame()
        if feed.tile.kind == "number" and feed.version == 1 and result.error is None:
            feed.tasks.append(asyncio.create_task(self._load_sparkline(feed)))

    async def _load_sparkline(self, feed: TileFeed) -> None:
        """Fill a number's sparkline once, from its table's history, newest first."""
        snapshot = self.snapshot
        if not all(has_history(snapshot.specs[table]) for table in feed.tables):
            return
        began = time.monotonic()
        for moment in feed.sparkline.missing_times():
            if time.monotonic() - began > MAX_HISTORY_SECONDS:
                break
            try:
                value = await self._run_in_slot(partial(feed.value_at, self._store, snapshot, moment))
            except RiverrunError:
                return
            feed.sparkline.add(moment, value)
        feed.dirty.set()

    async def _run_in_slot(self, work: Callable[[], T]) -> T:
        if self._slots is None:
            self._slots = asyncio.Semaphore(QUERY_THREADS - 1)
        async with self._slots:
            return await self._run_in_thread(work)

    async def _run_in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)


def _row_version(status: TableStatus | None) -> tuple[object, ...]:
    """A value that differs when a table's rows have changed."""
    if status is None:
        return ()
    return tuple(sorted(status.positions.items())), status.updated, status.rows


def _state(status: TableStatus | None) -> str:
    """The table state that a page shows; a small lag is not shown."""
    return status.state if status is not None and status.state in {"settling", "failing"} else ""


def _now() -> int:
    return round(time.time() * 1000)


def _sse_event(name: str, content: Mapping[str, Any]) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + msgspec.json.encode(content) + b"\n\n"
