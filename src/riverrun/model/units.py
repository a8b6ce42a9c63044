"""Durations and sizes as people write them: "7 days", "90 s", "1 GiB"."""

import re
from datetime import timedelta

from riverrun.errors import DeclarationError
from riverrun.model.suggest import nearest

FOREVER = "forever"

_SECONDS = {
    "ms": 0.001, "millisecond": 0.001,
    "s": 1, "sec": 1, "second": 1,
    "min": 60, "minute": 60,
    "h": 3600, "hour": 3600,
    "d": 86_400, "day": 86_400,
    "w": 604_800, "week": 604_800,
    "year": 31_536_000,
}  # fmt: skip
_BYTES = {
    "b": 1, "byte": 1,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip
# A thousand years: more is a typo, and overflows dates.
_MAX_DURATION_MS = 1000 * 31_536_000 * 1000
_QUANTITY = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]+)\s*")


def parse_duration_ms(value: str | timedelta, *, what: str, allow_zero: bool = False) -> int:
    """A duration in milliseconds. `what` names the argument in the error. "forever" is -1, as Kafka writes it.

    With `allow_zero`, nothing is a duration too: "0", "0 s", "0 minutes".
    """
    if isinstance(value, timedelta):
        amount = value.total_seconds() * 1000
    elif value.strip().lower() == FOREVER:
        return -1
    elif allow_zero and value.strip() == "0":
        return 0
    else:
        amount = _parse(value, _SECONDS, what, 'a duration such as "7 days", "90 s" or "forever"') * 1000
    if amount < 1 and not (allow_zero and amount == 0):
        raise DeclarationError(f"{what} is {value!r}", expected="at least one millisecond", argument=what)
    if amount > _MAX_DURATION_MS:
        raise DeclarationError(f"{what} is {value!r}", expected='at most 1000 years, or "forever"', argument=what)
    return round(amount)


def parse_size(value: str | int, *, what: str) -> int:
    """A size in bytes: a number of them, or text with a unit. "forever" is -1: no limit."""
    if isinstance(value, int):
        amount: float = value
    elif value.strip().lower() == FOREVER:
        return -1
    else:
        amount = _parse(value, _BYTES, what, 'a size such as "1 GiB" or "500 MB"')
    if amount < 1:
        raise DeclarationError(f"{what} is {value!r}", expected="at least one byte", argument=what)
    if amount >= 2**63:
        raise DeclarationError(f"{what} is {value!r}", expected="less than 8 EiB", argument=what)
    return round(amount)


def _parse(text: str, units: dict[str, float] | dict[str, int], what: str, expected: str) -> float:
    match = _QUANTITY.fullmatch(text)
    unit = match[2].lower() if match else ""
    if unit not in units:
        unit = unit.removesuffix("s")
    if match is None or unit not in units:
        raise DeclarationError(f"{what} cannot be understood", expected=expected, found=repr(text), argument=what)
    return float(match[1]) * units[unit]


def suggest_duration(text: str) -> str | None:
    """The likely meaning of a duration whose unit is misspelt: "5 minutes" for "5 mintues"."""
    match = _QUANTITY.fullmatch(text)
    unit = match and nearest(match[2].removesuffix("s"), [name for name in _SECONDS if len(name) > 3], cutoff=0.7)
    return f"{match[1]} {unit}{'' if match[1] == '1' else 's'}" if match and unit else None


def format_duration(ms: int) -> str:
    """Milliseconds for people: the largest unit that divides them."""
    if ms < 0:
        return FOREVER
    for name, size in (("day", 86_400_000), ("hour", 3_600_000), ("minute", 60_000), ("second", 1000)):
        if ms >= size and ms % size == 0:
            count = ms // size
            return f"{count} {name}{'s' if count != 1 else ''}"
    return f"{ms} ms"


def format_size(count: float) -> str:
    """Bytes for people, in binary units."""
    if count < 0:
        return "unlimited"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" or count == int(count) else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"
