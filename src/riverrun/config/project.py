"""A project is a folder. What riverrun makes for it is in its `.riverrun/`; deleting that is a factory reset."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from riverrun.errors import UsageError

CONFIG_FILE = "riverrun.toml"
STATE_FOLDER = ".riverrun"


@dataclass(frozen=True)
class Project:
    """Where a project's files are. Nothing is created until somebody writes there."""

    root: Path

    @property
    def config_file(self) -> Path:
        return self.root / CONFIG_FILE

    @property
    def home(self) -> Path:
        return self.root / STATE_FOLDER

    @property
    def data(self) -> Path:
        """The servers' data: what must survive a restart."""
        return self.home / "data"

    @property
    def logs(self) -> Path:
        return self.home / "logs"

    @property
    def run(self) -> Path:
        """What is true only while servers run: the lock, the state file, their configuration."""
        return self.home / "run"


def find_project(start: Path | None = None, environ: Mapping[str, str] | None = None) -> Project:
    """The project `start` (or RIVERRUN_PROJECT, or the current folder) is in: the nearest folder up with riverrun.toml
    or .riverrun/, else `start` itself."""
    environ = os.environ if environ is None else environ
    named = environ.get("RIVERRUN_PROJECT", "")
    if start is None and named:
        if not Path(named).is_dir():
            raise UsageError(
                f"The project folder {named!r} in RIVERRUN_PROJECT is not there",
                hint="Correct or unset RIVERRUN_PROJECT",
            )
        return Project(Path(named).resolve())
    start = (start or Path.cwd()).resolve()
    for folder in (start, *start.parents):
        # A file of this name is meant as the project's settings; what is wrong with it is reported when it is read.
        if os.path.lexists(folder / CONFIG_FILE) or (folder / STATE_FOLDER).is_dir():
            return Project(folder)
    return Project(start)
