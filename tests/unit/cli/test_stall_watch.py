"""A command that waits for Kafka says so, and why."""

import time

from riverrun.cli.stall_watch import FIRST_NOTICE_SECONDS, StallWatch


def test_it_says_that_nothing_moves_less_and_less_often_and_that_it_moves_again() -> None:
    said: list[str] = []
    counts = [10, 4]
    watch = StallWatch(lambda: (counts[0], counts[1]), lambda: "broker-1 is restarting: the disk is full", said.append)
    now = time.monotonic()
    watch.poll(now)
    watch.poll(now + FIRST_NOTICE_SECONDS - 0.1)
    assert not said
    watch.poll(now + FIRST_NOTICE_SECONDS)
    watch.poll(now + FIRST_NOTICE_SECONDS + 1)
    expected = "Kafka has acknowledged nothing for 5 s; 6 records on the way. broker-1 is restarting: the disk is full."
    assert said == [expected]
    watch.poll(now + 2 * FIRST_NOTICE_SECONDS)
    assert "for 10 s" in said[1]
    counts[1] = 5
    watch.poll(now + 11)
    assert said[2:] == ["Records are acknowledged again."]


def test_a_source_that_gives_nothing_is_no_stall() -> None:
    said: list[str] = []
    watch = StallWatch(lambda: (4, 4), str, said.append)
    for seconds in range(0, 100, 5):
        watch.poll(time.monotonic() + seconds)
    assert not said
