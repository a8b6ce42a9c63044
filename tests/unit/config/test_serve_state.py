"""Who serves a store is true exactly while that process lives."""

import os
from pathlib import Path

import pytest

from riverrun.config.project import Project
from riverrun.config.serve_state import ServeState, find_store_endpoint, lock_path, require_store_endpoint, state_path
from riverrun.errors import AlreadyRunningError, StoreUnavailableError


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def test_nobody_serves(project: Project) -> None:
    assert find_store_endpoint(project) is None
    with pytest.raises(StoreUnavailableError) as caught:
        require_store_endpoint(project)
    assert "riverrun serve" in str(caught.value)


def test_somebody_serves(project: Project) -> None:
    with ServeState(project, "meters", "embedded") as state:
        with pytest.raises(StoreUnavailableError, match="is starting"):
            require_store_endpoint(project)
        state.write("http://127.0.0.1:8480")
        found = require_store_endpoint(project)
        assert (found.pid, found.address, found.app, found.store) == (
            os.getpid(),
            "http://127.0.0.1:8480",
            "meters",
            "embedded",
        )
        with pytest.raises(AlreadyRunningError) as caught, ServeState(project, "meters", "embedded"):
            pass
        assert caught.value.fields["pid"] == os.getpid()
        assert find_store_endpoint(project) == found
    assert find_store_endpoint(project) is None
    assert not state_path(project).exists()


def test_what_a_dead_process_left_is_not_believed(project: Project) -> None:
    lock_path(project).parent.mkdir(parents=True)
    lock_path(project).write_text("1\nmeters\n")
    state_path(project).write_text('{"pid": 1, "address": "http://127.0.0.1:1", "app": "meters", "store": "embedded"}')
    assert find_store_endpoint(project) is None


def test_a_file_that_is_not_whole_is_not_believed(project: Project) -> None:
    with ServeState(project, "meters", "embedded"):
        for content in ("", "{", "[]", '{"pid": 1}', f'{{"pid": {os.getpid()}}}'):
            state_path(project).write_text(content)
            assert find_store_endpoint(project) is None
