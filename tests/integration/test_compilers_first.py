"""Java's compilers come before Spark's tasks: what a task runs is slow until it is compiled (streams/run/session.py)."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

# Starts Spark as riverrun does, has it run a task, and prints how nice each thread is.
PROGRAM = """
import json, sys
from pathlib import Path
from riverrun.config import Settings, SparkSettings
from riverrun.streams.run.session import start_session, stop_session
from test_compilers_first import threads_of

session = start_session(Settings(spark=SparkSettings(driver_memory_mb=1024)), Path(sys.argv[1]), name="nice")
session.range(4).repartition(4).count()
print(json.dumps(threads_of(session)))
stop_session(session)
"""


def threads_of(spark: SparkSession) -> list[tuple[str, int]]:
    """Name and niceness of every thread of Spark's JVM. A name may have spaces and brackets in it."""
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    found = []
    for each in Path(f"/proc/{gateway.proc.pid}/task").glob("*/stat"):
        name, rest = each.read_text().split("(", 1)[1].rsplit(")", 1)
        found.append((name, int(rest.split()[16])))
    return found


def check(threads: list[tuple[str, int]]) -> None:
    usual = os.getpriority(os.PRIO_PROCESS, 0)
    assert {nice for name, nice in threads if name.startswith(("C1 Compiler", "C2 Compiler"))} == {usual}
    assert {nice for name, nice in threads if name.startswith("Executor task")} == {usual + 5}


def test_tasks_give_way_to_the_compilers(spark: SparkSession) -> None:
    assert spark.range(4).repartition(4).count() == 4
    check(threads_of(spark))


def test_also_where_a_thread_may_only_go_down(tmp_path: Path) -> None:
    """For anybody but root. A thread that is down before the compilers are there would take them along."""
    humble = ["setpriv", "--bounding-set", "-sys_nice", "--inh-caps", "-sys_nice"] if os.geteuid() == 0 else []
    done = subprocess.run(
        [*humble, sys.executable, "-c", PROGRAM, str(tmp_path)],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parent)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    check([(name, nice) for name, nice in json.loads(done.stdout.splitlines()[-1])])
