"""What the pipeline picture is drawn from, without a cluster: the run's own file, and the store."""

import json
import os
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from riverrun.config import KafkaSettings
from riverrun.config.project import Project
from riverrun.config.stream_state import StreamState, state_path
from riverrun.dash.picture.source import Source
from riverrun.kafka.connection import Connection
from riverrun.model.progress import PipelineProgress
from support.city import HOUSE_LOAD
from support.memory_store import MemoryStore
from support.picturing import meters_app, progress, shape_of_app, stream

SHAPE = shape_of_app(meters_app())


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(HOUSE_LOAD)


@pytest.fixture
def source(project: Project, store: MemoryStore) -> Source:
    return Source(project, "meters", None, store)


def told(app: str = "meters", age: float = 0.0) -> PipelineProgress:
    at = (datetime.now(UTC) - timedelta(seconds=age)).isoformat()
    return progress(stream("house_load"), app=app, pid=os.getpid(), updated_at=at, shape=SHAPE.as_dict())


def test_nothing_ran_yet(source: Source, store: MemoryStore) -> None:
    assert source.shape() == (None, False)
    found = source.look(["readings"])
    assert (found.pipeline, found.progress, found.topics, found.troubles) == (None, None, {}, ())
    assert list(found.standings) == ["house_load"]
    store.down = "The store is closed"
    assert source.look([]).troubles == ("The store is closed.",)


def test_what_runs_tells_its_shape_and_its_streams(project: Project, source: Source) -> None:
    with StreamState(project, "meters.py") as state:
        assert source.look([]).pipeline == {
            "state": "starting", "file": "meters.py", "pid": os.getpid(), "detail": ""
        }  # fmt: skip
        assert source.shape() == (None, False)
        state.write(told())
        assert source.shape() == (SHAPE, True)
        found = source.look([])
        assert (found.runs, list(found.streams), found.troubles) == (True, ["house_load"], ())
        state.write(told(age=60))
        assert source.look([]).troubles == ("The pipeline runs, but it has told nothing for 60 s.",)
    # It has ended: what it was is known still.
    assert source.shape() == (SHAPE, False)
    assert not source.look([]).runs
    assert list(source.look([]).streams) == ["house_load"]


def test_a_run_that_was_killed_is_told_so(project: Project, source: Source) -> None:
    project.run.mkdir(parents=True)
    state_path(project).write_text(json.dumps(told().as_dict()))
    assert source.shape() == (SHAPE, False)
    found = source.look([])
    assert found.streams == {}
    assert found.troubles == (f"The pipeline does not run: its process {os.getpid()} died without cleaning up.",)


def test_the_run_of_another_app_is_none_of_ours(project: Project, source: Source) -> None:
    with StreamState(project, "bank.py") as state:
        state.write(told("bank"))
        assert source.shape() == (None, False)
        assert source.look([]).pipeline is None


def test_brokers_that_do_not_answer_hold_nobody_up(project: Project, store: MemoryStore) -> None:
    nowhere = Connection(KafkaSettings(bootstrap_servers="127.0.0.1:1", request_timeout_seconds=1))
    source = Source(project, "meters", nowhere, store)
    try:
        began = time.monotonic()
        found = source.look(["readings"])
        assert time.monotonic() - began < 3
        assert list(found.standings) == ["house_load"]
        deadline = time.monotonic() + 30
        while not found.troubles and time.monotonic() < deadline:
            found = source.look(["readings"])
        assert "127.0.0.1:1" in found.troubles[0]
        assert found.topics == {}
    finally:
        source.close()
