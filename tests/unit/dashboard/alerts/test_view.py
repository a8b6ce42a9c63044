"""What the alerts page is told of a ledger: which list a case is in, where its messages stand, and no number whole."""

import json
from typing import Any

import pytest

from riverrun.alerts.channels.contract import DeliveryStatus
from riverrun.alerts.state_topic import (
    AlertProcessLease,
    AlertRecord,
    AlertState,
    ChannelHealthRecord,
    DeliveryRecord,
    Incident,
    Notification,
    PartitionPosition,
)
from riverrun.dashboard.alerts import view
from riverrun.dashboard.alerts.state_follower import AlertLag, LagTracker
from riverrun.dashboard.alerts.view import details_of, diff_state, masked, process_of, state_of
from riverrun.model.cluster_state import TopicPartition
from support.alerted import MINUTE, PHONE, ack, fired, life, now_ms, quiet


def ledger_with(*records: AlertRecord) -> AlertState:
    ledger = AlertState()
    for record in records:
        ledger.put(record)
    return ledger


def told(*records: AlertRecord, **given: Any) -> dict[str, Any]:
    return state_of(ledger_with(*records), given.pop("now", now_ms()), **given)


def lists(state: dict[str, Any]) -> dict[str, str]:
    return {each["key"]: each["list"] for each in state["cases"].values()}


def one(state: dict[str, Any]) -> dict[str, Any]:
    (found,) = state["cases"].values()
    assert isinstance(found, dict)
    return found


def test_cases_are_sorted_out() -> None:
    state = told(
        *fired("fires"),
        *fired("over", resolved=1),
        *fired("once", state="once"),
        *fired("asleep", stage="held", until=now_ms() + MINUTE, note="quiet hours"),
        *fired("asleep once", stage="held", until=now_ms() + MINUTE, state="once"),
        *fired("gathers", stage="gathering", until=now_ms() + MINUTE),
        *fired("was silenced", stage="silenced", note="silenced by ada"),
        *fired("dropped", stage="dropped", note="quiet hours"),
        *fired("too old", stage="expired", note="the row was 2 hours old"),
        *fired("silenced now"),
        quiet(key="silenced now"),
    )
    assert lists(state) == {
        "fires": "firing", "too old": "firing", "over": "history", "once": "history", "asleep": "held",
        "asleep once": "held", "gathers": "held", "was silenced": "held", "dropped": "held", "silenced now": "held",
    }  # fmt: skip
    assert state["totals"] == {"firing": 2, "held": 6, "history": 2, "dead": 0}
    # Held once is over in itself: nobody can acknowledge it.
    assert state["count"] == 2


def test_who_is_told_that_something_fires_is_counted_until_somebody_looks_after_it() -> None:
    state = told(*fired("a", severity="info"), *fired("b", severity="critical"), *fired("c"), ack("b"))
    assert (state["count"], state["worst"]) == (2, "warning")
    acked = next(each for each in state["cases"].values() if each["key"] == "b")
    assert acked["ack"]["by"] == "ada"
    assert told()["worst"] == ""


@pytest.mark.parametrize(
    ("silence", "covered"),
    [
        ({"rule": "overload", "key": "h1"}, True),
        ({"rule": "overload"}, True),
        ({"key": "h1"}, True),
        ({}, True),
        ({"rule": "silent"}, False),
        ({"key": "h2"}, False),
        ({"minutes": 0}, False),
    ],
)
def test_a_silence_covers_what_it_names(silence: dict[str, Any], covered: bool) -> None:
    state = told(*fired("h1"), quiet(**silence))
    assert lists(state)["h1"] == ("held" if covered else "firing")
    assert (one(state)["silence"] is not None) == covered
    assert len(state["silences"]) == (0 if "minutes" in silence else 1)


def test_where_messages_stand() -> None:
    waiting = one(told(*fired("h", delivery="due", reason="the provider is busy")))
    assert (waiting["sent"], waiting["reason"]) == ({"waiting": 1}, "the provider is busy")
    assert one(told(*fired("h", delivery="trying")))["sent"] == {"sending": 1}
    assert one(told(*fired("h", to=(PHONE, "+353870000000"), delivery="sent")))["sent"] == {"sent": 2}
    # Decided, and the sender has not said anything yet.
    unsent = [each for each in fired("h") if not isinstance(each, DeliveryRecord)]
    assert one(told(*unsent))["sent"] == {"waiting": 1}
    held = one(told(*fired("h", stage="held", until=77, note="quiet hours")))
    assert (held["sent"], held["until"], held["reason"]) == ({"held": 1}, 77, "quiet hours")
    assert one(told(*fired("h", to=())))["sent"] == {}


