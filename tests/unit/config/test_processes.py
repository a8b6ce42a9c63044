"""Who works in a project's folder, and who is refused there."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from riverrun.config.processes import DemoState, live_pipelines, live_processes
from riverrun.config.project import Project
from riverrun.config.serve_state import ServeState
from riverrun.config.stream_state import StreamState
from riverrun.errors import AlreadyRunningError

CHILD = """
import sys
from pathlib import Path
from riverrun.config.processes import DemoState
from riverrun.config.project import Project
from riverrun.config.stream_state import StreamState

project = Project(Path(sys.argv[1]))
with StreamState(project, "app.py") if sys.argv[2] == "run" else DemoState(project, "meters"):
    print("ready", flush=True)
    sys.stdin.readline()
"""


@contextlib.contextmanager
def another(project: Project, what: str) -> Iterator["subprocess.Popen[str]"]:
    command = [sys.executable, "-c", CHILD, str(project.root), what]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


def test_nothing_runs(tmp_path: Path) -> None:
    assert live_processes(Project(tmp_path)) == []


@pytest.mark.parametrize(("what", "words"), [("demo", "the demo of meters"), ("run", "the pipeline app.py")])
def test_a_second_demo_is_refused_and_names_the_first(tmp_path: Path, what: str, words: str) -> None:
    project = Project(tmp_path)
    with another(project, what) as first:
        with pytest.raises(AlreadyRunningError) as caught, DemoState(project, "meters"):
            pass
        assert f"{words} (pid {first.pid}, since 20" in str(caught.value)
        assert f"`kill {first.pid}`" in caught.value.hint
        assert caught.value.what.endswith("Nothing was touched")
    # It is over, however it ended: there is room again.
    with DemoState(project, "meters"):
        assert [live_process.pid for live_process in live_processes(project)] == [os.getpid()]
    assert not live_processes(project)


def test_a_demo_that_was_refused_leaves_no_lock(tmp_path: Path) -> None:
    project = Project(tmp_path)
    with another(project, "run"), contextlib.suppress(AlreadyRunningError), DemoState(project, "meters"):
        raise AssertionError("it was let in")
    assert not live_processes(project)


def test_pipelines_are_what_does_not_end_with_kafka(tmp_path: Path) -> None:
    project = Project(tmp_path)
    with DemoState(project, "meters"), StreamState(project, "app.py"), ServeState(project, "meters", "embedded"):
        assert [pipeline.what for pipeline in live_pipelines(project)] == ["the demo of meters", "the pipeline app.py"]
        assert [live_process.what for live_process in live_processes(project)][2:] == ["the store of meters"]
