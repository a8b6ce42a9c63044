"""The tests that go along with every use case, run as a user runs them: in a project that `riverrun new` made."""

import subprocess
import sys
from pathlib import Path

import pytest

from riverrun.cli.main import run
from riverrun.demo.cases import use_cases

SECONDS = 1500


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 60)
@pytest.mark.parametrize("name", use_cases())
def test_its_own_tests_pass(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    assert run(["new", str(folder), "--from", name]) == 0
    command = [sys.executable, "-m", "riverrun", "test", "-q"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
