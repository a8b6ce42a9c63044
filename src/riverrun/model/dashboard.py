"""Dashboards of a pipeline file: tiles, each over a table of the store or SQL. Declaring does nothing.

A tile runs one query. `source` is the name of a table, or SQL that begins with select or with; `x`, `y` and `by` name
its columns: the axis, the value, and what distinguishes lines, bars or rows. A click on a value of `by` sets the page's
filter for that column (`when` and titles such as "Houses of {street}" follow it).
"""

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import timedelta
from string import Formatter
from typing import Any, Literal, TypedDict, Unpack, get_args

from riverrun.errors import DeclarationError
from riverrun.model.pipeline import SourceLine, Stream, TableOptions
from riverrun.model.suggest import nearest
from riverrun.model.topic import Topic
from riverrun.model.units import parse_duration_ms

TileKind = Literal["number", "line", "area", "bar", "rows", "leaderboard", "candle", "heat_map", "status", "text"]
Aggregate = Literal["sum", "avg", "min", "max", "count"]
AGGREGATES: tuple[str, ...] = get_args(Aggregate)
Step = Literal["second", "minute", "hour", "day"]
STEPS: tuple[str, ...] = get_args(Step)
LEVELS = ("warn", "bad")
GRID_COLUMNS = 12
MAX_HEIGHT = 12
MAX_LIMIT = 1000
# Kinds whose rows lie along a time axis: over a table and without a range, this much of it is shown.
TIME_SERIES_KINDS = frozenset({"line", "area", "candle", "heat_map"})
DEFAULT_RANGE = "1 hour"
DEFAULT_COMPARE = "1 hour"
DEFAULT_STALE = "1 minute"
_SQL = re.compile(r"\s*(select|with)\b", re.IGNORECASE)
_NAME = re.compile(r"[a-z][a-z0-9_-]*")
# Width, height and limit, where the file gives none.
_SIZES: dict[str, tuple[int, int, int]] = {
    "number": (3, 2, 1),
    # As many lines as a chart draws (MOST_LINES in series.js).
    "line": (8, 4, 24),
    "area": (8, 4, 24),
    "bar": (4, 4, 12),
    "rows": (6, 4, 50),
    "leaderboard": (4, 4, 10),
    "candle": (8, 4, 120),
    "heat_map": (8, 4, 30),
    "status": (4, 4, 50),
    "text": (4, 2, 1),
}

TileSource = str | Stream | TableOptions | Topic[Any]


class TileOptions(TypedDict, total=False):
    """The options that every tile over data takes."""

    unit: str
    # Only rows at most this old, counted back from the newest row: in event time, not wall-clock time.
    range: str | timedelta
    # How many groups, bars or rows at most.
    limit: int
    # "warn" and "bad": from that value upwards; where "bad" is the lower one, downwards.
    thresholds: Mapping[str, float]
    decimals: int
    # How rows of the same group are aggregated into one figure.
    aggregate: Aggregate
    # The newest window is still filling; True leaves it out.
    closed: bool
    # Times are rounded down to this, where the table's are finer than the chart needs.
    step: Step
    # The value where a time has no row, such as 0 for a count; without it a line has a gap there.
    fill: float
    # Of 12 columns, and in rows of the grid.
    width: int
    height: int
    # Shown only while the page has a filter for this column.
    when: str
    # When no row has arrived for this long, the figure is shown as stale.
    stale: str | timedelta


@dataclass(frozen=True)
class Tile:
    """One query and how its result is shown. Made by the functions below, which say what each kind needs."""

    kind: TileKind
    title: str
    source: str = ""
    x: str = ""
    y: tuple[str, ...] = ()
    by: str = ""
    columns: tuple[str, ...] = ()
    text: str = ""
    unit: str = ""
    range_ms: int = -1
    compare_ms: int = -1
    limit: int = 0
    thresholds: Mapping[str, float] = field(default_factory=dict)
    decimals: int = -1
    aggregate: str = "sum"
    closed: bool = False
    step: str = ""
    fill: float | None = None
    width: int = 0
    height: int = 0
    when: str = ""
    stale_ms: int = -1
    # Its name within its dashboard's URLs; set by the dashboard.
    name: str = ""
    line: SourceLine = SourceLine("", 0)  # noqa: RUF009  -- frozen

    @property
    def is_sql(self) -> bool:
        return bool(_SQL.match(self.source))

    @property
    def has_query(self) -> bool:
        return self.kind != "text"

    @property
    def title_filters(self) -> tuple[str, ...]:
        """The filters that its title names."""
        return tuple(name for _, name, _, _ in Formatter().parse(self.title) if name)

    def __str__(self) -> str:
        return f"The tile {self.title!r}"


