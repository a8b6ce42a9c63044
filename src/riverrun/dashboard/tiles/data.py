"""Query results as a page gets them: rows of JSON values, the role of each column, and the changes since the last rows."""

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any, Literal

from riverrun.dashboard.tiles.queries import has_own_order
from riverrun.errors import QueryError
from riverrun.model.dashboard import Tile

if TYPE_CHECKING:
    import pyarrow as pa

ColumnType = Literal["time", "number", "text", "boolean", "date"]
Row = tuple[Any, ...]
# Beyond this an integer is not exact in a browser, and is sent as text.
MAX_SAFE_INTEGER = 2**53 - 1
MAX_DIGITS = 15
# When more than this share of the rows changed, all rows are sent.
MAX_CHANGED_SHARE = 0.6


@dataclass(frozen=True)
class TileData:
    """A tile's rows. `x`, `y` and `by` are column indexes; -1 is none."""

    columns: tuple[tuple[str, ColumnType], ...] = ()
    rows: tuple[Row, ...] = ()
    x: int = -1
    y: tuple[int, ...] = ()
    by: int = -1
    # The result had more rows than a tile shows.
    more: bool = False
    # How many groups the question left out, because it asks for the largest few only.
    groups_left_out: int = 0

    def as_dict(self) -> dict[str, Any]:
        return {
            "columns": [{"name": name, "type": kind} for name, kind in self.columns],
            "rows": self.rows,
            "x": self.x,
            "y": self.y,
            "by": self.by,
            "more": self.more,
            "groups_left_out": self.groups_left_out,
        }

    @property
    def groups(self) -> int:
        return len({row[self.by] for row in self.rows}) if self.by >= 0 else 0


def tile_data_of(tile: Tile, table: "pa.Table", *, more: bool = False) -> TileData:
    """The data of a tile from a query result. QueryError when the tile cannot show it."""
    columns = tuple((column_field.name, _type(str(column_field.type))) for column_field in table.schema)
    values = [_values(table.column(index), str(column_field.type)) for index, column_field in enumerate(table.schema)]
    x, y, by = column_roles(tile, columns)
    rows = tuple(zip(*values, strict=True)) if values else ()
    if tile.kind == "number" and len(rows) > 1:
        raise QueryError(
            f"{tile} is one number, and its SQL gave {len(rows)} rows", hint="Add an aggregate, such as sum, or limit 1"
        )
    if x >= 0 and tile.kind in {"line", "area", "candle", "heat_map", "bar"}:
        # Queries return the newest rows first; a chart needs the oldest first.
        rows = tuple(sorted((row for row in rows if row[x] is not None), key=lambda row: _sort_key(row[x])))
    if tile.kind == "leaderboard" and tile.is_sql and not has_own_order(tile.source):
        rows = tuple(sorted(rows, key=lambda row: _rank_key(row[y[0]], row[by] if by >= 0 else None)))
    return TileData(columns, rows, x, y, by, more)


def _rank_key(value: Any, name: Any) -> tuple[bool, Decimal, str]:
    """The largest first, equal ones by name; what is no number comes last."""
    try:
        # Large whole numbers and decimals are text by now.
        number = Decimal(str(value))
    except InvalidOperation:
        number = Decimal("NaN")
    unranked = number.is_nan()
    return unranked, Decimal(0) if unranked else -number, str(name)


def _sort_key(value: Any) -> tuple[int, Any]:
    return (0, value) if isinstance(value, int | float) else (1, str(value))


def _type(arrow: str) -> ColumnType:
    if arrow.startswith("timestamp"):
        return "time"
    if arrow.startswith("date"):
        return "date"
    if arrow == "bool":
        return "boolean"
    if arrow.startswith(("int", "uint", "double", "float", "halffloat", "decimal")):
        return "number"
    return "text"


def _values(column: Any, arrow: str) -> list[Any]:
    if arrow.startswith("timestamp"):
        milliseconds: list[Any] = column.cast("timestamp[ms]", safe=False).cast("int64").to_pylist()
        return milliseconds
    values: list[Any] = column.to_pylist()
    plain = _converter(arrow)
    return values if plain is None else [None if value is None else plain(value) for value in values]


def _converter(arrow: str) -> Callable[[Any], Any] | None:
    """The function that converts values of this type to JSON; None when they need none."""
    if arrow in {
        "string",
        "large_string",
        "string_view",
        "bool",
        "int8",
        "int16",
        "int32",
        "uint8",
        "uint16",
        "uint32",
        "null",
    }:
        return None
    if arrow in {"double", "float", "halffloat"}:
        return lambda value: value if math.isfinite(value) else str(value)
    if arrow in {"int64", "uint64"}:
        return lambda value: value if -MAX_SAFE_INTEGER <= value <= MAX_SAFE_INTEGER else str(value)
    if arrow.startswith("decimal"):
        return _decimal
    return str


