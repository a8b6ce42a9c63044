"""Results of Druid's SQL as Arrow, with the types that every store returns."""

import json
import re
from collections.abc import Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from riverrun.store.druid.client import DruidSqlResult

if TYPE_CHECKING:
    import pyarrow as pa

_INTEGER_TYPES = {"TINYINT", "SMALLINT", "INTEGER", "BIGINT"}
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")
_FLOAT_TYPES = {"FLOAT", "REAL", "DOUBLE", "DECIMAL"}


def to_arrow(result: DruidSqlResult, declared_types: Sequence[str] = ()) -> "pa.Table":
    """A column for each name, in order; two of one name stay two. `declared_types` are the types in the words of
    `Column.type`, where more is known than Druid says: a boolean may be 0 or 1, a date text, a decimal a double."""
    import pyarrow as pa

    values = list(zip(*result.rows, strict=True)) if result.rows else [()] * len(result.names)
    all_types = [*declared_types, *[""] * (len(result.names) - len(declared_types))]
    columns = [
        _typed_column(word, kind, list(column_values))
        for word, kind, column_values in zip(all_types, result.types, values, strict=True)
    ]
    return pa.Table.from_arrays(columns, names=result.names)


def _typed_column(declared_type: str, sql_type: str, values: list[Any]) -> "pa.Array":
    import pyarrow as pa

    if declared_type == "boolean":
        return _column("BOOLEAN", values)
    if declared_type == "date" and sql_type not in _INTEGER_TYPES:
        return _column("DATE", values)
    if declared_type == "timestamp" and sql_type in _INTEGER_TYPES:
        return pa.array(values, pa.int64()).cast(pa.timestamp("ms", "UTC")).cast(pa.timestamp("us", "UTC"))
    if declared_type == "double":
        return _column("DOUBLE", values)
    if decimal := _DECIMAL.fullmatch(declared_type):
        places = Decimal(1).scaleb(-int(decimal[2]))
        exact = [value if value is None else Decimal(str(value)).quantize(places) for value in values]
        return pa.array(exact, pa.decimal128(int(decimal[1]), int(decimal[2])))
    return _column(sql_type, values)


def _column(sql_type: str, values: list[Any]) -> "pa.Array":
    import pyarrow as pa

    if sql_type in _INTEGER_TYPES:
        return pa.array(values, pa.int64())
    if sql_type in _FLOAT_TYPES:
        # JSON has no NaN and no infinity: Druid writes them as text.
        return pa.array([value if value is None else float(value) for value in values], pa.float64())
    if sql_type == "BOOLEAN":
        return pa.array([value if value is None else bool(value) for value in values], pa.bool_())
    if sql_type == "TIMESTAMP":
        return pa.array(values, pa.string()).cast(pa.timestamp("us", "UTC"))
    if sql_type == "DATE":
        return pa.array([value if value is None else value[:10] for value in values], pa.string()).cast(pa.date32())
    if sql_type == "NULL":
        return pa.array(values, pa.null())
    return pa.array(_texts(values), pa.string())


def _texts(values: list[Any]) -> list[str | None]:
    return [value if value is None or isinstance(value, str) else json.dumps(value) for value in values]
