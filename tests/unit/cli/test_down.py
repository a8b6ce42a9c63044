"""`riverrun down` beside a pipeline: it is named, and ends before its Kafka does."""

import subprocess
import sys
from pathlib import Path

import pytest

PIPELINE = """
import signal, sys
from pathlib import Path
from riverrun.cluster.signals import stop_on_signals
from riverrun.config.project import Project
from riverrun.config.stream_state import StreamState

if sys.argv[2] == "deaf":
    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, signal.SIG_IGN)
with stop_on_signals() as stop, StreamState(Project(Path(sys.argv[1])), "app.py"):
    print("ready", flush=True)
    stop.wait(120)
"""
# The same command, with less patience than users get.
DOWN = """
import sys
from riverrun.cli import up
up.PIPELINE_SECONDS = 1.0
from riverrun.cli.main import run
sys.exit(run(["--project", sys.argv[1], "down"]))
"""


@pytest.mark.parametrize("how", ["obedient", "deaf"])
def test_a_pipeline_is_named_and_stopped(tmp_path: Path, how: str) -> None:
    command = [sys.executable, "-c", PIPELINE, str(tmp_path), how]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as pipeline:
        try:
            assert pipeline.stdout is not None
            assert pipeline.stdout.readline() == "ready\n"
            down = [sys.executable, "-c", DOWN, str(tmp_path)]
            done = subprocess.run(down, capture_output=True, text=True, timeout=120, check=False)
            code = pipeline.wait(60)
        finally:
            pipeline.kill()
    assert done.returncode == 0, done.stderr
    assert f"Stopping the pipeline app.py (pid {pipeline.pid}, since 20" in done.stderr
    assert done.stderr.rstrip().endswith("Stopped.")
    assert ("did not end in 1 s; killing it" in done.stderr) == (how == "deaf")
    assert code == (0 if how == "obedient" else -9)


def test_nothing_runs(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", DOWN, str(tmp_path)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0
    assert f"Nothing runs in {tmp_path}." in done.stderr
