"""A riverrun child process: started, restarted when it dies, stopped in order."""

import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from riverrun.cluster.jvm import child_environment
from riverrun.cluster.process import GuardedProcess
from riverrun.cluster.server import Deadline

# An exit sooner than this is early; after this many early exits in a row it is not restarted, unless it was killed:
# then it is not to blame.
EARLY_EXIT_SECONDS = 30.0
MAX_EARLY_EXITS = 4
FIRST_BACKOFF_SECONDS = 0.5
MAX_BACKOFF_SECONDS = 8.0
SIGKILL_EXIT_CODE = 128 + signal.SIGKILL
TAIL_LINES = 3
MAX_READ_BYTES = 65_536


class SupervisedProcess:
    """Runs `command` with its output in `log`. `poll` is called often, and does what has become necessary."""

    def __init__(
        self, name: str, command: Sequence[str], log: Path, *, notice: Callable[[str], None] = lambda _: None
    ) -> None:
        self.name = name
        self._command = command
        self._log = log
        self._notice = notice
        self._process: GuardedProcess | None = None
        self._early_exits = 0
        self._failed_starts = 0
        self._killed = False
        self._start_at = 0.0
        self._stop_deadline: Deadline | None = None
        self._read_offset = -1

    @property
    def pid(self) -> int:
        return self._process.pid if self._process is not None and self._process.alive else 0

    @property
    def alive(self) -> bool:
        return self.pid != 0

    @property
    def given_up(self) -> bool:
        return self._early_exits > MAX_EARLY_EXITS and not self._killed

    def start(self) -> None:
        self._read_offset = -1
        self._process = GuardedProcess(self._command, Path.cwd(), self._log, child_environment())
        self._process.start()

    def poll(self) -> None:
        """Restart it when it has died, with backoff."""
        if self.given_up or self._process is None or self._process.alive:
            return
        now = time.monotonic()
        if not self._start_at:
            self._on_exit(self._process, now)
        elif now >= self._start_at:
            self._restart(now)

    def _restart(self, now: float) -> None:
        """Restart it; an error in starting is reported and does not stop the supervisor."""
        try:
            self.start()
        except OSError as error:
            self._failed_starts += 1
            pause = self._backoff()
            self._start_at = now + pause
            self._notice(f"{self.name} cannot be started: {error.strerror or error}. Trying again in {pause:g} s")
        else:
            self._start_at, self._failed_starts = 0.0, 0

    def _on_exit(self, process: GuardedProcess, now: float) -> None:
        is_early = process.lived_seconds < EARLY_EXIT_SECONDS
        self._early_exits = self._early_exits + 1 if is_early else 1
        self._killed = process.exit_code == SIGKILL_EXIT_CODE
        message = f"{self.name} ended (exit code {process.exit_code}): {self.last_output or 'it said nothing'}"
        if self.given_up:
            self._notice(
                f"{message}. That was the {self._early_exits}th time in a row: it is left alone; see {self._log}"
            )
            return
        pause = self._backoff()
        self._start_at = now + pause
        self._notice(f"{message}. Starting it again in {pause:g} s")

    def _backoff(self) -> float:
        # The exponent is bounded: a process that cannot be started is retried without end.
        times = min(self._early_exits - 1 + self._failed_starts, 10)
        return min(MAX_BACKOFF_SECONDS, FIRST_BACKOFF_SECONDS * 2.0**times)

    @property
    def last_output(self) -> str:
        """The end of its last process's output, in one line."""
        if self._process is None:
            return ""
        output = self._read_log(self._process.output_start)
        lines = [line.strip() for line in output.decode(errors="replace").splitlines() if line.strip()]
        return " ".join(lines[-TAIL_LINES:])

    def _read_log(self, start: int, max_bytes: int = -1) -> bytes:
        """Its log from `start` on; empty when somebody has removed it."""
        try:
            with self._log.open("rb") as log:
                # A log that was truncated or created again is read from its beginning.
                if log.seek(0, os.SEEK_END) < start:
                    start = self._read_offset = 0
                log.seek(start)
                return log.read(max_bytes)
        except OSError:
            return b""

    def new_lines(self) -> list[str]:
        """Whole lines of output since the last call."""
        if self._process is None:
            return []
        if self._read_offset < 0:
            self._read_offset = self._process.output_start
        output = self._read_log(self._read_offset, MAX_READ_BYTES)
        complete = output[: output.rfind(b"\n") + 1]
        self._read_offset += len(complete)
        return [line for raw_line in complete.decode(errors="replace").splitlines() if (line := raw_line.strip())]

    def ask_to_stop(self) -> None:
        """Ask only: whoever stops several asks all of them first. `stop` must follow."""
        if self._process is not None:
            self._process.ask_to_stop()

    def limit_stop_time(self, seconds: float) -> None:
        """What it waits for is unavailable: `stop` must kill it at the latest after this time."""
        self._stop_deadline = Deadline(seconds)

    def stop(self, seconds: float) -> None:
        """Ask it to stop, wait, then kill it. May be called at any time, and twice."""
        if self._stop_deadline is not None:
            seconds = min(seconds, self._stop_deadline.left)
        if self._process is not None and not self._process.stop(Deadline(seconds)):
            self._notice(f"{self.name} did not end in {seconds:.0f} s and was killed; it goes on from where it was")
        self._process = None
