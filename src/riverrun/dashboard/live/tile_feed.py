"""One tile with one set of filters: queried once for all its viewers, and kept with its last change."""

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from statistics import median
from typing import TYPE_CHECKING, Any

from riverrun.dashboard.tiles.data import ColumnType, RowDiff, TileData, diff_rows, tile_data_of
from riverrun.dashboard.tiles.queries import Filters, QueryTime, TileQuery, has_history, tile_query
from riverrun.errors import QueryError, RiverrunError, StoreError
from riverrun.model.dashboard import Dashboard, Tile
from riverrun.model.table import TableSpec
from riverrun.store.contract import QueryLimits, Store, TableStatus

if TYPE_CHECKING:
    from riverrun.dashboard.live.hub import DashboardView

# A tile with more rows than this says so; a query that takes longer does not belong on a dashboard.
QUERY_LIMITS = QueryLimits(rows=20_000, seconds=10.0)
# How many points a number's sparkline has.
SPARKLINE_POINTS = 24
# A query's cost is the last one's duration, but at most the median of this many: a single one that waited for a core says
# nothing; when most of them do, there is no core to spare.
COST_SAMPLES = 5
# Short, since a user who moves the time slider waits for it.
MAX_SPARKLINE_SECONDS = 0.4
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class StoreSnapshot:
    """The store as last polled: tables and their status, from which queries are built."""

    specs: Mapping[str, TableSpec]
    statuses: Mapping[str, TableStatus]

    def newest(self, names: frozenset[str]) -> float:
        """Unix seconds of the newest row of these tables; 0 when there is none."""
        return max((self.statuses[name].newest for name in names if name in self.statuses), default=0.0)

    def updated(self, names: frozenset[str]) -> float:
        return max((self.statuses[name].updated for name in names if name in self.statuses), default=0.0)


@dataclass(frozen=True)
class TileResult:
    """The result of a query: the data and how it differs from the last, or an error."""

    seconds: float
    tables: frozenset[str]
    updated: float = 0.0
    data: TileData | None = None
    diff: RowDiff | None = None
    error: RiverrunError | None = None


class TileFeed:
    """The newest data of a tile, with a version that counts its changes."""

    def __init__(self, board: Dashboard, tile: Tile, filters: Filters) -> None:
        self.board = board
        self.tile = tile
        self.filters = dict(filters)
        self.tables: frozenset[str] = frozenset()
        self.version = 0
        self.refreshes = 0
        self.data: TileData | None = None
        self.diff: RowDiff | None = None
        self.error: RiverrunError | None = None
        self.updated = 0.0
        self.dirty = asyncio.Event()
        self.dirty.set()
        self.views: set[DashboardView] = set()
        self.tasks: list[asyncio.Task[None]] = []
        self.sparkline = Sparkline(tile)
        self._seconds: deque[float] = deque(maxlen=COST_SAMPLES)

    # --- querying; called in a thread ---

    def run_query(self, store: Store, snapshot: StoreSnapshot) -> TileResult:
        """Query the store, and compare with the current data."""
        began = time.monotonic()
        tables = self.tables
        try:
            query = self.query(snapshot)
            tables = query.tables
            updated = snapshot.updated(tables)
            data = self._ask(store, query)
            if self.tile.kind == "number":
                data = self.sparkline.with_current(data, snapshot.newest(tables) * 1000)
        except RiverrunError as error:
            return TileResult(time.monotonic() - began, tables, error=error)
        except Exception as error:  # noqa: BLE001  -- whatever it is, the page shows it, and the other tiles go on
            _LOG.exception("%s failed", self.tile)
            return TileResult(time.monotonic() - began, tables, error=internal_error(error))
        before = self.data
        same_columns = before is not None and self.error is None and _column_layout(before) == _column_layout(data)
        difference = diff_rows(before.rows, data.rows) if before is not None and same_columns else None
        return TileResult(time.monotonic() - began, tables, updated, data, difference)

    def _ask(self, store: Store, query: TileQuery) -> TileData:
        """The figures, and how many groups the limit left out of them."""
        result = store.query(query.sql, QUERY_LIMITS)
        data = tile_data_of(self.tile, result.rows, more=result.more)
        if not query.group_count_sql or data.groups < self.tile.limit:
            return data
        total = store.query(query.group_count_sql, QUERY_LIMITS).rows.column(0)[0].as_py()
        return replace(data, groups_left_out=max(0, int(total) - data.groups))

    def query(self, snapshot: StoreSnapshot, at: datetime | None = None) -> TileQuery:
        newest = None
        if at is None and self.tile.range_ms >= 0:
            tables = self.tables or tile_query(self.tile, snapshot.specs, self.filters).tables
            seconds = snapshot.newest(tables)
            newest = datetime.fromtimestamp(seconds, UTC) if seconds else None
        return tile_query(self.tile, snapshot.specs, self.filters, QueryTime(at, newest))

    def data_at(self, store: Store, snapshot: StoreSnapshot, at: datetime) -> TileData:
        """The data as of a time. QueryError when a table does not keep its history."""
        query = self.query(snapshot, at)
        for name in sorted(query.tables):
            if not has_history(snapshot.specs[name]):
                raise QueryError(
                    f"The table {name} keeps only the newest row of each key",
                    hint=f"Give it a key with {snapshot.specs[name].time} in it to look back",
                    table=name,
                )
        data = self._ask(store, query)
        if self.tile.kind != "number":
            return data
        sparkline = Sparkline(self.tile)
        sparkline.with_current(data, at.timestamp() * 1000)
        began = time.monotonic()
        # The oldest first: without it there is no change to show.
        for moment in sorted(
            sparkline.missing_times(), key=lambda moment: (moment > at.timestamp() * 1000 - sparkline.span, -moment)
        ):
            if time.monotonic() - began > MAX_SPARKLINE_SECONDS:
                break
            sparkline.add(moment, self.value_at(store, snapshot, moment))
        return sparkline.with_current(data, at.timestamp() * 1000)

    def value_at(self, store: Store, snapshot: StoreSnapshot, moment_ms: float) -> Any:
        query = self.query(snapshot, datetime.fromtimestamp(moment_ms / 1000, UTC))
        data = tile_data_of(self.tile, store.query(query.sql, QUERY_LIMITS).rows)
        return data.rows[0][data.y[0]] if data.rows and data.y else None

    # --- state; called in the event loop ---

    def apply(self, result: TileResult) -> bool:
        """Apply a query result. Returns whether viewers need an update."""
        self._seconds.append(result.seconds)
        self.tables = result.tables or self.tables
        if result.error is not None:
            same = self.error is not None and str(self.error) == str(result.error)
            self.error = result.error
            if not same:
                self.version, self.diff = self.version + 1, None
            return not same
        is_updated = self.updated != result.updated
        self.updated = result.updated
        if result.diff is not None and not result.diff:
            self.refreshes += is_updated
            return is_updated
        self.data, self.diff, self.error = result.data, result.diff, None
        self.version += 1
        return True

    @property
    def cost(self) -> float:
        """Seconds that a query takes."""
        return min(self._seconds[-1], median(self._seconds)) if self._seconds else 0.0

    @property
    def state(self) -> dict[str, Any]:
        """The whole state, for a viewer that is new or has fallen behind."""
        state: dict[str, Any] = {"tile": self.tile.name, "v": self.version, "updated": round(self.updated * 1000)}
        if self.data is not None:
            state |= self.data.as_dict()
        if self.error is not None:
            state["error"] = error_for_page(self.error)
        return state

    def since(self, version: int) -> dict[str, Any]:
        """The update for a viewer that has this version."""
        head = {"tile": self.tile.name, "v": self.version, "updated": round(self.updated * 1000)}
        if version == self.version and version:
            return head
        if version == self.version - 1 and self.diff is not None and self.error is None:
            return head | {"from": version, "drop": self.diff.removed, "put": self.diff.inserted}
        return self.state


