"""One tile under one set of filters: asked once for all who look at it, and kept with what changed last."""

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from statistics import median
from typing import TYPE_CHECKING, Any

from riverrun.dash.figures import Change, Figures, Type, change, figures_of
from riverrun.dash.queries import Filters, Moment, Question, has_history, question
from riverrun.errors import QueryError, RiverrunError, StoreError
from riverrun.model.dashboard import Dashboard, Tile
from riverrun.model.table import TableSpec
from riverrun.store.contract import Limits, Standing, Store

if TYPE_CHECKING:
    from riverrun.dash.live import View

# Of rows beyond these a tile says so; a question that takes longer is not one for a dashboard.
LIMITS = Limits(rows=20_000, seconds=10.0)
# How many figures a number's way consists of.
POINTS = 24
# What a question costs is what the last one took, but not more than the middle of so many: one that waited for a core says
# nothing; when most do, there is none to spare.
COSTS = 5
# Somebody who moves the slider waits for it.
MOST_WAY_BACK_SECONDS = 0.4
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Scene:
    """The store as it was last seen: what a question is made from."""

    specs: Mapping[str, TableSpec]
    standings: Mapping[str, Standing]

    def newest(self, names: frozenset[str]) -> float:
        """Unix seconds of the newest row of these tables; 0 when there is none."""
        return max((self.standings[each].newest for each in names if each in self.standings), default=0.0)

    def updated(self, names: frozenset[str]) -> float:
        return max((self.standings[each].updated for each in names if each in self.standings), default=0.0)


@dataclass(frozen=True)
class Outcome:
    """What asking gave: figures and how they differ from the last ones, or an error."""

    seconds: float
    tables: frozenset[str]
    updated: float = 0.0
    figures: Figures | None = None
    change: Change | None = None
    error: RiverrunError | None = None


class Feed:
    """The newest figures of a tile, with a version that counts them."""

    def __init__(self, board: Dashboard, tile: Tile, filters: Filters) -> None:
        self.board = board
        self.tile = tile
        self.filters = dict(filters)
        self.tables: frozenset[str] = frozenset()
        self.version = 0
        self.touches = 0
        self.figures: Figures | None = None
        self.change: Change | None = None
        self.error: RiverrunError | None = None
        self.updated = 0.0
        self.dirty = asyncio.Event()
        self.dirty.set()
        self.views: set[View] = set()
        self.tasks: list[asyncio.Task[None]] = []
        self.way = Way(tile)
        self._seconds: deque[float] = deque(maxlen=COSTS)

    # --- asking; called in a thread ---

    def ask(self, store: Store, scene: Scene) -> Outcome:
        """Ask the store, and compare with what is here."""
        began = time.monotonic()
        tables = self.tables
        try:
            asked = self.question(scene)
            tables = asked.tables
            updated = scene.updated(tables)
            answer = store.ask(asked.sql, LIMITS)
            figures = figures_of(self.tile, answer.rows, more=answer.more)
            if self.tile.kind == "number":
                figures = self.way.with_now(figures, scene.newest(tables) * 1000)
        except RiverrunError as error:
            return Outcome(time.monotonic() - began, tables, error=error)
        except Exception as error:  # noqa: BLE001  -- whatever it is, the page hears of it, and the other tiles go on
            _LOG.exception("%s failed", self.tile)
            return Outcome(time.monotonic() - began, tables, error=unexpected(error))
        before = self.figures
        shaped_alike = before is not None and self.error is None and _shape(before) == _shape(figures)
        difference = change(before.rows, figures.rows) if before is not None and shaped_alike else None
        return Outcome(time.monotonic() - began, tables, updated, figures, difference)

    def question(self, scene: Scene, at: datetime | None = None) -> Question:
        newest = None
        if at is None and self.tile.range_ms >= 0:
            tables = self.tables or question(self.tile, scene.specs, self.filters).tables
            seconds = scene.newest(tables)
            newest = datetime.fromtimestamp(seconds, UTC) if seconds else None
        return question(self.tile, scene.specs, self.filters, Moment(at, newest))

    def look_back(self, store: Store, scene: Scene, at: datetime) -> Figures:
        """The figures as they were at a time. QueryError where a table does not have its past any more."""
        asked = self.question(scene, at)
        for name in sorted(asked.tables):
            if not has_history(scene.specs[name]):
                raise QueryError(
                    f"The table {name} keeps only the newest row of each key",
                    hint=f"Give it a key with {scene.specs[name].time} in it to look back",
                    table=name,
                )
        answer = store.ask(asked.sql, LIMITS)
        figures = figures_of(self.tile, answer.rows, more=answer.more)
        if self.tile.kind != "number":
            return figures
        way = Way(self.tile)
        way.with_now(figures, at.timestamp() * 1000)
        began = time.monotonic()
        # The oldest first: without it there is no change to tell.
        for moment in sorted(way.missing(), key=lambda each: (each > at.timestamp() * 1000 - way.span, -each)):
            if time.monotonic() - began > MOST_WAY_BACK_SECONDS:
                break
            way.add(moment, self.value_at(store, scene, moment))
        return way.with_now(figures, at.timestamp() * 1000)

    def value_at(self, store: Store, scene: Scene, moment_ms: float) -> Any:
        asked = self.question(scene, datetime.fromtimestamp(moment_ms / 1000, UTC))
        figures = figures_of(self.tile, store.ask(asked.sql, LIMITS).rows)
        return figures.rows[0][figures.y[0]] if figures.rows and figures.y else None

    # --- told; called in the loop ---

    def take(self, outcome: Outcome) -> bool:
        """Remember an outcome. Whether viewers have something to hear."""
        self._seconds.append(outcome.seconds)
        self.tables = outcome.tables or self.tables
        if outcome.error is not None:
            same = self.error is not None and str(self.error) == str(outcome.error)
            self.error = outcome.error
            if not same:
                self.version, self.change = self.version + 1, None
            return not same
        told = self.updated != outcome.updated
        self.updated = outcome.updated
        if outcome.change is not None and not outcome.change:
            self.touches += told
            return told
        self.figures, self.change, self.error = outcome.figures, outcome.change, None
        self.version += 1
        return True

    @property
    def cost(self) -> float:
        """Seconds that asking takes."""
        return min(self._seconds[-1], median(self._seconds)) if self._seconds else 0.0

    @property
    def state(self) -> dict[str, Any]:
        """All of it, for who has nothing yet or has fallen behind."""
        found: dict[str, Any] = {"tile": self.tile.name, "v": self.version, "updated": round(self.updated * 1000)}
        if self.figures is not None:
            found |= self.figures.as_dict()
        if self.error is not None:
            found["error"] = error_for_page(self.error)
        return found

    def since(self, version: int) -> dict[str, Any]:
        """What somebody who has this version needs to hear."""
        head = {"tile": self.tile.name, "v": self.version, "updated": round(self.updated * 1000)}
        if version == self.version and version:
            return head
        if version == self.version - 1 and self.change is not None and self.error is None:
            return head | {"from": version, "drop": self.change.drop, "put": self.change.put}
        return self.state


