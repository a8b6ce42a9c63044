"""State file of the process that takes records by HTTP: `.riverrun/run/ingest.json`, under `.riverrun/run/ingest-lock`.
The port stays the same across restarts, so that clients find it again."""

import os
from dataclasses import asdict, dataclass
from pathlib import Path

from riverrun.config.process_state import ListenerState, ProcessState, lock_holder, read_live_state
from riverrun.config.project import Project
from riverrun.errors import AlreadyRunningError


@dataclass(frozen=True)
class IngestEndpoint:
    """The process that takes records by HTTP, and its address: `{address}/topics/NAME`."""

    pid: int
    address: str
    app: str


def _state_path(project: Project) -> Path:
    return project.run / "ingest.json"


def _lock_path(project: Project) -> Path:
    return project.run / "ingest-lock"


class IngestState(ListenerState):
    """Marks this process as the project's HTTP ingest, in a `with`. There is one at a time; the second gets
    AlreadyRunningError."""

    def __init__(self, project: Project, app: str) -> None:
        super().__init__(
            ProcessState(_lock_path(project), _state_path(project), app, lambda: _already_running(project)),
            project.home / "ingest-port",
        )
        self._app = app

    def write(self, address: str, port: int) -> None:
        self._write(asdict(IngestEndpoint(os.getpid(), address, self._app)), port)


def find_ingest_endpoint(project: Project) -> IngestEndpoint | None:
    """The process that takes records by HTTP; None when there is none, or it is still starting."""
    content = read_live_state(_lock_path(project), _state_path(project))
    try:
        return IngestEndpoint(**content) if content is not None else None
    except TypeError:
        return None


def _already_running(project: Project) -> AlreadyRunningError:
    pid, app = lock_holder(_lock_path(project))
    return AlreadyRunningError(
        f"Records of {app or 'an app'} are taken by HTTP already, by the process {pid or 'that holds the lock'}",
        hint=f"Post them there, or stop it with 'kill {pid}'" if pid else "",
        pid=pid,
    )
