"""What a pipeline file says people see: dashboards of tiles, each over a table of the store or SQL. Declaring does nothing.

A tile asks its store one question. `source` is the name of a table, or SQL that begins with select or with; `x`, `y` and
`by` name columns of it: where along, how much, and what tells the lines, bars or rows apart. A click on a value of `by` sets
the page's filter for that column (`when` and titles such as "Houses of {street}" follow it).
"""

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import timedelta
from string import Formatter
from typing import Any, Literal, TypedDict, Unpack, get_args

from riverrun.errors import DeclarationError
from riverrun.model.near import nearest
from riverrun.model.pipeline import Kept, Line, Stream
from riverrun.model.quantity import milliseconds
from riverrun.model.topic import Topic

Kind = Literal["number", "line", "area", "bar", "rows", "leaderboard", "candle", "heat_map", "status", "text"]
Aggregate = Literal["sum", "avg", "min", "max", "count"]
AGGREGATES: tuple[str, ...] = get_args(Aggregate)
Step = Literal["second", "minute", "hour", "day"]
STEPS: tuple[str, ...] = get_args(Step)
LEVELS = ("warn", "bad")
COLUMNS = 12
MOST_ROWS = 12
MOST_GROUPS = 1000
# Kinds whose rows go along a time: of a table and without a range, this much of it.
ALONG_TIME = frozenset({"line", "area", "candle", "heat_map"})
DEFAULT_RANGE = "1 hour"
DEFAULT_COMPARE = "1 hour"
DEFAULT_STALE = "1 minute"
_SQL = re.compile(r"\s*(select|with)\b", re.IGNORECASE)
_NAME = re.compile(r"[a-z][a-z0-9_-]*")
# Width, height and limit, where the file says none.
_SIZES: dict[str, tuple[int, int, int]] = {
    "number": (3, 2, 1),
    "line": (8, 4, 8),
    # The parts of a whole are few enough, or the whole is not seen.
    "area": (8, 4, 24),
    "bar": (4, 4, 12),
    "rows": (6, 4, 50),
    "leaderboard": (4, 4, 10),
    "candle": (8, 4, 120),
    "heat_map": (8, 4, 30),
    "status": (4, 4, 50),
    "text": (4, 2, 1),
}

Source = str | Stream | Kept | Topic[Any]


class Look(TypedDict, total=False):
    """The options that every tile over data takes."""

    unit: str
    # Rows that are at most so old, counted back from the newest row: the clock of the events, not of the wall.
    range: str | timedelta
    # How many groups, bars or rows at most.
    limit: int
    # "warn" and "bad": from there on up; where "bad" is the lower one, from there on down.
    thresholds: Mapping[str, float]
    decimals: int
    # How rows that fall together are made one figure.
    aggregate: Aggregate
    # The newest window is still filling; True leaves it out.
    closed: bool
    # Times rounded down to this, where the table's are finer than the chart needs.
    step: Step
    # What stands where a time has no row, such as 0 for a count; without it a line has a gap there.
    fill: float
    # Of 12 columns, and in rows of the grid.
    width: int
    height: int
    # Shown only while the page has a filter for this column.
    when: str
    # No row has come in for so long: the figure is shown as stale.
    stale: str | timedelta


@dataclass(frozen=True)
class Tile:
    """One question and the way its answer is shown. Made by the functions below, which say what each kind needs."""

    kind: Kind
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
    # What addresses it in its dashboard; given by the dashboard.
    name: str = ""
    line: Line = Line("", 0)  # noqa: RUF009  -- frozen

    @property
    def is_sql(self) -> bool:
        return bool(_SQL.match(self.source))

    @property
    def asks(self) -> bool:
        return self.kind != "text"

    @property
    def words(self) -> tuple[str, ...]:
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
    line: Line

    def tile(self, name: str) -> Tile | None:
        return next((each for each in self.tiles if each.name == name), None)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def filters(self) -> frozenset[str]:
        """The columns that a click can set a filter for."""
        return frozenset(each.by for each in self.tiles if each.by)


def number(
    title: str, source: Source, *, y: str = "", compare: str | timedelta | None = DEFAULT_COMPARE, **look: Unpack[Look]
) -> Tile:
    """One figure, how it changed within `compare`, and its way there. Of SQL: the first column of the only row."""
    return _tile("number", title, source, {"y": y, "compare": compare}, look)


def line(
    title: str, source: Source, *, x: str = "", y: str | Sequence[str] = "", by: str = "", **look: Unpack[Look]
) -> Tile:
    """Lines along a time: one for each value of `by`, or for each column of `y`."""
    return _tile("line", title, source, {"x": x, "y": y, "by": by}, look)


def area(
    title: str, source: Source, *, x: str = "", y: str | Sequence[str] = "", by: str = "", **look: Unpack[Look]
) -> Tile:
    """As `line`, filled, and one upon the other: parts that make a whole."""
    return _tile("area", title, source, {"x": x, "y": y, "by": by}, look)


