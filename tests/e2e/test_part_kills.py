"""Batches on a real Spark cluster, a master and two workers, that lose one part or their driver when the other parts are
committed. `script/kill-parts` is the long form."""

from pathlib import Path

import pytest

from riverrun.cluster.spark import LocalSpark
from riverrun.testing import KafkaUnderTest
from support.killing_parts import kill_parts

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(1800)]


def test_every_row_is_there_once_whichever_part_fails(kafka: KafkaUnderTest, tmp_path: Path) -> None:
    with LocalSpark(tmp_path / "spark-cluster") as spark:
        outcome = kill_parts(tmp_path, kafka.connection, spark, rounds=5, seed=1, kill_every=5)
    assert outcome.rounds == {"retry": 4, "stall": 1}
