"""The runner's watch over its servers: one server's trouble is its own, and is told."""

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from riverrun.artifacts.java import Java
from riverrun.cluster.jvm import JavaRuntime
from riverrun.cluster.supervisor import (
    EARLY_EXIT_SECONDS,
    MAX_BACKOFF_SECONDS,
    MAX_EARLY_EXITS,
    ServerSupervisor,
    SupervisedServer,
)
from riverrun.config import Project, Settings, run_state
from riverrun.config.run_state import RunState, last_state
from riverrun.errors import ClusterError, DiskFullError, ServerDiedError


class FakeNode:
    """A server without a process."""

    kind, pid, address, started_at, start_timeout_seconds = "connect", 0, "127.0.0.1:1", 0.0, 60.0
    log = Path("connect.log")

    def __init__(self, name: str, folder: Path, *, is_required: bool, start: Callable[[], None]) -> None:
        self.name, self.folder, self.is_required = name, folder, is_required
        self.alive, self.lived_seconds = False, 10 * EARLY_EXIT_SECONDS
        self._start = start

    def start(self) -> None:
        self._start()
        self.alive, self.lived_seconds = True, 0.0

    def exit_error(self) -> ClusterError:
        return ServerDiedError(f"{self.name} was ended by signal 9 after {self.lived_seconds:.1f} s")

    def is_responding(self, seconds: float) -> bool:
        return self.alive and seconds > 0


@pytest.fixture
def supervisor(tmp_path: Path) -> tuple[ServerSupervisor, list[str]]:
    said: list[str] = []
    runtime = JavaRuntime(Java(tmp_path, tmp_path / "java", 17, "17", "a test"), (), tmp_path)
    made = ServerSupervisor(Project(tmp_path), Settings(), runtime=runtime, notice=said.append)
    made._state.state = "ready"
    Project(tmp_path).run.mkdir(parents=True)
    return made, said


def watch(supervisor: ServerSupervisor, node: Any, times: int) -> list[float]:
    """Look until it was started `times` times, without waiting; the pauses between."""
    watched = SupervisedServer(node, state="ready")
    supervisor._supervised = [watched]
    pauses: list[float] = []
    for _ in range(times):
        supervisor._poll_server(watched)
        assert watched.state == "restarting"
        pauses.append(watched.backoff)
        watched.start_at = 0.0
    supervisor._update(state="degraded")
    return pauses


def raise_(error: OSError | ClusterError) -> None:
    raise error


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENOENT, errno.ENOMEM])
def test_a_server_beside_kafka_that_cannot_be_started_leaves_kafka_alone(
    supervisor: tuple[ServerSupervisor, list[str]], tmp_path: Path, number: int
) -> None:
    made, said = supervisor
    node = FakeNode("connect", tmp_path, is_required=False, start=lambda: raise_(OSError(number, os.strerror(number))))
    watch(made, node, times=2 * MAX_EARLY_EXITS)
    assert f"connect cannot be started: {os.strerror(number)}" in said[-1]


def test_pauses_grow_while_it_cannot_be_started(supervisor: tuple[ServerSupervisor, list[str]], tmp_path: Path) -> None:
    """The life before, of hours, says nothing about a start that fails: with its pause it was tried twice a second."""
    made, _ = supervisor
    full = OSError(errno.ENOSPC, "No space left on device")
    pauses = watch(made, FakeNode("broker-1", tmp_path, is_required=True, start=lambda: raise_(full)), times=12)
    assert pauses[:4] == [0.5, 1.0, 2.0, 4.0]
    assert pauses[-1] == MAX_BACKOFF_SECONDS


def test_a_full_disk_is_waited_for_and_told_in_the_state(
    supervisor: tuple[ServerSupervisor, list[str]], tmp_path: Path
) -> None:
    made, _ = supervisor
    too_full = DiskFullError("The disk of /data has too little room for a broker", found="3 MiB")
    watch(
        made,
        FakeNode("broker-1", tmp_path, is_required=True, start=lambda: raise_(too_full)),
        times=3 * MAX_EARLY_EXITS,
    )
    state = last_state(Project(tmp_path))
    assert state is not None
    assert state.state == "degraded"
    broker = state.servers[0]
    assert broker.state == "restarting"
    assert broker.restarts == 3 * MAX_EARLY_EXITS - 1
    assert broker.detail == "The disk of /data has too little room for a broker (3 MiB)"


def test_kafka_is_given_up_when_it_dies_of_itself(
    supervisor: tuple[ServerSupervisor, list[str]], tmp_path: Path
) -> None:
    made, said = supervisor
    broken = ServerDiedError("broker-1 exited with code 1")
    with pytest.raises(ServerDiedError):
        watch(made, FakeNode("broker-1", tmp_path, is_required=True, start=lambda: raise_(broken)), times=10)
    assert said[-1] == f"broker-1 died {MAX_EARLY_EXITS + 1} times in a row; giving up"


def test_what_it_died_of_stays_known_after_it_runs_again(
    supervisor: tuple[ServerSupervisor, list[str]], tmp_path: Path
) -> None:
    made, said = supervisor
    node = FakeNode("connect", tmp_path, is_required=False, start=lambda: None)
    watched = SupervisedServer(node, state="ready")  # type: ignore[arg-type]
    made._supervised = [watched]
    made._poll_server(watched)
    watched.start_at = 0.0
    made._poll_server(watched)
    made._poll_server(watched)
    assert said[-1].startswith("connect runs again")
    made._update()
    state = last_state(Project(tmp_path))
    assert state is not None
    assert (state.servers[0].state, state.servers[0].restarts) == ("ready", 1)
    assert state.servers[0].last_exit == "connect was ended by signal 9 after 600.0 s"


def test_a_log_that_cannot_be_written_does_not_end_the_runner(tmp_path: Path) -> None:
    def notice(_: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    runtime = JavaRuntime(Java(tmp_path, tmp_path / "java", 17, "17", "a test"), (), tmp_path)
    made = ServerSupervisor(Project(tmp_path), Settings(), runtime=runtime, notice=notice)
    Project(tmp_path).run.mkdir(parents=True)
    watch(
        made, FakeNode("connect", tmp_path, is_required=False, start=lambda: raise_(OSError(24, "Too many"))), times=2
    )


def test_a_state_is_written_where_there_is_no_room_for_a_new_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "state.json"
    RunState(1, "ready", "1.0").write(file)

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(run_state, "write_private", full)
    RunState(1, "degraded", "1.0", detail="the disk is full" * 60).write(file)
    assert json.loads(file.read_text())["state"] == "degraded"
