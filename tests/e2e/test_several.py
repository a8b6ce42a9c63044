"""`riverrun demo` with several use cases at once, on one Kafka: each follows all of its records, none starves."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.processes import left_behind

NAMES = ("bank", "gaming")


@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_use_cases_share_one_kafka_and_lose_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "riverrun", "demo", *NAMES, "--seconds", "10", "--rate", "40", "--no-browser"]
    environ = {name: each for name, each in os.environ.items() if not name.startswith("RIVERRUN_")}
    done = subprocess.run(
        [*command, "--folder", str(tmp_path / "demos")], cwd=tmp_path, env=environ, capture_output=True, text=True,
        check=False, timeout=840,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    lines = done.stdout.splitlines()
    assert lines[-1] == f"All of {', '.join(NAMES)} ended well."
    for name in NAMES:
        own = [line.partition("│ ")[2] for line in lines if line.startswith(name)]
        assert "Nothing lost." in own, name
        compared = [int(found[1]) for line in own if (found := re.search(r"rows, (\d+) differ", line))]
        assert compared, name
        assert set(compared) == {0}, name
    # A database is followed by Connect, which a Kafka of others does not have.
    assert "the source sends straight to the topics" in done.stdout
    assert left_behind(tmp_path) == []
