"""Intervals as they are written, `5 minutes` or `1 day 12 hours`: their length, and Druid's notation."""

import re
from decimal import Decimal

_PART = re.compile(r"(-?\d+(?:\.\d+)?)\s*([a-z]+?)s?(?=\s|-|\d|$)", re.IGNORECASE)
_SECONDS = {
    "microsecond": Decimal("0.000001"), "millisecond": Decimal("0.001"), "second": Decimal(1), "minute": Decimal(60),
    "hour": Decimal(3600), "day": Decimal(86400), "week": Decimal(604800), "month": Decimal(2592000),
    "quarter": Decimal(7776000), "year": Decimal(31536000),
}  # fmt: skip
_DATE_UNITS = {"year": "Y", "quarter": "M", "month": "M", "week": "W", "day": "D"}


def interval_parts(span: str) -> list[tuple[Decimal, str]]:
    """Numbers and units, in the order they are written."""
    return [(Decimal(number), unit.lower()) for number, unit in _PART.findall(span)]


def interval_seconds(span: str) -> float | None:
    """The length in seconds; a month counts as 30 days. None when it is not understood."""
    amounts = interval_parts(span)
    if not amounts or any(unit not in _SECONDS for _, unit in amounts):
        return None
    return float(sum(number * _SECONDS[unit] for number, unit in amounts))


def iso_period(span: str) -> str | None:
    """The interval as an ISO 8601 period, such as PT5M; None where there is none: fractions of days, below
    milliseconds."""
    date: dict[str, int] = {}
    time = Decimal(0)
    for number, unit in interval_parts(span):
        if unit in _DATE_UNITS:
            if number != int(number):
                return None
            letter = _DATE_UNITS[unit]
            date[letter] = date.get(letter, 0) + int(number) * (3 if unit == "quarter" else 1)
        else:
            time += number * _SECONDS[unit]
    if time != time.quantize(Decimal("0.001")):
        return None
    written = "".join(f"{date[letter]}{letter}" for letter in "YMWD" if date.get(letter))
    if time:
        all_minutes, seconds = divmod(abs(time), 60)
        hours, minutes = divmod(int(all_minutes), 60)
        sign = "-" if time < 0 else ""
        clock = [(hours, "H"), (minutes, "M")]
        written += "T" + "".join(f"{sign}{number}{letter}" for number, letter in clock if number)
        written += f"{sign}{seconds.normalize():f}S" if seconds else ""
    return f"P{written}" if written else "PT0S"


def divides_day(span: str) -> bool:
    """Whether buckets of this length begin at the same instants, whichever midnight counting starts from."""
    amounts = interval_parts(span)
    if any(unit in ("month", "quarter", "year", "week") for _, unit in amounts):
        return False
    seconds = sum((number * _SECONDS[unit] for number, unit in amounts), Decimal(0))
    return seconds > 0 and Decimal(86400) % seconds == 0
