"""`riverrun demo bank` from start to end, with a Postgres of its own: nothing lost, every figure right, and nothing left
running. Without one: test_several.py."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.processes import left_behind

# On a crowded machine. Connect and six streams start, and then all that was sent meanwhile is read.
MOST_SECONDS = 800

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(MOST_SECONDS + 60)]


def test_what_goes_through_a_database_comes_to_the_right_figures(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    command = [sys.executable, "-m", "riverrun", "demo", "bank", "--seconds", "10", "--rate", "60", "--no-browser"]
    environ = {name: each for name, each in os.environ.items() if not name.startswith("RIVERRUN_POSTGRES")}
    with subprocess.Popen(
        [*command, "--folder", str(folder)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=environ,
    ) as demo:  # fmt: skip
        try:
            said, errors = demo.communicate(timeout=MOST_SECONDS)
        finally:
            if demo.poll() is None:
                demo.send_signal(signal.SIGTERM)
    assert demo.returncode == 0, said + errors
    assert said.splitlines()[-1] == "Nothing lost."
    assert "The database is followed" in said
    compared = re.findall(r"^(\w+) +([\d,]+) rows, (\d+) differ", said, re.MULTILINE)
    assert {name for name, _, _ in compared} == {"balances", "velocity", "travel", "transfers", "unmatched", "hours"}
    assert all(differ == "0" for _, _, differ in compared)
    assert left_behind(folder) == []
