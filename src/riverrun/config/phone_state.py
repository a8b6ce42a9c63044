"""The gateway on this machine with its phones, as it wrote it down: `.riverrun/run/phone.json`, under
`.riverrun/run/phone-lock`. The port stays the same from one to the next, so that who sends to it finds it again."""

import os
from dataclasses import asdict, dataclass
from pathlib import Path

from riverrun.config.held import Held, Listening, holder_of, state_of
from riverrun.config.project import Project
from riverrun.errors import AlreadyRunningError


@dataclass(frozen=True)
class Phones:
    """The gateway that runs, and where."""

    pid: int
    address: str


def folder_of(project: Project) -> Path:
    """Where its book and its key are."""
    return project.home / "gateway"


def _state(project: Project) -> Path:
    return project.run / "phone.json"


def _lock(project: Project) -> Path:
    return project.run / "phone-lock"


class PhoneState(Listening):
    """That this process is the project's gateway, in a `with`. One is at a time; the second gets AlreadyRunningError."""

    def __init__(self, project: Project) -> None:
        super().__init__(
            Held(_lock(project), _state(project), "phones", lambda: _already(project)), folder_of(project) / "port"
        )

    def write(self, address: str) -> None:
        self._write(asdict(Phones(os.getpid(), address)), int(address.rpartition(":")[2]))


def find_phones(project: Project) -> Phones | None:
    """The gateway that runs; None when none does, or it is only starting."""
    found = state_of(_lock(project), _state(project))
    try:
        return Phones(**found) if found is not None else None
    except TypeError:
        return None


def _already(project: Project) -> AlreadyRunningError:
    pid = holder_of(_lock(project))[0]
    found = find_phones(project)
    return AlreadyRunningError(
        f"The phones of this project are shown already, by the process {pid or 'that holds the lock'}",
        hint=f"Look at {found.address}/, or stop it with 'kill {pid}'" if found else "",
        pid=pid,
    )
