"""Alerts of the test kit without Spark: the clock is the rows' own, and stops wherever something is due."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import riverrun as rr
from riverrun.alerts.rules import Rule
from riverrun.errors import UsageError
from riverrun.model.table import RECORD_TIME, Column
from riverrun.testing.alerts import AlertSimulator
from riverrun.testing.topics import SentRecord
from support.watching import TOPIC, record, rule, table

NOON = datetime(2026, 1, 15, 12, tzinfo=UTC)
OPS = ["+353860000000"]


class Street:
    """Rows of houses at minutes after noon, to one topic."""

    def __init__(self, *rules: Rule) -> None:
        self.judge = AlertSimulator(rules)

    def rows(self, *rows: tuple[float, float, str]) -> None:
        now = datetime.now(UTC)
        self.step([SentRecord(TOPIC, 0, None, record(0, *row).value, now) for row in rows])

    def step(self, records: Sequence[SentRecord] = (), to: datetime | None = None) -> None:
        self.judge.step({TOPIC: records}, {TOPIC: to}, [to] if to else [])

    def advance(self, minute: float) -> None:
        self.step(to=NOON + timedelta(minutes=minute))

    @property
    def told(self) -> list[tuple[str, str, float]]:
        """What was sent: its kind, to which key, how many minutes after noon."""
        return [(each.kind, each.key, minutes(each.at)) for each in self.judge.notifications(unsent=False)]

    @property
    def unsent(self) -> list[tuple[str, str]]:
        return [(each.stage, each.note) for each in self.judge.notifications(unsent=True) if each.stage != "sent"]


def minutes(at: datetime) -> float:
    return (at - NOON) / timedelta(minutes=1)


def test_a_late_row_is_no_older_to_kafka_than_the_clock() -> None:
    street = Street(rule(expires="1 minute"))
    street.rows((90, 1.0, "h1"), (5, 3.0, "h2"))
    assert street.told == [("fired", "h2", 90)]


def test_the_clock_stops_at_all_that_is_due_on_its_way() -> None:
    """In one go to the next noon: held until seven, told, and escalated ten minutes after that."""
    quiet = rr.quiet("12:00", "07:00", zone="Europe/Dublin")
    street = Street(rule(quiet=quiet, escalate=rr.escalate(after="10 minutes", to=OPS)))
    street.rows((0, 3.0, "h1"))
    assert street.unsent == [("held", "quiet hours")]
    street.advance(24 * 60)
    assert street.told == [("fired", "h1", 19 * 60), ("escalated", "h1", 19 * 60 + 10)]


def test_silence_is_told_when_it_was_too_long_and_then_escalated() -> None:
    street = Street(rule(silent="15 minutes", text="{house_id}", escalate=rr.escalate(after="10 minutes", to=OPS)))
    street.rows((0, 1.0, "h1"), (5, 1.0, "h2"))
    street.advance(60)
    assert street.told == [
        ("fired", "h1", 15), ("fired", "h2", 20), ("escalated", "h1", 25), ("escalated", "h2", 30)
    ]  # fmt: skip


def test_a_silence_begins_now_and_ends() -> None:
    street = Street(rule())
    with pytest.raises(UsageError, match="what time it is"):
        street.judge.silence("", "", 60_000, "")
    street.advance(0)
    street.judge.silence("overload", "h1", 600_000, "rewired")
    street.rows((1, 3.0, "h1"), (2, 3.0, "h2"), (3, 1.0, "h1"), (11, 3.0, "h1"))
    assert street.told == [("fired", "h2", 2), ("fired", "h1", 11)]
    assert street.unsent == [("silenced", "silenced by the test: rewired")]


def test_only_what_fires_can_be_acknowledged() -> None:
    street = Street(rule(escalate=rr.escalate(after="10 minutes", to=OPS)))
    street.rows((0, 3.0, "house-1"), (0, 3.0, "house-2"))
    with pytest.raises(UsageError, match=r"does not fire for 'house-11'.*Did you mean house-1\?"):
        street.judge.acknowledge("overload", "house-11")
    street.judge.acknowledge("overload", "house-1")
    street.advance(30)
    assert street.told[2:] == [("escalated", "house-2", 10)]


def test_what_is_no_row_moves_nothing() -> None:
    street = Street(rule())
    now = datetime.now(UTC)
    street.step([SentRecord(TOPIC, 0, None, value, now) for value in (b"{", None, b"{}")])
    street.rows((0, 3.0, "h1"))
    assert street.told == [("fired", "h1", 0)]


def test_nobody_to_send_it_to_is_told() -> None:
    street = Street(rule(to="paid"))
    street.rows((0, 3.0, "h1"))
    assert street.told == []
    assert street.unsent == [("refused", "nobody to send it to: paid is empty")]


def test_a_row_without_a_time_of_its_own_has_kafkas() -> None:
    columns = (Column("house_id", "text", ("house_id",)), Column(RECORD_TIME, "timestamp", ()))
    options: dict[str, Any] = {"when": "house_id = 'h1'", "to": ["+1"], "text": "{house_id}"}
    street = Street(rule(over=table(columns=columns, time=RECORD_TIME), **options))
    street.step([SentRecord(TOPIC, 0, None, b'{"house_id": "h1"}', NOON + timedelta(minutes=7))])
    assert street.told == [("fired", "h1", 7)]
