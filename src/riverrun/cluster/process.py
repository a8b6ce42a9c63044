"""A child process under a guard (`_guard.py`): it ends with us, however we end."""

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from riverrun.cluster.server import Deadline

GUARD = Path(__file__).with_name("_guard.py")
# How long a server whose runner was killed may take to stop by itself.
ORPHAN_GRACE_SECONDS = 8.0
# A guard answers in milliseconds; one that does not is killed, and the kernel kills its server.
GUARD_ANSWER_SECONDS = 5.0


@dataclass
class GuardedProcess:
    """One child and its guard.

    `keep_fd` is a descriptor that stays open as long as the child lives, for a lock. Output goes to `output`, which grows:
    `output_start` is where this child's own begins. When we are killed, the guard asks the child to stop after
    `orphan_delay_seconds`.
    """

    command: Sequence[str]
    cwd: Path
    output: Path
    environ: Mapping[str, str] | None = None
    keep_fd: int = -1
    niceness: int = 0
    orphan_delay_seconds: float = 0.0
    pid: int = field(default=0, init=False)
    output_start: int = field(default=0, init=False)
    _guard: subprocess.Popen[bytes] | None = field(default=None, init=False, repr=False)
    _started_at: float = field(default=0.0, init=False, repr=False)
    _exited_at: float = field(default=0.0, init=False, repr=False)
    _stop_requested: bool = field(default=False, init=False, repr=False)

    def start(self) -> None:
        reader, writer = os.pipe()
        inherited = [fd for fd in (writer, self.keep_fd) if fd >= 0]
        times = [str(self.orphan_delay_seconds), str(ORPHAN_GRACE_SECONDS)]
        arguments = [str(os.getpid()), *times, str(self.niceness), str(writer), str(self.keep_fd)]
        try:
            # Somebody may have removed the logs while an earlier child ran.
            self.output.parent.mkdir(parents=True, exist_ok=True)
            with self.output.open("ab") as output:
                self.output_start = output.tell()
                self._started_at = time.monotonic()
                self._stop_requested = False
                self._guard = subprocess.Popen(
                    [sys.executable, "-I", "-S", str(GUARD), *arguments, *self.command],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    cwd=self.cwd,
                    env=self.environ,
                    pass_fds=inherited,
                    start_new_session=True,
                )
            os.close(writer)
            writer = -1
            self.pid = _read_pid(reader)
        finally:
            os.close(reader)
            if writer >= 0:
                os.close(writer)

    @property
    def exit_code(self) -> int | None:
        """The child's exit code, 128 + signal when a signal ended it; None while it lives."""
        if self._guard is None:
            return None
        code = self._guard.poll()
        if code is None:
            return None
        if not self._exited_at:
            self._exited_at = time.monotonic()
        return code if code >= 0 else 128 - code

    @property
    def alive(self) -> bool:
        return self._guard is not None and self.exit_code is None

    @property
    def lived_seconds(self) -> float:
        """How long it has been running, or ran."""
        return (time.monotonic() if self.alive else self._exited_at) - self._started_at

    def wait(self, seconds: float) -> bool:
        """Wait until the child has ended; False when it has not by then."""
        if self._guard is None:
            return True
        try:
            self._guard.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return self.exit_code is not None

    def ask_to_stop(self) -> None:
        """Only once: a second signal would cut short a clean exit."""
        if not self._stop_requested:
            self._stop_requested = True
            self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the child with -9 and wait until it is gone."""
        self._signal(signal.SIGUSR1)
        if not self.wait(GUARD_ANSWER_SECONDS):
            self._signal(signal.SIGKILL)
            self.wait(GUARD_ANSWER_SECONDS)

    def stop(self, deadline: Deadline) -> bool:
        """Ask, wait, then kill. False when it had to be killed."""
        self.ask_to_stop()
        if self.wait(deadline.left):
            return True
        self.kill()
        return False

    def _signal(self, number: int) -> None:
        if self._guard is not None:
            with contextlib.suppress(ProcessLookupError):
                self._guard.send_signal(number)


def _read_pid(reader: int) -> int:
    """The pid the guard wrote; 0 when the guard ended without one, which its exit code then explains."""
    deadline = Deadline(30.0)
    text = b""
    while not text.endswith(b"\n"):
        ready, _, _ = select.select([reader], [], [], deadline.left)
        part = os.read(reader, 32) if ready else b""
        if not part:
            return 0
        text += part
    return int(text)
