"""The alert process and Spark are killed with -9 while a provider errs: each message comes once. `script/kill-alerts`."""

from pathlib import Path

import pytest

from riverrun.testing import Crash
from support.alert_killing import survive

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(900)]


def test_whatever_is_killed_each_message_comes_once(tmp_path: Path) -> None:
    done = survive(tmp_path, [Crash("alerts", 1.0), Crash("spark", 1.0), Crash("alerts", 2.0)], episodes=400)
    assert done.killed == ["alerts", "spark", "alerts"]
    assert done.requests > done.episodes
