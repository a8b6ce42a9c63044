"""A machine so slow that importing PySpark takes half a minute: a stream with state of its own starts all the same."""

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from riverrun.cluster.spark import LocalSpark
from support.slow_cpu import slow_cpu

pytestmark = pytest.mark.timeout(480)

# Importing PySpark takes about 0.2 s of a core with its bytecode, 0.7 without. Spark gives the worker 10 s to connect.
SHARE = 0.03
SLOW = """\
#!/bin/sh
case "$*" in *transform_with_state_driver_worker*) echo $$ >{group} ;; esac
exec {python} "$@"
"""


@pytest.mark.parametrize("where", ["here", "cluster"])
def test_a_worker_that_takes_long_to_import_is_waited_for(tmp_path: Path, where: str) -> None:
    """Also where workers are elsewhere: the one that has no time is the driver's."""
    with contextlib.ExitStack() as stack:
        cluster = []
        if where == "cluster":
            spark = stack.enter_context(LocalSpark(tmp_path / "cluster", workers=1))
            cluster = [spark.master, json.dumps({"spark.executor.memory": "512m", **spark.driver_settings})]
        run_slowly(tmp_path, cluster)


def run_slowly(tmp_path: Path, cluster: list[str]) -> None:
    script = Path(__file__).parents[1] / "support" / "slow_worker.py"
    python = tmp_path / "slow-python"
    with slow_cpu(SHARE) as group:
        python.write_text(SLOW.format(group=group, python=sys.executable))
        python.chmod(0o755)
        done = subprocess.run(
            [sys.executable, str(script), str(python), str(tmp_path), *cluster],
            capture_output=True, text=True, timeout=420, check=False, env=os.environ, cwd=tmp_path,
        )  # fmt: skip
    assert done.stdout.strip() == "h1=2 h2=1", done.stderr[-3000:]
