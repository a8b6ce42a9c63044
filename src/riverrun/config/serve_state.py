"""State file of the process that owns a project's store: `.riverrun/run/serve.json`, under `.riverrun/run/serve-lock`."""

import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Self

from riverrun.config.process_state import ProcessState, lock_held_since, lock_holder, read_live_state
from riverrun.config.project import Project
from riverrun.config.run_state import is_locked
from riverrun.errors import AlreadyRunningError, StoreUnavailableError


@dataclass(frozen=True)
class StoreEndpoint:
    """The process that serves a project's store, and its HTTP API's addresses: on this machine, and for others.

    Where others have to log in, `token` authenticates commands of this user; only this user can read the file.
    """

    pid: int
    address: str
    app: str
    store: str
    public_address: str = ""
    token: str = field(default="", repr=False)


def state_path(project: Project) -> Path:
    return project.run / "serve.json"


def lock_path(project: Project) -> Path:
    return project.run / "serve-lock"


class ServeState:
    """Marks this process as serving the store, in a `with`. There is one at a time; the second gets
    AlreadyRunningError."""

    def __init__(self, project: Project, app: str, store: str) -> None:
        self._app = app
        self._store = store
        self._process_state = ProcessState(
            lock_path(project), state_path(project), app, lambda: _already_serving(project)
        )

    def __enter__(self) -> Self:
        self._process_state.acquire()
        return self

    def write(self, address: str, *, public_address: str = "", token: str = "") -> None:
        """Write where the API is."""
        endpoint = StoreEndpoint(os.getpid(), address, self._app, self._store, public_address, token)
        self._process_state.write(asdict(endpoint))

    def __exit__(self, *_: object) -> None:
        self._process_state.release(delete_state=True)


def find_store_endpoint(project: Project) -> StoreEndpoint | None:
    """The process that serves the store of a project; None when there is none, or it is still starting."""
    content = read_live_state(lock_path(project), state_path(project))
    try:
        return StoreEndpoint(**content) if content is not None else None
    except TypeError:
        return None


def require_store_endpoint(project: Project) -> StoreEndpoint:
    """The process that serves the store of a project, or an error with how to start one."""
    endpoint = find_store_endpoint(project)
    if endpoint is not None:
        return endpoint
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
    pid, app = lock_holder(lock_path(project))
    return AlreadyRunningError(
        f"The store of {app or 'an app'} is served already, by the process {pid or 'that holds the lock'}, since "
        f"{lock_held_since(lock_path(project))}",
        hint=f"Ask it with 'riverrun query', or stop it with Ctrl-C or 'kill {pid}'" if pid else "",
        pid=pid,
        lock=lock_path(project),
    )
