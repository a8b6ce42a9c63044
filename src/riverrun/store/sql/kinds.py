"""The types of values in a question, in the words of `Column.type`, and how they combine.

Beside those there are `interval`, `local` (the clock of some place, after `at time zone`) and the empty word for what is not
known, such as NULL.
"""

import re
from collections.abc import Iterable

UNKNOWN = ""
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")
_MOST_DIGITS = 38
_BIGINT_DIGITS = 19
TIMES = frozenset({"timestamp", "local", "date"})


def digits(kind: str) -> tuple[int, int] | None:
    """Precision and scale of a decimal; a bigint is one without a fraction."""
    if kind == "bigint":
        return _BIGINT_DIGITS, 0
    found = _DECIMAL.fullmatch(kind)
    return (int(found[1]), int(found[2])) if found else None


def decimal(precision: int, scale: int) -> str:
    return f"decimal({min(precision, _MOST_DIGITS)},{min(scale, _MOST_DIGITS)})"


def is_decimal(kind: str) -> bool:
    return kind.startswith("decimal")


def is_number(kind: str) -> bool:
    return kind in ("bigint", "double") or is_decimal(kind)


def wider(kinds: Iterable[str]) -> str:
    """The type of one of several values, as of CASE, COALESCE and UNION."""
    found = {kind for kind in kinds if kind}
    if len(found) <= 1:
        return found.pop() if found else UNKNOWN
    if all(is_number(kind) for kind in found):
        if "double" in found:
            return "double"
        parts = [part for part in map(digits, found) if part]
        scale = max(part[1] for part in parts)
        return decimal(max(part[0] - part[1] for part in parts) + scale, scale)
    if found <= {"date", "timestamp", "local"}:
        return "timestamp" if "timestamp" in found else "local" if "local" in found else "date"
    if found <= {"text", "json"}:
        return "text"
    return UNKNOWN


def added(left: str, right: str, *, minus: bool) -> str:
    """The type of left + right, or of left - right."""
    for time, other in ((left, right), (right, left)):
        if time in TIMES and other == "interval":
            return "timestamp" if time == "date" else time
    if minus and left in TIMES and right in TIMES:
        return "bigint" if left == right == "date" else "interval"
    if "date" in (left, right) and "bigint" in (left, right):
        return "date"
    if left == right == "interval":
        return "interval"
    if is_decimal(left) or is_decimal(right):
        one, two = digits(left), digits(right)
        if one and two:
            scale = max(one[1], two[1])
            return decimal(max(one[0] - one[1], two[0] - two[1]) + scale + 1, scale)
    return wider((left, right))


def multiplied(left: str, right: str) -> str:
    one, two = digits(left), digits(right)
    if one and two and (is_decimal(left) or is_decimal(right)):
        return decimal(one[0] + two[0], one[1] + two[1])
    if "interval" in (left, right):
        return "interval"
    return wider((left, right))


def summed(kind: str) -> str:
    parts = digits(kind) if is_decimal(kind) else None
    return decimal(_MOST_DIGITS, parts[1]) if parts else "bigint" if kind == "boolean" else kind


def literal_number(text: str) -> str:
    """The type of a number as it is written."""
    if "e" in text.lower():
        return "double"
    whole, point, fraction = text.partition(".")
    if point:
        return decimal(max(len(whole.lstrip("0")), 1) + len(fraction) if whole else len(fraction), len(fraction))
    return "bigint"
