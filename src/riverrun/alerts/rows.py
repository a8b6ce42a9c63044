"""Reads records as rows: the columns of a table with their types, and the event time.

Values fit as in the store (store/embedded/projection.py): as the type's own JSON, or the same as text. NaN is read as NULL:
no condition can be true of it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal, Inexact, InvalidOperation
from typing import Any, NoReturn

import msgspec

from riverrun.model.table import RECORD_TIME, Column, TableSpec

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_BIGINT_LIMIT = 2**63
_MAX_TEXT = 4000


class RejectedRowError(Exception):
    """A record that is not a row of its table; the text says why."""


@dataclass(frozen=True, slots=True)
class WatchedRow:
    """A row, its partition, offset and times: `event_time` is its own, `record_time` Kafka's, both in milliseconds since
    1970. `identity` is the header by which a record that was sent again is recognized (real time)."""

    topic: str
    partition: int
    offset: int
    event_time: int
    record_time: int
    values: Mapping[str, Any]
    identity: str = ""

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}]@{self.offset}"


class RowReader:
    """Reads the records of one table's topic."""

    def __init__(self, table: TableSpec) -> None:
        self.table = table
        exact = any(column.decimal for column in table.columns)
        self._load = msgspec.json.Decoder(float_hook=Decimal).decode if exact else msgspec.json.Decoder().decode

    def read(self, partition: int, offset: int, record_time: int, value: bytes, identity: str = "") -> WatchedRow:
        """Read a record as a row; RejectedRowError when it is not one."""
        try:
            content = self._load(value)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise RejectedRowError("it is not JSON") from error
        except ArithmeticError as error:
            raise RejectedRowError("it has a number that is out of range") from error
        if not isinstance(content, dict):
            raise RejectedRowError("it is not a JSON object")
        row = {column.name: _column_value(column, content, record_time) for column in self.table.columns}
        time = row.get(self.table.time)
        if self.table.time == RECORD_TIME:
            event_time = record_time
        elif isinstance(time, datetime):
            event_time = epoch_ms(time)
        else:
            raise RejectedRowError(f"its time, {self.table.time}, is missing")
        return WatchedRow(self.table.topic, partition, offset, event_time, record_time, row, identity)


def epoch_ms(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(milliseconds=1)


def _column_value(column: Column, content: dict[str, Any], record_time: int) -> Any:
    if not column.path:
        return _EPOCH + timedelta(milliseconds=record_time)
    value: Any = content
    for name in column.path:
        if not isinstance(value, dict):
            raise RejectedRowError(f"{column.name} is not inside an object")
        value = value.get(name)
        if value is None:
            return None
    return convert_value(column, value)


def convert_value(column: Column, value: Any) -> Any:
    """Convert a value to its column's type; RejectedRowError when that is not possible."""
    if value is None:
        return None
    try:
        return _convert(column, value)
    except (ValueError, TypeError, ArithmeticError) as error:
        raise RejectedRowError(f"{column.name} is not {column.type}: {str(value)[:80]}") from error


def row_to_json(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row as JSON can carry it."""
    return {
        name: value.isoformat() if isinstance(value, date) else str(value) if isinstance(value, Decimal) else value
        for name, value in row.items()
    }


def row_from_json(columns: Sequence[Column], content: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse of `row_to_json`. A value that does not fit its changed column any more is None."""
    row: dict[str, Any] = {}
    for column in columns:
        value = content.get(column.name)
        try:
            row[column.name] = value if column.type == "json" else convert_value(column, value)
        except RejectedRowError:
            row[column.name] = None
    return row


def _convert(column: Column, value: Any) -> Any:
    if column.type == "text":
        return value[:_MAX_TEXT] if isinstance(value, str) else msgspec.json.encode(value).decode()[:_MAX_TEXT]
    if column.type == "json":
        return msgspec.json.encode(value).decode()[:_MAX_TEXT]
    if column.type == "boolean":
        if isinstance(value, bool):
            return value
        if value not in ("true", "false"):
            _reject()
        return value == "true"
    if isinstance(value, bool):
        _reject()
    if column.type == "double":
        number = float(value)
        return None if number != number else number  # noqa: PLR0124  -- not a number
    if column.type == "bigint":
        return _to_bigint(value)
    if column.decimal:
        exact = Decimal(value) if isinstance(value, str | int | Decimal) else Decimal(repr(value))
        return _to_decimal(exact, *column.decimal) if exact.is_finite() else None
    return _to_datetime(column.type, value)


def _to_bigint(value: Any) -> int:
    # Checked before int() expands 1e999999999.
    if isinstance(value, Decimal) and not -_BIGINT_LIMIT <= value < _BIGINT_LIMIT:
        _reject()
    whole = int(value)
    if (not isinstance(value, str) and whole != value) or not -_BIGINT_LIMIT <= whole < _BIGINT_LIMIT:
        _reject()
    return whole


def _to_decimal(exact: Decimal, precision: int, scale: int) -> Decimal:
    """Check a decimal's precision and scale; InvalidOperation or Inexact when it does not fit. It stays as written, unless
    it has an exponent: 0e-999999999 is short, but formatting it writes all its zeros."""
    context = Context(prec=precision, traps=[InvalidOperation, Inexact])
    fitted = exact.quantize(Decimal(1).scaleb(-scale), context=context)
    exponent = exact.as_tuple().exponent
    return exact if isinstance(exponent, int) and -scale <= exponent <= 0 else fitted


def _to_datetime(kind: str, value: Any) -> datetime | date:
    if not isinstance(value, str):
        _reject()
    if kind == "date":
        return date.fromisoformat(value)
    moment = datetime.fromisoformat(value)
    return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)


def _reject() -> NoReturn:
    raise ValueError
