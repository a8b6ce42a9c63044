"""A pace, on a clock that only moves when somebody sleeps."""

import pytest

from riverrun.model.rate_limit import ThroughputThrottler


class Clock:
    """Time that passes by sleeping, or by `now +=`."""

    now = 100.0

    def time(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now += seconds


def test_things_are_evenly_spread() -> None:
    clock = Clock()
    pace = ThroughputThrottler(10, clock=clock.time, sleep=clock.sleep)
    times = []
    for _ in range(11):
        pace.wait()
        times.append(clock.now)
    assert times[0] == 100.0
    assert times[10] == pytest.approx(101.0)
    assert times[5] - times[4] == pytest.approx(0.1)


def test_a_pause_is_not_made_up_for_with_a_burst() -> None:
    clock = Clock()
    pace = ThroughputThrottler(100, clock=clock.time, sleep=clock.sleep)
    pace.wait()
    clock.now += 60
    started = clock.now
    for _ in range(111):
        pace.wait()
    assert clock.now - started == pytest.approx(1.0, abs=0.02)


def test_a_pace_that_is_kept_anyway_never_sleeps() -> None:
    clock = Clock()
    pace = ThroughputThrottler(10, clock=clock.time, sleep=lambda _: pytest.fail("it slept"))
    for _ in range(5):
        pace.wait()
        clock.now += 1
