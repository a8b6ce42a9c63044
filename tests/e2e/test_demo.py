"""`script/demo` from start to end: everything that was acknowledged was handled, and nothing is left running."""

import subprocess
from pathlib import Path

import pytest

from riverrun.config import Project
from riverrun.config.run_state import running_state

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_demo_counts_what_it_sent_and_loses_nothing() -> None:
    done = subprocess.run(
        [ROOT / "script/demo", "--seconds", "5", "--houses", "500", "--speed", "120"],
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Nothing lost" in done.stdout
    assert "Traceback" not in done.stderr
    assert running_state(Project(ROOT / "examples/meters")) is None
