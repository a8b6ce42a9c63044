"""Times and offsets as people write them: "10 minutes ago", "2026-07-01T10:00", "earliest", "-100".

A time without a zone is local time, as at any prompt; a program should write the zone. The clock is an argument, so
that nothing here depends on when it runs.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from typing import Literal

from riverrun.errors import DeclarationError, UsageError
from riverrun.model.units import parse_duration_ms

Clock = Callable[[], datetime]

_EXAMPLES = '"2026-07-01T10:00:00Z", "2026-07-01 10:00", "10 minutes ago", "today" or "now"'
_DAY = re.compile(r"(today|yesterday)(?:\s+(?:at\s+)?(\d{1,2}:\d{2}(?::\d{2})?))?")


def system_clock() -> datetime:
    """Now, with its zone."""
    return datetime.now(UTC)


def parse_time(text: str, *, clock: Clock = system_clock, what: str = "The time") -> datetime:
    """A point in time, with its zone: ISO 8601, "2 hours ago", "today 10:30", "yesterday", "now"."""
    words = text.strip().lower()
    if words == "now":
        return clock()
    if words.endswith(" ago"):
        return _ago(text, words.removesuffix(" ago"), clock, what)
    if day := _DAY.fullmatch(words):
        date = clock().astimezone().date() - timedelta(days=1 if day[1] == "yesterday" else 0)
        at = _clock_time(day[2], text, what) if day[2] else time()
        return datetime.combine(date, at).astimezone()
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError as error:
        raise _invalid_time(text, what) from error
    return moment if moment.tzinfo else moment.astimezone()


def _ago(text: str, duration: str, clock: Clock, what: str) -> datetime:
    try:
        back = parse_duration_ms(duration, what=what)
    except DeclarationError as error:
        raise _invalid_time(text, what) from error
    if back < 0:
        raise _invalid_time(text, what)
    return clock() - timedelta(milliseconds=back)


def _clock_time(digits: str, text: str, what: str) -> time:
    try:
        return time.fromisoformat(digits.rjust(5 if digits.count(":") == 1 else 8, "0"))
    except ValueError as error:
        raise _invalid_time(text, what) from error


def _invalid_time(text: str, what: str) -> UsageError:
    return UsageError(f"{what} cannot be understood", expected=f"a time such as {_EXAMPLES}", found=repr(text))


def epoch_ms(moment: datetime) -> int:
    """A time as Kafka counts it: milliseconds since 1970."""
    return round(moment.timestamp() * 1000)


@dataclass(frozen=True)
class OffsetSpec:
    """A position in every partition of a topic.

    `number` is the offset, the milliseconds since 1970, or for "last" how many records before the end.
    """

    kind: Literal["earliest", "latest", "offset", "time", "last"]
    number: int = 0

    def __str__(self) -> str:
        if self.kind == "time":
            return datetime.fromtimestamp(self.number / 1000, UTC).isoformat(timespec="milliseconds")
        if self.kind == "offset":
            return f"offset {self.number}"
        return f"the last {self.number}" if self.kind == "last" else self.kind


EARLIEST = OffsetSpec("earliest")
LATEST = OffsetSpec("latest")


def parse_offset_spec(text: str, *, clock: Clock = system_clock, what: str = "The position") -> OffsetSpec:
    """earliest, latest (or end), an offset, -N for the last N records, or a time."""
    word = text.strip().lower()
    if word in ("earliest", "beginning", "start"):
        return EARLIEST
    if word in ("latest", "end"):
        return LATEST
    if re.fullmatch(r"\d+", word):
        return OffsetSpec("offset", int(word))
    if re.fullmatch(r"-\d+", word):
        return OffsetSpec("last", int(word[1:]))
    try:
        return OffsetSpec("time", epoch_ms(parse_time(text, clock=clock, what=what)))
    except UsageError as error:
        raise UsageError(
            f"{what} cannot be understood",
            expected=f"earliest, latest, an offset, -N for the last N records, or a time such as {_EXAMPLES}",
            found=repr(text),
        ) from error