def _shape(figures: Figures) -> tuple[object, ...]:
    return figures.columns, figures.x, figures.y, figures.by, figures.more


def unexpected(error: Exception) -> RiverrunError:
    return StoreError(f"Something unexpected happened: {type(error).__name__}", hint="The log has more of it")


def error_for_page(error: RiverrunError) -> dict[str, Any]:
    """What a viewer may read: the message, not what it was asked with."""
    return {"code": error.code, "message": str(error)}


class Way:
    """How a number came to be what it is: one figure for each part of the time it is compared over."""

    def __init__(self, tile: Tile) -> None:
        self.span = float(tile.compare_ms)
        self.step = self.span / POINTS
        self.points: dict[int, tuple[float, Any]] = {}
        self.newest = 0.0
        # Figures of the past come from one thread, those of now from another.
        self._lock = threading.Lock()

    def add(self, moment: float, value: Any) -> None:
        """A figure as of a time. What is there already is newer."""
        if self.span > 0 and isinstance(value, int | float):
            with self._lock:
                self.points.setdefault(int(moment // self.step), (moment, value))

    def missing(self) -> list[float]:
        """The times, newest first, whose figures would make it whole."""
        if self.span <= 0 or not self.newest:
            return []
        moments = [self.newest - number * self.step for number in range(1, POINTS + 1)]
        return [each for each in moments if int(each // self.step) not in self.points]

    def with_now(self, figures: Figures, moment: float) -> Figures:
        """The figure with its way: rows of a time and a value, of which the last is now."""
        kind: Type = figures.columns[figures.y[0]][1] if figures.y else "number"
        name = figures.columns[figures.y[0]][0] if figures.y else ""
        value = figures.rows[0][figures.y[0]] if figures.rows else None
        self.newest = moment = moment or time.time() * 1000
        before: list[tuple[float, Any]] = []
        if self.span > 0 and isinstance(value, int | float):
            first, last = int((moment - self.span) // self.step), int(moment // self.step)
            with self._lock:
                self.points = {at: point for at, point in self.points.items() if first <= at < last}
                before = [self.points[at] for at in sorted(self.points)]
                self.points[last] = (moment, value)
        rows = (*((round(at), each) for at, each in before), (round(moment), value))
        return Figures((("at", "time"), (name, kind)), rows, 0, (1,), -1)