def test_a_message_in_a_digest_stands_where_the_digest_does() -> None:
    letters: list[AlertRecord] = []
    for key in ("a", "b"):
        letters += [
            each
            if not isinstance(each, Notification)
            else Notification(**{**_fields(each), "stage": "listed", "note": "the digest"})
            for each in fired(key)
            if not isinstance(each, DeliveryRecord)
        ]
    first = next(each for each in letters if isinstance(each, Notification))
    digest = Notification(
        message=first.message.__class__(id="the digest", channel="sms", receiver=PHONE, text="2 alerts"),
        rule="overload", key="a", number=1, kind="digest", created_at=1, digest_ids=["x", "y"],
    )  # fmt: skip
    ledger = ledger_with(
        *letters,
        digest,
        DeliveryRecord(id="the digest", delivery=DeliveryStatus(state="refused", reason=f"{PHONE} is barred")),
    )
    state = state_of(ledger, now_ms())
    assert [each["sent"] for each in state["cases"].values()] == [{"refused": 1}] * 2
    assert lists(state) == {"a": "firing", "b": "firing"}
    (dead,) = state["dead"].values()
    assert (dead["kind"], dead["reason"], dead["to"]) == ("digest", "+353 ••• 4567 is barred", "+353 ••• 4567")
    found = details_of(ledger, ("overload", "b", 1), now_ms())
    assert found is not None
    (letter,) = found["letters"]
    assert (letter["note"], letter["state"]) == ("in a digest of 2", "refused")


def _fields(record: Notification) -> dict[str, Any]:
    return {name: getattr(record, name) for name in record.__struct_fields__ if name != "version"}


def test_dead_letters_have_a_reason_and_the_newest_come_first() -> None:
    records = [
        each
        for number, state in enumerate(("refused", "undelivered", "delivered", "expired"), 1)
        for each in fired(f"h{number}", ago=10 - number, delivery=state, reason="why")  # type: ignore[arg-type]
    ]
    state = told(*records)
    assert [(each["key"], each["state"], each["reason"]) for each in state["dead"].values()] == [
        ("h2", "undelivered", "why"), ("h1", "refused", "why"),
    ]  # fmt: skip
    assert state["totals"]["dead"] == 2


def test_long_lists_are_cut_and_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MAX_FIRING", "MAX_HISTORY", "MAX_DEAD"):
        monkeypatch.setattr(view, name, 2)
    records = [each for n in range(5) for each in fired(f"f{n}", ago=n + 1, severity="critical" if n == 4 else "info")]
    records += [each for n in range(5) for each in fired(f"p{n}", ago=n + 9, resolved=1, delivery="refused")]
    state = told(*records)
    assert set(lists(state)) == {"f0", "f4", "p0", "p1"}
    assert state["totals"] == {"firing": 5, "held": 0, "history": 5, "dead": 5}
    assert (len(state["dead"]), state["count"]) == (2, 5)


def test_no_list_has_a_number_whole() -> None:
    reason = f"{PHONE} is not known"
    state = told(*fired("h1", delivery="refused", reason=reason), *fired("h2", resolved=1), *fired("h3", stage="held"))
    text = json.dumps(state)
    assert PHONE not in text
    assert PHONE[1:] not in text
    assert "+353 \\u2022\\u2022\\u2022 4567" in text
    found = details_of(ledger_with(*fired("h1", delivery="refused", reason=reason)), ("overload", "h1", 1), now_ms())
    assert found is not None
    assert found["letters"][0]["to"] == PHONE
    assert found["letters"][0]["reason"] == reason


@pytest.mark.parametrize(
    ("receiver", "shown"),
    [
        ("+353861234567", "+353 ••• 4567"),
        ("+1 202 555 0123", "+1 ••• 0123"),
        ("+447700900123", "+44 ••• 0123"),
        ("+35316", "+353 ••• 16"),
        ("086 123 4567", "••• 4567"),
        ("ada@example.org", "a•••@example.org"),
        ("#ops", "#ops"),
        ("", ""),
    ],
)
def test_a_receiver_is_masked(receiver: str, shown: str) -> None:
    assert masked(receiver) == shown


