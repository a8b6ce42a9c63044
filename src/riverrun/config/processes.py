"""Which processes of a project live now, by the locks they hold: who is asked before data is deleted or Kafka is stopped."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from riverrun.config import run_state, serve_state, stream_state
from riverrun.config.held import Held, holder_of, since_of
from riverrun.config.project import Project
from riverrun.config.run_state import is_locked
from riverrun.errors import AlreadyRunningError


@dataclass(frozen=True)
class LiveProcess:
    """A process that holds a lock of the project. `what` is what it does, in words; `since` is when it took the lock."""

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
    """That this process is a demo of the project, in a `with`, from before anything of it is touched until all is over. A
    second one is refused, and so is one where something else of the project runs: a demo begins by deleting its data."""

    def __init__(self, project: Project, name: str) -> None:
        self._project = project
        self._held = Held(
            demo_lock(project), project.run / "demo.json", name, lambda: _refused(project, live_processes(project))
        )

    def __enter__(self) -> Self:
        self._held.take()
        others = [each for each in live_processes(self._project) if each.lock != demo_lock(self._project)]
        if others:
            self._held.release()
            raise _refused(self._project, others)
        return self

    def __exit__(self, *_: object) -> None:
        self._held.release(forget=True)


def demo_lock(project: Project) -> Path:
    return project.run / "demo-lock"


def live_processes(project: Project) -> list[LiveProcess]:
    """Those that live, the outermost first: a demo runs a pipeline, and a pipeline a store."""
    kinds: list[tuple[Path, Callable[[str], str]]] = [
        (demo_lock(project), lambda name: f"the demo of {name}" if name else "a demo"),
        (stream_state.lock_path(project), lambda file: f"the pipeline {file}" if file else "a pipeline"),
        (serve_state.lock_path(project), lambda app: f"the store of {app}" if app else "a store"),
        (run_state.lock_path(project), lambda _: "the project's Kafka"),
    ]
    return [_live(lock, words) for lock, words in kinds if is_locked(lock)]


def pipelines(project: Project) -> list[LiveProcess]:
    """Those that need Kafka and do not end with it: a demo, else a pipeline."""
    locks = (demo_lock(project), stream_state.lock_path(project))
    return [each for each in live_processes(project) if each.lock in locks]


def _live(lock: Path, words: Callable[[str], str]) -> LiveProcess:
    pid, about = holder_of(lock)
    return LiveProcess(words(about), pid, since_of(lock), lock)


def require_idle(project: Project) -> None:
    """Refuse a folder in which something runs, before any file in it is written."""
    if found := live_processes(project):
        raise _refused(project, found)


def _refused(project: Project, found: list[LiveProcess]) -> AlreadyRunningError:
    first = found[0] if found else LiveProcess("another process", 0, "", demo_lock(project))
    stop = f"stop it with Ctrl-C in its terminal or `kill {first.pid}`" if first.pid else "stop it first"
    if first.lock == run_state.lock_path(project):
        stop = f"stop it: `riverrun --project {project.root} down`"
    return AlreadyRunningError(
        f"In {project.root} runs already: {', '.join(map(str, found)) or first}. Nothing was touched",
        hint=f"A demo begins by deleting the data there: {stop}, or choose another folder",
        pid=first.pid,
        lock=first.lock,
    )
