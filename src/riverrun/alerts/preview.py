"""Previews an alert: the messages it would send for a row, whether or not it fires there. Nothing is saved."""

import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec

from riverrun.alerts.channels.contract import (
    AlertMessage,
    Channel,
    DeliveryStatus,
    OutcomeUnknown,
    SendAccepted,
    SendDeferred,
    SendRefused,
    SendResult,
    make_provider_id,
)
from riverrun.alerts.engine import InputRecord
from riverrun.alerts.rows import RejectedRowError, RowReader, WatchedRow
from riverrun.alerts.rules import Rule
from riverrun.alerts.template import MAX_CHARACTERS, truncate
from riverrun.errors import UsageError
from riverrun.model.suggest import nearest
from riverrun.model.table import RECORD_TIME

TEST_PREFIX = "TEST: "
_EXPIRES_AFTER_MS = 600_000


@dataclass(frozen=True)
class RulePreview:
    """What a rule makes of a row. `holds` is None for absence, which no single row can show."""

    rule: Rule
    row: WatchedRow
    key: str
    holds: bool | None
    text: str
    resolved: str
    receivers: tuple[str, ...]

    def message(self, receiver: str, *, mark_as_test: bool, now: int) -> AlertMessage:
        """The message to one receiver; `mark_as_test` prefixes its text."""
        alert = self.rule.alert
        return AlertMessage(
            id=f"test {secrets.token_hex(8)}",
            channel=alert.channel,
            receiver=receiver,
            text=truncate(f"{TEST_PREFIX if mark_as_test else ''}{self.text}", MAX_CHARACTERS),
            severity=alert.severity,
            expires=now + _EXPIRES_AFTER_MS,
        )


def preview_rule(rule: Rule, row: WatchedRow, to: str = "") -> RulePreview:
    """Preview a rule for a row. `to` replaces the row's receivers."""
    enriched = rule.enrich(row.values)
    zone = rule.zone(enriched)
    return RulePreview(
        rule,
        row,
        rule.key_of(row.values),
        None if rule.alert.silent_ms >= 0 else rule.holds(row.values),
        rule.text.render(enriched, zone),
        rule.resolved.render(enriched, zone) if rule.resolved is not None else "",
        (to,) if to else rule.receivers(row.values),
    )


def find_newest_row(rule: Rule, records: Iterable[InputRecord]) -> WatchedRow | None:
    """The first of these records that is a row of the rule's table."""
    reader = RowReader(rule.table)
    for record in records:
        try:
            return reader.read(
                record.partition, record.offset, record.record_time, record.value or b"", record.identity
            )
        except RejectedRowError:
            continue
    return None


def parse_row(rule: Rule, text: str, now: int) -> WatchedRow:
    """Parse a row written as JSON. Its time is `now`, unless it has one. UsageError when it does not fit."""
    table = rule.table
    try:
        content = msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise UsageError("--row is no JSON object", expected='such as {"house_id": "h1"}', found=str(error)) from error
    known = list(dict.fromkeys(column.path[0] for column in table.columns if column.path))
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
    except RejectedRowError as error:
        raise UsageError(f"--row is no row of {table.name}", found=str(error)) from error


def send_test_message(channel: Channel, message: AlertMessage) -> tuple[bool, str]:
    """Send a message, and look it up once when the outcome is unknown. Returns whether it was accepted, and why in words."""
    if problem := channel.check(message).problem:
        return False, problem
    id_ = make_provider_id(secrets.token_hex(8), message, DeliveryStatus())
    answer: SendResult = channel.send(message, id_)
    if isinstance(answer, OutcomeUnknown) and channel.idempotent and channel.look_up(id_) == "taken":
        answer = SendAccepted(id_)
    match answer:
        case SendAccepted():
            return True, f"taken as {answer.provider_id}"
        case SendRefused():
            return False, f"refused: {answer.reason}"
        case SendDeferred():
            return False, f"not now: {answer.reason}"
        case OutcomeUnknown():
            return False, f"nobody knows whether it is out: {answer.reason}"