def bar(title: str, source: Source, *, by: str = "", x: str = "", y: str = "", **look: Unpack[Look]) -> Tile:
    """A bar for each value of `by`, longest first; or, with `x` a time, one for each time."""
    return _tile("bar", title, source, {"x": x, "y": y, "by": by}, look)


def leaderboard(title: str, source: Source, *, by: str = "", y: str = "", **look: Unpack[Look]) -> Tile:
    """Who is first: the values of `by`, ranked by `y`."""
    return _tile("leaderboard", title, source, {"y": y, "by": by}, look)


def rows(title: str, source: Source, *, columns: Sequence[str] = (), by: str = "", **look: Unpack[Look]) -> Tile:
    """Rows as they are, newest first; of SQL, in the SQL's order. A click on a value of `by` drills down."""
    return _tile("rows", title, source, {"columns": columns, "by": by}, look)


def candle(
    title: str,
    source: Source,
    *,
    x: str = "",
    open: str = "open",  # noqa: A002  -- what traders call it
    high: str = "high",
    low: str = "low",
    close: str = "close",
    **look: Unpack[Look],
) -> Tile:
    """Prices: where each time opened and closed, and how far it went."""
    return _tile("candle", title, source, {"x": x, "y": (open, high, low, close)}, look)


def heat_map(title: str, source: Source, *, x: str = "", by: str = "", y: str = "", **look: Unpack[Look]) -> Tile:
    """A field for each `x` and `by`, coloured by `y`."""
    return _tile("heat_map", title, source, {"x": x, "y": y, "by": by}, look)


def status(title: str, source: Source, *, by: str = "", y: str = "", **look: Unpack[Look]) -> Tile:
    """Things and how they are: the values of `by`, worst first by the thresholds of `y`."""
    return _tile("status", title, source, {"y": y, "by": by}, look)


def text(text: str, *, title: str = "", width: int = 0, height: int = 0, when: str = "") -> Tile:
    """Words between tiles. An empty line begins a paragraph, "- " a list; `**strong**` and backquotes are understood."""
    options: Look = {"when": when}
    if width:
        options["width"] = width
    if height:
        options["height"] = height
    return _tile("text", title, "", {"text": text}, options)


# What a kind takes of `Look` beyond unit, range, limit, thresholds, decimals, width, height, when and stale.
_MORE: dict[str, tuple[str, ...]] = {
    "number": ("aggregate", "closed"),
    "line": ("aggregate", "closed", "step", "fill"),
    "area": ("aggregate", "closed", "step", "fill"),
    "bar": ("aggregate", "closed", "step", "fill"),
    "leaderboard": ("aggregate", "closed"),
    "heat_map": ("aggregate", "closed", "step"),
    "status": ("aggregate", "closed"),
}
_ALL = ("unit", "range", "limit", "thresholds", "decimals", "width", "height", "when", "stale")


def _tile(kind: Kind, title: str, source: Source, own: Mapping[str, Any], look: Look) -> Tile:
    frame = sys._getframe(2)  # noqa: SLF001
    place = Line(frame.f_code.co_filename, frame.f_lineno)
    here = f"The tile {title!r}" if title else f"A tile of the kind {kind}"
    allowed = ("width", "height", "when") if kind == "text" else (*_ALL, *_MORE.get(kind, ()))
    _check_options(here, look, (*allowed, *own), allowed)
    if kind != "text" and not title:
        raise DeclarationError(f"{here} has no title", hint="A figure without a name says nothing")
    width, height, limit = _SIZES[kind]
    named = "" if kind == "text" else _source_name(here, source)
    along = kind in ALONG_TIME and not _SQL.match(named)
    ask = {} if kind == "text" else _asking(here, own, look, DEFAULT_RANGE if along else None)
    tile = Tile(
        kind,
        title,
        named,
        text=own.get("text", ""),
        unit=look.get("unit", ""),
        limit=look.get("limit", limit),
        thresholds=_thresholds(here, look.get("thresholds") or {}),
        decimals=look.get("decimals", -1),
        aggregate=look.get("aggregate", "sum"),
        closed=look.get("closed", False),
        step=look.get("step", ""),
        fill=look.get("fill"),
        width=look.get("width", width),
        height=look.get("height", height),
        when=look.get("when", ""),
        line=place,
        **ask,
    )
    _check_values(here, tile)
    return tile


def _check_options(here: str, look: Mapping[str, Any], known: Sequence[str], allowed: Sequence[str]) -> None:
    for name in look:
        if name not in allowed:
            near = nearest(name, known)
            raise DeclarationError(
                f"{here} has no option {name!r}",
                expected=", ".join(sorted(known)),
                hint=f"Did you mean {near!r}?" if near else "",
                option=name,
            )


