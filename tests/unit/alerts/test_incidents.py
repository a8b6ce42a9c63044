"""Episodes, by the rows' own time: once, with hysteresis, for so long, not too often, and silence."""

import random
from dataclasses import replace
from typing import Any

import pytest

from riverrun.alerts import incidents
from riverrun.alerts.incidents import IncidentFired, IncidentTracker, TopicClock
from riverrun.alerts.rows import WatchedRow
from riverrun.alerts.state_topic import AlertInstance, AlertState, encode_upsert
from support.watching import MINUTE, NOON, rule, run, seen, table, told


def restored(tracker: IncidentTracker) -> IncidentTracker:
    """As after a crash: by way of the ledger's bytes."""
    ledger = AlertState()
    for each in tracker.drain_changed():
        ledger.apply_change(*encode_upsert(each))
    return IncidentTracker(tracker.rule, ledger.episodes.values())


def test_it_fires_once_and_clears_below_the_lower_limit() -> None:
    tracker = IncidentTracker(rule(clear="load_kw < 1.8"))
    loads = [1.0, 2.1, 2.5, 1.9, 2.2, 1.9, 1.7, 1.9, 2.3]
    found = run(tracker, [seen(minute, load) for minute, load in enumerate(loads)])
    assert found == [("fire", "h1", 1), ("resolve", "h1", 1), ("fire", "h1", 2)]


def test_without_a_limit_to_clear_it_is_over_when_it_no_longer_holds() -> None:
    tracker = IncidentTracker(rule())
    assert run(tracker, [seen(0, 2.5), seen(1, None), seen(2, 2.0)]) == [("fire", "h1", 1), ("resolve", "h1", 1)]


def test_keys_have_episodes_of_their_own() -> None:
    tracker = IncidentTracker(rule())
    rows = [seen(0, 3.0, "h1"), seen(0, 3.0, "h2"), seen(1, 1.0, "h1"), seen(1, 3.0, "h2")]
    assert run(tracker, rows) == [("fire", "h1", 1), ("fire", "h2", 1), ("resolve", "h1", 1)]


def test_it_must_last() -> None:
    tracker = IncidentTracker(rule(lasting="2 minutes"))
    assert run(tracker, [seen(0, 3.0), seen(1, 3.0), seen(1.5, 1.0), seen(2, 3.0), seen(3.9, 3.0)]) == []
    [fire] = tracker.evaluate(seen(4, 3.0))
    assert isinstance(fire, IncidentFired)
    assert (fire.number, fire.event_time, fire.since) == (1, NOON + 4 * MINUTE, NOON + 2 * MINUTE)


def test_a_cooldown_is_between_two_firings_of_a_key() -> None:
    tracker = IncidentTracker(rule(cooldown="1 hour"))
    assert run(tracker, [seen(0, 3.0), seen(1, 1.0), seen(10, 3.0), seen(11, 1.0)]) == [
        ("fire", "h1", 1),
        ("resolve", "h1", 1),
    ]
    # It still holds when the hour is over: then it is told.
    assert run(tracker, [seen(50, 3.0), seen(59, 3.0), seen(60, 3.0)]) == [("fire", "h1", 2)]


def test_a_late_row_does_not_turn_time_back() -> None:
    tracker = IncidentTracker(rule())
    assert run(tracker, [seen(5, 3.0), seen(3, 1.0), seen(6, 3.0)]) == [("fire", "h1", 1)]
    assert run(tracker, [seen(7, 1.0), seen(6.5, 3.0)]) == [("resolve", "h1", 1)]


def test_rows_that_are_sent_again_change_nothing() -> None:
    rows = [seen(0, 3.0), seen(1, 1.0), seen(2, 3.0)]
    tracker = IncidentTracker(rule())
    assert len(run(tracker, rows)) == 3
    assert run(tracker, rows) == []


def test_every_row_fires_once() -> None:
    tracker = IncidentTracker(rule(when=""))
    rows = [seen(0, identity="a"), seen(0, identity="b"), seen(0, identity="a"), seen(1, identity="c")]
    assert run(tracker, rows) == [("fire", "h1", 1), ("fire", "h1", 2), ("fire", "h1", 3)]
    assert run(restored(tracker), rows) == []