@dataclass(frozen=True)
class Dashboard:
    """Tiles on one page, in the order in which they are read."""

    name: str
    title: str
    tiles: tuple[Tile, ...]
    stale_ms: int
    line: SourceLine

    def tile(self, name: str) -> Tile | None:
        return next((tile for tile in self.tiles if tile.name == name), None)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def filters(self) -> frozenset[str]:
        """The columns that a click can set a filter for."""
        return frozenset(tile.by for tile in self.tiles if tile.by)


def number(
    title: str,
    source: TileSource,
    *,
    y: str = "",
    compare: str | timedelta | None = DEFAULT_COMPARE,
    **options: Unpack[TileOptions],
) -> Tile:
    """One figure, how it changed within `compare`, and its sparkline. Of SQL: the first column of the only row."""
    return _tile("number", title, source, {"y": y, "compare": compare}, options)


def line(
    title: str,
    source: TileSource,
    *,
    x: str = "",
    y: str | Sequence[str] = "",
    by: str = "",
    **options: Unpack[TileOptions],
) -> Tile:
    """Lines along a time: one for each value of `by`, or for each column of `y`."""
    return _tile("line", title, source, {"x": x, "y": y, "by": by}, options)


def area(
    title: str,
    source: TileSource,
    *,
    x: str = "",
    y: str | Sequence[str] = "",
    by: str = "",
    **options: Unpack[TileOptions],
) -> Tile:
    """Like `line`, filled and stacked: parts that make a whole."""
    return _tile("area", title, source, {"x": x, "y": y, "by": by}, options)


def bar(
    title: str, source: TileSource, *, by: str = "", x: str = "", y: str = "", **options: Unpack[TileOptions]
) -> Tile:
    """A bar for each value of `by`, longest first; or, with `x` a time, one for each time."""
    return _tile("bar", title, source, {"x": x, "y": y, "by": by}, options)


def leaderboard(title: str, source: TileSource, *, by: str = "", y: str = "", **options: Unpack[TileOptions]) -> Tile:
    """A ranking: the values of `by`, ordered by `y`."""
    return _tile("leaderboard", title, source, {"y": y, "by": by}, options)


def rows(
    title: str, source: TileSource, *, columns: Sequence[str] = (), by: str = "", **options: Unpack[TileOptions]
) -> Tile:
    """Rows as they are, newest first; of SQL, in the SQL's order. A click on a value of `by` drills down."""
    return _tile("rows", title, source, {"columns": columns, "by": by}, options)


def candle(
    title: str,
    source: TileSource,
    *,
    x: str = "",
    open: str = "open",  # noqa: A002  -- what traders call it
    high: str = "high",
    low: str = "low",
    close: str = "close",
    **options: Unpack[TileOptions],
) -> Tile:
    """Prices: open, close, high and low of each time."""
    return _tile("candle", title, source, {"x": x, "y": (open, high, low, close)}, options)


def heat_map(
    title: str, source: TileSource, *, x: str = "", by: str = "", y: str = "", **options: Unpack[TileOptions]
) -> Tile:
    """A cell for each `x` and `by`, coloured by `y`."""
    return _tile("heat_map", title, source, {"x": x, "y": y, "by": by}, options)


def status(title: str, source: TileSource, *, by: str = "", y: str = "", **options: Unpack[TileOptions]) -> Tile:
    """Things and their condition: the values of `by`, worst first by the thresholds of `y`."""
    return _tile("status", title, source, {"y": y, "by": by}, options)


def text(text: str, *, title: str = "", width: int = 0, height: int = 0, when: str = "") -> Tile:
    """Text between tiles. An empty line begins a paragraph, "- " a list; `**strong**` and backquotes are understood."""
    options: TileOptions = {"when": when}
    if width:
        options["width"] = width
    if height:
        options["height"] = height
    return _tile("text", title, "", {"text": text}, options)


