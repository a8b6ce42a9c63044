"""What Druid's SQL answers, as Arrow with the types that every store gives."""

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from riverrun.store.druid.client import Result

if TYPE_CHECKING:
    import pyarrow as pa

_WHOLE = {"TINYINT", "SMALLINT", "INTEGER", "BIGINT"}
_BROKEN = {"FLOAT", "REAL", "DOUBLE", "DECIMAL"}


def as_arrow(result: Result) -> "pa.Table":
    """A column for each name, in order; two of one name stay two."""
    import pyarrow as pa

    values = list(zip(*result.rows, strict=True)) if result.rows else [()] * len(result.names)
    columns = [_column(kind, list(each)) for kind, each in zip(result.types, values, strict=True)]
    return pa.Table.from_arrays(columns, names=result.names)


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
    said: Callable[[Any], str] = lambda each: each if isinstance(each, str) else json.dumps(each)  # noqa: E731
    return [each if each is None else said(each) for each in values]
