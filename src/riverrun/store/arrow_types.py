"""Casts query results to the types that `QueryResult` promises, whichever store computed them."""

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from riverrun.store.sql import OutputColumn


def normalize_types(rows: "pa.Table", columns: "Sequence[OutputColumn]" = ()) -> "pa.Table":
    """The rows with int64, float64, string, bool, date32, decimal and timestamp[us, UTC] columns only.

    `columns` are the query's declared output types: a sum of bigints is a bigint, though DuckDB adds up in more digits.
    """
    import pyarrow as pa

    declared = [column.type for column in columns] if len(columns) == rows.num_columns else [""] * rows.num_columns
    arrays = [_normalize_column(rows.column(index), declared[index]) for index in range(rows.num_columns)]
    names = [column.name for column in columns] if len(columns) == rows.num_columns else rows.column_names
    return pa.Table.from_arrays(arrays, names=names)


def _normalize_column(values: Any, declared: str) -> Any:
    import pyarrow as pa
    import pyarrow.types as t

    kind = values.type
    if t.is_dictionary(kind):
        values, kind = values.cast(kind.value_type), kind.value_type
    if t.is_boolean(kind) or t.is_date32(kind):
        return values
    if t.is_timestamp(kind):
        return _cast(values, pa.timestamp("us", tz="UTC"))
    if t.is_integer(kind):
        return _cast(values, pa.int64())
    if t.is_decimal(kind):
        is_whole = kind.scale == 0 and (declared == "bigint" or (not declared and kind.precision == 38))
        return _cast(values, pa.int64()) if is_whole else values
    if t.is_floating(kind):
        return _cast(values, pa.float64())
    if t.is_string(kind):
        return values
    if t.is_large_string(kind) or t.is_string_view(kind):
        return values.cast(pa.string())
    if t.is_null(kind):
        return values.cast(_ARROW_TYPES.get(declared, pa.string)())
    if t.is_date(kind):
        return values.cast(pa.date32())
    return pa.chunked_array([pa.array([_to_text(value) for value in values.to_pylist()], pa.string())])


def _cast(values: Any, to: Any) -> Any:
    """The values as another type; unchanged if one does not fit."""
    import pyarrow as pa

    if values.type == to:
        return values
    try:
        return values.cast(to)
    except pa.ArrowInvalid:
        # Nanoseconds are truncated to microseconds. Numbers that do not fit keep their type.
        return values.cast(to, safe=False) if pa.types.is_timestamp(to) else values


def _to_text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, list | dict):
        return json.dumps(value, default=str, ensure_ascii=False)
    return str(value)


def _timestamp() -> Any:
    import pyarrow as pa

    return pa.timestamp("us", tz="UTC")


def _arrow_type(name: str) -> Any:
    def made() -> Any:
        import pyarrow as pa

        return getattr(pa, name)()

    return made


_ARROW_TYPES: dict[str, Any] = {
    "bigint": _arrow_type("int64"), "double": _arrow_type("float64"), "boolean": _arrow_type("bool_"),
    "date": _arrow_type("date32"), "timestamp": _timestamp, "text": _arrow_type("string"), "json": _arrow_type("string"),
    "": _arrow_type("string"),
}  # fmt: skip


def column_type_name(kind: Any) -> str:
    """The name that `Column.type` uses for an Arrow type."""
    import pyarrow.types as t

    if t.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    tests = (
        (t.is_boolean, "boolean"), (t.is_integer, "bigint"), (t.is_floating, "double"), (t.is_timestamp, "timestamp"),
        (t.is_date, "date"),
    )  # fmt: skip
    return next((word for test, word in tests if test(kind)), "text")
