"""Where records are taken by HTTP, as the process that does so wrote it down: `.riverrun/run/ingest.json`, under
`.riverrun/run/ingest-lock`. The port stays the same from one to the next, so that who posts to it finds it again."""

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from riverrun.config.held import Held, holder_of, state_of
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


class IngestState:
    """That this process takes a project's records by HTTP, in a `with`. One does at a time; the second gets
    AlreadyRunningError."""

    def __init__(self, project: Project, app: str) -> None:
        self._app = app
        self._path = _state(project)
        self._port = project.home / "ingest-port"
        self._held = Held(_lock(project), self._path, app, lambda: _already(project))

    def __enter__(self) -> Self:
        self._held.take()
        return self

    @property
    def last_port(self) -> int:
        """The port of the one before; 0 when there was none."""
        try:
            return int(self._port.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return 0

    def write(self, address: str, port: int) -> None:
        self._held.write(asdict(Ingesting(os.getpid(), address, self._app)))
        self._port.write_text(str(port), encoding="utf-8")

    def __exit__(self, *_: object) -> None:
        if self._held.held:
            self._path.unlink(missing_ok=True)
        self._held.release()


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