def _decimal(value: Decimal) -> int | float | str:
    """As a number if a browser's number keeps all its digits, else as text."""
    if len(value.as_tuple().digits) > MAX_DIGITS:
        return str(value)
    return int(value) if value == value.to_integral_value() else float(value)


def column_roles(tile: Tile, columns: Sequence[tuple[str, ColumnType]]) -> tuple[int, tuple[int, ...], int]:
    """The indexes of the x, y and by columns: as the tile names them, otherwise by their types."""
    names = [name.lower() for name, _ in columns]
    kinds = [kind for _, kind in columns]

    def column_index(what: str, name: str) -> int:
        if not name:
            return -1
        if name.lower() in names:
            return names.index(name.lower())
        raise QueryError(
            f"{tile}: {what} names {name}, which its SQL does not give", expected=", ".join(name for name, _ in columns)
        )

    x, by = column_index("x", tile.x), column_index("by", tile.by)
    along = tile.kind in {"line", "area", "candle", "heat_map"}
    if x < 0 and along:
        x = _first(kinds, ("time", "date"))
        if x < 0:
            raise QueryError(f"{tile} goes along a time, and its SQL gives none", expected="a column of times, or x=")
    x, by = _axis_columns(tile, columns, x, by)
    if by < 0 and tile.kind in {"bar", "leaderboard", "status", "heat_map"} and x != 0:
        by = next((index for index, kind in enumerate(kinds) if kind in {"text", "date", "boolean"} and index != x), -1)
    if by < 0 and tile.kind in {"line", "area"} and not tile.y:
        by = next((index for index, kind in enumerate(kinds) if kind == "text" and index != x), -1)
    y = tuple(column_index("y", name) for name in tile.y)
    if not y and tile.kind == "number":
        y = (0,) if columns else ()
    elif not y and tile.kind != "rows":
        y = tuple(index for index, kind in enumerate(kinds) if kind == "number" and index not in (x, by))
        if not y:
            raise QueryError(f"{tile}: its SQL gives no column of numbers", expected="a figure to show, or y=")
        if tile.kind not in {"line", "area"}:
            y = y[:1]
    return x, y, by


def _axis_columns(tile: Tile, columns: Sequence[tuple[str, ColumnType]], x: int, by: int) -> tuple[int, int]:
    """x and by, where x is text or boolean: that cannot be an axis. Bars are then grouped by it, lines are refused."""
    name, kind = columns[x] if x >= 0 else ("", "")
    if kind not in {"text", "boolean"} or tile.kind == "heat_map":
        return x, by
    if tile.kind == "bar":
        return -1, x if by < 0 else by
    raise QueryError(f"{tile} goes along {name}, which is {kind}", expected="a column of times, dates or numbers as x=")


def _first(kinds: Sequence[str], wanted: tuple[str, ...]) -> int:
    return next((index for index, kind in enumerate(kinds) if kind in wanted), -1)


@dataclass(frozen=True)
class RowDiff:
    """From one list of rows to the next: remove these ranges (first, count), then insert these rows, in order."""

    removed: list[tuple[int, int]] = field(default_factory=list)
    inserted: list[tuple[int, Row]] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.removed or self.inserted)


def diff_rows(old: Sequence[Row], new: Sequence[Row]) -> RowDiff | None:
    """The diff from `old` to `new`. None when so much differs that sending all rows is smaller."""
    common = _common_rows(old, new)
    if len(new) - len(common) > MAX_CHANGED_SHARE * len(new):
        return None
    stay_old = {old_index for old_index, _ in common}
    stay_new = {new_index for _, new_index in common}
    drop: list[tuple[int, int]] = []
    for index in range(len(old)):
        if index in stay_old:
            continue
        if drop and drop[-1][0] + drop[-1][1] == index:
            drop[-1] = (drop[-1][0], drop[-1][1] + 1)
        else:
            drop.append((index, 1))
    return RowDiff(drop, [(index, row) for index, row in enumerate(new) if index not in stay_new])


def _common_rows(old: Sequence[Row], new: Sequence[Row]) -> list[tuple[int, int]]:
    """Indexes (old, new) of the rows that both have in the same order: the longest such list."""
    old_indexes: defaultdict[Row, list[int]] = defaultdict(list)
    for index in range(len(old) - 1, -1, -1):
        old_indexes[old[index]].append(index)
    pairs = [(old_indexes[row].pop(), index) for index, row in enumerate(new) if old_indexes.get(row)]
    # Longest increasing subsequence of the old indexes, by patience sorting.
    tops: list[int] = []
    piles: list[int] = []
    before: list[int] = []
    for number, (old_index, _) in enumerate(pairs):
        pile = bisect_left(tops, old_index)
        before.append(piles[pile - 1] if pile else -1)
        if pile == len(tops):
            tops.append(old_index)
            piles.append(number)
        else:
            tops[pile], piles[pile] = old_index, number
    common: list[tuple[int, int]] = []
    index = piles[-1] if piles else -1
    while index >= 0:
        common.append(pairs[index])
        index = before[index]
    return common[::-1]
