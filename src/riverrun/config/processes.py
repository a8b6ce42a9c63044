"""Which processes of a project are alive, by the locks they hold: checked before data is deleted or Kafka is stopped."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from riverrun.config import run_state, serve_state, stream_state
from riverrun.config.process_state import ProcessState, lock_held_since, lock_holder
from riverrun.config.project import Project
from riverrun.config.run_state import is_locked
from riverrun.errors import AlreadyRunningError


@dataclass(frozen=True)
class LiveProcess:
    """A process that holds a lock of the project. `what` describes its work; `since` is when it took the lock."""

    what: str
    pid: int
    since: str
    lock: Path

    def __str__(self) -> str:
        since = f", since {self.since}" if self.since else ""
        return f"{self.what} (pid {self.pid or 'unknown'}{since})"

    @property
    def alive(self) -> bool:
        return is_locked(self.lock)


class DemoState:
    """Marks this process as a demo of the project, in a `with`, from before it touches anything until all is over. A
    second demo is refused, and so is one where something else of the project runs: a demo starts by deleting its
    data."""

    def __init__(self, project: Project, name: str) -> None:
        self._project = project
        self._process_state = ProcessState(
            demo_lock_path(project),
            project.run / "demo.json",
            name,
            lambda: _already_running(project, live_processes(project)),
        )

    def __enter__(self) -> Self:
        self._process_state.acquire()
        others = [
            live_process
            for live_process in live_processes(self._project)
            if live_process.lock != demo_lock_path(self._project)
        ]
        if others:
            self._process_state.release()
            raise _already_running(self._project, others)
        return self

    def __exit__(self, *_: object) -> None:
        self._process_state.release(delete_state=True)


def demo_lock_path(project: Project) -> Path:
    return project.run / "demo-lock"


def live_processes(project: Project) -> list[LiveProcess]:
    """The live processes, the outermost first: a demo runs a pipeline, and a pipeline a store."""
    kinds: list[tuple[Path, Callable[[str], str]]] = [
        (demo_lock_path(project), lambda name: f"the demo of {name}" if name else "a demo"),
        (stream_state.lock_path(project), lambda file: f"the pipeline {file}" if file else "a pipeline"),
        (serve_state.lock_path(project), lambda app: f"the store of {app}" if app else "a store"),
        (run_state.lock_path(project), lambda _: "the project's Kafka"),
    ]
    return [_live_process(lock, words) for lock, words in kinds if is_locked(lock)]


def live_pipelines(project: Project) -> list[LiveProcess]:
    """Those that need Kafka and do not end with it: a demo, else a pipeline."""
    locks = (demo_lock_path(project), stream_state.lock_path(project))
    return [live_process for live_process in live_processes(project) if live_process.lock in locks]


def _live_process(lock: Path, describe: Callable[[str], str]) -> LiveProcess:
    pid, about = lock_holder(lock)
    return LiveProcess(describe(about), pid, lock_held_since(lock), lock)


def require_idle(project: Project) -> None:
    """Refuse a folder in which something runs, before any file in it is written."""
    if running := live_processes(project):
        raise _already_running(project, running)


def _already_running(project: Project, running: list[LiveProcess]) -> AlreadyRunningError:
    first = running[0] if running else LiveProcess("another process", 0, "", demo_lock_path(project))
    stop = f"stop it with Ctrl-C in its terminal or `kill {first.pid}`" if first.pid else "stop it first"
    if first.lock == run_state.lock_path(project):
        stop = f"stop it: `riverrun --project {project.root} down`"
    return AlreadyRunningError(
        f"In {project.root} runs already: {', '.join(map(str, running)) or first}. Nothing was touched",
        hint=f"A demo begins by deleting the data there: {stop}, or choose another folder",
        pid=first.pid,
        lock=first.lock,
    )
