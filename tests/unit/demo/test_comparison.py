"""Holding what streams wrote against plain Python: what is compared, what is left out, and what is said."""

import json
import sys
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path

import pytest

import riverrun as rr
from riverrun.config import Project
from riverrun.config.stream_state import state_path
from riverrun.demo import comparison
from riverrun.demo.comparison import StreamCheck, clock_of, compare, differences, report
from riverrun.model.progress import PipelineProgress, StreamProgress

BEGIN = datetime(2026, 11, 16, 8, 0, tzinfo=UTC)
LATER = BEGIN + timedelta(minutes=1)
MINUTES = StreamCheck(
    "minutes", ("minute.start", "house"), ("load_kw",), lambda _: {(BEGIN, "h1"): 1.5, (LATER, "h1"): 2.5}
)
FINAL = StreamCheck(MINUTES.stream, MINUTES.key, MINUTES.figures, MINUTES.expected, final="minute.start")


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
    assert found == MINUTES.expected_rows([]) == {(BEGIN, "h1"): {"load_kw": 1.5}, (LATER, "h1"): {"load_kw": 2.5}}


def test_rows_that_are_not_final_yet_need_not_be_there() -> None:
    right, found = FINAL.expected_rows([]), FINAL.rows([row(BEGIN, 1.5)])
    assert FINAL.not_final(right, found, BEGIN) == {(LATER, "h1")}
    assert FINAL.not_final(right, {}, LATER - timedelta(seconds=1)) == right.keys()
    assert MINUTES.not_final(right, found, BEGIN) == set()
    # A minute before the newest has to be there.
    assert FINAL.not_final(right, FINAL.rows([row(LATER, 2.5)]), BEGIN) == set()
    # The time may be a figure as well: that of a session's end.
    ends = StreamCheck("sessions", ("player",), ("ended",), lambda _: {"ada": BEGIN, "eve": LATER}, final="ended")
    assert ends.not_final(ends.expected_rows([]), {("ada",): {"ended": BEGIN}}, BEGIN) == {("eve",)}


def test_rows_whose_time_is_over_have_to_be_there_though_none_came() -> None:
    right = FINAL.expected_rows([])
    assert FINAL.not_final(right, {}, BEGIN + FINAL.after) == {(LATER, "h1")}
    assert FINAL.not_final(right, {}, LATER + FINAL.after) == set()


class Reading(rr.Event):
    house: str = rr.key()
    at: datetime = rr.event_time(late="2 minutes")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RIVERRUN_PROJECT", str(tmp_path))
    return Project(tmp_path)


def test_the_clock_of_a_stream_is_what_its_pipeline_says(project: Project) -> None:
    good = [Reading(house="h1", at=LATER), Reading(house="h2", at=BEGIN)]
    by_events = LATER - timedelta(minutes=2)
    assert clock_of("minutes", Reading, good) == by_events
    state_path(project).parent.mkdir(parents=True)
    streams = [StreamProgress("minutes", watermark="2026-11-16T07:50:00.000Z"), StreamProgress("others")]
    told = PipelineProgress("app", "app.py", 1, "", streams=streams)
    state_path(project).write_text(json.dumps(told.as_dict()), encoding="utf-8")
    assert clock_of("minutes", Reading, good) == BEGIN - timedelta(minutes=10)
    assert clock_of("others", Reading, good) == by_events


@pytest.mark.usefixtures("project")
def test_a_stream_that_wrote_nothing_is_not_right(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = StreamCheck("readings", ("house", "at"), ("times",),
                        lambda good: Counter((each.house, each.at) for each in good),
                        final="at", after=timedelta(minutes=1))  # fmt: skip

    def events(_: int) -> Iterator[Reading]:
        return (Reading(house="h1", at=BEGIN + timedelta(minutes=each)) for each in count())

    monkeypatch.setattr(comparison, "rows_of", lambda _: iter(()))
    monkeypatch.setattr(sys, "argv", ["figures.py", "--events", "5"])
    assert compare("", events, Reading, [found]) == 1
    assert capsys.readouterr().out.startswith("readings     2 rows, 2 differ; 3 not compared")


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

    check = StreamCheck("rests", ("rest",), ("times",), Counter)
    wrote = [{"rest": 0, "times": 1}, {"rest": 0, "times": 2}, {"rest": 1, "times": 2}, {"rest": 2, "times": 2}]
    monkeypatch.setattr(comparison, "rows_of", lambda _: iter(wrote))
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
