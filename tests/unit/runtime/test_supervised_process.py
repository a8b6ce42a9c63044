"""A process beside ours: it comes back when it dies, is left alone when that is no use, and ends when asked."""

import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from riverrun.cluster.process import GuardedProcess
from riverrun.runtime import supervised_process
from riverrun.runtime.supervised_process import SupervisedProcess

LIVES = "import time; time.sleep(600)"
DIES = "print('no such port'); raise SystemExit(3)"


def until(condition: Callable[[], bool], each: SupervisedProcess) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        each.poll()


def test_it_comes_back_when_it_is_killed_and_ends_when_asked(tmp_path: Path) -> None:
    said: list[str] = []
    made = SupervisedProcess(
        "the store", [sys.executable, "-c", LIVES], tmp_path / "logs" / "store.log", notice=said.append
    )
    made.start()
    first = made.pid
    os.kill(first, signal.SIGKILL)
    until(lambda: made.pid not in (0, first), made)
    assert "the store ended (exit code 137): it said nothing. Starting it again in 0.5 s" in said
    last = made.pid
    made.stop(30)
    assert not made.alive
    with pytest.raises(ProcessLookupError):
        os.kill(last, 0)
    made.stop(30)
    made.poll()
    assert not made.alive, "one that was stopped stays so"


def test_one_that_cannot_live_is_left_alone_with_its_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervised_process, "FIRST_BACKOFF_SECONDS", 0.01)
    said: list[str] = []
    made = SupervisedProcess("the store", [sys.executable, "-c", DIES], tmp_path / "store.log", notice=said.append)
    made.start()
    until(lambda: made.given_up, made)
    assert len(said) == supervised_process.MAX_EARLY_EXITS + 1
    assert "(exit code 3): no such port" in said[-1]
    assert f"it is left alone; see {tmp_path / 'store.log'}" in said[-1]
    made.stop(1)


def test_one_that_is_killed_again_and_again_comes_back_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervised_process, "FIRST_BACKOFF_SECONDS", 0.001)
    made = SupervisedProcess("the store", [sys.executable, "-c", LIVES], tmp_path / "store.log")
    made.start()
    for _ in range(supervised_process.MAX_EARLY_EXITS + 2):
        before = made.pid
        os.kill(before, signal.SIGKILL)
        until(lambda before=before: made.pid not in (0, before), made)  # type: ignore[misc]
    assert not made.given_up
    made.stop(5)


def test_what_it_says_is_given_line_by_line_once(tmp_path: Path) -> None:
    lines: list[str] = []
    words = "import time\nfor each in ('one', 'two'): print(each, flush=True)\ntime.sleep(60)"
    made = SupervisedProcess("the store", [sys.executable, "-c", words], tmp_path / "store.log")
    assert made.new_lines() == []
    made.start()

    def heard() -> bool:
        lines.extend(made.new_lines())
        return len(lines) >= 2

    until(heard, made)
    assert lines == ["one", "two"]
    assert made.new_lines() == []
    made.stop(5)


def test_asked_first_and_stopped_later_it_gets_one_signal(tmp_path: Path) -> None:
    counts = (
        "import signal, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: print('asked', flush=True))\n"
        "print('ready', flush=True)\n"
        "time.sleep(600)"
    )
    lines: list[str] = []
    made = SupervisedProcess("the store", [sys.executable, "-c", counts], tmp_path / "store.log")
    made.start()

    def heard(word: str) -> bool:
        lines.extend(made.new_lines())
        return word in lines

    until(lambda: heard("ready"), made)
    made.ask_to_stop()
    until(lambda: heard("asked"), made)
    log = tmp_path / "store.log"
    made.stop(0.5)
    assert log.read_text(encoding="utf-8").split() == ["ready", "asked"], "a second signal would cut the end short"
    assert not made.alive


def test_logs_that_are_removed_stop_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervised_process, "FIRST_BACKOFF_SECONDS", 0.01)
    logs = tmp_path / "logs"
    said: list[str] = []
    words = "import time; print('here', flush=True); time.sleep(600)"
    made = SupervisedProcess("the store", [sys.executable, "-c", words], logs / "store.log", notice=said.append)
    made.start()
    shutil.rmtree(logs)
    assert made.new_lines() == []
    first = made.pid
    os.kill(first, signal.SIGKILL)
    until(lambda: made.pid not in (0, first), made)
    assert "the store ended (exit code 137): it said nothing" in said[0]
    lines: list[str] = []
    deadline = time.monotonic() + 60
    while lines != ["here"]:
        assert time.monotonic() < deadline
        lines += made.new_lines()
    made.stop(5)


def test_a_log_that_was_cut_shorter_is_read_from_its_beginning(tmp_path: Path) -> None:
    log = tmp_path / "store.log"
    made = SupervisedProcess("the store", [sys.executable, "-c", LIVES], log)
    made.start()
    log.write_text("a long line that was said first\n")
    assert made.new_lines() == ["a long line that was said first"]
    log.write_text("new\n")
    assert made.new_lines() == ["new"]
    made.stop(5)


def test_one_that_cannot_be_started_again_is_tried_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk or too many open files must not reach the streams beside it."""
    monkeypatch.setattr(supervised_process, "FIRST_BACKOFF_SECONDS", 0.01)
    said: list[str] = []
    made = SupervisedProcess("the store", [sys.executable, "-c", LIVES], tmp_path / "store.log", notice=said.append)
    made.start()
    first = made.pid
    real = GuardedProcess.start
    failures = [OSError(28, "No space left on device")] * 2

    def start(process: GuardedProcess) -> None:
        if failures:
            raise failures.pop()
        real(process)

    monkeypatch.setattr(GuardedProcess, "start", start)
    os.kill(first, signal.SIGKILL)
    until(lambda: made.pid not in (0, first), made)
    assert "the store cannot be started: No space left on device. Trying again in 0.02 s" in said
    assert "the store cannot be started: No space left on device. Trying again in 0.04 s" in said
    made.stop(5)


def test_one_whose_needs_are_gone_is_not_waited_for(tmp_path: Path) -> None:
    deaf = "import signal, time; signal.signal(15, signal.SIG_IGN); print('here', flush=True); time.sleep(600)"
    made = SupervisedProcess("the store", [sys.executable, "-c", deaf], tmp_path / "store.log")
    made.start()
    until(lambda: bool(made.new_lines()), made)
    began = time.monotonic()
    made.limit_stop_time(0.2)
    made.stop(600)
    assert not made.alive
    assert time.monotonic() - began < 300
