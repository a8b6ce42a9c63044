"""Trying an alert: the messages that it would write for a row, whether or not it fires there. Nothing is kept."""

import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec

from riverrun.alerts.channels.contract import (
    Accepted,
    Answer,
    Channel,
    Delivery,
    Message,
    NotNow,
    Refused,
    Unsure,
    provider_id,
)
from riverrun.alerts.engine import Incoming
from riverrun.alerts.rows import MisfitError, RowReader, Seen
from riverrun.alerts.rules import Rule
from riverrun.alerts.template import MOST_CHARACTERS, shortened
from riverrun.errors import UsageError
from riverrun.model.near import nearest
from riverrun.model.table import RECORD_TIME

MARK = "TEST: "
_LASTS_MS = 600_000


@dataclass(frozen=True)
class Trial:
    """What a rule says of a row. `holds` is None for absence, of which no single row tells."""

    rule: Rule
    seen: Seen
    key: str
    holds: bool | None
    text: str
    resolved: str
    receivers: tuple[str, ...]

    def message(self, receiver: str, *, marked: bool, now: int) -> Message:
        """The message to one receiver; `marked` as a test."""
        alert = self.rule.alert
        return Message(
            id=f"test {secrets.token_hex(8)}",
            channel=alert.channel,
            receiver=receiver,
            text=shortened(f"{MARK if marked else ''}{self.text}", MOST_CHARACTERS),
            severity=alert.severity,
            expires=now + _LASTS_MS,
        )


def trial_of(rule: Rule, seen: Seen, to: str = "") -> Trial:
    """`to` stands for the receivers that the row has."""
    whole = rule.whole(seen.row)
    zone = rule.zone(whole)
    return Trial(
        rule,
        seen,
        rule.key_of(seen.row),
        None if rule.alert.silent_ms >= 0 else rule.holds(seen.row),
        rule.text.fill(whole, zone),
        rule.resolved.fill(whole, zone) if rule.resolved is not None else "",
        (to,) if to else rule.receivers(seen.row),
    )


def newest_row(rule: Rule, records: Iterable[Incoming]) -> Seen | None:
    """The first of these records that is a row of what the rule watches."""
    reader = RowReader(rule.table)
    for each in records:
        try:
            return reader.read(each.partition, each.offset, each.recorded, each.value or b"", each.identity)
        except MisfitError:
            continue
    return None


def given_row(rule: Rule, text: str, now: int) -> Seen:
    """The row that somebody wrote as JSON. Its time is now, unless it says one. UsageError when it is none."""
    table = rule.table
    try:
        content = msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise UsageError("--row is no JSON object", expected='such as {"house_id": "h1"}', found=str(error)) from error
    known = list(dict.fromkeys(each.path[0] for each in table.columns if each.path))
    for name in content:
        if name not in known:
            near = nearest(name, known)
            raise UsageError(
                f"--row has {name!r}, which {table.name} does not",
                expected=", ".join(known),
                hint=f"Did you mean {near}?" if near else "",
            )
    time = table.column(table.time)
    if table.time != RECORD_TIME and time is not None:
        *outer, last = time.path
        inner: Any = content
        for step in outer:
            inner = inner.setdefault(step, {}) if isinstance(inner, dict) else None
        if isinstance(inner, dict):
            inner.setdefault(last, datetime.fromtimestamp(now / 1000, UTC).isoformat())
    try:
        return RowReader(table).read(0, 0, now, msgspec.json.encode(content))
    except MisfitError as error:
        raise UsageError(f"--row is no row of {table.name}", found=str(error)) from error


def send_once(channel: Channel, message: Message) -> tuple[bool, str]:
    """Hand a message over, and ask once when nobody knows; whether it was taken, and the answer in words."""
    if problem := channel.weigh(message).problem:
        return False, problem
    id_ = provider_id(secrets.token_hex(8), message, Delivery())
    answer: Answer = channel.send(message, id_)
    if isinstance(answer, Unsure) and channel.once and channel.look_up(id_) == "taken":
        answer = Accepted(id_)
    match answer:
        case Accepted():
            return True, f"taken as {answer.provider_id}"
        case Refused():
            return False, f"refused: {answer.reason}"
        case NotNow():
            return False, f"not now: {answer.reason}"
        case Unsure():
            return False, f"nobody knows whether it is out: {answer.reason}"
