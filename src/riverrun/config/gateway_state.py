"""State file of the SMS gateway with phones on this machine: `.riverrun/run/phone.json`, under
`.riverrun/run/phone-lock`. The port stays the same across restarts, so that clients find it again."""

import os
from dataclasses import asdict, dataclass
from pathlib import Path

from riverrun.config.process_state import ListenerState, ProcessState, lock_holder, read_live_state
from riverrun.config.project import Project
from riverrun.errors import AlreadyRunningError


@dataclass(frozen=True)
class GatewayEndpoint:
    """The running gateway and its address."""

    pid: int
    address: str


def gateway_folder(project: Project) -> Path:
    """The folder of its message store and its key."""
    return project.home / "gateway"


def _state_path(project: Project) -> Path:
    return project.run / "phone.json"


def _lock_path(project: Project) -> Path:
    return project.run / "phone-lock"


class GatewayState(ListenerState):
    """Marks this process as the project's gateway, in a `with`. There is one at a time; the second gets
    AlreadyRunningError."""

    def __init__(self, project: Project) -> None:
        super().__init__(
            ProcessState(_lock_path(project), _state_path(project), "phones", lambda: _already_running(project)),
            gateway_folder(project) / "port",
        )

    def write(self, address: str) -> None:
        self._write(asdict(GatewayEndpoint(os.getpid(), address)), int(address.rpartition(":")[2]))


def find_gateway_endpoint(project: Project) -> GatewayEndpoint | None:
    """The running gateway; None when there is none, or it is still starting."""
    content = read_live_state(_lock_path(project), _state_path(project))
    try:
        return GatewayEndpoint(**content) if content is not None else None
    except TypeError:
        return None


def _already_running(project: Project) -> AlreadyRunningError:
    pid = lock_holder(_lock_path(project))[0]
    endpoint = find_gateway_endpoint(project)
    return AlreadyRunningError(
        f"The phones of this project are shown already, by the process {pid or 'that holds the lock'}",
        hint=f"Look at {endpoint.address}/, or stop it with 'kill {pid}'" if endpoint else "",
        pid=pid,
    )