def _column_layout(data: TileData) -> tuple[object, ...]:
    return data.columns, data.x, data.y, data.by, data.more, data.groups_left_out


def internal_error(error: Exception) -> RiverrunError:
    return StoreError(f"Something unexpected happened: {type(error).__name__}", hint="The log has more of it")


def error_for_page(error: RiverrunError) -> dict[str, Any]:
    """The error as a viewer may see it: its message, without the query behind it."""
    return {"code": error.code, "message": str(error)}


class Sparkline:
    """The recent values of a number: one point for each step of the time it is compared over."""

    def __init__(self, tile: Tile) -> None:
        self.span = float(tile.compare_ms)
        self.step = self.span / SPARKLINE_POINTS
        self.points: dict[int, tuple[float, Any]] = {}
        self.newest = 0.0
        # Past values come from one thread, the current one from another.
        self._lock = threading.Lock()

    def add(self, moment: float, value: Any) -> None:
        """Add a value as of a time. An existing point of that step is newer, and stays."""
        if self.span > 0 and isinstance(value, int | float):
            with self._lock:
                self.points.setdefault(int(moment // self.step), (moment, value))

    def missing_times(self) -> list[float]:
        """The times of the missing points, newest first."""
        if self.span <= 0 or not self.newest:
            return []
        moments = [self.newest - number * self.step for number in range(1, SPARKLINE_POINTS + 1)]
        return [moment for moment in moments if int(moment // self.step) not in self.points]

    def with_current(self, data: TileData, moment: float) -> TileData:
        """The number with its sparkline: rows of a time and a value, the last of them current."""
        kind: ColumnType = data.columns[data.y[0]][1] if data.y else "number"
        name = data.columns[data.y[0]][0] if data.y else ""
        value = data.rows[0][data.y[0]] if data.rows else None
        self.newest = moment = moment or time.time() * 1000
        before: list[tuple[float, Any]] = []
        if self.span > 0 and isinstance(value, int | float):
            first, last = int((moment - self.span) // self.step), int(moment // self.step)
            with self._lock:
                self.points = {at: point for at, point in self.points.items() if first <= at < last}
                before = [self.points[at] for at in sorted(self.points)]
                self.points[last] = (moment, value)
        rows = (*((round(at), past_value) for at, past_value in before), (round(moment), value))
        return TileData((("at", "time"), (name, kind)), rows, 0, (1,), -1)
