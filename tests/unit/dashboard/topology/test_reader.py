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
from riverrun.dashboard.topology.reader import TopologyReader
from riverrun.kafka.connection import Connection
from riverrun.model.progress import PipelineProgress
from support.city import HOUSE_LOAD
from support.memory_store import MemoryStore
from support.topology import meters_app, progress, shape_of_app, stream

SHAPE = shape_of_app(meters_app())


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(HOUSE_LOAD)


@pytest.fixture
def source(project: Project, store: MemoryStore) -> TopologyReader:
    return TopologyReader(project, "meters", None, store)


def told(app: str = "meters", age: float = 0.0) -> PipelineProgress:
    at = (datetime.now(UTC) - timedelta(seconds=age)).isoformat()
    return progress(stream("house_load"), app=app, pid=os.getpid(), updated_at=at, topology=SHAPE.as_dict())


def test_nothing_ran_yet(source: TopologyReader, store: MemoryStore) -> None:
    assert source.topology() == (None, False)
    found = source.read(["readings"])
    assert (found.pipeline, found.progress, found.topics, found.errors) == (None, None, {}, ())
    assert list(found.table_statuses) == ["house_load"]
    store.down = "The store is closed"
    assert source.read([]).errors == ("The store is closed.",)


def test_what_runs_tells_its_shape_and_its_streams(project: Project, source: TopologyReader) -> None:
    with StreamState(project, "meters.py") as state:
        assert source.read([]).pipeline == {
            "state": "starting", "file": "meters.py", "pid": os.getpid(), "detail": ""
        }  # fmt: skip
        assert source.topology() == (None, False)
        state.write(told())
        assert source.topology() == (SHAPE, True)
        found = source.read([])
        assert (found.runs, list(found.streams), found.errors) == (True, ["house_load"], ())
        state.write(told(age=60))
        assert source.read([]).errors == ("The pipeline runs, but it has not reported for 60 s.",)
    # It has ended: what it was is known still.
    assert source.topology() == (SHAPE, False)
    assert not source.read([]).runs
    assert list(source.read([]).streams) == ["house_load"]


def test_a_run_that_was_killed_is_told_so(project: Project, source: TopologyReader) -> None:
    project.run.mkdir(parents=True)
    state_path(project).write_text(json.dumps(told().as_dict()))
    assert source.topology() == (SHAPE, False)
    found = source.read([])
    assert found.streams == {}
    assert found.errors == (f"The pipeline does not run: its process {os.getpid()} died without cleaning up.",)


def test_the_run_of_another_app_is_none_of_ours(project: Project, source: TopologyReader) -> None:
    with StreamState(project, "bank.py") as state:
        state.write(told("bank"))
        assert source.topology() == (None, False)
        assert source.read([]).pipeline is None


def test_brokers_that_do_not_answer_hold_nobody_up(project: Project, store: MemoryStore) -> None:
    nowhere = Connection(KafkaSettings(bootstrap_servers="127.0.0.1:1", request_timeout_seconds=1))
    source = TopologyReader(project, "meters", nowhere, store)
    try:
        began = time.monotonic()
        found = source.read(["readings"])
        assert time.monotonic() - began < 3
        assert list(found.table_statuses) == ["house_load"]
        deadline = time.monotonic() + 30
        while not found.errors and time.monotonic() < deadline:
            found = source.read(["readings"])
        assert "127.0.0.1:1" in found.errors[0]
        assert found.topics == {}
    finally:
        source.close()