# What a kind takes of `TileOptions` beyond unit, range, limit, thresholds, decimals, width, height, when and stale.
_EXTRA_OPTIONS: dict[str, tuple[str, ...]] = {
    "number": ("aggregate", "closed"),
    "line": ("aggregate", "closed", "step", "fill"),
    "area": ("aggregate", "closed", "step", "fill"),
    "bar": ("aggregate", "closed", "step", "fill"),
    "leaderboard": ("aggregate", "closed"),
    "heat_map": ("aggregate", "closed", "step"),
    "status": ("aggregate", "closed"),
}
_COMMON_OPTIONS = ("unit", "range", "limit", "thresholds", "decimals", "width", "height", "when", "stale")


def _tile(kind: TileKind, title: str, source: TileSource, arguments: Mapping[str, Any], options: TileOptions) -> Tile:
    frame = sys._getframe(2)  # noqa: SLF001
    source_line = SourceLine(frame.f_code.co_filename, frame.f_lineno)
    here = f"The tile {title!r}" if title else f"A tile of the kind {kind}"
    allowed = ("width", "height", "when") if kind == "text" else (*_COMMON_OPTIONS, *_EXTRA_OPTIONS.get(kind, ()))
    _check_options(here, options, (*allowed, *arguments), allowed)
    if kind != "text" and not title:
        raise DeclarationError(f"{here} has no title", hint="A figure without a name says nothing")
    width, height, limit = _SIZES[kind]
    table_or_sql = "" if kind == "text" else _source_name(here, source)
    is_time_series = kind in TIME_SERIES_KINDS and not _SQL.match(table_or_sql)
    query_arguments = (
        {} if kind == "text" else _query_arguments(here, arguments, options, DEFAULT_RANGE if is_time_series else None)
    )
    tile = Tile(
        kind,
        title,
        table_or_sql,
        text=arguments.get("text", ""),
        unit=options.get("unit", ""),
        limit=options.get("limit", limit),
        thresholds=_thresholds(here, options.get("thresholds") or {}),
        decimals=options.get("decimals", -1),
        aggregate=options.get("aggregate", "sum"),
        closed=options.get("closed", False),
        step=options.get("step", ""),
        fill=options.get("fill"),
        width=options.get("width", width),
        height=options.get("height", height),
        when=options.get("when", ""),
        line=source_line,
        **query_arguments,
    )
    _check_values(here, tile)
    return tile


def _check_options(here: str, options: Mapping[str, Any], known: Sequence[str], allowed: Sequence[str]) -> None:
    for name in options:
        if name not in allowed:
            near = nearest(name, known)
            raise DeclarationError(
                f"{here} has no option {name!r}",
                expected=", ".join(sorted(known)),
                hint=f"Did you mean {near!r}?" if near else "",
                option=name,
            )


def _query_arguments(
    here: str, arguments: Mapping[str, Any], options: TileOptions, default_range: str | None
) -> dict[str, Any]:
    """The arguments of a tile that make up its query."""
    range_given = options.get("range", default_range)
    compare, stale = arguments.get("compare"), options.get("stale")
    y = arguments.get("y") or ()
    return {
        "x": arguments.get("x", ""),
        "y": (y,) if isinstance(y, str) else tuple(y),
        "by": arguments.get("by", ""),
        "columns": _columns(here, arguments.get("columns", ())),
        "range_ms": -1 if range_given is None else parse_duration_ms(range_given, what=f"{here}: range"),
        "compare_ms": -1 if not compare else parse_duration_ms(compare, what=f"{here}: compare"),
        "stale_ms": -1 if stale is None else parse_duration_ms(stale, what=f"{here}: stale"),
    }


def _columns(here: str, columns: Sequence[str]) -> tuple[str, ...]:
    if isinstance(columns, str):
        raise DeclarationError(
            f"{here} has columns={columns!r}", expected=f'a list of names, such as columns=["{columns}"]'
        )
    return tuple(columns)


def _source_name(here: str, source: Any) -> str:
    if isinstance(source, TableOptions):
        return source.table
    if isinstance(source, Stream | Topic):
        return source.name
    if not isinstance(source, str) or not source.strip():
        raise DeclarationError(
            f"{here} has nothing to show",
            expected="the name of a table of the store, a stream, or SQL that begins with select or with",
            found=repr(source),
        )
    table_or_sql = source.strip()
    if not _SQL.match(table_or_sql) and not table_or_sql.isidentifier():
        raise DeclarationError(
            f"{here} cannot ask {table_or_sql[:60]!r}",
            expected="the name of a table, or SQL that begins with select or with",
        )
    return table_or_sql


