"""Holding what streams wrote against plain Python: what is compared, what is left out, and what is said."""

import sys
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import count

import pytest

from riverrun.demo import comparing
from riverrun.demo.comparing import Check, compare, differences, report

BEGIN = datetime(2026, 11, 16, 8, 0, tzinfo=UTC)
LATER = BEGIN + timedelta(minutes=1)
MINUTES = Check("minutes", ("minute.start", "house"), ("load_kw",), lambda _: {(BEGIN, "h1"): 1.5, (LATER, "h1"): 2.5})
FINAL = Check(MINUTES.stream, MINUTES.key, MINUTES.figures, MINUTES.expected, final="minute.start")


def row(at: datetime, load_kw: float) -> dict[str, object]:
    return {"minute": {"start": at.isoformat(), "end": "…"}, "house": "h1", "load_kw": load_kw, "more": 1}


def test_differences_are_named() -> None:
    at = BEGIN, "AVON"
    expected = {at: {"close": 49.0, "vwap": 49.25}, (BEGIN, "ERNE"): {"close": 1.0}}
    assert differences(expected, expected) == []
    assert differences(expected, {at: {"close": 50.0, "vwap": 49.25 + 1e-12}, (BEGIN, "X"): {}}) == [
        "2026-11-16 08:00:00 AVON has close 50.0 instead of 49.0",
        "2026-11-16 08:00:00 ERNE is missing",
        "2026-11-16 08:00:00 X should not be there",
    ]


def test_the_newest_row_of_each_key_counts() -> None:
    found = MINUTES.rows([row(BEGIN, 1.0), row(LATER, 2.5), row(BEGIN, 1.5)])
    assert found == MINUTES.right([]) == {(BEGIN, "h1"): {"load_kw": 1.5}, (LATER, "h1"): {"load_kw": 2.5}}


def test_rows_that_are_not_final_yet_need_not_be_there() -> None:
    right, found = FINAL.right([]), FINAL.rows([row(BEGIN, 1.5)])
    assert FINAL.not_final(right, found) == {(LATER, "h1")}
    assert FINAL.not_final(right, {}) == right.keys()
    assert MINUTES.not_final(right, found) == set()
    # A minute before the newest has to be there.
    assert FINAL.not_final(right, FINAL.rows([row(LATER, 2.5)])) == set()
    # The time may be a figure as well: that of a session's end.
    ends = Check("sessions", ("player",), ("ended",), lambda _: {"ada": BEGIN, "eve": LATER}, final="ended")
    assert ends.not_final(ends.right([]), {("ada",): {"ended": BEGIN}}) == {("eve",)}


def test_what_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    right = {(str(each),): {"n": 1} for each in range(1000, 2010)}
    assert report("numbers", right, right) == 0
    assert report("numbers", right, {}, left_out=[("1000",), ("1001",)], why="they are odd") == 1008
    said = capsys.readouterr().out.splitlines()
    assert said[:2] == [
        "numbers      1,010 rows, 0 differ",
        "numbers      1,008 rows, 1008 differ; 2 not compared, because they are odd",
    ]
    assert said[2:] == [f"  {each} is missing" for each in range(1002, 1007)]


def test_the_program(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """As many events as the source has sent, of the same seed; what is no event does not count."""

    def events(seed: int) -> Iterator[int | bytes]:
        return (b"broken" if each == 3 else each % seed for each in count())

    check = Check("rests", ("rest",), ("times",), Counter)
    wrote = [{"rest": 0, "times": 1}, {"rest": 0, "times": 2}, {"rest": 1, "times": 2}, {"rest": 2, "times": 2}]
    monkeypatch.setattr(comparing, "rows_of", lambda _: iter(wrote))
    words = ["figures.py", "--rate", "200.0", "--seed", "3", "--events"]
    monkeypatch.setattr(sys, "argv", [*words, "6"])
    assert compare("", events, int, [check]) == 1
    assert capsys.readouterr().out == "rests        3 rows, 1 differ\n  0 has times 2 instead of 1\n"
    monkeypatch.setattr(sys, "argv", [*words, "7"])
    assert compare("", events, int, [check]) == 0
    monkeypatch.setattr(sys, "argv", words[:-1])
    with pytest.raises(SystemExit):
        compare("", events, int, [check])
    assert "--events is needed" in capsys.readouterr().err
