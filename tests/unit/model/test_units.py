"""Durations and sizes as people write them."""

from datetime import timedelta

import pytest

from riverrun.errors import DeclarationError
from riverrun.model.units import format_duration, format_size, parse_duration_ms, parse_size


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("90 s", 90_000), ("90s", 90_000), ("1.5 h", 5_400_000), ("7 days", 604_800_000), ("1 day", 86_400_000),
        ("250 ms", 250), (" 2  Weeks ", 1_209_600_000), ("1 year", 31_536_000_000), ("forever", -1), ("Forever", -1),
        (timedelta(minutes=2), 120_000), (timedelta(milliseconds=1), 1),
    ],
)  # fmt: skip
def test_durations(text: str | timedelta, expected: int) -> None:
    assert parse_duration_ms(text, what="retention") == expected


@pytest.mark.parametrize("text", ["", "7", "days", "7 dayz", "-1 s", "1 s 2 ms", "1e3 s"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(DeclarationError, match="retention cannot be understood") as caught:
        parse_duration_ms(text, what="retention")
    assert caught.value.fields == {"argument": "retention"}
    assert caught.value.found == repr(text)


@pytest.mark.parametrize("value", ["0 s", "0.1 ms", timedelta(), timedelta(seconds=-1)])
def test_a_duration_is_at_least_a_millisecond(value: str | timedelta) -> None:
    with pytest.raises(DeclarationError, match="at least one millisecond"):
        parse_duration_ms(value, what="retention")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1 GiB", 2**30),
        ("500 MB", 500_000_000),
        ("1.5 kib", 1536),
        ("10 bytes", 10),
        ("1 B", 1),
        (4096, 4096),
        ("forever", -1),
    ],
)
def test_sizes(text: str | int, expected: int) -> None:
    assert parse_size(text, what="size") == expected


@pytest.mark.parametrize("value", ["", "1", "1 GiG", "-1 MB", 0, -5, "0 MB"])
def test_what_is_no_size(value: str | int) -> None:
    with pytest.raises(DeclarationError):
        parse_size(value, what="size")


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (-1, "forever"),
        (0, "0 ms"),
        (1, "1 ms"),
        (1000, "1 second"),
        (90_000, "90 seconds"),
        (120_000, "2 minutes"),
        (86_400_000, "1 day"),
    ],
)
def test_durations_for_people(ms: int, text: str) -> None:
    assert format_duration(ms) == text
    if ms > 0:
        assert parse_duration_ms(text, what="it") == ms


@pytest.mark.parametrize(
    ("count", "text"),
    [(-1, "unlimited"), (0, "0 B"), (1023, "1023 B"), (1024, "1 KiB"), (1536, "1.5 KiB"), (2**50, "1024.0 TiB")],
)
def test_sizes_for_people(count: int, text: str) -> None:
    assert format_size(count) == text


@pytest.mark.parametrize("text", ["0", "0 s", "0 minutes", "0.0 ms"])
def test_nothing_is_a_duration_where_it_may_be(text: str) -> None:
    assert parse_duration_ms(text, what="it", allow_zero=True) == 0
    with pytest.raises(DeclarationError):
        parse_duration_ms(text, what="it")


def test_what_would_overflow_is_refused() -> None:
    with pytest.raises(DeclarationError, match="at most 1000 years"):
        parse_duration_ms(f"{'9' * 400} days", what="it")
    with pytest.raises(DeclarationError, match="less than 8 EiB"):
        parse_size(f"{'9' * 400} TB", what="it")
