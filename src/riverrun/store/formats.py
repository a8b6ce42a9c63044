"""Rows as people and programs want them: JSON, lines of JSON, CSV, Arrow, Parquet.

Numbers are exact: integers have all their digits, decimals are written as they are. Times are ISO 8601 in UTC. A
number that JSON cannot say (infinity, not a number) is null there. A time outside the years 1 to 9999, which a question may
compute, only Arrow and Parquet can say.
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
from riverrun.store.arrow import type_word

if TYPE_CHECKING:
    import pyarrow as pa

    from riverrun.store.contract import Answer

MEDIA = {
    "json": "application/json",
    "ndjson": "application/x-ndjson",
    "csv": "text/csv; charset=utf-8",
    "arrow": "application/vnd.apache.arrow.stream",
    "parquet": "application/vnd.apache.parquet",
}
BINARY = frozenset({"arrow", "parquet"})
_JSON = msgspec.json.Encoder(decimal_format="number")


def encoded(answer: "Answer", kind: str) -> bytes:
    """The rows of an answer in one of the formats."""
    rows = answer.rows
    match kind:
        case "json":
            return _JSON.encode([*_objects(rows)]) + b"\n"
        case "ndjson":
            return b"".join(_JSON.encode(row) + b"\n" for row in _objects(rows))
        case "csv":
            return _csv(rows)
        case "arrow":
            return _arrow(rows)
        case "parquet":
            return _parquet(rows)
    raise ValueError(kind)


def document(answer: "Answer") -> bytes:
    """The whole answer as one JSON object: columns with their types, rows, whether there are more."""
    columns = [{"name": field.name, "type": type_word(field.type)} for field in answer.rows.schema]
    content = {
        "columns": columns,
        "rows": [*_objects(answer.rows)],
        "more": answer.more,
        "seconds": round(answer.seconds, 6),
    }
    return _JSON.encode(content)


def dicts(rows: "pa.Table") -> list[dict[str, Any]]:
    """Rows as Python values: datetime, date, Decimal, int, float, str, bool, None."""
    with _years():
        found: list[dict[str, Any]] = rows.to_pylist()
    return found


@contextmanager
def _years() -> Iterator[None]:
    try:
        yield
    except OverflowError as error:
        raise QueryError(
            "The answer has a time that only Arrow and Parquet can say",
            expected="the years 1 to 9999",
            hint="Ask for it as text, cast(… as text), or for one of these formats",
        ) from error


def shown(rows: "pa.Table") -> list[dict[str, Any]]:
    """Rows for a table on a screen: times without what is always the same."""
    return [{name: _shown(value) for name, value in row.items()} for row in dicts(rows)]


def _shown(value: Any) -> Any:
    if isinstance(value, datetime):
        at = value.astimezone(UTC) if value.tzinfo else value
        return f"{at:%Y-%m-%d %H:%M:%S}" + (f".{at.microsecond:06d}".rstrip("0") if at.microsecond else "")
    if isinstance(value, date | Decimal):
        return str(value)
    if isinstance(value, float):
        # As many digits as tell it apart, not one: these are figures somebody asked for.
        return f"{value:g}" if abs(value) >= 1e15 or not math.isfinite(value) else f"{value:.10g}"
    return value


def _objects(rows: "pa.Table") -> Iterator[dict[str, Any]]:
    for row in dicts(rows):
        yield {name: _plain(value) for name, value in row.items()}


def _plain(value: Any) -> Any:
    return _iso(value) if isinstance(value, datetime) else value


def _iso(value: datetime) -> str:
    at = value.astimezone(UTC) if value.tzinfo else value.replace(tzinfo=UTC)
    return at.isoformat().replace("+00:00", "Z")


def _csv(rows: "pa.Table") -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(rows.column_names)
    with _years():
        columns = [rows.column(at).to_pylist() for at in range(rows.num_columns)]
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
    found: bytes = sink.getvalue().to_pybytes()
    return found


def _parquet(rows: "pa.Table") -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink, compression="zstd")
    found: bytes = sink.getvalue().to_pybytes()
    return found
