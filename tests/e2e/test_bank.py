"""`riverrun demo bank` from start to end, with a Postgres of its own and without one: nothing lost, every figure right, and
nothing left running."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

# On a crowded machine. Connect and six streams start, and then all that was sent meanwhile is read.
MOST_SECONDS = 800

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(MOST_SECONDS + 60)]


def left_behind(folder: Path) -> list[str]:
    found = []
    for each in psutil.process_iter(["pid", "cwd", "cmdline"]):
        words = [each.info["cwd"] or "", *(each.info["cmdline"] or [])]
        if each.info["pid"] != os.getpid() and any(str(folder) in word for word in words):
            found.append(" ".join(words)[:200])
    return found


@pytest.mark.parametrize("database", [True, False], ids=["postgres", "straight"])
def test_the_figures_are_the_same_with_a_database_and_without(database: bool, tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    command = [sys.executable, "-m", "riverrun", "demo", "bank", "--seconds", "10", "--rate", "60", "--no-browser"]
    environ = {name: each for name, each in os.environ.items() if not name.startswith("RIVERRUN_POSTGRES")}
    with subprocess.Popen(
        [*command, "--folder", str(folder)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=environ if database else environ | {"RIVERRUN_POSTGRES_FOLLOW": "false"},
    ) as demo:  # fmt: skip
        try:
            said, errors = demo.communicate(timeout=MOST_SECONDS)
        finally:
            if demo.poll() is None:
                demo.send_signal(signal.SIGTERM)
    assert demo.returncode == 0, said + errors
    assert said.splitlines()[-1] == "Nothing lost."
    assert ("The database is followed" in said) is database
    assert ("the source sends straight to the topics" in said) is not database
    compared = re.findall(r"^(\w+) +([\d,]+) rows, (\d+) differ", said, re.MULTILINE)
    assert {name for name, _, _ in compared} == {"balances", "velocity", "travel", "transfers", "unmatched", "hours"}
    assert all(differ == "0" for _, _, differ in compared)
    assert left_behind(folder) == []
