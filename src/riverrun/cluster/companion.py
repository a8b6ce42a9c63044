"""A process of riverrun's own beside this one: started, started again when it dies, stopped in order."""

import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from riverrun.cluster.jvm import environment
from riverrun.cluster.process import GuardedProcess
from riverrun.cluster.server import Deadline

# One that lived shorter than this died young; after so many young deaths in a row it is left alone, unless it was killed:
# then it is not to blame.
YOUNG_SECONDS = 30.0
MOST_YOUNG_DEATHS = 4
FIRST_PAUSE_SECONDS = 0.5
MOST_PAUSE_SECONDS = 8.0
KILLED = 128 + signal.SIGKILL
TAIL_LINES = 3
MOST_NEW = 65_536


class Companion:
    """Runs `command` with its output in `log`. `look` is called often, and does what has become necessary."""

    def __init__(
        self, name: str, command: Sequence[str], log: Path, *, notice: Callable[[str], None] = lambda _: None
    ) -> None:
        self.name = name
        self._command = command
        self._log = log
        self._notice = notice
        self._process: GuardedProcess | None = None
        self._young_deaths = 0
        self._failed_starts = 0
        self._killed = False
        self._start_at = 0.0
        self._limit: Deadline | None = None
        self._read = -1

    @property
    def pid(self) -> int:
        return self._process.pid if self._process is not None and self._process.alive else 0

    @property
    def alive(self) -> bool:
        return self.pid != 0

    @property
    def given_up(self) -> bool:
        return self._young_deaths > MOST_YOUNG_DEATHS and not self._killed

    def start(self) -> None:
        self._read = -1
        self._process = GuardedProcess(self._command, Path.cwd(), self._log, environment())
        self._process.start()

    def look(self) -> None:
        """Start it again when it has died, after a pause that grows."""
        if self.given_up or self._process is None or self._process.alive:
            return
        now = time.monotonic()
        if not self._start_at:
            self._died(self._process, now)
        elif now >= self._start_at:
            self._start_again(now)

    def _start_again(self, now: float) -> None:
        """What keeps it from starting is its own trouble: whoever looks after it goes on."""
        try:
            self.start()
        except OSError as error:
            self._failed_starts += 1
            pause = self._pause()
            self._start_at = now + pause
            self._notice(f"{self.name} cannot be started: {error.strerror or error}. Trying again in {pause:g} s")
        else:
            self._start_at, self._failed_starts = 0.0, 0

    def _died(self, process: GuardedProcess, now: float) -> None:
        young = process.lived_seconds < YOUNG_SECONDS
        self._young_deaths = self._young_deaths + 1 if young else 1
        self._killed = process.exit_code == KILLED
        said = f"{self.name} ended (exit code {process.exit_code}): {self.last_words or 'it said nothing'}"
        if self.given_up:
            self._notice(
                f"{said}. That was the {self._young_deaths}th time in a row: it is left alone; see {self._log}"
            )
            return
        pause = self._pause()
        self._start_at = now + pause
        self._notice(f"{said}. Starting it again in {pause:g} s")

    def _pause(self) -> float:
        # Bounded before the power is taken: what cannot be started is tried without end.
        times = min(self._young_deaths - 1 + self._failed_starts, 10)
        return min(MOST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2.0**times)

    @property
    def last_words(self) -> str:
        """The end of what its last process said, in one line."""
        if self._process is None:
            return ""
        said = self._read_log(self._process.output_start)
        lines = [line.strip() for line in said.decode(errors="replace").splitlines() if line.strip()]
        return " ".join(lines[-TAIL_LINES:])

    def _read_log(self, start: int, most: int = -1) -> bytes:
        """What is in its log from `start` on; nothing when somebody has removed it."""
        try:
            with self._log.open("rb") as log:
                # One that was cut shorter, or made again, is read from its beginning.
                if log.seek(0, os.SEEK_END) < start:
                    start = self._read = 0
                log.seek(start)
                return log.read(most)
        except OSError:
            return b""

    def new_lines(self) -> list[str]:
        """Whole lines that it has said since the last call."""
        if self._process is None:
            return []
        if self._read < 0:
            self._read = self._process.output_start
        said = self._read_log(self._read, MOST_NEW)
        whole = said[: said.rfind(b"\n") + 1]
        self._read += len(whole)
        return [line for each in whole.decode(errors="replace").splitlines() if (line := each.strip())]

    def ask_to_stop(self) -> None:
        """Ask only: whoever stops several asks all of them first. `stop` must follow."""
        if self._process is not None:
            self._process.ask_to_stop()

    def hurry(self, seconds: float) -> None:
        """Whatever it waits for is gone: `stop` is to kill it so long from now at the latest."""
        self._limit = Deadline(seconds)

    def stop(self, seconds: float) -> None:
        """Ask, wait, then kill. May be called at any time, and twice."""
        if self._limit is not None:
            seconds = min(seconds, self._limit.left)
        if self._process is not None and not self._process.stop(Deadline(seconds)):
            self._notice(f"{self.name} did not end in {seconds:.0f} s and was killed; it goes on from where it was")
        self._process = None
