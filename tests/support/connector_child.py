"""`riverrun connectors run` as a process of its own, to be killed and started again."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil

from riverrun.config import Project
from riverrun.config.ingest_state import find_ingest_endpoint
from support.cluster import wait_for


class Child:
    """`riverrun connectors run`, killed and started again."""

    def __init__(self, folder: Path, bootstrap: str) -> None:
        self._folder = folder
        self._bootstrap = bootstrap
        self.kills = 0
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        command = [
            sys.executable,
            "-m",
            "riverrun",
            "connectors",
            "run",
            "app.py",
            "--bootstrap-servers",
            self._bootstrap,
        ]
        with (self._folder / "child.log").open("ab") as log:
            self.process = subprocess.Popen(command, cwd=self._folder, stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def kill(self) -> None:
        assert self.process is not None
        with contextlib.suppress(psutil.NoSuchProcess):
            psutil.Process(self.process.pid).kill()
        self.process.wait(30)
        self.kills += 1

    def wait_for_ingest(self) -> None:
        """Until it takes records by HTTP."""
        wait_for(self._takes, 120, "it does not serve")

    def _takes(self) -> bool:
        assert self.process is not None
        found = find_ingest_endpoint(Project(self._folder))
        assert self.process.poll() is None, (self._folder / "child.log").read_text()[-2000:]
        return found is not None and found.pid == self.process.pid

    def stop(self) -> None:
        assert self.process is not None
        self.process.terminate()
        try:
            assert self.process.wait(60) == 0, (self._folder / "child.log").read_text()[-2000:]
        finally:
            if self.process.poll() is None:
                self.process.kill()


@contextlib.contextmanager
def taking(folder: Path, bootstrap: str) -> Iterator[Child]:
    """The connectors of a project's app.py, which take records by HTTP."""
    child = Child(folder, bootstrap)
    try:
        child.wait_for_ingest()
        yield child
    finally:
        child.stop()
