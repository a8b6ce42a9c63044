"""Rows in output formats: JSON, JSON lines, CSV, Arrow, Parquet.

Numbers are exact: integers have all their digits, decimals are written as they are. Times are ISO 8601 in UTC. Infinity
and NaN, which JSON lacks, are null there. Times outside the years 1 to 9999, which a query may compute, exist only in
Arrow and Parquet.
"""

import csv
import io
import math
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import msgspec

from riverrun.errors import QueryError
from riverrun.store.arrow_types import column_type_name

if TYPE_CHECKING:
    import pyarrow as pa

    from riverrun.store.contract import QueryResult

MEDIA_TYPES = {
    "json": "application/json",
    "ndjson": "application/x-ndjson",
    "csv": "text/csv; charset=utf-8",
    "arrow": "application/vnd.apache.arrow.stream",
    "parquet": "application/vnd.apache.parquet",
}
BINARY_FORMATS = frozenset({"arrow", "parquet"})
_JSON = msgspec.json.Encoder(decimal_format="number")


def encode_rows(result: "QueryResult", format_name: str) -> bytes:
    """The rows of a result in one of the formats."""
    rows = result.rows
    match format_name:
        case "json":
            return _JSON.encode([*_json_rows(rows)]) + b"\n"
        case "ndjson":
            return b"".join(_JSON.encode(row) + b"\n" for row in _json_rows(rows))
        case "csv":
            return _csv(rows)
        case "arrow":
            return _arrow(rows)
        case "parquet":
            return _parquet(rows)
    raise ValueError(format_name)


def encode_result(result: "QueryResult") -> bytes:
    """The whole result as one JSON object: columns with their types, rows, whether there are more."""
    columns = [{"name": field.name, "type": column_type_name(field.type)} for field in result.rows.schema]
    content = {
        "columns": columns,
        "rows": [*_json_rows(result.rows)],
        "more": result.more,
        "seconds": round(result.seconds, 6),
    }
    return _JSON.encode(content)


def to_dicts(rows: "pa.Table") -> list[dict[str, Any]]:
    """Rows as Python values: datetime, date, Decimal, int, float, str, bool, None."""
    with _year_errors():
        records: list[dict[str, Any]] = rows.to_pylist()
    return records


@contextmanager
def _year_errors() -> Iterator[None]:
    try:
        yield
    except OverflowError as error:
        raise QueryError(
            "The answer has a time that only Arrow and Parquet can say",
            expected="the years 1 to 9999",
            hint="Ask for it as text, cast(… as text), or for one of these formats",
        ) from error


def display_rows(rows: "pa.Table") -> list[dict[str, Any]]:
    """Rows for a table on a screen: times without their constant parts."""
    return [{name: _display_value(value) for name, value in row.items()} for row in to_dicts(rows)]


def _display_value(value: Any) -> Any:
    if isinstance(value, datetime):
        moment = value.astimezone(UTC) if value.tzinfo else value
        return f"{moment:%Y-%m-%d %H:%M:%S}" + (f".{moment.microsecond:06d}".rstrip("0") if moment.microsecond else "")
    if isinstance(value, date | Decimal):
        return str(value)
    if isinstance(value, float):
        # As many digits as make the number unique, never just one: these are figures somebody asked for.
        return f"{value:g}" if abs(value) >= 1e15 or not math.isfinite(value) else f"{value:.10g}"
    return value


def _json_rows(rows: "pa.Table") -> Iterator[dict[str, Any]]:
    for row in to_dicts(rows):
        yield {name: _json_value(value) for name, value in row.items()}


def _json_value(value: Any) -> Any:
    return _iso(value) if isinstance(value, datetime) else value


def _iso(value: datetime) -> str:
    moment = value.astimezone(UTC) if value.tzinfo else value.replace(tzinfo=UTC)
    return moment.isoformat().replace("+00:00", "Z")


def _csv(rows: "pa.Table") -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(rows.column_names)
    with _year_errors():
        columns = [rows.column(index).to_pylist() for index in range(rows.num_columns)]
    for row in zip(*columns, strict=True):
        writer.writerow([_cell(value) for value in row])
    return text.getvalue().encode("utf-8", "surrogatepass")


def _cell(value: Any) -> Any:
    match value:
        case None:
            return ""
        case bool():
            return "true" if value else "false"
        case datetime():
            return _iso(value)
        case _:
            return value


def _arrow(rows: "pa.Table") -> bytes:
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def _parquet(rows: "pa.Table") -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink, compression="zstd")
    content: bytes = sink.getvalue().to_pybytes()
    return content
