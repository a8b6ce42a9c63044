"""The demo's child processes and how it waits for them: started one by one, stopped in order, never left behind."""

import contextlib
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from riverrun.config.project import STATE_FOLDER

# Begins a program that the kernel ends when the demo dies, however it dies (PR_SET_PDEATHSIG is 1).
TIED = "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 15, 0, 0, 0); os.execv(sys.argv[1], sys.argv[1:])"


def riverrun(folder: Path, *arguments: str) -> None:
    """A command of riverrun's in a project's folder, heard only when it fails. Ctrl-C does not reach it."""
    command = [sys.executable, "-m", "riverrun", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, start_new_session=True)
    if done.returncode:
        raise SystemExit(f"riverrun {arguments[0]} failed:\n{done.stderr.strip()}")


class Part:
    """A Python program, a child of the demo. Ctrl-C does not reach it: the demo stops its parts in order."""

    def __init__(self, folder: Path, name: str, *arguments: str) -> None:
        self.name = name
        self._log = folder / STATE_FOLDER / "logs" / f"demo-{name}.log"
        self._log.parent.mkdir(parents=True, exist_ok=True)
        self._counts: dict[str, int] | None = None
        self._asked = False
        with self._log.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-c", TIED, sys.executable, *arguments],
                cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True,
                start_new_session=True,
            )  # fmt: skip

    @property
    def pid(self) -> int:
        return self._process.pid

    def check(self) -> None:
        """Nothing, as long as it lives."""
        if self._process.poll() is not None:
            said = "\n".join(self._log.read_text(errors="replace").splitlines()[-15:])
            raise SystemExit(f"{self.name} ended by itself with exit code {self._process.returncode}:\n{said}")

    def ask_to_stop(self) -> None:
        """Without waiting for it: several end at once. Asked once only: a second signal means «at once, without order», and
        `riverrun run` may hang in the middle of a call to Spark then."""
        if not self._asked and self._process.poll() is None:
            self._asked = True
            self._process.send_signal(signal.SIGTERM)

    def stop(self, seconds: float = 90) -> dict[str, int]:
        """Ask it to end, and give what it counted. Once it is over, the same again."""
        if self._counts is None:
            self._counts = {}
            self.ask_to_stop()
            try:
                said, _ = self._process.communicate(timeout=seconds)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.communicate()
                raise SystemExit(f"{self.name} did not stop within {seconds:.0f} s and was killed.") from None
            last = said.strip().rpartition("\n")[2]
            if last.startswith("{"):
                self._counts = json.loads(last)
        return self._counts


@contextlib.contextmanager
def stopping() -> Iterator[threading.Event]:
    """An event that Ctrl-C, SIGTERM and a closed terminal set, so that the end is in order.

    Asked again, the demo does without its last counts; what stops its parts is never interrupted.
    """
    stop, hurry = threading.Event(), threading.Event()

    def asked(*_: object) -> None:
        if stop.is_set() and not hurry.is_set():
            hurry.set()
            raise KeyboardInterrupt
        stop.set()

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, asked) for number in numbers}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Steps:
    """Says what is being done and how long it took: a spinner on a terminal, lines elsewhere."""

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
