"""What Druid's SQL answers, as Arrow with the types that every store gives."""

import json
import re
from collections.abc import Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from riverrun.store.druid.client import Result

if TYPE_CHECKING:
    import pyarrow as pa

_WHOLE = {"TINYINT", "SMALLINT", "INTEGER", "BIGINT"}
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")
_BROKEN = {"FLOAT", "REAL", "DOUBLE", "DECIMAL"}


def as_arrow(result: Result, kinds: Sequence[str] = ()) -> "pa.Table":
    """A column for each name, in order; two of one name stay two. `kinds` are the types in the words of `Column.type`, where
    more is known than Druid says: a boolean may be 0 or 1, a date text, a decimal a double."""
    import pyarrow as pa

    values = list(zip(*result.rows, strict=True)) if result.rows else [()] * len(result.names)
    known = [*kinds, *[""] * (len(result.names) - len(kinds))]
    columns = [
        _known_column(word, kind, list(each)) for word, kind, each in zip(known, result.types, values, strict=True)
    ]
    return pa.Table.from_arrays(columns, names=result.names)


def _known_column(word: str, kind: str, values: list[Any]) -> "pa.Array":
    import pyarrow as pa

    if word == "boolean":
        return _column("BOOLEAN", values)
    if word == "date" and kind not in _WHOLE:
        return _column("DATE", values)
    if word == "timestamp" and kind in _WHOLE:
        return pa.array(values, pa.int64()).cast(pa.timestamp("ms", "UTC")).cast(pa.timestamp("us", "UTC"))
    if word == "double":
        return _column("DOUBLE", values)
    if decimal := _DECIMAL.fullmatch(word):
        places = Decimal(1).scaleb(-int(decimal[2]))
        exact = [each if each is None else Decimal(str(each)).quantize(places) for each in values]
        return pa.array(exact, pa.decimal128(int(decimal[1]), int(decimal[2])))
    return _column(kind, values)


def _column(kind: str, values: list[Any]) -> "pa.Array":
    import pyarrow as pa

    if kind in _WHOLE:
        return pa.array(values, pa.int64())
    if kind in _BROKEN:
        # JSON has no NaN and no infinity: Druid says them as text.
        return pa.array([each if each is None else float(each) for each in values], pa.float64())
    if kind == "BOOLEAN":
        return pa.array([each if each is None else bool(each) for each in values], pa.bool_())
    if kind == "TIMESTAMP":
        return pa.array(values, pa.string()).cast(pa.timestamp("us", "UTC"))
    if kind == "DATE":
        return pa.array([each if each is None else each[:10] for each in values], pa.string()).cast(pa.date32())
    if kind == "NULL":
        return pa.array(values, pa.null())
    return pa.array(_texts(values), pa.string())


def _texts(values: list[Any]) -> list[str | None]:
    return [each if each is None or isinstance(each, str) else json.dumps(each) for each in values]
