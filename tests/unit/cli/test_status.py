"""The streams in `riverrun status`: of a pipeline that runs, one that ended, and one that was killed."""

import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from riverrun.cli.main import cli
from riverrun.config.project import Project
from riverrun.config.stream_state import StreamState, state_path
from riverrun.model.progress import PipelineProgress, RecordCounts, StreamProgress


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RIVERRUN_PROJECT", str(tmp_path))
    return Project(tmp_path)


def progress(**stream: Any) -> PipelineProgress:
    now = datetime.now(UTC)
    shown = StreamProgress(
        "house_load", phase="running", speed="real-time", batch=1, batch_ms=40, lag=3, rows_in_per_second=1500.0,
        last_record_at=now.isoformat(), record_counts=RecordCounts(read=9, dead_letters=2, late=1),
    )  # fmt: skip
    for name, value in stream.items():
        setattr(shown, name, value)
    return PipelineProgress(
        "meters", "meters.py", os.getpid(), now.isoformat(), "http://127.0.0.1:9404", now.isoformat(), streams=[shown]
    )


def status() -> tuple[list[str], str]:
    done = CliRunner().invoke(cli, ["status"])
    # No Kafka runs here, and the streams do not change what the exit code says of it.
    assert done.exit_code == 1, done.output
    return done.stdout.splitlines(), done.stderr


def report() -> dict[str, Any]:
    done = CliRunner().invoke(cli, ["status", "--json"])
    assert done.exit_code == 1, done.output
    content: dict[str, Any] = json.loads(done.stdout)
    return content


def test_no_pipeline(project: Project) -> None:
    assert status()[0] == []
    assert "pipeline" not in status()[1]
    assert (report()["pipeline"], report()["streams"]) == (None, [])


def test_a_running_pipeline(project: Project) -> None:
    with StreamState(project, "meters.py") as state:
        state.write(progress())
        out, err = status()
        assert out[0].split() == ["STREAM", "PHASE", "SPEED", "IN/S", "LAG", "AGE", "BATCH", "DEAD", "LATE", "STATE"]
        row = out[1].split()
        assert row[:5] == ["house_load", "running", "real-time", "1.5k", "3"]
        assert row[6:] == ["40ms", "2", "1", "-"]
        assert f"The pipeline meters.py runs (pid {os.getpid()})\n" in err
        assert "Metrics: http://127.0.0.1:9404/metrics" in err
        told = report()
        assert told["pipeline"]["state"] == "running"
        assert told["streams"][0]["record_counts"]["dead_letters"] == 2


def test_a_pipeline_that_starts(project: Project) -> None:
    with StreamState(project, "meters.py"):
        assert "The pipeline meters.py is starting (pid" in status()[1]
        assert report()["pipeline"]["state"] == "starting"


def test_a_pipeline_that_was_killed(project: Project) -> None:
    with StreamState(project, "meters.py") as state:
        state.write(progress())
        left = state_path(project).read_bytes()
    state_path(project).write_bytes(left)
    out, err = status()
    assert out == []
    assert f"The pipeline meters.py does not run: its process {os.getpid()} died without cleaning up" in err
    assert (report()["pipeline"]["state"], report()["pipeline"]["pid"], report()["streams"]) == ("died", None, [])


def test_a_pipeline_that_failed_says_why(project: Project) -> None:
    with StreamState(project, "meters.py") as state:
        state.write(progress(phase="failed", error="it divides by zero", record_counts=RecordCounts(expired=4)))
    out, err = status()
    assert out[1].split()[1] == "failed"
    assert ": failed: house_load\n" in err
    assert "house_load: it divides by zero\n" in err
    assert "house_load: 4 records deleted by retention before being read" in err
    assert "Metrics" not in err
    assert report()["pipeline"]["state"] == "failed"


def test_a_pipeline_that_ended(project: Project) -> None:
    with StreamState(project, "meters.py") as state:
        state.write(progress(phase="finished"))
    assert "The pipeline meters.py has ended at 20" in status()[1]
    assert report()["streams"][0]["phase"] == "finished"


def test_a_pipeline_that_lives_and_is_silent(project: Project) -> None:
    with StreamState(project, "meters.py") as state:
        quiet = progress()
        quiet.updated_at = (datetime.now(UTC) - timedelta(seconds=95)).isoformat()
        state.write(quiet)
        assert "it has not reported for 9" in status()[1]


@pytest.mark.parametrize(("file", "command"), [("app.py", "app.py"), ("own app.py", "'own app.py'"), (None, "FILE")])
def test_a_replay_that_is_not_finished_says_the_whole_command(project: Project, file: str | None, command: str) -> None:
    folder = project.home / "streams/cold/fridge_now/replay"
    folder.mkdir(parents=True)
    # One that an older riverrun began does not know its file.
    known = {"file": str(project.root / file)} if file else {}
    (folder / "replay.json").write_text(json.dumps({"asked": "beginning", "topic": "fridge_now.2", **known}))
    wanted = (
        f"A replay of fridge_now from beginning is not finished; go on with it: `riverrun replay {command} fridge_now`"
    )
    assert wanted in status()[1]
