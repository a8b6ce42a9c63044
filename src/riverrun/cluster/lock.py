"""Locks that show which processes live: one for a project's runner, one for each server. They end with their holder,
however it ends."""

import fcntl
import os
import time
from pathlib import Path

from riverrun.cluster.server import Deadline
from riverrun.config.run_state import is_locked

POLL_SECONDS = 0.05
# A process that tests a lock holds it for an instant.
LOCK_WAIT_SECONDS = 1.0


class RunnerLock:
    """The lock of a project's runner. The file holds the runner's pid."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = -1

    def take(self) -> bool:
        """Take it if no other runner has it."""
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        deadline = Deadline(LOCK_WAIT_SECONDS)
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if deadline.passed:
                    os.close(descriptor)
                    return False
                time.sleep(POLL_SECONDS)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, b"%d\n" % os.getpid(), 0)
        self._descriptor = descriptor
        return True

    def release(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def lock_pid(path: Path) -> int:
    """The pid a lock's last holder wrote into it; 0 when there is none. Valid only while the lock is held."""
    try:
        return int(path.read_text(encoding="ascii").strip() or 0)
    except (OSError, ValueError):
        return 0


def wait_until_free(path: Path, deadline: Deadline) -> bool:
    """Wait until nobody holds a lock; False when it is still held at the deadline."""
    while is_locked(path):
        if deadline.passed:
            return False
        time.sleep(POLL_SECONDS)
    return True