def test_a_row_that_is_revised_fires_once() -> None:
    tracker = IncidentTracker(rule(when="", over=table(upserts=True)))
    assert run(tracker, [seen(0, 1.0), seen(0, 2.0), seen(1, 1.0)]) == [("fire", "h1", 1), ("fire", "h1", 2)]


def test_an_episode_of_windows_is_by_their_key_without_the_time() -> None:
    assert rule(over=table(key=("at", "house_id"))).by == ("house_id",)
    assert rule(over=table(key=("at",))).key_of({}) == ""
    assert rule(by=["house_id", "phone"]).key_of({"house_id": "a", "phone": "b"}) == '["a","b"]'
    assert rule().key_of({"house_id": "x" * 5000}) != rule().key_of({"house_id": "x" * 5001})


@pytest.mark.parametrize("seed", range(20))
def test_a_crash_at_any_row_changes_nothing(seed: int) -> None:
    chance = random.Random(seed)
    rows = [seen(minute, chance.choice([1.0, 1.9, 2.5]), chance.choice(["h1", "h2"])) for minute in range(60)]
    options: dict[str, Any] = {"clear": "load_kw < 1.8", "lasting": "2 minutes", "cooldown": "7 minutes"}
    expected = run(IncidentTracker(rule(**options)), rows)
    assert expected
    tracker, kept_ones, found = IncidentTracker(rule(**options)), AlertState(), []
    for row in rows:
        found += run(tracker, [row])
        for each in tracker.drain_changed():
            kept_ones.apply_change(*encode_upsert(each))
        if chance.random() < 0.3:
            tracker = IncidentTracker(rule(**options), kept_ones.episodes.values())
    assert found == expected


def test_a_backfill_of_what_is_past_fires_nothing_also_after_a_crash() -> None:
    past = [seen(minute, 3.0, house) for minute in range(-600, -60, 30) for house in ("h1", "h2")]
    first = IncidentTracker(rule())
    run(first, [seen(0, 1.0, "h1"), seen(0, 3.0, "h2"), seen(1, 1.0, "h2")])
    tracker = restored(first)
    assert run(tracker, past) == []
    assert run(tracker, [seen(2, 3.0, "h1")]) == [("fire", "h1", 1)]
    every = IncidentTracker(rule(when=""))
    assert len(run(every, [seen(0, 1.0), seen(-59, 1.0)])) == 2
    assert run(restored(every), past[::2]) == []


def test_the_time_of_a_quiet_key_is_not_kept_for_every_row() -> None:
    tracker = IncidentTracker(rule(expires="1 hour"))
    written = 0
    for minute in range(240):
        tracker.evaluate(seen(minute))
        written += len(tracker.drain_changed())
    assert written == 4


# --- silence ---


def test_a_key_without_rows_is_told_by_the_time_of_the_others() -> None:
    tracker = IncidentTracker(rule(silent="15 minutes", text="{house_id} was last at {load_kw:.1f}"))
    assert run(tracker, [seen(0, 1.5, "h1"), seen(0, 1.0, "h2")]) == []
    other = seen(14.9, 1.0, "h2")
    assert run(tracker, [other]) == []
    assert tracker.fire_absences(other.event_time, other) == []
    later = seen(15, 1.0, "h2")
    tracker.evaluate(later)
    [fire] = tracker.fire_absences(later.event_time, later)
    assert isinstance(fire, IncidentFired)
    assert (fire.key, fire.number, fire.row["load_kw"], fire.record_time) == ("h1", 1, 1.5, later.record_time)
    assert tracker.fire_absences(later.event_time + MINUTE, later) == []
    assert run(tracker, [seen(16, 1.0, "h1")]) == [("resolve", "h1", 1)]
    assert told(tracker.fire_absences(NOON + 31 * MINUTE, later)) == [("fire", "h2", 1), ("fire", "h1", 2)]


def test_silence_survives_a_crash_and_is_not_made_by_it() -> None:
    first = IncidentTracker(rule(silent="16 minutes"))
    first.evaluate(seen(0))
    tracker = restored(first)
    # Up to two minutes of rows may not be in the ledger: so much later is it told.
    by = seen(18, house="h2")
    assert tracker.fire_absences(NOON + 17 * MINUTE, by) == []
    assert told(tracker.fire_absences(NOON + 18 * MINUTE, by)) == [("fire", "h1", 1)]
    assert restored(tracker).fire_absences(NOON + 99 * MINUTE, by) == []


