"""The demo's child processes: started one by one, stopped in order, never left behind."""

import contextlib
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from riverrun.cluster.control import delete_data, stop_runner
from riverrun.cluster.diagnosis import read_from
from riverrun.config.project import STATE_FOLDER, Project

STOP_SECONDS = 40.0
TAIL_LINES = 15
# Starts a program that the kernel kills when the demo dies, however it dies (PR_SET_PDEATHSIG is 1).
DIE_WITH_PARENT = "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 15, 0, 0, 0); os.execv(sys.argv[1], sys.argv[1:])"


def clear_project(project: Project) -> None:
    """Delete what the last demo left. Only leftovers of a killed demo may still run, and they are ending."""
    stop_runner(project, STOP_SECONDS)
    delete_data(project)


def check_processes(processes: Iterable["DemoProcess"], symptom: Exception | None = None) -> None:
    """Nothing, as long as all live. Else an end with what those said that are dead: `symptom` is what somebody noticed of it
    first, and comes last. A Kafka that does not answer, say, after what ended it."""
    exit_reports = [exit_report for process in processes if (exit_report := process.exit_report)]
    if exit_reports:
        noticed = [f"Seen here as: {getattr(symptom, 'code', type(symptom).__name__)}  {symptom}"] if symptom else []
        raise SystemExit("\n".join([*exit_reports, *noticed])) from symptom


class DemoProcess:
    """A Python program, a child of the demo. Ctrl-C does not reach it: the demo stops its processes in order."""

    def __init__(self, folder: Path, name: str, *arguments: str) -> None:
        self.name = name
        self._log = folder / STATE_FOLDER / "logs" / f"demo-{name}.log"
        self._log.parent.mkdir(parents=True, exist_ok=True)
        self._counts: dict[str, int] | None = None
        self._stop_requested = False
        with self._log.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-c", DIE_WITH_PARENT, sys.executable, *arguments],
                cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True,
                start_new_session=True,
            )  # fmt: skip

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_report(self) -> str:
        """How it ended by itself, and its last output; empty as long as it lives, or when it was asked to stop."""
        if self._stop_requested or self._process.poll() is None:
            return ""
        # The log may have been removed.
        output = "\n".join(read_from(self._log, 0).splitlines()[-TAIL_LINES:])
        return f"{self.name} ended by itself with exit code {self._process.returncode}:\n{output}"

    def ask_to_stop(self) -> None:
        """Without waiting, so that several can stop at once. Asked only once: a second signal means "at once, without
        order", and `riverrun run` may then hang in the middle of a call to Spark."""
        if not self._stop_requested and self._process.poll() is None:
            self._stop_requested = True
            self._process.send_signal(signal.SIGTERM)

    def stop(self, seconds: float = 90) -> dict[str, int]:
        """Ask it to stop, and return its counts. Once it has ended, returns the same again."""
        if self._counts is None:
            self._counts = {}
            self.ask_to_stop()
            try:
                output, _ = self._process.communicate(timeout=seconds)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.communicate()
                raise SystemExit(f"{self.name} did not stop within {seconds:.0f} s and was killed.") from None
            last = output.strip().rpartition("\n")[2]
            if last.startswith("{"):
                self._counts = json.loads(last)
        return self._counts


class StepReporter:
    """Shows the current step and how long it took: a spinner on a terminal, lines elsewhere."""

    def __init__(self, console: Console, stop: threading.Event) -> None:
        self._console = console
        self._stop = stop

    @contextlib.contextmanager
    def step(self, doing: str, done: str) -> Iterator[None]:
        begun = time.monotonic()
        if self._console.is_terminal:
            columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
            with Progress(*columns, console=self._console, transient=True) as clock:
                clock.add_task(f"{doing} …", total=None)
                yield
        else:
            self._console.print(f"{doing} …")
            yield
        self._console.print(f"{done} [dim]({time.monotonic() - begun:.1f} s)[/]")

    def until(self, condition: Callable[[], bool], seconds: float, what: str) -> None:
        """Wait; raise KeyboardInterrupt when somebody stops the demo meanwhile."""
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                raise SystemExit(f"Gave up after {seconds:.0f} s: {what}.")
            if self._stop.wait(0.2):
                raise KeyboardInterrupt
