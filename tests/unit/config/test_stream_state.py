"""The state of a pipeline is true exactly while its process lives."""

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from riverrun.config.project import Project
from riverrun.config.stream_state import StreamState, is_running, last_progress, live_progress, lock_path, state_path
from riverrun.errors import AlreadyRunningError, DataDirectoryError
from riverrun.model.progress import PipelineProgress, StreamProgress

CHILD = """
import os, sys
from pathlib import Path
from riverrun.config.project import Project
from riverrun.config.stream_state import StreamState
from riverrun.model.progress import PipelineProgress, StreamProgress

with StreamState(Project(Path(sys.argv[1])), "meters.py") as state:
    state.write(PipelineProgress("meters", "meters.py", os.getpid(), "", streams=[StreamProgress("loads")]))
    print("ready", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def progress(pid: int | None = None) -> PipelineProgress:
    return PipelineProgress("meters", "meters.py", pid or os.getpid(), "", streams=[StreamProgress("loads")])


@contextlib.contextmanager
def child(project: Project) -> Iterator["subprocess.Popen[str]"]:
    """Another process with a pipeline of this project."""
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, str(project.root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


def test_nothing_was_ever_run(project: Project) -> None:
    assert live_progress(project) is None
    assert last_progress(project) is None
    assert not is_running(project)


def test_the_state_is_there_while_the_pipeline_runs(project: Project) -> None:
    with StreamState(project, "meters.py") as state:
        assert live_progress(project) is None
        state.write(progress())
        assert live_progress(project) == progress()
        assert is_running(project)
    assert live_progress(project) is None
    left = last_progress(project)
    assert left is not None
    assert left.ended_at
    assert not is_running(project)
    assert sorted(path.name for path in project.run.iterdir()) == ["streams-lock", "streams.json"]


def test_a_second_pipeline_is_told_who_runs(project: Project) -> None:
    with child(project) as first:
        with pytest.raises(AlreadyRunningError) as caught, StreamState(project, "other.py"):
            pass
        assert caught.value.fields["pid"] == first.pid
        assert caught.value.fields["file"] == "meters.py"
        assert "meters.py" in str(caught.value)
        assert str(first.pid) in str(caught.value)
        assert live_progress(project) == progress(first.pid)


def test_kill_9_frees_the_lock_and_leaves_the_trace(project: Project) -> None:
    with child(project) as first:
        first.send_signal(signal.SIGKILL)
        assert first.wait(10) == -signal.SIGKILL
        assert not is_running(project)
        assert live_progress(project) is None
        left = last_progress(project)
        assert left is not None
        assert (left.pid, left.ended_at) == (first.pid, "")
    with StreamState(project, "meters.py"):
        assert last_progress(project) is None


def test_an_orderly_end_of_another_process(project: Project) -> None:
    with child(project) as first:
        first.communicate("go\n", timeout=10)
        left = last_progress(project)
        assert left is not None
        assert left.ended_at
        assert not is_running(project)


def test_the_state_of_an_earlier_process_is_not_taken_for_this_ones(project: Project) -> None:
    with StreamState(project, "meters.py") as state:
        state.write(progress(1))
        assert live_progress(project) is None


def test_a_reader_does_not_keep_a_pipeline_from_starting(project: Project) -> None:
    project.run.mkdir(parents=True)
    with lock_path(project).open("w") as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)
        fcntl.flock(looking, fcntl.LOCK_UN)
        with StreamState(project, "meters.py"):
            assert is_running(project)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"streams": 1}', '{"streams": []}', "\x00"])
def test_a_broken_file_is_no_state(project: Project, content: str) -> None:
    with StreamState(project, "meters.py"):
        state_path(project).write_text(content, encoding="utf-8")
        assert live_progress(project) is None
        assert last_progress(project) is None


def test_a_state_that_cannot_be_written_stops_nothing(project: Project) -> None:
    with StreamState(project, "meters.py") as state:
        state_path(project).mkdir()
        (state_path(project) / "full").touch()
        state.write(progress())
        assert "streams.json cannot be written" in state.problem
        (state_path(project) / "full").unlink()
        state_path(project).rmdir()
        state.write(progress())
        assert state.problem == ""


def test_a_file_where_the_folder_should_be(project: Project) -> None:
    project.home.write_text("", encoding="utf-8")
    with pytest.raises(DataDirectoryError, match="cannot be made"), StreamState(project, "meters.py"):
        pass


def test_closing_twice_is_closing_once(project: Project) -> None:
    with StreamState(project, "meters.py") as state:
        state.close()
        assert not is_running(project)