def test_silence_is_not_kept_for_every_row() -> None:
    tracker = IncidentTracker(rule(silent="16 minutes"))
    written = 0
    for second in range(600):
        tracker.evaluate(seen(second / 60))
        written += len(tracker.drain_changed())
    assert written == 5


def test_who_is_late_is_not_silent_again_at_once() -> None:
    tracker = IncidentTracker(rule(silent="15 minutes"))
    rows = [seen(0, house="slow"), *(seen(minute, house="h2") for minute in range(61))]
    assert [each for row in rows for each in follow(tracker, row)] == [("fire", "slow", 1)]
    # An hour late, and then not at all.
    assert follow(tracker, seen(1, house="slow")) == [("resolve", "slow", 1)]
    tracker = restored(tracker)
    after = [told_at for told_at in range(61, 90) if follow(tracker, seen(told_at, house="h2"))]
    # From the hour at which it came, and two minutes more for what a crash may have forgotten.
    assert after == [77]


# --- the clock of a topic ---


def follow(tracker: IncidentTracker, row: WatchedRow) -> list[tuple[str, str, int]]:
    """A row as the engine gives it."""
    return told([*tracker.evaluate(row), *tracker.advance_clock(row)])


def clock_at(clock: TopicClock, minute: float, house: str = "h1", *, recorded: float | None = None) -> float:
    """The minute that the clock shows after a row of this minute."""
    row = seen(minute, house=house)
    kafka = row.event_time if recorded is None else NOON + round(recorded * MINUTE)
    clock.observe(replace(row, record_time=kafka), house)
    return (clock.now() - NOON) / MINUTE


def test_the_clock_waits_for_a_partition_that_is_behind() -> None:
    clock = TopicClock(max_leap_ms=MINUTE)
    ahead, back = seen(2), replace(seen(1), partition=1)
    clock.observe(ahead, "h1")
    assert clock.now(lagging=[1]) == -1
    clock.observe(back, "h2")
    assert clock.now(lagging=[1]) == back.event_time
    assert clock.now() == ahead.event_time
    assert clock.now(lagging=[1]) == ahead.event_time


def test_one_wrong_clock_does_not_move_it() -> None:
    clock = TopicClock(max_leap_ms=5 * MINUTE)
    day = 24 * 60
    assert clock_at(clock, day, "wrong", recorded=0) < 0
    for minute in range(30):
        assert clock_at(clock, minute, "h1") == minute
        # However often, and many at once.
        assert clock_at(clock, minute + day, "wrong", recorded=minute) == minute
        assert clock_at(clock, minute + day + 0.5, "wrong", recorded=minute) == minute
        assert clock_at(clock, minute, "h2") == minute


def test_it_follows_when_another_key_is_as_far() -> None:
    clock = TopicClock(max_leap_ms=5 * MINUTE)
    assert clock_at(clock, 0, "h1") == 0
    assert clock_at(clock, 60, "h1", recorded=0.1) == 0
    assert clock_at(clock, 59, "h2", recorded=0.1) == 59
    assert clock_at(clock, 60, "h1", recorded=0.1) == 60
    # Only as far as both are.
    assert clock_at(clock, 900, "h1", recorded=0.2) == 60
    assert clock_at(clock, 66, "h2", recorded=0.2) == 66


def test_it_follows_one_key_by_small_steps_and_as_far_as_kafkas_clock() -> None:
    clock = TopicClock(max_leap_ms=5 * MINUTE)
    # A day of events in 24 s of Kafka's time.
    for minute in range(0, 24 * 60, 5):
        assert clock_at(clock, minute, recorded=minute / 3600) == minute
    pause = TopicClock(max_leap_ms=5 * MINUTE)
    assert [clock_at(pause, minute) for minute in (0, 60, 3000)] == [0, 60, 3000]


