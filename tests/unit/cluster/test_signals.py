"""Ctrl-C, `kill` and a closed terminal end every program of riverrun's in the same way."""

import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import riverrun
from support.cluster import TAKE_TERMINAL, after

SOURCE = Path(riverrun.__file__).parent
ORDERLY = """
import sys
from riverrun.cluster.signals import stop_on_signals
with stop_on_signals() as stop:
    print("waiting", flush=True)
    stop.wait(60)
    print("stopped in order", flush=True)
"""
WHOLE = """
import sys, time
from riverrun.cluster.signals import SignalInterrupt, interrupt_on_signals, shield_from_signals
try:
    with interrupt_on_signals():
        try:
            print("waiting", flush=True)
            time.sleep(60)
        finally:
            with shield_from_signals():
                print("stopping", flush=True)
                sys.stdin.readline()
                print("all parts stopped", flush=True)
except SignalInterrupt as request:
    sys.exit(request.exit_code)
"""


def started(code: str, ignored: signal.Signals | None = None) -> "subprocess.Popen[str]":
    ignore = f"import signal; signal.signal({int(ignored)}, signal.SIG_IGN)\n" if ignored else ""
    found = subprocess.Popen(
        [sys.executable, "-c", ignore + code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert found.stdout is not None
    assert found.stdout.readline() == "waiting\n"
    return found


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_first_signal_ends_in_order(number: signal.Signals) -> None:
    with started(ORDERLY) as process:
        process.send_signal(number)
        assert process.communicate(timeout=60)[0] == "stopped in order\n"
    assert process.returncode == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_program_that_is_ended_stops_its_parts_whatever_comes_meanwhile(number: signal.Signals) -> None:
    with started(WHOLE) as process:
        assert process.stdout is not None
        process.send_signal(number)
        assert process.stdout.readline() == "stopping\n"
        for each in (signal.SIGINT, signal.SIGTERM, number):
            process.send_signal(each)
        assert process.communicate("go on\n", timeout=60)[0] == "all parts stopped\n"
    assert process.returncode == 128 + number


def test_what_is_ignored_stays_so() -> None:
    """`nohup riverrun run &`: a closed terminal ends nothing."""
    with started(ORDERLY, ignored=signal.SIGHUP) as process:
        process.send_signal(signal.SIGHUP)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


def test_a_closed_terminal_ends_a_program_in_order(tmp_path: Path) -> None:
    """What it says afterwards fails on a terminal that is gone, and must not cut its end off."""
    ours, theirs = pty.openpty()
    done = tmp_path / "done"
    words = f"{ORDERLY}\n    sys.stderr.write('x' * 100_000)\n    sys.stderr.flush()\nopen({str(done)!r}, 'w').close()"
    command = after(TAKE_TERMINAL, [sys.executable, "-c", words])
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True)
    os.close(theirs)
    assert os.read(ours, 1000).startswith(b"waiting")
    os.close(ours)
    assert process.wait(60) == 0
    assert done.exists()


def test_signals_are_handled_in_one_place() -> None:
    """Every other handler is one that forgets a signal: three of five programs had no SIGHUP."""
    allowed = {
        "cluster/signals.py",
        # Runs alone, without the package; and of the runner the end of its children.
        "cluster/_guard.py",
        "cluster/supervisor.py",
        # In the user's own program, which has its own handlers.
        "kafka/consumer/worker_threads.py",
        # Ctrl-C is for the child, which has the same terminal.
        "cli/test.py",
    }
    handlers = {
        str(path.relative_to(SOURCE))
        for path in SOURCE.rglob("*.py")
        if re.search(r"\bsignal\.signal\(", path.read_text(encoding="utf-8"))
    }
    assert handlers == allowed
