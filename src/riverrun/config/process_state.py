"""The state of one process of a project: a lock that lives as long as the process, and a file beside it.

The lock is held for as long as the process lives, however it ends, so the file is true exactly while the lock is held.
A pid is never trusted by itself.
"""

import contextlib
import json
import os
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Self

from riverrun.config.private_files import make_private_folder
from riverrun.config.run_state import acquire_lock, is_locked, write_state
from riverrun.errors import DataDirectoryError, RiverrunError

# A process that tests a lock holds it for an instant.
LOCK_PROBE_SECONDS = 1.0


class ProcessState:
    """A lock and a state file of this process. `about` is a word that the lock file holds beside the pid.

    A state that cannot be written (a full disk) stops nothing: `problem` says why until a write works again.
    """

    def __init__(self, lock_file: Path, state_file: Path, about: str, conflict: Callable[[], RiverrunError]) -> None:
        self._lock_file = lock_file
        self._state_file = state_file
        self._about = about
        self._conflict = conflict
        self._descriptor = -1
        self.problem = ""

    @property
    def acquired(self) -> bool:
        return self._descriptor >= 0

    def acquire(self) -> None:
        """Take the lock, or raise what `conflict` makes when another process has it."""
        try:
            make_private_folder(self._lock_file.parent)
            descriptor = os.open(self._lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise DataDirectoryError(
                f"The lock {self._lock_file} cannot be made: {error.strerror}",
                hint="Check the rights of that folder",
                path=self._lock_file,
            ) from error
        try:
            acquire_lock(descriptor, LOCK_PROBE_SECONDS, self._conflict)
            # The file of an earlier process is not the state of this one.
            self._state_file.unlink(missing_ok=True)
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n{self._about}\n".encode(), 0)
        except OSError as error:
            os.close(descriptor)
            raise DataDirectoryError(
                f"The lock {self._lock_file} cannot be written: {error.strerror}",
                hint="Free some space there",
                path=self._lock_file,
            ) from error
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor

    def write(self, content: Mapping[str, Any]) -> None:
        """Replace the file in one step: a reader sees the old state or the new one, and no other user does."""
        try:
            write_state(self._state_file, json.dumps(content, allow_nan=False))
        except OSError as error:
            self.problem = f"{self._state_file} cannot be written: {error.strerror}"
        else:
            self.problem = ""

    def release(self, *, delete_state: bool = False) -> None:
        """Release the lock. The file stays, or is deleted too."""
        if self._descriptor >= 0:
            if delete_state:
                self._state_file.unlink(missing_ok=True)
            os.close(self._descriptor)
            self._descriptor = -1


class ListenerState:
    """Marks this process as listening at an address for its project, in a `with`: a lock and a state meanwhile, and its
    port in the file `port`, so that the next process takes the same one and clients find it."""

    def __init__(self, process_state: ProcessState, port_file: Path) -> None:
        self._process_state = process_state
        self._port_file = port_file

    def __enter__(self) -> Self:
        self._process_state.acquire()
        return self

    @property
    def last_port(self) -> int:
        """The port of the previous process; 0 when there was none."""
        try:
            return int(self._port_file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return 0

    def _write(self, state: Mapping[str, Any], port: int) -> None:
        self._process_state.write(state)
        self._port_file.write_text(str(port), encoding="utf-8")

    def __exit__(self, *_: object) -> None:
        self._process_state.release(delete_state=True)


def lock_holder(lock: Path) -> tuple[int, str]:
    """The pid and the word of the lock's last holder; (0, "") when unknown. Valid only while the lock is held."""
    with contextlib.suppress(OSError, ValueError):
        pid, _, about = lock.read_text(encoding="utf-8").partition("\n")
        return int(pid), about.strip("\n")
    return 0, ""


def lock_held_since(lock: Path) -> str:
    """When the lock was taken, for people; empty when unknown. Valid only while the lock is held."""
    try:
        return f"{datetime.fromtimestamp(lock.stat().st_mtime).astimezone():%Y-%m-%d %H:%M:%S}"
    except OSError:
        return ""


def read_live_state(lock: Path, state: Path) -> dict[str, Any] | None:
    """The state file of a living process; None when there is none, or it has not written yet."""
    if not is_locked(lock):
        return None
    try:
        content = json.loads(state.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    # Between taking the lock and the first write, the file may still be an earlier process's.
    is_its_own = isinstance(content, dict) and content.get("pid") == lock_holder(lock)[0]
    return content if is_its_own else None
