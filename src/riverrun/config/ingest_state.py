"""Where records are taken by HTTP, as the process that does so wrote it down: `.riverrun/run/ingest.json`, under
`.riverrun/run/ingest-lock`. The port stays the same from one to the next, so that who posts to it finds it again."""

import os
from dataclasses import asdict, dataclass
from pathlib import Path

from riverrun.config.held import Held, Listening, holder_of, state_of
from riverrun.config.project import Project
from riverrun.errors import AlreadyRunningError


@dataclass(frozen=True)
class Ingesting:
    """The process that takes records by HTTP, and where: `{address}/topics/NAME`."""

    pid: int
    address: str
    app: str


def _state(project: Project) -> Path:
    return project.run / "ingest.json"


def _lock(project: Project) -> Path:
    return project.run / "ingest-lock"


class IngestState(Listening):
    """That this process takes a project's records by HTTP, in a `with`. One does at a time; the second gets
    AlreadyRunningError."""

    def __init__(self, project: Project, app: str) -> None:
        super().__init__(
            Held(_lock(project), _state(project), app, lambda: _already(project)), project.home / "ingest-port"
        )
        self._app = app

    def write(self, address: str, port: int) -> None:
        self._write(asdict(Ingesting(os.getpid(), address, self._app)), port)


def find_ingesting(project: Project) -> Ingesting | None:
    """The process that takes records by HTTP; None when none does, or it is only starting."""
    found = state_of(_lock(project), _state(project))
    try:
        return Ingesting(**found) if found is not None else None
    except TypeError:
        return None


def _already(project: Project) -> AlreadyRunningError:
    pid, app = holder_of(_lock(project))
    return AlreadyRunningError(
        f"Records of {app or 'an app'} are taken by HTTP already, by the process {pid or 'that holds the lock'}",
        hint=f"Post them there, or stop it with 'kill {pid}'" if pid else "",
        pid=pid,
    )
