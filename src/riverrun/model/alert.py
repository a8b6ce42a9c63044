"""Alert rules of a pipeline file, over the rows of a stream or a topic. Declaring does nothing.

What can be checked without knowing the columns is checked here; `riverrun.alerts.rules` checks the rest.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import time, timedelta
from typing import Any, Literal, TypedDict, get_args
from zoneinfo import ZoneInfo

from riverrun.errors import DeclarationError
from riverrun.model.pipeline import SourceLine, Stream, Table
from riverrun.model.suggest import nearest
from riverrun.model.topic import Topic
from riverrun.model.units import parse_duration_ms

Severity = Literal["info", "warning", "critical"]
SEVERITIES: tuple[str, ...] = get_args(Severity)
QuietAction = Literal["hold", "drop"]
DEFAULT_EXPIRES = "1 hour"
_NAME = re.compile(r"[a-z][a-z0-9_-]*")
_CLOCK = re.compile(r"([01]\d|2[0-3]):[0-5]\d")

AlertSource = str | Stream | Topic[Any]


@dataclass(frozen=True)
class ColumnLookup:
    """A column of a table of reference data, looked up by the key of the row that fired."""

    table: str
    column: str


@dataclass(frozen=True)
class QuietHours:
    """Hours in which nobody is woken, in a zone or in the zone that a column names."""

    begin: str
    end: str
    zone: str = ""
    zone_column: str = ""
    then: QuietAction = "hold"


@dataclass(frozen=True)
class Digest:
    """More than `most` messages to one receiver `within` a time become one that lists them."""

    most: int
    within_ms: int


@dataclass(frozen=True)
class Escalation:
    """Who else is notified when nobody acknowledged it in time."""

    after_ms: int
    to: tuple[str, ...]


@dataclass(frozen=True)
class Alert:
    """A rule. Times are milliseconds; -1 where the file gives none. At most one of `silent_ms` and `when` may be given;
    with neither, every row fires."""

    name: str
    source: str
    line: SourceLine
    text: str
    to: ColumnLookup | str | tuple[str, ...]
    channel: str
    when: str = ""
    clear: str = ""
    by: tuple[str, ...] = ()
    lasting_ms: int = 0
    silent_ms: int = -1
    resolved: str = ""
    severity: Severity = "warning"
    cooldown_ms: int = 0
    quiet: QuietHours | None = None
    digest: Digest | None = None
    escalate: Escalation | None = None
    expires_ms: int = -1

    def __str__(self) -> str:
        return f"The alert {self.name}"

    @property
    def every_row(self) -> bool:
        return not self.when and self.silent_ms < 0


def column_of(table: Table | str, column: str) -> ColumnLookup:
    """A column of a table of the app, in the row with the key that fired: `column_of(houses, "phone")`."""
    if not isinstance(table, Table | str):
        raise DeclarationError(f"column_of cannot look into {table!r}", expected="a table of the app, or its name")
    return ColumnLookup(table if isinstance(table, str) else table.name, column)


def quiet(begin: str, end: str, *, zone: str, then: QuietAction = "hold") -> QuietHours:
    """Nobody is woken between these times of the day in `zone`: a zone such as "Europe/Dublin", or a column that has one.
    What fires then is sent when they are over (`then="hold"`), or not at all ("drop")."""
    for word in (begin, end):
        if not _CLOCK.fullmatch(str(word)):
            raise DeclarationError(f"quiet({begin!r}, {end!r}) cannot be understood", expected='times such as "22:00"')
    if begin == end:
        raise DeclarationError(f"quiet({begin!r}, {end!r}) is no time at all, or all of it", expected="two times")
    if then not in get_args(QuietAction):
        raise DeclarationError(f"quiet cannot have then={then!r}", expected='"hold" or "drop"')
    if zone_of(zone) is not None:
        return QuietHours(begin, end, zone=zone, then=then)
    if not zone.isidentifier():
        from zoneinfo import available_timezones

        near = nearest(zone, available_timezones())
        raise DeclarationError(
            f"There is no time zone {zone!r}",
            expected='one such as "Europe/Dublin", or the name of a column that has one',
            hint=f"Did you mean {near!r}?" if near else "",
            zone=zone,
        )
    return QuietHours(begin, end, zone_column=zone, then=then)


def digest(*, most: int, within: str | timedelta) -> Digest:
    """More than `most` messages to one receiver `within` this time: the rest come as one that lists them."""
    if type(most) is not int or most < 1:
        raise DeclarationError(f"digest cannot have most={most!r}", expected="a whole number from 1 on")
    return Digest(most, _duration_ms(within, "within of a digest"))


def escalate(*, after: str | timedelta, to: Sequence[str]) -> Escalation:
    """When nobody has acknowledged it `after` this time and it still holds, these receivers are notified too."""
    return Escalation(_duration_ms(after, "after of an escalation"), _recipient_list(to, "An escalation"))


def zone_of(name: str) -> ZoneInfo | None:
    """The zone of this name; None when there is none. Names come from rows too, so they may be anything."""
    try:
        return ZoneInfo(name)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def parse_clock_time(text: str) -> time:
    return time.fromisoformat(text)


class AlertOptions(TypedDict, total=False):
    """The options of `App.alert` besides a name and what is watched."""

    # Conditions in SQL over a row's columns. `clear` is by default that `when` is false; with no `when`, every row fires.
    when: str
    clear: str
    # The columns that identify an incident; by default the key of what is watched, without its time.
    by: str | Sequence[str]
    # Fire only when it has held for this long, in event time.
    lasting: str | timedelta
    # Instead of `when`: fire when there was no row of the key for this long.
    silent: str | timedelta
    # A column of the row, `column_of(table, column)`, or a list of receivers.
    to: str | ColumnLookup | Sequence[str]
    text: str
    # Sent when it is over, to those who were notified; nothing by default.
    resolved: str
    channel: str
    severity: Severity
    # The least time between two incidents of a key that are notified.
    cooldown: str | timedelta
    quiet: QuietHours
    digest: Digest
    escalate: Escalation
    # Not sent when the record is older than this, by its Kafka timestamp; it is in the history all the same.
    expires: str | timedelta


OPTIONS: tuple[str, ...] = tuple(AlertOptions.__annotations__)
_REQUIRED = {"to": 'a column such as "phone", column_of(table, column), or a list of receivers', "text": "a template"}


def build_alert(name: str, source: AlertSource, line: SourceLine, options: Mapping[str, Any]) -> Alert:
    """A rule, checked as far as it can be without knowing the columns."""
    here = f"The alert {name}"
    if not _NAME.fullmatch(name):
        raise DeclarationError(
            f"{name!r} cannot be the name of an alert", expected="small letters, digits, - and _, such as overload"
        )
    for option in options:
        if option not in OPTIONS:
            near = nearest(option, OPTIONS)
            raise DeclarationError(
                f"{here} has no option {option!r}",
                expected=", ".join(OPTIONS),
                hint=f"Did you mean {near!r}?" if near else "",
                alert=name,
            )
    for option, expected in _REQUIRED.items():
        if not options.get(option):
            raise DeclarationError(f"{here} has no {option}=", expected=expected, alert=name)
    _check_types(here, options)
    by = options.get("by") or ()
    rule = Alert(
        name,
        _source_name(here, source),
        line,
        options["text"],
        _parse_recipients(options["to"], here),
        options.get("channel") or "sms",
        options.get("when") or "",
        options.get("clear") or "",
        (by,) if isinstance(by, str) else tuple(by),
        _optional_duration_ms(options, "lasting", here, 0),
        _optional_duration_ms(options, "silent", here, -1),
        options.get("resolved") or "",
        options.get("severity") or "warning",
        _optional_duration_ms(options, "cooldown", here, 0),
        options.get("quiet"),
        options.get("digest"),
        options.get("escalate"),
        _duration_ms(options.get("expires") or DEFAULT_EXPIRES, f"{here}: expires", endless=True),
    )
    _check_combinations(rule)
    return rule


def _check_types(here: str, options: Mapping[str, Any]) -> None:
    for option in ("when", "clear", "text", "resolved", "channel"):
        if not isinstance(options.get(option) or "", str):
            raise DeclarationError(f"{here} cannot have {option}={options[option]!r}", expected="text")
    severity = options.get("severity") or "warning"
    if severity not in SEVERITIES:
        near = nearest(str(severity), SEVERITIES)
        raise DeclarationError(
            f"{here} cannot have severity={severity!r}",
            expected=", ".join(SEVERITIES),
            hint=f"Did you mean {near!r}?" if near else "",
        )
    kinds: list[tuple[str, type]] = [("quiet", QuietHours), ("digest", Digest), ("escalate", Escalation)]
    for option, kind in kinds:
        given = options.get(option)
        if given is not None and not isinstance(given, kind):
            raise DeclarationError(
                f"{here} cannot have {option}={given!r}", expected=f"what riverrun.{option}(…) gives"
            )


def _check_combinations(rule: Alert) -> None:
    if rule.when and rule.silent_ms >= 0:
        raise DeclarationError(f"{rule} has when= and silent=", expected="one of them", hint="Declare two alerts")
    if not rule.when:
        for option, given in (("clear", rule.clear), ("lasting", rule.lasting_ms)):
            if given:
                raise DeclarationError(f"{rule} has {option}= and no when=", hint=f"Leave {option} out, or say when")
    if rule.every_row and (rule.resolved or rule.escalate):
        option = "resolved" if rule.resolved else "escalate"
        raise DeclarationError(
            f"{rule} fires at every row, and so is never over: it cannot have {option}=", hint="Say when= it holds"
        )


def _source_name(here: str, source: Any) -> str:
    if isinstance(source, Stream | Topic):
        return source.name
    if isinstance(source, str) and source.strip():
        return source.strip()
    raise DeclarationError(f"{here} cannot watch {source!r}", expected="a topic or a stream of the app, or its name")


def _parse_recipients(to: Any, here: str) -> ColumnLookup | str | tuple[str, ...]:
    if isinstance(to, ColumnLookup):
        return to
    if isinstance(to, str):
        if to.isidentifier():
            return to
        raise DeclarationError(
            f"{here} cannot have to={to!r}", expected="the name of a column", hint=f"A receiver itself: to=[{to!r}]"
        )
    return _recipient_list(to, here)


def _recipient_list(to: Any, here: str) -> tuple[str, ...]:
    if isinstance(to, str) or not isinstance(to, Sequence) or not to or not all(isinstance(e, str) and e for e in to):
        raise DeclarationError(f"{here} cannot have to={to!r}", expected='a list of receivers, such as ["+353…"]')
    return tuple(dict.fromkeys(to))


def _optional_duration_ms(options: Mapping[str, Any], name: str, here: str, default: int) -> int:
    given = options.get(name)
    return default if given is None else _duration_ms(given, f"{here}: {name}")


def _duration_ms(given: Any, what: str, *, endless: bool = False) -> int:
    if not isinstance(given, str | timedelta):
        raise DeclarationError(f"{what} is {given!r}", expected='a duration such as "10 minutes"')
    duration_ms = parse_duration_ms(given, what=what)
    if duration_ms < 0 and not endless:
        raise DeclarationError(f"{what} cannot be for ever", expected='a duration such as "10 minutes"')
    return duration_ms
