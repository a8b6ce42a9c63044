"""Each part of a pipeline under load is killed with -9, and every row is there once, in order. `script/kill`: for long."""

from pathlib import Path

import pytest

from riverrun.testing import Crash
from support.killing import survive

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(900)]


def test_whatever_is_killed_every_row_is_there_once(tmp_path: Path) -> None:
    plan = [Crash("worker", 0.5), Crash("broker", 0.3), Crash("spark", 1.0), Crash("pipeline", 0.8), Crash("tree", 0.7)]
    done = survive(tmp_path, plan)
    assert done.killed == ["worker", "broker", "spark", "pipeline", "tree"]
    assert 0 < done.rows < done.readings