def test_one_case_is_told_whole() -> None:
    row = {"house_id": "h1", "load_kw": 2.4, "known": True, "paid": None, "tags": ["a"], "long": "x" * 9000}
    ledger = ledger_with(*fired("h1", to=(PHONE, "ops"), row=row, resolved=1), ack("h1"), quiet(rule="overload"))
    found = details_of(ledger, ("overload", "h1", 1), now_ms())
    assert found is not None
    assert {each["name"]: each["value"] for each in found["row"]} == {
        "house_id": "h1", "load_kw": "2.4", "known": "true", "paid": None, "tags": '["a"]', "long": "x" * 4000,
    }  # fmt: skip
    assert [each["name"] for each in found["row"] if each["cut"]] == ["long"]
    assert found["place"] == "house_now[1]@4101"
    assert found["since"] < found["made"] < found["ended"]
    assert [(each["to"], each["kind"], each["state"], each["tries"]) for each in found["letters"]] == [
        (PHONE, "fired", "delivered", 1), ("ops", "fired", "delivered", 1),
        (PHONE, "resolved", "delivered", 1), ("ops", "resolved", "delivered", 1),
    ]  # fmt: skip
    assert found["ack"]["by"] == "ada"
    assert found["silence"]["rule"] == "overload"
    assert details_of(ledger, ("overload", "h1", 2), now_ms()) is None


def test_a_case_whose_messages_are_forgotten_is_shown_all_the_same() -> None:
    (case,) = [each for each in fired("h1", resolved=1) if isinstance(each, Incident)]
    assert one(told(case))["text"] == ""
    assert lists(told(case)) == {"h1": "history"}


def test_rules_are_those_that_are_declared_that_run_and_that_fired() -> None:
    state = told(*fired("h1", rule="gone"), life(rules=["overload"]), declared=("new",))
    assert state["rules"] == ["gone", "new", "overload"]


def test_how_the_process_is() -> None:
    born = AlertProcessLease(begun=10, pid=7, host="here")
    assert process_of(None, None)["state"] == "never"
    assert process_of(born, None) == {"state": "running", "since": 10, "pid": 7, "host": "here"}
    assert process_of(born, True)["state"] == "running"
    assert process_of(born, False)["state"] == "died"
    ended = process_of(AlertProcessLease(begun=10, pid=7, host="here", ended=20), False)
    assert (ended["state"], ended["since"]) == ("ended", 20)


def test_channels_tell_what_is_wrong() -> None:
    state = told(
        ChannelHealthRecord(name="sms", problem="no route to host", since=5),
        ChannelHealthRecord(name="ops", destination="slack"),
    )
    assert [(each["name"], each["problem"]) for each in state["channels"]] == [("ops", ""), ("sms", "no route to host")]


def test_a_page_is_told_what_changed_and_what_is_gone() -> None:
    before = {"count": 1, "cases": {"a": {"n": 1}, "b": {"n": 1}, "c": {"n": 1}}}
    now = {"count": 1, "cases": {"a": {"n": 1}, "b": {"n": 2}, "d": {"n": 1}}}
    assert diff_state(before, now, ("cases",)) == {"cases": {"b": {"n": 2}, "c": None, "d": {"n": 1}}}
    assert diff_state(now, now, ("cases",)) == {}
    assert diff_state({}, {"trouble": None, "cases": {}}, ("cases",)) == {"trouble": None}


# --- how far behind ---


def at(offset: int, topic_id: str = "t") -> dict[tuple[str, int], PartitionPosition]:
    return {("house_now", 0): PartitionPosition(topic="house_now", partition=0, offset=offset, topic_id=topic_id)}


def test_what_was_there_before_and_is_not_judged_is_late() -> None:
    now = 100.0
    late = LagTracker(lambda: now)
    place = TopicPartition("house_now", 0)
    assert late.lag_of(at(10), {place: (10, "t")}) is None
    assert late.lag_of(at(10), {place: (20, "t")}) == AlertLag(10, 100_000)
    now = 102.0
    # It reached what was there; what came since is new.
    assert late.lag_of(at(20), {place: (40, "t")}) == AlertLag(20, 102_000)
    now = 104.0
    assert late.lag_of(at(25), {place: (60, "t")}) == AlertLag(35, 102_000)
    now = 106.0
    assert late.lag_of(at(60), {place: (60, "t")}) is None
    assert late.lag_of(at(60), {place: (70, "t")}) == AlertLag(10, 106_000)
    # Of a topic that was made anew nothing is known, nor of one that is gone.
    assert late.lag_of(at(60, "other"), {place: (99, "t")}) is None
    assert late.lag_of(at(60), {}) is None
