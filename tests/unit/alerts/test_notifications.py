"""Manners: who is told, when, and when not. The clock is given; nothing waits."""

from datetime import UTC, datetime
from typing import Any

import pytest

import riverrun as rr
from riverrun.alerts.channels.contract import DeliveryStatus
from riverrun.alerts.incidents import IncidentExpired, IncidentTracker
from riverrun.alerts.lookup import LookupTable
from riverrun.alerts.notifications import Notifier, quiet_until
from riverrun.alerts.rules import Rule
from riverrun.alerts.state_topic import Ack, AlertState, Silence
from riverrun.alerts.template import MAX_CHARACTERS
from riverrun.model.table import Column
from support.watching import MINUTE, NOON, rule, seen, table

SENT = DeliveryStatus(state="sent")
HOUR = 60 * MINUTE


class Office:
    """A rule's episodes and their manners, with a sender that takes everything at once."""

    def __init__(self, *rules: Rule) -> None:
        self.trackers = [IncidentTracker(each) for each in rules]
        self.ledger = AlertState()
        self.desk = Notifier(rules, self.ledger)

    def row(self, minute: float, load: float, house: str = "h1", *, now: int = -1) -> list[str]:
        """A row, read at once or at `now`: the texts that are sent then."""
        row = seen(minute, load, house)
        now = row.record_time if now < 0 else now
        for tracker in self.trackers:
            for effect in tracker.evaluate(row):
                self.desk.handle(effect, now)
        return self.at(now)

    def at(self, now: int) -> list[str]:
        self.desk.tick(now)
        self.desk.mark_committed()
        sent = []
        while due := self.desk.due(now):
            sent += [message.text for message, _ in due]
            self.desk.apply_deliveries({message.id: SENT for message, _ in due})
        return sent

    def again(self) -> "Office":
        """As after a crash: the same, from what was kept."""
        found = Office(*(tracker.rule for tracker in self.trackers))
        for key, value in self.desk.drain():
            found.ledger.apply_change(key, value)
        for each in self.ledger.deliveries.values():
            found.ledger.put(each)
        found.trackers = self.trackers
        found.desk = Notifier([tracker.rule for tracker in self.trackers], found.ledger)
        return found

    def stages(self) -> list[tuple[str, str]]:
        return [(letter.kind, letter.stage) for letter in self.ledger.notifications.values()]


def noon(hour: float) -> int:
    return NOON + round(hour * HOUR)


def test_a_message_goes_out_once_to_the_receiver_of_the_row() -> None:
    office = Office(rule(resolved="House {house_id} is back at {load_kw:.1f} kW."))
    assert office.row(0, 2.5) == ["House h1 draws 2.5 kW."]
    assert office.row(1, 2.6) == []
    assert office.row(2, 1.5) == ["House h1 is back at 1.5 kW."]
    letters = list(office.ledger.notifications.values())
    assert {letter.message.receiver for letter in letters} == {"+353h1"}
    assert [letter.message.id for letter in letters] == [
        '["overload","h1",1,"fired","+353h1"]',
        '["overload","h1",1,"resolved","+353h1"]',
    ]
    case = office.ledger.incidents["overload", "h1", 1]
    assert (case.state, case.row["load_kw"], case.record_location, case.ended) == (
        "resolved",
        2.5,
        "house_now[0]@0",
        noon(2 / 60),
    )


def test_the_same_episode_makes_no_second_message() -> None:
    office = Office(rule())
    [fire] = office.trackers[0].evaluate(seen(0, 3.0))
    office.desk.handle(fire, NOON)
    assert len(office.at(NOON)) == 1
    office.desk.handle(fire, NOON)
    assert office.at(NOON) == []


def test_nothing_is_due_before_it_is_kept() -> None:
    office = Office(rule())
    for effect in office.trackers[0].evaluate(seen(0, 3.0)):
        office.desk.handle(effect, NOON)
    assert office.desk.due(NOON) == []
    assert office.desk.drain() != []
    assert office.desk.mark_committed()
    assert len(office.desk.due(NOON)) == 1


def test_that_it_is_over_waits_until_it_was_told_that_it_began() -> None:
    office = Office(rule(resolved="over"))
    for minute, load in ((0, 3.0), (1, 1.0)):
        for effect in office.trackers[0].evaluate(seen(minute, load)):
            office.desk.handle(effect, noon(1 / 60))
    office.desk.mark_committed()
    [(first, _)] = office.desk.due(noon(1))
    assert first.text == "House h1 draws 3.0 kW."
    office.desk.apply_deliveries({first.id: DeliveryStatus(state="trying")})
    assert [message.id for message, _ in office.desk.due(noon(1))] == [first.id]
    office.desk.apply_deliveries({first.id: SENT})
    assert [message.text for message, _ in office.desk.due(noon(1))] == ["over"]


