"""Episodes, by the rows' own time: once, with hysteresis, for so long, not too often, and silence."""

import random
from typing import Any

import pytest

from riverrun.alerts import episodes
from riverrun.alerts.episodes import TopicClock, Tracker
from riverrun.alerts.ledger import Episode, Ledger, kept
from support.watching import MINUTE, NOON, rule, run, seen, table, told


def restored(tracker: Tracker) -> Tracker:
    """As after a crash: by way of the ledger's bytes."""
    ledger = Ledger()
    for each in tracker.drain():
        ledger.take(*kept(each))
    return Tracker(tracker.rule, ledger.episodes.values())


def test_it_fires_once_and_clears_below_the_lower_limit() -> None:
    tracker = Tracker(rule(clear="load_kw < 1.8"))
    loads = [1.0, 2.1, 2.5, 1.9, 2.2, 1.9, 1.7, 1.9, 2.3]
    found = run(tracker, [seen(minute, load) for minute, load in enumerate(loads)])
    assert found == [("fire", "h1", 1), ("resolve", "h1", 1), ("fire", "h1", 2)]


def test_without_a_limit_to_clear_it_is_over_when_it_no_longer_holds() -> None:
    tracker = Tracker(rule())
    assert run(tracker, [seen(0, 2.5), seen(1, None), seen(2, 2.0)]) == [("fire", "h1", 1), ("resolve", "h1", 1)]


def test_keys_have_episodes_of_their_own() -> None:
    tracker = Tracker(rule())
    rows = [seen(0, 3.0, "h1"), seen(0, 3.0, "h2"), seen(1, 1.0, "h1"), seen(1, 3.0, "h2")]
    assert run(tracker, rows) == [("fire", "h1", 1), ("fire", "h2", 1), ("resolve", "h1", 1)]


def test_it_must_last() -> None:
    tracker = Tracker(rule(lasting="2 minutes"))
    assert run(tracker, [seen(0, 3.0), seen(1, 3.0), seen(1.5, 1.0), seen(2, 3.0), seen(3.9, 3.0)]) == []
    fire = tracker.take(seen(4, 3.0))[0]
    assert (fire.number, fire.at, getattr(fire, "since", 0)) == (1, NOON + 4 * MINUTE, NOON + 2 * MINUTE)


def test_a_cooldown_is_between_two_firings_of_a_key() -> None:
    tracker = Tracker(rule(cooldown="1 hour"))
    assert run(tracker, [seen(0, 3.0), seen(1, 1.0), seen(10, 3.0), seen(11, 1.0)]) == [
        ("fire", "h1", 1),
        ("resolve", "h1", 1),
    ]
    # It still holds when the hour is over: then it is told.
    assert run(tracker, [seen(50, 3.0), seen(59, 3.0), seen(60, 3.0)]) == [("fire", "h1", 2)]


def test_a_late_row_does_not_turn_time_back() -> None:
    tracker = Tracker(rule())
    assert run(tracker, [seen(5, 3.0), seen(3, 1.0), seen(6, 3.0)]) == [("fire", "h1", 1)]
    assert run(tracker, [seen(7, 1.0), seen(6.5, 3.0)]) == [("resolve", "h1", 1)]


def test_rows_that_are_sent_again_change_nothing() -> None:
    rows = [seen(0, 3.0), seen(1, 1.0), seen(2, 3.0)]
    tracker = Tracker(rule())
    assert len(run(tracker, rows)) == 3
    assert run(tracker, rows) == []


def test_every_row_fires_once() -> None:
    tracker = Tracker(rule(when=""))
    rows = [seen(0, identity="a"), seen(0, identity="b"), seen(0, identity="a"), seen(1, identity="c")]
    assert run(tracker, rows) == [("fire", "h1", 1), ("fire", "h1", 2), ("fire", "h1", 3)]
    assert run(restored(tracker), rows) == []