def _asking(here: str, own: Mapping[str, Any], look: Look, default_range: str | None) -> dict[str, Any]:
    """The arguments of a tile that say what is asked for."""
    range_given = look.get("range", default_range)
    compare, stale = own.get("compare"), look.get("stale")
    y = own.get("y") or ()
    return {
        "x": own.get("x", ""),
        "y": (y,) if isinstance(y, str) else tuple(y),
        "by": own.get("by", ""),
        "columns": _columns(here, own.get("columns", ())),
        "range_ms": -1 if range_given is None else milliseconds(range_given, what=f"{here}: range"),
        "compare_ms": -1 if not compare else milliseconds(compare, what=f"{here}: compare"),
        "stale_ms": -1 if stale is None else milliseconds(stale, what=f"{here}: stale"),
    }


def _columns(here: str, columns: Sequence[str]) -> tuple[str, ...]:
    if isinstance(columns, str):
        raise DeclarationError(
            f"{here} has columns={columns!r}", expected=f'a list of names, such as columns=["{columns}"]'
        )
    return tuple(columns)


def _source_name(here: str, source: Any) -> str:
    if isinstance(source, Kept):
        return source.table
    if isinstance(source, Stream | Topic):
        return source.name
    if not isinstance(source, str) or not source.strip():
        raise DeclarationError(
            f"{here} has nothing to show",
            expected="the name of a table of the store, a stream, or SQL that begins with select or with",
            found=repr(source),
        )
    named = source.strip()
    if not _SQL.match(named) and not named.isidentifier():
        raise DeclarationError(
            f"{here} cannot ask {named[:60]!r}",
            expected="the name of a table, or SQL that begins with select or with",
        )
    return named


def _thresholds(here: str, given: Mapping[str, float]) -> dict[str, float]:
    for level, value in given.items():
        if level not in LEVELS or isinstance(value, bool) or not isinstance(value, int | float):
            raise DeclarationError(
                f"{here} cannot have thresholds={dict(given)!r}", expected='such as {"warn": 1.5, "bad": 2.0}'
            )
    return {level: float(given[level]) for level in LEVELS if level in given}


def _check_values(here: str, tile: Tile) -> None:
    sizes: list[tuple[str, Any, int]] = [
        ("width", tile.width, COLUMNS),
        ("height", tile.height, MOST_ROWS),
        ("limit", tile.limit, MOST_GROUPS),
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
        words = tile.words
    except ValueError as error:
        raise DeclarationError(
            f"{here}: its title cannot be understood: {error}", hint="A brace that is meant as one is written twice"
        ) from error
    for word in words:
        if word != tile.when:
            raise DeclarationError(
                f"{here} names {{{word}}}, and is shown also while no {word} is chosen", hint=f'Add when="{word}"'
            )


def dashboard_of(
    tiles: Sequence[Tile], *, name: str, title: str, stale: str | timedelta, line: Line, app: str
) -> Dashboard:
    """A dashboard, checked as far as it can be without knowing the tables."""
    if not _NAME.fullmatch(name):
        raise DeclarationError(
            f"{name!r} cannot be the name of a dashboard", expected="small letters, digits, - and _, such as city-load"
        )
    for each in tiles:
        if not isinstance(each, Tile):
            raise DeclarationError(
                f"The dashboard {name} has {each!r} as a tile",
                expected="what riverrun.number, .line, .bar and so on give",
            )
    if not tiles:
        raise DeclarationError(f"The dashboard {name} has no tiles")
    taken: set[str] = set()
    named = tuple(replace(each, name=_free_name(each, taken)) for each in tiles)
    known = {each.by for each in named if each.by}
    for each in named:
        if each.when and each.when not in known:
            near = nearest(each.when, known)
            raise DeclarationError(
                f"{each.line}: {each} waits for when={each.when!r}, and no tile of the dashboard {name} can set it",
                expected=f"a column that a tile is by: {', '.join(sorted(known)) or 'there is none'}",
                hint=f"Did you mean {near!r}?" if near else f"Give a tile by={each.when!r}",
            )
    return Dashboard(name, title or app, named, milliseconds(stale, what=f"stale of the dashboard {name}"), line)


def _free_name(tile: Tile, taken: set[str]) -> str:
    """A name for an address, made of the title; a number makes it the only one."""
    plain = re.sub(r"[^a-z0-9]+", "-", tile.title.lower()).strip("-") or tile.kind.replace("_", "-")
    name, count = plain[:60], 1
    while name in taken:
        count += 1
        name = f"{plain[:60]}-{count}"
    taken.add(name)
    return name


def dashboard_from(content: Mapping[str, Any]) -> Dashboard:
    """The dashboard that `as_dict` gave, also by way of JSON. Names it does not know are left out."""

    def known(cls: type, given: Mapping[str, Any]) -> dict[str, Any]:
        names = {each.name for each in fields(cls)}
        lists = {name: tuple(value) for name, value in given.items() if isinstance(value, list)}
        return {
            name: value for name, value in {**given, **lists, "line": Line(**given["line"])}.items() if name in names
        }

    tiles = tuple(Tile(**known(Tile, each)) for each in content["tiles"])
    return Dashboard(**{**known(Dashboard, content), "tiles": tiles})