def test_the_oldest_is_due_first_also_after_a_crash() -> None:
    office = Office(rule())
    for minute, house in enumerate(("h3", "h1", "h2")):
        for effect in office.trackers[0].evaluate(seen(minute, 3.0, house)):
            office.desk.handle(effect, noon(minute / 60))
    office.desk.mark_committed()
    for each in (office, office.again()):
        assert [message.receiver for message, _ in each.desk.due(noon(9))] == ["+353h3", "+353h1", "+353h2"]


def test_a_message_that_waits_for_its_next_try_is_not_due() -> None:
    office = Office(rule())
    office.row(0, 1.0)
    for effect in office.trackers[0].evaluate(seen(1, 3.0)):
        office.desk.handle(effect, noon(0))
    office.desk.mark_committed()
    [(message, _)] = office.desk.due(noon(0))
    office.desk.apply_deliveries({message.id: DeliveryStatus(state="due", retry_at=noon(1))})
    assert office.desk.due(noon(1) - 1) == []
    assert len(office.desk.due(noon(1))) == 1


def test_what_is_too_old_is_in_the_history_and_not_sent() -> None:
    office = Office(rule(expires="10 minutes", resolved="over"))
    assert office.row(0, 3.0, now=NOON + 10 * MINUTE + 1) == []
    assert office.stages() == [("fired", "expired")]
    assert next(iter(office.ledger.notifications.values())).note == "the row was 10 minutes old"
    # Nobody was told that it began.
    assert office.row(1, 1.0, now=NOON + 11 * MINUTE) == []
    assert office.stages() == [("fired", "expired")]
    assert office.row(20, 3.0) != []
    assert [letter.message.expires for letter in office.ledger.notifications.values()][-1] == NOON + 30 * MINUTE


def test_an_empty_receiver_is_a_dead_letter_with_its_reason() -> None:
    office = Office(rule())
    row = seen(0, 3.0)
    for effect in office.trackers[0].evaluate(type(row)(**{**_fields(row), "values": {**row.values, "phone": " "}})):
        office.desk.handle(effect, NOON)
    assert office.at(NOON) == []
    [sent] = office.ledger.deliveries.values()
    assert (sent.delivery.state, sent.delivery.reason) == ("refused", "nobody to send it to: phone is empty")


def _fields(row: Any) -> dict[str, Any]:
    return {name: getattr(row, name) for name in row.__dataclass_fields__}


def test_the_owner_is_looked_up() -> None:
    columns = tuple(Column(name, "text", (name,)) for name in ("house_id", "owner", "phone"))
    houses = LookupTable("houses", ("house_id",), columns, {("h1",): {"house_id": "h1", "owner": "Ann", "phone": "+1"}})
    office = Office(rule(to=rr.column_of("houses", "phone"), text="{owner}: {load_kw:.1f}", over=_without_phone(),
                         lookups={"houses": houses}))  # fmt: skip
    assert office.row(0, 2.5) == ["Ann: 2.5"]
    assert [letter.message.receiver for letter in office.ledger.notifications.values()] == ["+1"]
    assert office.row(0, 2.5, "h2") == []
    assert [each.delivery.reason for each in office.ledger.deliveries.values() if each.delivery.state == "refused"] == [
        "nobody to send it to: phone is empty"
    ]


def _without_phone() -> Any:
    return table(columns=tuple(column for column in table().columns if column.name != "phone"))


# --- silences ---


def test_a_silence_is_by_rule_and_key_and_ends() -> None:
    office = Office(rule())
    office.desk.apply_user_action(Silence(id="1", rule="overload", key="h1", until=noon(1), by="Ann", why="we know"))
    assert office.row(0, 3.0, "h1") == []
    assert office.row(0, 3.0, "h2") != []
    assert [letter.note for letter in office.ledger.notifications.values()] == ["silenced by Ann: we know", ""]
    office.row(30, 1.0, "h1")
    assert office.row(60, 3.0, "h1") != []


# --- quiet hours ---


