"""A demo's child processes: what is said of one that died, and in which order."""

import time
from pathlib import Path

import pytest

from riverrun.demo import runner
from riverrun.demo.processes import DemoProcess, check_processes
from riverrun.demo.runner import Demo
from riverrun.errors import BrokerUnreachableError

DIES = "import sys; sys.exit('SPARK_UNAVAILABLE  Spark has ended')"
LIVES = "import time; time.sleep(600)"


def dead(part: DemoProcess) -> None:
    deadline = time.monotonic() + 60
    while not part.exit_report:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_the_cause_comes_before_what_was_seen_of_it(tmp_path: Path) -> None:
    kafka, pipeline = DemoProcess(tmp_path, "kafka", "-c", LIVES), DemoProcess(tmp_path, "pipeline", "-c", DIES)
    try:
        dead(pipeline)
        error = BrokerUnreachableError("No broker answers on 127.0.0.1:9092")
        with pytest.raises(SystemExit) as caught:
            check_processes([kafka, pipeline], error)
        lines = str(caught.value).splitlines()
        assert lines[:2] == ["pipeline ended by itself with exit code 1:", "SPARK_UNAVAILABLE  Spark has ended"]
        assert lines[2].startswith(f"Seen here as: {error.code}  No broker answers")
    finally:
        kafka.stop()
        pipeline.stop()


def test_a_log_that_was_removed_keeps_nobody_from_saying_what_ended(tmp_path: Path) -> None:
    part = DemoProcess(tmp_path, "pipeline", "-c", DIES)
    (tmp_path / ".riverrun/logs/demo-pipeline.log").unlink()
    dead(part)
    with pytest.raises(SystemExit, match="pipeline ended by itself with exit code 1"):
        check_processes([part])
    part.stop()


# As a pipeline whose Spark was killed: Kafka is missed by others before it has said so itself and ended.
DIES_SOON = f"import time; time.sleep(1.5); {DIES}"


def test_what_does_not_answer_is_explained_by_a_part_that_is_dying(tmp_path: Path) -> None:
    demo = Demo.__new__(Demo)
    demo._processes = [DemoProcess(tmp_path, "kafka", "-c", LIVES), DemoProcess(tmp_path, "pipeline", "-c", DIES_SOON)]
    error = BrokerUnreachableError("No broker answers on 127.0.0.1:9092")
    try:
        assert not demo._processes[1].exit_report, "it is looked for before it has died"
        with pytest.raises(SystemExit) as caught:
            demo.find_cause(error)
        lines = str(caught.value).splitlines()
        assert lines[:2] == ["pipeline ended by itself with exit code 1:", "SPARK_UNAVAILABLE  Spark has ended"]
        assert lines[2].startswith(f"Seen here as: {error.code}")
        assert caught.value.__cause__ is error
    finally:
        for part in demo._processes:
            part.stop()


def test_where_all_live_what_was_seen_is_all_there_is_to_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "CAUSE_SECONDS", 0.5)
    demo = Demo.__new__(Demo)
    demo._processes = [DemoProcess(tmp_path, "kafka", "-c", LIVES)]
    try:
        demo.find_cause(BrokerUnreachableError("none"))
    finally:
        demo._processes[0].stop()


def test_all_live_or_were_asked_to_end(tmp_path: Path) -> None:
    part = DemoProcess(tmp_path, "source", "-c", LIVES)
    check_processes([part])
    part.stop()
    check_processes([part], BrokerUnreachableError("none"))
