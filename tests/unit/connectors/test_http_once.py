"""What is known of Idempotency-Keys: bounded in number, in time and in memory."""

import msgspec

from riverrun.connectors.http import once
from riverrun.connectors.http.once import Answered, Known, content_of, job_key


def told(at: int, size: int = 2) -> Answered:
    return Answered(at, "c", 200, msgspec.Raw(b'"' + b"x" * (size - 2) + b'"'))


def test_keys_go_when_their_time_is_over() -> None:
    known = Known(window_ms=100, most=3)
    for number in range(3):
        known.add(bytes([number]), number, told(number * 50))
    assert known.full
    assert known.find(b"\0") == 0
    known.forget_old(now=99)
    assert known.full
    known.forget_old(now=100)
    assert (known.find(b"\0"), known.find(b"\1"), known.full) == (None, 1, False)
    known.forget_old(now=10_000)
    assert len(known) == 0


def test_the_newest_answers_are_at_hand() -> None:
    known = Known(window_ms=100, most=1000)
    size = once.RECENT_BYTES // 4
    for number in range(10):
        known.add(bytes([number]), number, told(0, size))
    assert known.recent(b"\x09") is not None
    assert known.recent(b"\x00") is None
    assert known.find(b"\x00") == 0
    for _ in range(10):
        known.add(b"\x09", 9, told(0, size))
    assert known.recent(b"\x08") is not None, "one key counts once"


def test_keys_are_of_their_sender_and_topic() -> None:
    found = {job_key("a", "b", "c"), job_key("ab", "", "c"), job_key("a", "b\0", "c"), job_key("a", "bc", "")}
    assert len(found) == 4
    assert content_of(b"a", b"b") != content_of(b"ab", b"")
