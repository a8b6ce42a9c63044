"""A second demo in the same folder is refused before it touches anything."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from riverrun.config.processes import DemoState
from riverrun.config.project import Project
from riverrun.config.stream_state import StreamState


@pytest.mark.parametrize("first", ["demo", "run"])
def test_riverrun_demo_names_who_runs_there_and_touches_nothing(tmp_path: Path, first: str) -> None:
    project = Project(tmp_path)
    data = project.data / "kafka/broker-1"
    data.mkdir(parents=True)
    (data / "00000.log").write_text("a record")
    with DemoState(project, "meters") if first == "demo" else StreamState(project, "app.py"):
        before = sorted(tmp_path.rglob("*"))
        command = [sys.executable, "-m", "riverrun", "demo", "meters", "--no-browser", "--folder", str(tmp_path)]
        second = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert sorted(tmp_path.rglob("*")) == before
    assert second.returncode == 1
    assert second.stderr.startswith("ALREADY_RUNNING")
    assert f"(pid {os.getpid()}, since 20" in second.stderr
    assert "Nothing was touched" in second.stderr
