"""Limits by a clock that is given: nothing sleeps."""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from riverrun.alerts.channels import limits as limits_file
from riverrun.alerts.channels.limits import ChannelLimits, DailyBudget, LimitDelay, MessageRate, MessageTokenBucket

NOW = round(datetime(2026, 11, 16, 17, 0, tzinfo=UTC).timestamp() * 1000)


def test_a_bucket_gives_its_burst_and_then_its_pace() -> None:
    bucket = MessageTokenBucket(MessageRate(5, 1000), NOW)
    for _ in range(5):
        assert bucket.wait_ms(NOW) == 0
        bucket.consume(NOW)
    assert bucket.wait_ms(NOW) == 200
    assert bucket.wait_ms(NOW + 199) == 1
    assert bucket.wait_ms(NOW + 200) == 0
    assert not bucket.is_full(NOW + 999)
    assert bucket.is_full(NOW + 1000)


def test_a_clock_that_is_set_back_gives_nothing_away() -> None:
    bucket = MessageTokenBucket(MessageRate(1, 1000), NOW)
    bucket.consume(NOW)
    assert bucket.wait_ms(NOW - 3_600_000) == 1000
    assert bucket.wait_ms(NOW) == 1000
    assert bucket.wait_ms(NOW + 1000) == 0


def test_a_minute_never_sees_more_than_the_rate_and_its_burst() -> None:
    limits = ChannelLimits(rate=MessageRate(10, 1000))
    went = sum(limits.acquire("x", 1, NOW + each) is None for each in range(0, 60_000, 7))
    assert went in {609, 610}


def test_a_receiver_that_has_enough_does_not_stop_another() -> None:
    limits = ChannelLimits(per_receiver=MessageRate(2, 3_600_000))
    assert [limits.acquire("a", 1, NOW) for _ in range(2)] == [None, None]
    assert limits.acquire("a", 1, NOW) == LimitDelay(1_800_000, "this receiver has had enough for now")
    assert limits.acquire("b", 1, NOW) is None
    assert limits.acquire("a", 1, NOW + 1_800_000) is None


def test_what_one_limit_stops_costs_the_others_nothing() -> None:
    limits = ChannelLimits(rate=MessageRate(3, 1000), per_receiver=MessageRate(1, 1000), budget=DailyBudget(10))
    assert limits.acquire("a", 1, NOW) is None
    for _ in range(5):
        assert limits.acquire("a", 1, NOW) is not None
    assert limits.acquire("b", 1, NOW) is None
    assert limits.acquire("c", 1, NOW) is None
    assert limits.budget.spent(NOW) == 3


def test_a_budget_begins_anew_at_midnight_of_its_zone() -> None:
    zone = ZoneInfo("Asia/Kolkata")
    evening = round(datetime(2026, 11, 16, 23, 59, tzinfo=zone).timestamp() * 1000)
    budget = DailyBudget(10, "Asia/Kolkata")
    budget.spend(9, evening)
    assert budget.wait_ms(1, evening) == 0
    assert budget.wait_ms(2, evening) == 60_000
    assert budget.wait_ms(2, evening + 60_000) == 0
    assert budget.spent(evening + 60_000) == 0


def test_midnight_is_right_on_the_day_the_clocks_change() -> None:
    zone = ZoneInfo("Europe/Dublin")
    noon = round(datetime(2026, 10, 25, 12, 0, tzinfo=zone).timestamp() * 1000)
    budget = DailyBudget(1, "Europe/Dublin")
    budget.spend(1, noon)
    midnight = datetime.fromtimestamp((noon + budget.wait_ms(1, noon)) / 1000, zone)
    assert (midnight.day, midnight.hour, midnight.minute) == (26, 0, 0)


def test_a_message_larger_than_the_day_goes_alone() -> None:
    budget = DailyBudget(2)
    assert budget.wait_ms(3, NOW) == 0
    budget.spend(3, NOW)
    assert budget.wait_ms(1, NOW) > 0


def test_what_was_not_taken_is_given_back_and_history_counts() -> None:
    budget = DailyBudget(5)
    budget.spend(3, NOW - 86_400_000)
    budget.spend(4, NOW)
    budget.spend(2, NOW - 86_400_000)
    assert budget.spent(NOW) == 4
    limits = ChannelLimits(budget=budget)
    limits.refund(4, NOW)
    assert budget.spent(NOW) == 0


def test_receivers_that_are_quiet_again_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = ChannelLimits(per_receiver=MessageRate(1, 1000))
    monkeypatch.setattr(limits_file, "MAX_RECEIVERS", 100)
    for number in range(1000):
        limits.acquire(str(number), 1, NOW + number * 100)
    assert len(limits._receiver_buckets) <= 100