@pytest.mark.parametrize(
    ("zone", "moment", "over"),
    [
        ("Europe/Dublin", "2026-01-15T21:59:00+00:00", None),
        ("Europe/Dublin", "2026-01-15T22:00:00+00:00", "2026-01-16T07:00:00+00:00"),
        ("Europe/Dublin", "2026-01-16T06:59:59+00:00", "2026-01-16T07:00:00+00:00"),
        ("Europe/Dublin", "2026-01-16T07:00:00+00:00", None),
        ("Europe/Dublin", "2026-07-15T21:30:00+00:00", "2026-07-16T06:00:00+00:00"),
        # The night the clocks go forward is an hour shorter.
        ("Europe/Dublin", "2026-03-28T23:00:00+00:00", "2026-03-29T06:00:00+00:00"),
        ("Asia/Kolkata", "2026-01-15T16:30:00+00:00", "2026-01-16T01:30:00+00:00"),
    ],
)
def test_quiet_hours_are_the_receivers(zone: str, moment: str, over: str | None) -> None:
    from zoneinfo import ZoneInfo

    quiet = rr.quiet("22:00", "07:00", zone=zone)
    now = round(datetime.fromisoformat(moment).timestamp() * 1000)
    found = quiet_until(quiet, ZoneInfo(zone), now)
    assert (datetime.fromtimestamp(found / 1000, UTC).isoformat() if found else None) == over


def test_quiet_hours_hold_and_a_crash_does_not_lose_what_they_hold() -> None:
    office = Office(rule(quiet=rr.quiet("22:00", "07:00", zone="Europe/Dublin"), expires="10 minutes"))
    assert office.row(11 * 60, 3.0) == []
    office = office.again()
    assert office.at(noon(19) - 1) == []
    assert office.at(noon(19)) == ["House h1 draws 3.0 kW."]
    assert office.at(noon(20)) == []
    [letter] = office.ledger.notifications.values()
    # As fresh in the morning as it was in the evening.
    assert letter.message.expires == noon(19) + 10 * MINUTE


def test_what_is_over_before_the_morning_wakes_nobody() -> None:
    office = Office(rule(quiet=rr.quiet("22:00", "07:00", zone="Europe/Dublin"), resolved="over"))
    assert office.row(11 * 60, 3.0) == []
    assert office.row(12 * 60, 1.0) == []
    assert office.at(noon(20)) == []
    assert office.stages() == [("fired", "cancelled")]


def test_what_is_held_may_be_silenced() -> None:
    office = Office(rule(quiet=rr.quiet("22:00", "07:00", zone="Europe/Dublin")))
    assert office.row(11 * 60, 3.0) == []
    office.desk.apply_user_action(Silence(id="1", until=noon(24)))
    assert office.at(noon(20)) == []
    assert office.stages() == [("fired", "silenced")]


def test_quiet_hours_may_drop() -> None:
    office = Office(rule(quiet=rr.quiet("22:00", "07:00", zone="Europe/Dublin", then="drop")))
    assert office.row(11 * 60, 3.0) == []
    assert office.at(noon(20)) == []
    assert office.stages() == [("fired", "dropped")]


def test_a_zone_in_a_column_that_is_none_is_utc() -> None:
    judged = rule(quiet=rr.quiet("22:00", "07:00", zone="house_id"))
    assert judged.zone({"house_id": "Asia/Kolkata"}) != UTC
    for odd in ("Mars/Base", "../../etc/passwd", "\0", "", None):
        assert judged.zone({"house_id": odd}) == UTC


# --- digests ---


def test_many_at_once_become_one_message_that_lists_them() -> None:
    office = Office(rule(to=["+1"], digest=rr.digest(most=2, within="1 minute")))
    assert office.row(0, 3.0, "h1") != []
    assert office.row(0.1, 3.0, "h2") != []
    assert [office.row(0.2, 3.0, f"h{number}") for number in (3, 4, 5)] == [[], [], []]
    office = office.again()
    assert office.at(NOON + round(1.2 * MINUTE) - 1) == []
    [text] = office.at(NOON + round(1.2 * MINUTE))
    assert text.splitlines() == ["3 alerts:", *(f"- House h{number} draws 3.0 kW." for number in (3, 4, 5))]
    assert office.at(noon(1)) == []
    assert [stage for _, stage in office.stages()].count("listed") == 3
    for effect in office.trackers[0].evaluate(seen(90, 3.0, "h6")):
        office.desk.handle(effect, noon(1.5))
    assert office.stages()[-1] == ("fired", "out")


