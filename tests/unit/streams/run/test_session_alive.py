"""A Spark that ended by itself ends the run, with what is known of it."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from pyspark import SparkContext

from riverrun.errors import SparkUnavailableError
from riverrun.streams.run.session import check_spark_alive


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import os; os.kill(os.getpid(), 9)", "signal 9: killed by the system"),
        ("raise SystemExit(1)", "exit code 1"),
        ("raise SystemExit(3)", "its heap was full"),
    ],
)
def test_a_spark_that_is_gone_is_said(code: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process = subprocess.Popen([sys.executable, "-c", code])
    process.wait(30)
    monkeypatch.setattr(SparkContext, "_gateway", SimpleNamespace(proc=process))
    with pytest.raises(SparkUnavailableError, match=said) as caught:
        check_spark_alive(tmp_path)
    assert str(tmp_path / "spark.log") in str(caught.value)


def test_one_that_runs_is_let_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        monkeypatch.setattr(SparkContext, "_gateway", SimpleNamespace(proc=process))
        check_spark_alive(tmp_path)
        process.kill()
    monkeypatch.setattr(SparkContext, "_gateway", None)
    check_spark_alive(tmp_path)
