"""What a line says: text, JSON, columns, or a request in a web server's access log."""

import csv
import re
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from riverrun.model.connector import Item

Parse = Callable[[bytes, str], Item]

_RAW = msgspec.json.Decoder(msgspec.Raw).decode
_MONTHS = {name: f"{number:02}" for number, name in enumerate(
    ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"), 1)}  # fmt: skip
# host ident user [10/Oct/2000:13:55:36 -0700] "GET /a HTTP/1.1" 200 2326 "referer" "agent"; quotes inside are escaped.
_TIME = r"\[(\d\d)/(\w{3})/(\d{4}):(\d\d:\d\d:\d\d) ([+-]\d\d)(\d\d)\]"
_COMMON = r"(\S+) (\S+) (.*?) " + _TIME + r' "((?:[^"\\]|\\.)*)" (\d{3}) (\d+|-)'
_PATTERNS = {
    "common": re.compile(_COMMON),
    "combined": re.compile(_COMMON + r' "((?:[^"\\]|\\.)*)" "((?:[^"\\]|\\.)*)".*'),
}


def parser_of(format: str, *, field: str, key: str, delimiter: str) -> Callable[[Sequence[str]], Parse]:  # noqa: A002
    """Gives, for the columns of a file (of CSV; else none), what makes an item of a line and its place."""
    if format == "csv":
        return lambda columns: _Columns(columns, key, delimiter)
    if format == "json":
        return lambda _: _Json(key)
    if format in _PATTERNS:
        return lambda _: _Access(format, _PATTERNS[format], key)
    return lambda _: _Text(field, key)


def unreadable(line: bytes, place: str, problem: str) -> Item:
    """A line that is for the dead letters."""
    return Item(line, problem=problem, place=place)


def key_in(value: Any, key: str) -> str | None:
    """The field of a value that is its record's key."""
    found = value.get(key) if key and isinstance(value, dict) else None
    return None if found is None else str(found)


class _Text:
    def __init__(self, field: str, key: str) -> None:
        self._field = field
        self._key = key

    def __call__(self, line: bytes, place: str) -> Item:
        try:
            value = {self._field: line.decode()}
        except UnicodeDecodeError as error:
            return unreadable(line, place, f"The line is not UTF-8: {error.reason} at byte {error.start}")
        return Item(value, key=key_in(value, self._key), place=place)


class _Json:
    def __init__(self, key: str) -> None:
        self._key = key

    def __call__(self, line: bytes, place: str) -> Item:
        try:
            if not self._key:
                _RAW(line)
                if not line.isascii():
                    line.decode()
                return Item(line, place=place)
            return Item(line, key=key_in(msgspec.json.decode(line), self._key), place=place)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            return unreadable(line, place, f"The line is not JSON: {error}")


class _Columns:
    """A line of CSV; a quoted field cannot go on in the next line here."""

    def __init__(self, columns: Sequence[str], key: str, delimiter: str) -> None:
        self._columns = columns
        self._key = key
        self._delimiter = delimiter

    def __call__(self, line: bytes, place: str) -> Item:
        try:
            text = line.decode()
            cells = next(csv.reader([text], delimiter=self._delimiter, strict=True))
        except (UnicodeDecodeError, csv.Error, StopIteration) as error:
            return unreadable(line, place, f"The line is not CSV: {error}")
        return row_of(self._columns, cells, line, self._key, place)


def row_of(columns: Sequence[str], cells: Sequence[str], line: bytes, key: str, place: str) -> Item:
    """The item of a row of CSV."""
    if len(cells) != len(columns):
        return unreadable(line, place, f"The row has {len(cells)} columns, not {len(columns)}")
    value = dict(zip(columns, cells, strict=True))
    return Item(value, key=key_in(value, key), loose=True, place=place)


class _Access:
    def __init__(self, name: str, pattern: re.Pattern[str], key: str) -> None:
        self._name = name
        self._pattern = pattern
        self._key = key

    def __call__(self, line: bytes, place: str) -> Item:
        found = self._pattern.fullmatch(line.decode(errors="backslashreplace"))
        if found is None or found[5] not in _MONTHS:
            return unreadable(line, place, f"The line is not of the {self._name} log format")
        host, ident, user, day, month, year, clock, hours, minutes, request, status, size, *more = found.groups()
        method, _, rest = request.partition(" ")
        path, _, protocol = rest.rpartition(" ")
        value: dict[str, Any] = {
            "host": host,
            "ident": _or_none(ident),
            "user": _or_none(user),
            "time": f"{year}-{_MONTHS[month]}-{day}T{clock}{hours}:{minutes}",
            "request": request,
            "method": method if path else None,
            "path": path or None,
            "protocol": protocol if path else None,
            "status": int(status),
            "bytes": 0 if size == "-" else int(size),
        }
        if more:
            value |= {"referer": _or_none(more[0]), "agent": _or_none(more[1])}
        return Item(value, key=key_in(value, self._key), place=place)


def _or_none(text: str) -> str | None:
    return None if text == "-" else text
