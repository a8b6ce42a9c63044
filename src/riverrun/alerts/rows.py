"""From a record to a row: the columns of a table with their types, and the time it happened.

What fits is what the store takes (store/embedded/shaping.py): the type's own JSON, and the same as text. A number that is
none (NaN) is no value here: no condition can be true of it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal, Inexact, InvalidOperation
from typing import Any, NoReturn

import msgspec

from riverrun.model.table import RECORD_TIME, Column, TableSpec

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LARGEST = 2**63
_MOST_TEXT = 4000


class MisfitError(Exception):
    """A record that is not a row of its table; the text says why."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A row, and where and when it was: `at` is its own time, `recorded` Kafka's, both in milliseconds since 1970.
    `identity` is the header that tells a record which was sent again (real time)."""

    topic: str
    partition: int
    offset: int
    at: int
    recorded: int
    row: Mapping[str, Any]
    identity: str = ""

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}]@{self.offset}"


class RowReader:
    """Reads the records of one table's topic."""

    def __init__(self, table: TableSpec) -> None:
        self.table = table
        exact = any(each.decimal for each in table.columns)
        self._load = msgspec.json.Decoder(float_hook=Decimal).decode if exact else msgspec.json.Decoder().decode

    def read(self, partition: int, offset: int, recorded: int, value: bytes, identity: str = "") -> Seen:
        """The row of a record; MisfitError when it is none."""
        try:
            content = self._load(value)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise MisfitError("it is not JSON") from error
        except ArithmeticError as error:
            raise MisfitError("it has a number that is out of range") from error
        if not isinstance(content, dict):
            raise MisfitError("it is not a JSON object")
        row = {each.name: _value(each, content, recorded) for each in self.table.columns}
        time = row.get(self.table.time)
        if self.table.time == RECORD_TIME:
            at = recorded
        elif isinstance(time, datetime):
            at = epoch_ms(time)
        else:
            raise MisfitError(f"its time, {self.table.time}, is missing")
        return Seen(self.table.topic, partition, offset, at, recorded, row, identity)


def epoch_ms(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(milliseconds=1)


def _value(column: Column, content: dict[str, Any], recorded: int) -> Any:
    if not column.path:
        return _EPOCH + timedelta(milliseconds=recorded)
    found: Any = content
    for name in column.path:
        if not isinstance(found, dict):
            raise MisfitError(f"{column.name} is not inside an object")
        found = found.get(name)
        if found is None:
            return None
    return typed(column, found)


def typed(column: Column, found: Any) -> Any:
    """A value as its column has it; MisfitError when it cannot be one."""
    if found is None:
        return None
    try:
        return _typed(column, found)
    except (ValueError, TypeError, ArithmeticError) as error:
        raise MisfitError(f"{column.name} is not {column.type}: {str(found)[:80]}") from error


def packed(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row as JSON can carry it."""
    return {
        name: value.isoformat() if isinstance(value, date) else str(value) if isinstance(value, Decimal) else value
        for name, value in row.items()
    }


def unpacked(columns: Sequence[Column], content: Mapping[str, Any]) -> dict[str, Any]:
    """The row that `packed` gave. What does not fit any more, because the column changed, is missing."""
    found: dict[str, Any] = {}
    for each in columns:
        value = content.get(each.name)
        try:
            found[each.name] = value if each.type == "json" else typed(each, value)
        except MisfitError:
            found[each.name] = None
    return found


def _typed(column: Column, found: Any) -> Any:
    if column.type == "text":
        return found[:_MOST_TEXT] if isinstance(found, str) else msgspec.json.encode(found).decode()[:_MOST_TEXT]
    if column.type == "json":
        return msgspec.json.encode(found).decode()[:_MOST_TEXT]
    if column.type == "boolean":
        if isinstance(found, bool):
            return found
        if found not in ("true", "false"):
            _refuse()
        return found == "true"
    if isinstance(found, bool):
        _refuse()
    if column.type == "double":
        number = float(found)
        return None if number != number else number  # noqa: PLR0124  -- not a number
    if column.type == "bigint":
        return _whole(found)
    if column.decimal:
        exact = Decimal(found) if isinstance(found, str | int | Decimal) else Decimal(repr(found))
        return _fitted(exact, *column.decimal) if exact.is_finite() else None
    return _moment(column.type, found)


def _whole(found: Any) -> int:
    # Before int() writes 1e999999999 out.
    if isinstance(found, Decimal) and not -_LARGEST <= found < _LARGEST:
        _refuse()
    whole = int(found)
    if (not isinstance(found, str) and whole != found) or not -_LARGEST <= whole < _LARGEST:
        _refuse()
    return whole


def _fitted(exact: Decimal, precision: int, scale: int) -> Decimal:
    """A decimal of so many digits, so many of them behind the point; InvalidOperation or Inexact when it is none. It stays
    as it is written, unless that is by an exponent: 0e-999999999 is short, but who formats it gets all its zeros."""
    context = Context(prec=precision, traps=[InvalidOperation, Inexact])
    fitted = exact.quantize(Decimal(1).scaleb(-scale), context=context)
    exponent = exact.as_tuple().exponent
    return exact if isinstance(exponent, int) and -scale <= exponent <= 0 else fitted


def _moment(kind: str, found: Any) -> datetime | date:
    if not isinstance(found, str):
        _refuse()
    if kind == "date":
        return date.fromisoformat(found)
    moment = datetime.fromisoformat(found)
    return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)


def _refuse() -> NoReturn:
    raise ValueError
