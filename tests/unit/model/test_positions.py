"""Times and positions as people write them, on a clock that stands still."""

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from riverrun.errors import UsageError
from riverrun.model.positions import EARLIEST, LATEST, OffsetSpec, epoch_ms, parse_offset_spec, parse_time

NOW = datetime(2026, 7, 1, 12, 30, tzinfo=UTC)


def clock() -> datetime:
    return NOW


@pytest.fixture(autouse=True)
def local_zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A zone that is not UTC, so that a mistake with zones shows. (POSIX: UTC+3 has its sign turned.)"""
    monkeypatch.setenv("TZ", "HERE-3")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("now", NOW),
        ("10 minutes ago", NOW - timedelta(minutes=10)),
        ("2 Hours ago", NOW - timedelta(hours=2)),
        ("1.5h ago", NOW - timedelta(minutes=90)),
        ("2026-07-01T10:00:00Z", datetime(2026, 7, 1, 10, tzinfo=UTC)),
        ("2026-07-01T10:00:00.250+02:00", datetime(2026, 7, 1, 8, 0, 0, 250_000, tzinfo=UTC)),
        ("2026-07-01 10:00", datetime(2026, 7, 1, 7, tzinfo=UTC)),
        ("2026-07-01", datetime(2026, 6, 30, 21, tzinfo=UTC)),
        ("today", datetime(2026, 6, 30, 21, tzinfo=UTC)),
        ("today 9:05", datetime(2026, 7, 1, 6, 5, tzinfo=UTC)),
        ("yesterday at 23:59:58", datetime(2026, 6, 30, 20, 59, 58, tzinfo=UTC)),
        (" yesterday ", datetime(2026, 6, 29, 21, tzinfo=UTC)),
    ],
)
def test_a_time_is_read(text: str, moment: datetime) -> None:
    found = parse_time(text, clock=clock)
    assert found == moment
    assert found.tzinfo is not None


@pytest.mark.parametrize(
    "text", ["", "soon", "10 ago", "-5 minutes ago", "forever ago", "today 25:00", "2026-13-01", "10 minutes", "12:00"]
)
def test_what_is_not_a_time_is_refused_with_examples(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_time(text, clock=clock, what="--to-time")
    assert caught.value.what == "--to-time cannot be understood"
    assert "10 minutes ago" in caught.value.expected
    assert caught.value.found == repr(text)


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("earliest", EARLIEST),
        ("Beginning", EARLIEST),
        ("latest", LATEST),
        ("end", LATEST),
        ("0", OffsetSpec("offset", 0)),
        ("42", OffsetSpec("offset", 42)),
        ("-100", OffsetSpec("last", 100)),
        ("1 minute ago", OffsetSpec("time", epoch_ms(NOW) - 60_000)),
    ],
)
def test_a_position_is_read(text: str, position: OffsetSpec) -> None:
    assert parse_offset_spec(text, clock=clock) == position


def test_an_unknown_position_says_all_that_is_possible() -> None:
    with pytest.raises(UsageError) as caught:
        parse_offset_spec("erliest", clock=clock, what="--from")
    assert caught.value.what == "--from cannot be understood"
    assert "earliest" in caught.value.expected
    assert "-N" in caught.value.expected


def test_positions_print_for_people() -> None:
    assert [
        str(each) for each in (EARLIEST, OffsetSpec("offset", 7), OffsetSpec("last", 3), OffsetSpec("time", 0))
    ] == [
        "earliest",
        "offset 7",
        "the last 3",
        "1970-01-01T00:00:00.000+00:00",
    ]
