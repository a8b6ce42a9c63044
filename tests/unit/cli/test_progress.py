"""A long step is never silent: on a terminal one line that changes, in a log a line now and then."""

import io
import itertools

import pytest

from riverrun.cli import progress as progress_module
from riverrun.cli.progress import StepProgress, duration_words


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_log_gets_a_line_when_a_step_lasts_and_then_less_often() -> None:
    out, clock = io.StringIO(), Clock()
    progress = StepProgress(5.0, stream=out, clock=clock)
    progress.step("starting Spark")
    clock.now += 4
    progress.print_due()
    assert out.getvalue() == "Starting Spark.\n"
    clock.now += 1
    progress.print_due()
    progress.print_due()
    assert out.getvalue().splitlines()[1:] == ["Starting Spark (5 s)"]
    progress.step("verifying kept")
    for _ in range(600):
        clock.now += 1
        progress.update("3 of 8 tasks")
        progress.print_due()
    lines = out.getvalue().splitlines()[2:]
    assert lines[:2] == ["Verifying kept.", "Verifying kept: 3 of 8 tasks (5 s)"]
    assert 60 <= len(lines) <= 70
    assert "min" in lines[-1]


def test_lines_of_a_log_are_never_more_than_ten_seconds_apart() -> None:
    out, clock = io.StringIO(), Clock()
    progress = StepProgress(5.0, stream=out, clock=clock)
    progress.step("starting Spark")
    written = [clock.now]
    for _ in range(240):
        clock.now += progress_module.REDRAW_SECONDS
        before = out.getvalue()
        progress.print_due()
        if out.getvalue() != before:
            written.append(clock.now)
    assert len(written) >= 12
    assert max(after - before for before, after in itertools.pairwise(written)) <= 10


def test_a_terminal_has_one_line_that_is_taken_away_at_the_end() -> None:
    out, clock = Terminal(), Clock()
    with StepProgress(stream=out, clock=clock) as progress:
        progress.step("starting Spark")
        clock.now += 2
        progress.print_due()
        progress.notice("it is there")
        assert "\r\x1b[KIt is there.\n" in out.getvalue()
    assert "\rStarting Spark (2 s)\x1b[K" in out.getvalue()
    assert out.getvalue().endswith("\r\x1b[K")


def test_nothing_is_said_without_a_step() -> None:
    out, clock = io.StringIO(), Clock()
    progress = StepProgress(5.0, stream=out, clock=clock)
    progress.step("one")
    progress.step("")
    clock.now += 1000
    progress.print_due()
    assert out.getvalue() == "One.\n"


def test_a_terminal_that_is_gone_stops_nothing() -> None:
    class Gone(io.StringIO):
        def write(self, _: str) -> int:
            raise BrokenPipeError

    with StepProgress(stream=Gone()) as progress:
        progress.step("starting Spark")
        progress.print_due()
        progress.notice("there")
    assert not progress._thread.is_alive()  # type: ignore[union-attr]


@pytest.mark.parametrize(("seconds", "text"), [(0, "0 s"), (59.4, "59 s"), (185, "3 min 5 s"), (7620, "2 h 7 min")])
def test_durations(seconds: float, text: str) -> None:
    assert duration_words(seconds) == text
