"""Messages of devices survive kill -9 of the bridge and of their broker; script/kill-mqtt is the long form."""

from pathlib import Path

import pytest

from support.mqtt_killing import survive

pytestmark = [pytest.mark.kafka, pytest.mark.slow]


@pytest.mark.timeout(600)
def test_the_bridge_and_the_broker_are_killed_under_load(tmp_path: Path) -> None:
    done = survive(tmp_path, messages=5000, clients=20, bridge_kills=1, broker_kills=1, rate=500)
    assert (done.acknowledged, done.bridge_kills, done.broker_kills) == (5000, 1, 1)
    assert (done.missing, done.unmarked, done.out_of_order, done.dead) == (0, 0, 0, 0)
    assert done.records == 5000 + done.twice
    assert set(done.marks) <= {"no", "redelivered", "seen"}
