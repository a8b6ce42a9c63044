"""State file of a project's runner: `.riverrun/run/state.json`.

The runner holds a lock on `.riverrun/run/lock` for as long as it lives, however it ends, so a state file is true
exactly while the lock is held. A pid is never trusted by itself: it may belong to somebody else by now.
"""

import contextlib
import errno
import fcntl
import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from riverrun.config.private_files import write_private
from riverrun.config.project import Project
from riverrun.errors import RiverrunError

LOCK_POLL_SECONDS = 0.05
BLOCK_BYTES = 4096


@dataclass
class ServerState:
    """One server. `pid` is the server's own process, the one to look at or to kill."""

    name: str
    kind: str
    state: str
    pid: int = 0
    address: str = ""
    log: str = ""
    started_at: float = 0.0
    restarts: int = 0
    detail: str = ""
    # Why it last ended, or could not be started; kept while the server runs again.
    last_exit: str = ""


@dataclass
class RunState:
    """One runner and its servers. `state` is starting, ready, degraded (a server is down), stopping or failed.

    `settings` is what the servers were started with, `error` what a failed runner failed of (see riverrun.cluster.control).
    """

    pid: int
    state: str
    version: str
    bootstrap_servers: str = ""
    # The router of the Druid it runs; empty when it runs none, or it is not ready yet.
    druid_url: str = ""
    # The REST API of the Kafka Connect it runs, likewise.
    connect_url: str = ""
    # The schema registry it runs, likewise.
    registry_url: str = ""
    started_at: float = 0.0
    detail: str = ""
    settings: dict[str, int] = field(default_factory=dict)
    error: dict[str, Any] = field(default_factory=dict)
    servers: list[ServerState] = field(default_factory=list)

    def write(self, path: Path) -> None:
        write_state(path, json.dumps(asdict(self), indent=1))


def write_state(path: Path, text: str) -> None:
    """Replace a state file in one step: a reader sees the old state or the new one. No other user reads it.

    On a full disk, where there is no room for a new file, the old one is written over: it was made longer than needed for
    that. A state that went on saying «ready» while the disk is full would be believed.
    """
    content = text.encode()
    # Whole blocks, with room to grow.
    content = content.ljust((len(content) // BLOCK_BYTES + 2) * BLOCK_BYTES)
    temporary = path.with_suffix(".tmp")
    try:
        write_private(temporary, content)
        temporary.replace(path)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        with contextlib.suppress(OSError):
            temporary.unlink()
        _overwrite(path, text.encode(), error)


def _overwrite(path: Path, content: bytes, disk_full: OSError) -> None:
    """Write into the blocks that a file has."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        raise disk_full from None
    try:
        allocated = os.fstat(descriptor).st_size
        if len(content) > allocated:
            raise disk_full
        os.pwrite(descriptor, content.ljust(allocated), 0)
    finally:
        os.close(descriptor)


def state_path(project: Project) -> Path:
    return project.run / "state.json"


def lock_path(project: Project) -> Path:
    return project.run / "lock"


def is_locked(path: Path) -> bool:
    """Whether a living process holds the lock."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except PermissionError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def acquire_lock(descriptor: int, seconds: float, conflict: Callable[[], RiverrunError]) -> None:
    """Take a lock, or raise what `conflict` returns. A reader tests it by holding it for a moment, so it counts as
    taken only when it stays taken."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise conflict() from None
            time.sleep(LOCK_POLL_SECONDS)
        else:
            return


def last_state(project: Project) -> RunState | None:
    """The state file as it is, of a living runner or a dead one; None when there is none or it is incomplete."""
    try:
        content: dict[str, Any] = json.loads(state_path(project).read_text(encoding="utf-8"))
        servers = [ServerState(**server) for server in content.pop("servers")]
        return RunState(**content, servers=servers)
    except (OSError, ValueError, TypeError, KeyError):
        return None


def running_state(project: Project) -> RunState | None:
    """The state of the project's runner if it lives, else None."""
    return last_state(project) if is_locked(lock_path(project)) else None
