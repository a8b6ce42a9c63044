"""Runs one server and sees to it that the server never outlives the process that wanted it.

    python -I -S _guard.py PARENT_PID DELAY_SECONDS GRACE_SECONDS NICENESS PID_FD KEEP_FD COMMAND…

Standard library only, one thread, started in a session of its own so that a terminal's Ctrl-C reaches the runner alone.

- The parent is gone (killed with -9, say): after the delay ask the server to stop, after the grace time kill it. The delay
  lets servers that others need while they stop (controllers) live a little longer than those.
- SIGTERM or SIGINT: ask the server to stop. SIGUSR1: kill it. The parent decides how long to wait in between.
- The guard itself is killed: the kernel kills the server (Linux: PR_SET_PDEATHSIG).
- The server ends: exit with its code, 128 + signal when a signal ended it.

The server's pid is written to PID_FD, which is then closed. KEEP_FD, a lock, stays open in the server: it is held exactly as
long as the server or its guard lives. -1 is no descriptor.
"""

import contextlib
import ctypes
import os
import select
import signal
import sys
import time
from types import FrameType

PR_SET_PDEATHSIG = 1
# How often the guard checks whether its parent is still alive; signals and the server's end wake it at once.
POLL_SECONDS = 0.5


def main(arguments: list[str]) -> int:
    parent, delay, grace = int(arguments[0]), float(arguments[1]), float(arguments[2])
    niceness, pid_fd, keep_fd = map(int, arguments[3:6])
    command = arguments[6:]
    wake = _wake_on_signals()
    server = _start(command, niceness, pid_fd, keep_fd)
    if pid_fd >= 0:
        # The parent may be gone already: the loop notices that.
        with contextlib.suppress(OSError):
            os.write(pid_fd, b"%d\n" % server)
        os.close(pid_fd)
    if keep_fd >= 0:
        os.set_inheritable(keep_fd, False)
    never = float("inf")
    orphaned_at = ask_at = kill_at = never
    while True:
        ended, status = os.waitpid(server, os.WNOHANG)
        if ended:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code
        now = time.monotonic()
        if orphaned_at == never and os.getppid() != parent:
            orphaned_at, ask_at, kill_at = now, now + delay, now + delay + grace
        if now >= ask_at:
            os.kill(server, signal.SIGTERM)
            ask_at = never
        if now >= kill_at:
            os.kill(server, signal.SIGKILL)
        for number in _signals(wake):
            if number in (signal.SIGTERM, signal.SIGINT):
                os.kill(server, signal.SIGTERM)
            elif number == signal.SIGUSR1:
                os.kill(server, signal.SIGKILL)


def _wake_on_signals() -> int:
    """A descriptor that delivers the number of each signal that arrives, so that none is lost between two polls."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    os.set_blocking(reader, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGCHLD):
        signal.signal(number, _nothing)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    return reader


def _nothing(number: int, frame: FrameType | None) -> None:
    """Does nothing: the wakeup descriptor has the number already."""


def _signals(wake: int) -> bytes:
    ready, _, _ = select.select([wake], [], [], POLL_SECONDS)
    return os.read(wake, 64) if ready else b""


def _be_nice_to_other_sessions(niceness: int) -> None:
    """Linux shares the processor among sessions first (autogroup), and this is a session of its own: a process's own
    niceness counts only among processes of the same session."""
    with contextlib.suppress(OSError):
        group = os.open("/proc/self/autogroup", os.O_WRONLY)
        os.write(group, str(niceness).encode())
        os.close(group)


def _start(command: list[str], niceness: int, pid_fd: int, keep_fd: int) -> int:
    # Loaded before the fork: between fork and exec as little as possible happens.
    prctl = ctypes.CDLL(None).prctl if sys.platform == "linux" else None
    guard = os.getpid()
    server = os.fork()
    if server:
        return server
    try:
        if prctl is not None:
            prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != guard:
            os._exit(128 + signal.SIGKILL)
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGCHLD, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        if niceness:
            os.nice(niceness)
            _be_nice_to_other_sessions(niceness)
        if pid_fd >= 0:
            os.set_inheritable(pid_fd, False)
        if keep_fd >= 0:
            os.set_inheritable(keep_fd, True)
        os.execv(command[0], command)  # noqa: S606
    except OSError as error:
        os.write(2, f"cannot run {command[0]}: {error.strerror}\n".encode())
    finally:
        os._exit(127)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