def test_a_row_of_tomorrow_makes_nobody_silent() -> None:
    tracker = IncidentTracker(rule(silent="15 minutes"))
    houses = [f"h{number}" for number in range(5)]
    found = [each for house in houses for each in follow(tracker, seen(0, house=house))]
    found += follow(tracker, replace(seen(24 * 60, house="h0"), record_time=NOON))
    for minute in range(1, 40):
        alive = houses[1:4] if minute > 10 else houses[1:]
        found += [each for house in alive for each in follow(tracker, seen(minute, house=house))]
    # Who is silent is told all the same.
    assert found == [("fire", "h4", 1)]


def test_keys_that_never_fired_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(incidents, "MAX_IDLE_KEYS", 100)
    tracker = IncidentTracker(rule())
    run(tracker, [seen(0, 3.0, "fired")])
    for number in range(1000):
        tracker.evaluate(seen(1, 1.0, f"h{number}"))
    assert len(tracker) <= 200
    assert len({each.key for each in tracker.drain_removed()} | {each.key for each in tracker.drain_changed()}) == 1001
    assert tracker.drain_removed() == []
    state = tracker.instance("fired")
    assert isinstance(state, AlertInstance)
    assert state.state == "firing"


# --- forgetting ---

DAY = 24 * 60


def swept(tracker: IncidentTracker, day: float, *told_of: str) -> list[str]:
    """A sweep so many days after noon, while these keys have cases: the keys whose episodes are given up."""
    return [
        each.key for each in tracker.sweep(NOON + round(day * DAY * MINUTE), {("overload", key) for key in told_of})
    ]


def test_a_key_without_rows_is_forgotten_after_its_case() -> None:
    tracker = IncidentTracker(rule())
    run(tracker, [seen(0, 3.0, "once"), seen(1, 1.0, "once"), seen(0, 1.0, "quiet"), seen(0, 3.0, "h1")])
    for day in range(1, 40):
        run(tracker, [seen(day * DAY, 3.0, "h1")])
        assert swept(tracker, day, "once", "h1") == []
        tracker = restored(tracker) if day == 3 else tracker
    # The other one never fired.
    assert [each.key for each in tracker.drain_removed()] == ["quiet"]
    assert tracker.instance("once") is not None
    assert swept(tracker, 40, "h1") == []
    assert [each.key for each in tracker.drain_removed()] == ["once"]
    assert len(tracker) == 1
    assert run(tracker, [seen(40 * DAY, 3.0, "once"), seen(40 * DAY, 3.0, "h1")]) == [("fire", "once", 1)]


def test_what_fires_and_is_never_heard_of_again_is_given_up() -> None:
    tracker = IncidentTracker(rule())
    run(tracker, [seen(0, 3.0)])
    assert swept(tracker, 29, "h1") == []
    assert swept(tracker, 31, "h1") == ["h1"]
    assert swept(restored(tracker), 31, "h1") == []
    # It counts on while it has a case.
    assert run(tracker, [seen(32 * DAY, 3.0)]) == [("fire", "h1", 2)]


def test_who_is_silent_is_given_up_and_can_come_back() -> None:
    tracker = IncidentTracker(rule("overload", silent="15 minutes"))
    for minute in (0, 31 * DAY):
        follow(tracker, seen(minute, house="h2"))
        if not minute:
            follow(tracker, seen(0, house="gone"))
    state = tracker.instance("gone")
    assert state is not None
    assert state.state == "firing"
    assert swept(tracker, 31, "gone", "h2") == ["gone"]
    assert follow(tracker, seen(31 * DAY + 1, house="gone")) == [("resolve", "gone", 1)]
    assert swept(tracker, 63, "h2") == []
    assert tracker.instance("gone") is None
    # Its time to be silent comes, and it is not known any more.
    assert follow(tracker, seen(64 * DAY, house="h2")) == []


def test_an_episode_of_an_older_ledger_is_as_old_as_its_first_sweep() -> None:
    tracker = IncidentTracker(rule(), [AlertInstance(rule="overload", key="h1", number=1)])
    assert swept(tracker, 100) == []
    assert [each.last_seen for each in tracker.drain_changed()] == [NOON + 100 * DAY * MINUTE]
    assert len(tracker) == 1
    swept(tracker, 131)
    assert len(tracker) == 0
