"""State file of a project's streams: `.riverrun/run/streams.json`.

`riverrun run` holds a lock on `.riverrun/run/streams-lock` for as long as it lives, however it ends, so the file is
true exactly while the lock is held. A file without a lock and without `ended_at` was left behind by a process that was
killed.
"""

import json
import shlex
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from riverrun.config.process_state import ProcessState, lock_held_since, lock_holder
from riverrun.config.project import Project
from riverrun.config.run_state import is_locked
from riverrun.errors import AlreadyRunningError
from riverrun.model.progress import PipelineProgress, progress_from_dict, unix_seconds

# A living pipeline that has not reported for this long is stuck, or its disk is full.
STALE_SECONDS = 30.0


def state_path(project: Project) -> Path:
    return project.run / "streams.json"


def lock_path(project: Project) -> Path:
    return project.run / "streams-lock"


class StreamState:
    """The state of this process's pipeline, in a `with`: entering takes the lock, leaving says that it ended in order.

    One pipeline at a time runs for a project; the second gets AlreadyRunningError. A state that cannot be written (a full
    disk) does not stop the pipeline: `problem` says why until a write works again.
    """

    def __init__(self, project: Project, file: str) -> None:
        self._process_state = ProcessState(
            lock_path(project), state_path(project), file, lambda: _already_running(project)
        )
        self._last: PipelineProgress | None = None

    @property
    def problem(self) -> str:
        return self._process_state.problem

    def __enter__(self) -> Self:
        self._process_state.acquire()
        return self

    def write(self, progress: PipelineProgress) -> None:
        """Replace the file in one step: a reader sees the old state or the new one."""
        self._last = progress
        self._process_state.write(progress.as_dict())

    def close(self) -> None:
        """Write the last state, as of a pipeline that ended in order, and release the lock."""
        if not self._process_state.acquired:
            return
        if self._last is not None:
            self.write(replace(self._last, ended_at=datetime.now(UTC).isoformat(timespec="seconds")))
        self._process_state.release()

    def __exit__(self, *_: object) -> None:
        self.close()


def is_running(project: Project) -> bool:
    """Whether a living process runs a pipeline of this project."""
    return is_locked(lock_path(project))


def last_progress(project: Project) -> PipelineProgress | None:
    """The state file as it is, of a living pipeline or a dead one; None when there is none or it is incomplete."""
    try:
        return progress_from_dict(json.loads(state_path(project).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, KeyError):
        return None


def live_progress(project: Project) -> PipelineProgress | None:
    """The state of the project's pipeline if it lives and has written one, else None."""
    if not is_running(project):
        return None
    progress = last_progress(project)
    # Between taking the lock and the first write, the file may still be an earlier process's.
    return progress if progress is not None and progress.pid == pipeline_holder(project)[0] else None


def describe_pipeline(project: Project) -> tuple[dict[str, Any] | None, PipelineProgress | None]:
    """The pipeline that runs or ran last, for people and programs, and its streams as far as that is still true.

    Its `state` is starting, running, died (killed), failed or ended.
    """
    if is_running(project):
        progress = live_progress(project)
        pid, file = pipeline_holder(project)
        if progress is None:
            return {"state": "starting", "file": file, "pid": pid or None, "detail": ""}, None
        updated = unix_seconds(progress.updated_at)
        stale_seconds = time.time() - updated if updated is not None else 0.0
        detail = f"it has not reported for {stale_seconds:.0f} s" if stale_seconds > STALE_SECONDS else ""
        return _summary(progress, "running", detail), progress
    progress = last_progress(project)
    if progress is None:
        return None, None
    if not progress.ended_at:
        return _summary(progress, "died", f"its process {progress.pid} died without cleaning up"), None
    failed = progress.failed
    detail = f"failed: {', '.join(failed)}" if failed else ""
    return _summary(progress, "failed" if failed else "ended", detail), progress


def _summary(progress: PipelineProgress, state: str, detail: str) -> dict[str, Any]:
    return {
        "state": state,
        "app": progress.app,
        "file": progress.file,
        "pid": progress.pid if state == "running" else None,
        "address": progress.address if state == "running" else "",
        "started_at": progress.started_at,
        "updated_at": progress.updated_at,
        "ended_at": progress.ended_at,
        "detail": detail,
    }


def replay_command(file: str, stream: str) -> str:
    """The command that goes on with a stream's replay, as it can be typed here; FILE where the file is not known."""
    return f"riverrun replay {shlex.quote(file.removeprefix(f'{Path.cwd()}/')) if file else 'FILE'} {stream}"


def pipeline_holder(project: Project) -> tuple[int, str]:
    """The pid and the pipeline file of the lock's last holder; (0, "") when unknown. Valid only while the lock is held."""
    return lock_holder(lock_path(project))


def _already_running(project: Project) -> AlreadyRunningError:
    pid, file = pipeline_holder(project)
    what = f"The pipeline {file}" if file else "A pipeline"
    return AlreadyRunningError(
        f"{what} of the project {project.root} runs already, in the process {pid or 'that holds the lock'}, since "
        f"{lock_held_since(lock_path(project))}",
        hint=f"Look at it with 'riverrun status', or stop it with Ctrl-C or 'kill {pid}'" if pid else "",
        pid=pid,
        file=file,
        lock=lock_path(project),
    )
