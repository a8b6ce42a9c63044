"""The rows that every store is asked about: nulls, unicode, big integers, decimals, times to the millisecond, updates."""

import json
import re
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

from riverrun.model.table import Column, TableSpec

NOON = datetime(2026, 11, 1, 12, 0, tzinfo=UTC)
HOUSES = ("h-1", "h-2", "Ørsteds «höhle»", "家-4")


def column(name: str, kind: str, *path: str) -> Column:
    return Column(name, kind, path or (name,))


EVENTS = TableSpec(
    "events",
    "events",
    (
        column("id", "bigint"),
        column("at", "timestamp"),
        column("house", "text"),
        column("load", "double"),
        column("price", "decimal(18,4)"),
        column("ok", "boolean"),
        column("day", "date"),
        column("tags", "json"),
        column("big", "bigint"),
        column("note", "text"),
        column("seen", "timestamp"),
    ),
    time="at",
)
LOADS = TableSpec(
    "loads",
    "loads",
    (
        column("minute", "timestamp", "minute", "start"),
        column("minute_end", "timestamp", "minute", "end"),
        column("house", "text"),
        column("street", "text"),
        column("load", "double"),
        column("n", "bigint"),
        column("seen", "timestamp"),
    ),
    key=("minute", "house"),
    upserts=True,
    time="minute",
)
# Tables that nothing was sent to yet, as every table is when a pipeline starts for the first time.
NOTHING = replace(LOADS, name="nothing", topic="nothing")


@dataclass(frozen=True)
class Sent:
    """A record: its key, and the row in Python's own values (None is a null)."""

    key: str
    row: dict[str, Any]

    @property
    def value(self) -> bytes:
        text = json.dumps(self.row, default=_plain, ensure_ascii=False)
        return re.sub(r'"decimal:([0-9.-]+)"', r"\1", text).encode()


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    if isinstance(value, Decimal):
        # As Spark writes it: a number with all its digits.
        return f"decimal:{value:f}"
    return value.isoformat() if isinstance(value, date) else str(value)


def events(first: int, count: int) -> list[Sent]:
    """Rows `first` to `first + count`, always the same ones."""
    return [_event(number) for number in range(first, first + count)]


def _event(number: int) -> Sent:
    at = NOON + timedelta(seconds=number * 7, milliseconds=number % 1000)
    house = HOUSES[number % len(HOUSES)]
    row = {
        "id": number,
        "at": at,
        "house": house,
        "load": None if number % 11 == 0 else (number % 40) / 8,
        "price": Decimal(number * 10**9 + 1) / Decimal(10_000),
        "ok": None if number % 13 == 0 else number % 3 == 0,
        "day": None if number % 17 == 0 else (NOON + timedelta(days=number % 4)).date(),
        "tags": ["a", str(number % 2)] if number % 5 else None,
        "big": 2**63 - 1 - number if number % 2 else -(2**63) + number,
        "note": None if number % 4 == 0 else f"näht {number % 7} “q” \\ \u2028 😀",
        "seen": None if number % 9 == 0 else at + timedelta(milliseconds=1500),
    }
    return Sent(house, row)


def loads(minutes: int, versions: int) -> list[Sent]:
    """Every house's load by the minute, sent again with new values; the last one counts."""
    found = []
    for version in range(versions):
        for minute in range(minutes):
            for place, house in enumerate(HOUSES):
                start = NOON + timedelta(minutes=minute)
                row = {
                    "minute": {"start": start, "end": start + timedelta(minutes=1)},
                    "house": house,
                    "street": None if place == 3 else f"street {place % 2}",
                    "load": (version + 1) * 0.25 + place + minute / 16,
                    "n": version * 10 + place,
                    "seen": start + timedelta(milliseconds=250 * version),
                }
                key = json.dumps([start.isoformat().replace("+00:00", "Z"), house], ensure_ascii=False)
                found.append(Sent(key, row))
    return found


def with_column(spec: TableSpec, name: str, kind: str) -> TableSpec:
    return replace(spec, columns=(*spec.columns, column(name, kind)))


def retyped(spec: TableSpec, name: str, kind: str) -> TableSpec:
    columns = tuple(Column(each.name, kind if each.name == name else each.type, each.path) for each in spec.columns)
    return replace(spec, columns=columns)
