"""Parse a line: text, JSON, columns, or a request in a web server's access log."""

import csv
import re
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from riverrun.model.connector import Item

LineParser = Callable[[bytes, str], Item]

_decode_raw = msgspec.json.Decoder(msgspec.Raw).decode
_MONTHS = {name: f"{number:02}" for number, name in enumerate(
    ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"), 1)}  # fmt: skip
# host ident user [10/Oct/2000:13:55:36 -0700] "GET /a HTTP/1.1" 200 2326 "referer" "agent"; quotes inside are escaped.
_TIME = r"\[(\d\d)/(\w{3})/(\d{4}):(\d\d:\d\d:\d\d) ([+-]\d\d)(\d\d)\]"
_COMMON = r"(\S+) (\S+) (.*?) " + _TIME + r' "((?:[^"\\]|\\.)*)" (\d{3}) (\d+|-)'
_PATTERNS = {
    "common": re.compile(_COMMON),
    "combined": re.compile(_COMMON + r' "((?:[^"\\]|\\.)*)" "((?:[^"\\]|\\.)*)".*'),
}


def line_parser_factory(format: str, *, field: str, key: str, delimiter: str) -> Callable[[Sequence[str]], LineParser]:  # noqa: A002
    """Returns a function from the columns of a file (of CSV; else none) to a parser of a line and its location."""
    if format == "csv":
        return lambda columns: _CsvLineParser(columns, key, delimiter)
    if format == "json":
        return lambda _: _JsonLineParser(key)
    if format in _PATTERNS:
        return lambda _: _AccessLogParser(format, _PATTERNS[format], key)
    return lambda _: _TextLineParser(field, key)


def unreadable_item(line: bytes, location: str, problem: str) -> Item:
    """The item of a line that becomes a dead letter."""
    return Item(line, problem=problem, location=location)


def key_from(value: Any, key: str) -> str | None:
    """The field of a value that is its record's key."""
    key_value = value.get(key) if key and isinstance(value, dict) else None
    return None if key_value is None else str(key_value)


class _TextLineParser:
    def __init__(self, field: str, key: str) -> None:
        self._field = field
        self._key = key

    def __call__(self, line: bytes, location: str) -> Item:
        try:
            value = {self._field: line.decode()}
        except UnicodeDecodeError as error:
            return unreadable_item(line, location, f"The line is not UTF-8: {error.reason} at byte {error.start}")
        return Item(value, key=key_from(value, self._key), location=location)


class _JsonLineParser:
    def __init__(self, key: str) -> None:
        self._key = key

    def __call__(self, line: bytes, location: str) -> Item:
        try:
            if not self._key:
                _decode_raw(line)
                if not line.isascii():
                    line.decode()
                return Item(line, location=location)
            return Item(line, key=key_from(msgspec.json.decode(line), self._key), location=location)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            return unreadable_item(line, location, f"The line is not JSON: {error}")


class _CsvLineParser:
    """A line of CSV; a quoted field cannot continue in the next line here."""

    def __init__(self, columns: Sequence[str], key: str, delimiter: str) -> None:
        self._columns = columns
        self._key = key
        self._delimiter = delimiter

    def __call__(self, line: bytes, location: str) -> Item:
        try:
            text = line.decode()
            cells = next(csv.reader([text], delimiter=self._delimiter, strict=True))
        except (UnicodeDecodeError, csv.Error, StopIteration) as error:
            return unreadable_item(line, location, f"The line is not CSV: {error}")
        return csv_item(self._columns, cells, line, self._key, location)


def csv_item(columns: Sequence[str], cells: Sequence[str], line: bytes, key: str, location: str) -> Item:
    """The item of a row of CSV."""
    if len(cells) != len(columns):
        return unreadable_item(line, location, f"The row has {len(cells)} columns, not {len(columns)}")
    value = dict(zip(columns, cells, strict=True))
    return Item(value, key=key_from(value, key), loose=True, location=location)


class _AccessLogParser:
    def __init__(self, name: str, pattern: re.Pattern[str], key: str) -> None:
        self._name = name
        self._pattern = pattern
        self._key = key

    def __call__(self, line: bytes, location: str) -> Item:
        match = self._pattern.fullmatch(line.decode(errors="backslashreplace"))
        if match is None or match[5] not in _MONTHS:
            return unreadable_item(line, location, f"The line is not of the {self._name} log format")
        host, ident, user, day, month, year, clock, hours, minutes, request, status, size, *more = match.groups()
        method, _, rest = request.partition(" ")
        path, _, protocol = rest.rpartition(" ")
        value: dict[str, Any] = {
            "host": host,
            "ident": _dash_to_none(ident),
            "user": _dash_to_none(user),
            "time": f"{year}-{_MONTHS[month]}-{day}T{clock}{hours}:{minutes}",
            "request": request,
            "method": method if path else None,
            "path": path or None,
            "protocol": protocol if path else None,
            "status": int(status),
            "bytes": 0 if size == "-" else int(size),
        }
        if more:
            value |= {"referer": _dash_to_none(more[0]), "agent": _dash_to_none(more[1])}
        return Item(value, key=key_from(value, self._key), location=location)


def _dash_to_none(text: str) -> str | None:
    return None if text == "-" else text
