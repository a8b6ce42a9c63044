"""A Spark whose heap is full ends and says which setting gives it more: a JVM without memory may do anything."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

# Starts Spark as riverrun does, and asks it for more than its heap.
PROGRAM = """
import sys
from pathlib import Path
from py4j.protocol import Py4JError
from riverrun.config import Settings, SparkSettings
from riverrun.errors import SparkUnavailableError
from riverrun.streams.run.session import check_spark_alive, start_session

folder = Path(sys.argv[1])
session = start_session(Settings(spark=SparkSettings(driver_memory_mb=512)), folder, name="full")
gateway = session.sparkContext._gateway
try:
    gateway.new_array(gateway.jvm.byte, 1 << 30)
except (Py4JError, OSError):
    pass
gateway.proc.wait(60)
try:
    check_spark_alive(folder)
except SparkUnavailableError as error:
    print(error)
"""


def test_a_full_heap_ends_spark_with_the_setting_that_gives_it_more(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)], stdout=subprocess.PIPE, text=True, check=True, timeout=240
    )
    assert "Spark's process has ended: its heap was full" in done.stdout
    assert "spark.driver_memory_mb" in done.stdout