def test_one_too_many_comes_as_it_is() -> None:
    office = Office(rule(to=["+1"], digest=rr.digest(most=1, within="1 minute")))
    office.row(0, 3.0, "h1")
    assert office.row(0.5, 3.0, "h2") == []
    assert office.at(noon(1)) == ["House h2 draws 3.0 kW."]


def test_a_digest_is_for_one_receiver_and_not_longer_than_a_message() -> None:
    office = Office(rule(digest=rr.digest(most=1, within="1 minute")))
    assert office.row(0, 3.0, "h1") != []
    assert office.row(0, 3.0, "h2") != []
    office = Office(rule(to=["+1"], digest=rr.digest(most=1, within="1 minute")))
    for number in range(200):
        office.row(0, 3.0, f"h{number}")
    [text] = office.at(noon(1))
    assert len(text) <= MAX_CHARACTERS
    assert text.startswith("199 alerts:")
    assert text.splitlines()[-1].endswith("more")


# --- escalation ---


def escalating() -> Office:
    return Office(rule(escalate=rr.escalate(after="10 minutes", to=["+9"])))


def test_nobody_acknowledged_and_others_are_told_once() -> None:
    office = escalating()
    office.row(0, 3.0)
    assert office.at(NOON + 10 * MINUTE - 1) == []
    office = office.again()
    assert office.at(NOON + 10 * MINUTE) == ["Nobody acknowledged this for 10 minutes: House h1 draws 3.0 kW."]
    assert office.again().at(noon(5)) == []


def test_an_acknowledgement_or_the_end_stops_an_escalation() -> None:
    office = escalating()
    office.row(0, 3.0, "h1")
    office.row(0, 3.0, "h2")
    office.row(5, 1.0, "h2")
    office.desk.apply_user_action(Ack(rule="overload", key="h1", number=1, at=NOON + 5 * MINUTE, by="Ann"))
    assert office.at(noon(1)) == []
    ack = office.ledger.acks["overload", "h1", 1]
    office = office.again()
    office.ledger.put(ack)
    assert Notifier([tracker.rule for tracker in office.trackers], office.ledger)._unacknowledged == set()


def test_what_is_long_over_is_forgotten() -> None:
    office = Office(rule())
    office.row(0, 3.0)
    office.row(1, 1.0)
    office.row(2, 3.0)
    office.desk.drain()
    office.at(noon(24 * 31))
    assert [number for _, _, number in office.ledger.incidents] == [2]
    assert len([value for _, value in office.desk.drain() if value is None]) == 3
    assert [letter.number for letter in office.ledger.notifications.values()] == [2]


def test_a_case_is_not_forgotten_before_its_letters() -> None:
    """Else its number could be used again, and the next message be taken for this one."""
    office = Office(rule(when=""))
    for effect in office.trackers[0].evaluate(seen(0, 3.0)):
        office.desk.handle(effect, NOON)
    office.desk.mark_committed()
    office.desk.tick(noon(24 * 31))
    assert len(office.ledger.incidents) == len(office.desk.due(noon(24 * 31))) == 1
    office.at(noon(24 * 31))
    office.desk.tick(noon(24 * 31) + MINUTE)
    assert (office.ledger.incidents, office.ledger.notifications, office.ledger.deliveries) == ({}, {}, {})


def test_what_is_given_up_is_over_and_nobody_is_told() -> None:
    quiet = rr.quiet("22:00", "07:00", zone="Europe/Dublin")
    office = Office(
        rule(resolved="over", escalate=rr.escalate(after="10 minutes", to=["+9"])), rule("night", quiet=quiet)
    )
    office.row(11 * 60, 3.0)
    for name in ("overload", "night"):
        office.desk.handle(IncidentExpired(name, "h1", 1), noon(12))
    assert {case.state for case in office.ledger.incidents.values()} == {"resolved"}
    assert office.stages() == [("fired", "out"), ("fired", "cancelled")]
    assert office.at(noon(20)) == []
    # Who comes back later is not told of what ended before.
    office.row(21 * 60, 1.0)
    assert {case.ended for case in office.ledger.incidents.values()} == {noon(12)}
    assert len(office.ledger.notifications) == 2


def test_what_a_rule_that_is_gone_had_told_is_over() -> None:
    office = Office(rule(), rule("gone"))
    office.row(0, 3.0)
    office.desk = Notifier([rule()], office.ledger)
    office.at(noon(1))
    assert {name: case.state for (name, *_), case in office.ledger.incidents.items()} == {
        "overload": "firing",
        "gone": "resolved",
    }
    office.at(noon(24 * 31))
    assert [name for name, *_ in office.ledger.incidents] == ["overload"]