def _thresholds(here: str, given: Mapping[str, float]) -> dict[str, float]:
    for level, value in given.items():
        if level not in LEVELS or isinstance(value, bool) or not isinstance(value, int | float):
            raise DeclarationError(
                f"{here} cannot have thresholds={dict(given)!r}", expected='such as {"warn": 1.5, "bad": 2.0}'
            )
    return {level: float(given[level]) for level in LEVELS if level in given}


def _check_values(here: str, tile: Tile) -> None:
    sizes: list[tuple[str, Any, int]] = [
        ("width", tile.width, GRID_COLUMNS),
        ("height", tile.height, MAX_HEIGHT),
        ("limit", tile.limit, MAX_LIMIT),
    ]
    for name, value, most in sizes:
        if not isinstance(value, int) or not 1 <= value <= most:
            raise DeclarationError(f"{here} cannot have {name}={value!r}", expected=f"1 to {most}")
    if tile.fill is not None and (isinstance(tile.fill, bool) or not isinstance(tile.fill, int | float)):
        raise DeclarationError(f"{here} cannot have fill={tile.fill!r}", expected="a number, such as 0")
    for name, word, known in (("aggregate", tile.aggregate, AGGREGATES), ("step", tile.step, STEPS)):
        if word and word not in known:
            near = nearest(word, known)
            raise DeclarationError(
                f"{here} cannot have {name}={word!r}",
                expected=", ".join(known),
                hint=f"Did you mean {near!r}?" if near else "",
            )
    try:
        filters = tile.title_filters
    except ValueError as error:
        raise DeclarationError(
            f"{here}: its title cannot be understood: {error}", hint="A brace that is meant as one is written twice"
        ) from error
    for word in filters:
        if word != tile.when:
            raise DeclarationError(
                f"{here} names {{{word}}}, and is shown also while no {word} is chosen", hint=f'Add when="{word}"'
            )


def build_dashboard(
    tiles: Sequence[Tile], *, name: str, title: str, stale: str | timedelta, line: SourceLine, app: str
) -> Dashboard:
    """A dashboard, checked as far as it can be without knowing the tables."""
    if not _NAME.fullmatch(name):
        raise DeclarationError(
            f"{name!r} cannot be the name of a dashboard", expected="small letters, digits, - and _, such as city-load"
        )
    for tile in tiles:
        if not isinstance(tile, Tile):
            raise DeclarationError(
                f"The dashboard {name} has {tile!r} as a tile",
                expected="what riverrun.number, .line, .bar and so on give",
            )
    if not tiles:
        raise DeclarationError(f"The dashboard {name} has no tiles")
    used_names: set[str] = set()
    named_tiles = tuple(replace(tile, name=_unique_name(tile, used_names)) for tile in tiles)
    known = {tile.by for tile in named_tiles if tile.by}
    for tile in named_tiles:
        if tile.when and tile.when not in known:
            near = nearest(tile.when, known)
            raise DeclarationError(
                f"{tile.line}: {tile} waits for when={tile.when!r}, and no tile of the dashboard {name} can set it",
                expected=f"a column that a tile is by: {', '.join(sorted(known)) or 'there is none'}",
                hint=f"Did you mean {near!r}?" if near else f"Give a tile by={tile.when!r}",
            )
    return Dashboard(
        name, title or app, named_tiles, parse_duration_ms(stale, what=f"stale of the dashboard {name}"), line
    )


def _unique_name(tile: Tile, used_names: set[str]) -> str:
    """A name for a URL, made of the title; a number makes it unique."""
    plain = re.sub(r"[^a-z0-9]+", "-", tile.title.lower()).strip("-") or tile.kind.replace("_", "-")
    name, count = plain[:60], 1
    while name in used_names:
        count += 1
        name = f"{plain[:60]}-{count}"
    used_names.add(name)
    return name


def dashboard_from_dict(content: Mapping[str, Any]) -> Dashboard:
    """The dashboard that `as_dict` returned, also by way of JSON. Names it does not know are ignored."""

    def known(cls: type, given: Mapping[str, Any]) -> dict[str, Any]:
        names = {tile.name for tile in fields(cls)}
        lists = {name: tuple(value) for name, value in given.items() if isinstance(value, list)}
        return {
            name: value
            for name, value in {**given, **lists, "line": SourceLine(**given["line"])}.items()
            if name in names
        }

    tiles = tuple(Tile(**known(Tile, tile)) for tile in content["tiles"])
    return Dashboard(**{**known(Dashboard, content), "tiles": tiles})