def test_a_row_that_is_revised_fires_once() -> None:
    tracker = Tracker(rule(when="", over=table(upserts=True)))
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
    expected = run(Tracker(rule(**options)), rows)
    assert expected
    tracker, kept_ones, found = Tracker(rule(**options)), Ledger(), []
    for row in rows:
        found += run(tracker, [row])
        for each in tracker.drain():
            kept_ones.take(*kept(each))
        if chance.random() < 0.3:
            tracker = Tracker(rule(**options), kept_ones.episodes.values())
    assert found == expected


def test_a_backfill_of_what_is_past_fires_nothing_also_after_a_crash() -> None:
    past = [seen(minute, 3.0, house) for minute in range(-600, -60, 30) for house in ("h1", "h2")]
    first = Tracker(rule())
    run(first, [seen(0, 1.0, "h1"), seen(0, 3.0, "h2"), seen(1, 1.0, "h2")])
    tracker = restored(first)
    assert run(tracker, past) == []
    assert run(tracker, [seen(2, 3.0, "h1")]) == [("fire", "h1", 1)]
    every = Tracker(rule(when=""))
    assert len(run(every, [seen(0, 1.0), seen(-59, 1.0)])) == 2
    assert run(restored(every), past[::2]) == []


def test_the_time_of_a_quiet_key_is_not_kept_for_every_row() -> None:
    tracker = Tracker(rule(expires="1 hour"))
    written = 0
    for minute in range(240):
        tracker.take(seen(minute))
        written += len(tracker.drain())
    assert written == 4


# --- silence ---


def test_a_key_without_rows_is_told_by_the_time_of_the_others() -> None:
    tracker = Tracker(rule(silent="15 minutes", text="{house_id} was last at {load_kw:.1f}"))
    assert run(tracker, [seen(0, 1.5, "h1"), seen(0, 1.0, "h2")]) == []
    other = seen(14.9, 1.0, "h2")
    assert run(tracker, [other]) == []
    assert tracker.pass_time(other.at, other) == []
    later = seen(15, 1.0, "h2")
    tracker.take(later)
    fire = tracker.pass_time(later.at, later)[0]
    assert (fire.key, fire.number, fire.row["load_kw"], fire.recorded) == ("h1", 1, 1.5, later.recorded)
    assert tracker.pass_time(later.at + MINUTE, later) == []
    assert run(tracker, [seen(16, 1.0, "h1")]) == [("resolve", "h1", 1)]
    assert told(tracker.pass_time(NOON + 31 * MINUTE, later)) == [("fire", "h2", 1), ("fire", "h1", 2)]


def test_silence_survives_a_crash_and_is_not_made_by_it() -> None:
    first = Tracker(rule(silent="16 minutes"))
    first.take(seen(0))
    tracker = restored(first)
    # Up to two minutes of rows may not be in the ledger: so much later is it told.
    by = seen(18, house="h2")
    assert tracker.pass_time(NOON + 17 * MINUTE, by) == []
    assert told(tracker.pass_time(NOON + 18 * MINUTE, by)) == [("fire", "h1", 1)]
    assert restored(tracker).pass_time(NOON + 99 * MINUTE, by) == []


def test_silence_is_not_kept_for_every_row() -> None:
    tracker = Tracker(rule(silent="16 minutes"))
    written = 0
    for second in range(600):
        tracker.take(seen(second / 60))
        written += len(tracker.drain())
    assert written == 5


def test_the_clock_waits_for_a_partition_that_is_behind() -> None:
    clock = TopicClock()
    clock.saw(0, 100)
    assert clock.now(behind=[1]) == -1
    clock.saw(1, 40)
    assert clock.now(behind=[1]) == 40
    assert clock.now() == 100
    assert clock.now(behind=[1]) == 100


def test_keys_that_never_fired_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(episodes, "MOST_IDLE_KEYS", 100)
    tracker = Tracker(rule())
    run(tracker, [seen(0, 3.0, "fired")])
    for number in range(1000):
        tracker.take(seen(1, 1.0, f"h{number}"))
    assert len(tracker) <= 200
    assert len({each.key for each in tracker.forgotten()} | {each.key for each in tracker.drain()}) == 1001
    assert tracker.forgotten() == []
    state = tracker.state("fired")
    assert isinstance(state, Episode)
    assert state.state == "firing"
