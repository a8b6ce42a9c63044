"""The process that owns a project's store, as it wrote it down: `.riverrun/run/serve.json`, under
`.riverrun/run/serve-lock`."""

import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Self

from riverrun.config.held import Held, holder_of, since_of, state_of
from riverrun.config.project import Project
from riverrun.config.run_state import is_locked
from riverrun.errors import AlreadyRunningError, StoreUnavailableError


@dataclass(frozen=True)
class Serving:
    """Who serves the store of a project, and where its HTTP API is: for this machine, and for others.

    Where others have to log in, `token` is how commands of this user are known; the file is theirs alone.
    """

    pid: int
    address: str
    app: str
    store: str
    outside: str = ""
    token: str = field(default="", repr=False)


def state_path(project: Project) -> Path:
    return project.run / "serve.json"


def lock_path(project: Project) -> Path:
    return project.run / "serve-lock"


class ServeState:
    """That this process serves the store, in a `with`. One does at a time; the second gets AlreadyRunningError."""

    def __init__(self, project: Project, app: str, store: str) -> None:
        self._app = app
        self._store = store
        self._held = Held(lock_path(project), state_path(project), app, lambda: _already_serving(project))

    def __enter__(self) -> Self:
        self._held.take()
        return self

    def write(self, address: str, *, outside: str = "", token: str = "") -> None:
        """Say where the API is."""
        serving = Serving(os.getpid(), address, self._app, self._store, outside, token)
        self._held.write(asdict(serving))

    def __exit__(self, *_: object) -> None:
        self._held.release(forget=True)


def find_serving(project: Project) -> Serving | None:
    """The process that serves the store of a project; None when none does, or it is only starting."""
    found = state_of(lock_path(project), state_path(project))
    try:
        return Serving(**found) if found is not None else None
    except TypeError:
        return None


def require_serving(project: Project) -> Serving:
    """The process that serves the store of a project, or how to start one."""
    found = find_serving(project)
    if found is not None:
        return found
    starting = is_locked(lock_path(project))
    raise StoreUnavailableError(
        f"The store of the project {project.root} is starting"
        if starting
        else f"No process serves the store of the project {project.root}",
        hint="Ask again in a moment"
        if starting
        else "Start one with `riverrun serve`, or with the streams: `riverrun run`",
        project=str(project.root),
    )


def _already_serving(project: Project) -> AlreadyRunningError:
    pid, app = holder_of(lock_path(project))
    return AlreadyRunningError(
        f"The store of {app or 'an app'} is served already, by the process {pid or 'that holds the lock'}, since "
        f"{since_of(lock_path(project))}",
        hint=f"Ask it with 'riverrun query', or stop it with Ctrl-C or 'kill {pid}'" if pid else "",
        pid=pid,
        lock=lock_path(project),
    )
