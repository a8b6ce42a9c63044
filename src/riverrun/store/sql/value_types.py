"""The types of values in a query, as in `Column.type`, and how they combine.

Besides those there are `interval`, `local` (a local time, after `at time zone`) and the empty string for unknown types,
such as NULL's.
"""

import re
from collections.abc import Iterable

UNKNOWN = ""
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")
_MAX_DIGITS = 38
_BIGINT_DIGITS = 19
TIME_TYPES = frozenset({"timestamp", "local", "date"})


def precision_and_scale(kind: str) -> tuple[int, int] | None:
    """Precision and scale of a decimal; a bigint is one without a fraction."""
    if kind == "bigint":
        return _BIGINT_DIGITS, 0
    decimal_match = _DECIMAL.fullmatch(kind)
    return (int(decimal_match[1]), int(decimal_match[2])) if decimal_match else None


def decimal_type(precision: int, scale: int) -> str:
    return f"decimal({min(precision, _MAX_DIGITS)},{min(scale, _MAX_DIGITS)})"


def is_decimal(kind: str) -> bool:
    return kind.startswith("decimal")


def is_number(kind: str) -> bool:
    return kind in ("bigint", "double") or is_decimal(kind)


def common_type(kinds: Iterable[str]) -> str:
    """The common type of several values, as of CASE, COALESCE and UNION."""
    known = {kind for kind in kinds if kind}
    if len(known) <= 1:
        return known.pop() if known else UNKNOWN
    if all(is_number(kind) for kind in known):
        if "double" in known:
            return "double"
        parts = [part for part in map(precision_and_scale, known) if part]
        scale = max(part[1] for part in parts)
        return decimal_type(max(part[0] - part[1] for part in parts) + scale, scale)
    if known <= {"date", "timestamp", "local"}:
        return "timestamp" if "timestamp" in known else "local" if "local" in known else "date"
    if known <= {"text", "json"}:
        return "text"
    return UNKNOWN


def sum_type(left: str, right: str, *, minus: bool) -> str:
    """The type of left + right, or of left - right."""
    for time, other in ((left, right), (right, left)):
        if time in TIME_TYPES and other == "interval":
            return "timestamp" if time == "date" else time
    if minus and left in TIME_TYPES and right in TIME_TYPES:
        return "bigint" if left == right == "date" else "interval"
    if "date" in (left, right) and "bigint" in (left, right):
        return "date"
    if left == right == "interval":
        return "interval"
    if is_decimal(left) or is_decimal(right):
        left_digits, right_digits = precision_and_scale(left), precision_and_scale(right)
        if left_digits and right_digits:
            scale = max(left_digits[1], right_digits[1])
            return decimal_type(
                max(left_digits[0] - left_digits[1], right_digits[0] - right_digits[1]) + scale + 1, scale
            )
    return common_type((left, right))


def product_type(left: str, right: str) -> str:
    left_digits, right_digits = precision_and_scale(left), precision_and_scale(right)
    if left_digits and right_digits and (is_decimal(left) or is_decimal(right)):
        return decimal_type(left_digits[0] + right_digits[0], left_digits[1] + right_digits[1])
    if "interval" in (left, right):
        return "interval"
    return common_type((left, right))


def aggregate_sum_type(kind: str) -> str:
    parts = precision_and_scale(kind) if is_decimal(kind) else None
    return decimal_type(_MAX_DIGITS, parts[1]) if parts else "bigint" if kind == "boolean" else kind


def number_literal_type(text: str) -> str:
    """The type of a number literal."""
    if "e" in text.lower():
        return "double"
    whole, point, fraction = text.partition(".")
    if point:
        return decimal_type(max(len(whole.lstrip("0")), 1) + len(fraction) if whole else len(fraction), len(fraction))
    return "bigint"
