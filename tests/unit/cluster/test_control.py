"""Finding, comparing and stopping a runner, with small programs in the place of runners."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from riverrun.cluster import control
from riverrun.cluster.lock import RunnerLock, lock_pid, wait_until_free
from riverrun.cluster.server import Deadline
from riverrun.config import ConnectSettings, DruidSettings, KafkaSettings, Project, Settings
from riverrun.config.run_state import RunState, ServerState, is_locked, lock_path, running_state, state_path
from riverrun.errors import (
    AlreadyRunningError,
    ConfigError,
    PortTakenError,
    RiverrunError,
    ServerDiedError,
    ServerNotReadyError,
)
from support.cluster import lives

# Holds the project's lock as a runner does, says so, and goes on until it is told to stop (or does not react to that).
HOLDER = """
import signal, sys
from pathlib import Path
from riverrun.cluster.lock import RunnerLock
if {stubborn}:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
lock = RunnerLock(Path({path!r}))
print(lock.take(), flush=True)
signal.pause()
signal.pause()
"""


@pytest.fixture
def project(tmp_path: Path) -> Project:
    found = Project(tmp_path)
    for folder in (found.run, found.logs, found.data):
        folder.mkdir(parents=True)
    return found


def holder(path: Path, *, stubborn: bool = False) -> "subprocess.Popen[bytes]":
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER.format(path=str(path), stubborn=stubborn)], stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"True\n"
    return process


@pytest.fixture
def runner(project: Project) -> Iterator["subprocess.Popen[bytes]"]:
    process = holder(lock_path(project))
    yield process
    process.kill()
    process.communicate()


def state(pid: int, name: str = "ready", **settings: int) -> RunState:
    told = {**control.compared_settings(KafkaSettings()), **settings}
    servers = [ServerState("broker-1", "broker", "ready", address="127.0.0.1:9093")]
    return RunState(pid, name, "0", "127.0.0.1:9093", settings=told, servers=servers)


# --- the lock ---


def test_the_lock_has_one_holder_and_names_it(project: Project, runner: "subprocess.Popen[bytes]") -> None:
    path = lock_path(project)
    assert is_locked(path)
    assert lock_pid(path) == runner.pid
    assert not RunnerLock(path).take()
    runner.kill()
    assert wait_until_free(path, Deadline(5))
    mine = RunnerLock(path)
    assert mine.take()
    assert lock_pid(path) == os.getpid()
    mine.release()
    assert not is_locked(path)


def test_a_lock_that_is_not_there(tmp_path: Path) -> None:
    assert not is_locked(tmp_path / "none")
    assert lock_pid(tmp_path / "none") == 0
    (tmp_path / "file").write_text("")
    assert not is_locked(tmp_path / "file" / "lock")


# --- the same, or another ---


def test_a_second_up_with_the_same_settings_is_the_same() -> None:
    control.check_same(state(1), KafkaSettings())
    control.check_same(state(1), KafkaSettings(port=9093))


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        (KafkaSettings(brokers=3), ["brokers", "replication", "min_insync"]),
        (KafkaSettings(port=9092), ["port"]),
        (KafkaSettings(heap_mb=512), ["heap_mb"]),
        (KafkaSettings(controllers=1), ["controllers"]),
    ],
)
def test_a_second_up_that_asks_for_something_else(settings: KafkaSettings, names: list[str]) -> None:
    with pytest.raises(AlreadyRunningError) as caught:
        control.check_same(state(1), settings)
    assert caught.value.fields["differ"] == ", ".join(names)


def test_nothing_runs(project: Project) -> None:
    assert control.find_running(project, KafkaSettings()) is None


def test_a_state_file_without_its_runner_is_not_believed(project: Project) -> None:
    state(os.getpid()).write(state_path(project))
    assert running_state(project) is None
    assert control.find_running(project, KafkaSettings()) is None


def test_a_running_one_is_found(project: Project, runner: "subprocess.Popen[bytes]") -> None:
    state(runner.pid).write(state_path(project))
    found = control.find_running(project, KafkaSettings())
    assert found is not None
    assert found.pid == runner.pid


def test_one_that_never_gets_ready_is_not_waited_for_without_end(
    project: Project, runner: "subprocess.Popen[bytes]", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "RUNNER_EXTRA_SECONDS", -0.5)
    state(runner.pid, "starting").write(state_path(project))
    notices: list[str] = []
    with pytest.raises(ServerNotReadyError, match="still starting"):
        control.find_running(project, KafkaSettings(start_timeout_seconds=1), notices.append)
    assert notices == [f"a runner of this project (pid {runner.pid}) is starting; waiting for it"]


# --- with Druid, or without ---


def test_druid_beside_a_runner_without_it_says_what_to_do(project: Project, runner: "subprocess.Popen[bytes]") -> None:
    state(runner.pid).write(state_path(project))
    with pytest.raises(AlreadyRunningError) as caught:
        control.find_running(project, KafkaSettings(), druid=DruidSettings())
    assert caught.value.fields["differ"] == "druid"
    assert "riverrun down" in caught.value.hint
    assert "riverrun up --druid" in caught.value.hint


def test_a_runner_with_druid_is_what_both_want(project: Project, runner: "subprocess.Popen[bytes]") -> None:
    state(runner.pid, druid=1).write(state_path(project))
    for druid in (None, DruidSettings()):
        found = control.find_running(project, KafkaSettings(), druid=druid)
        assert found is not None
        assert found.pid == runner.pid


def test_a_runner_with_druid_is_given_the_time_of_both(project: Project, runner: "subprocess.Popen[bytes]") -> None:
    settings = Settings()
    alone = control.stop_seconds(project, settings)
    state(runner.pid, druid=1).write(state_path(project))
    assert control.stop_seconds(project, settings) == alone + settings.druid.stop_timeout_seconds
    both = control.start_seconds(settings, druid=True)
    assert both == control.start_seconds(settings, druid=False) + settings.druid.start_timeout_seconds


# --- with Connect, or without ---


def test_connect_beside_a_runner_without_it_says_what_to_do(
    project: Project, runner: "subprocess.Popen[bytes]"
) -> None:
    state(runner.pid, druid=1).write(state_path(project))
    with pytest.raises(AlreadyRunningError) as caught:
        control.find_running(project, KafkaSettings(), druid=DruidSettings(), connect=ConnectSettings())
    assert caught.value.fields["differ"] == "connect"
    assert "riverrun up --connect" in caught.value.hint
    state(runner.pid, connect=1).write(state_path(project))
    assert control.find_running(project, KafkaSettings(), connect=ConnectSettings()) is not None
    assert control.find_running(project, KafkaSettings()) is not None


def test_a_runner_with_connect_is_given_the_time_of_both(project: Project, runner: "subprocess.Popen[bytes]") -> None:
    settings = Settings()
    alone = control.stop_seconds(project, settings)
    state(runner.pid, connect=1).write(state_path(project))
    assert control.stop_seconds(project, settings) == alone + settings.connect.stop_timeout_seconds
    both = control.start_seconds(settings, druid=False, connect=True)
    assert both == control.start_seconds(settings, druid=False) + settings.connect.start_timeout_seconds


def test_what_is_deleted_names_the_connectors(project: Project) -> None:
    (project.data / "connect").mkdir()
    (project.data / "connect" / "password").write_text("x")
    assert any("all connectors in Kafka Connect" in data_loss for data_loss in control.describe_data_losses(project))


# --- stop ---


def test_stopping_nothing(project: Project) -> None:
    assert control.stop_runner(project, 1) == control.StopResult()


def test_a_runner_is_asked_and_waited_for(project: Project, runner: "subprocess.Popen[bytes]") -> None:
    stopped = control.stop_runner(project, 10)
    assert stopped == control.StopResult(runner.pid)
    assert runner.wait(5) == -signal.SIGTERM


def test_a_runner_that_does_not_react_is_killed(project: Project) -> None:
    process = holder(lock_path(project), stubborn=True)
    notices: list[str] = []
    stopped = control.stop_runner(project, 0.2, notices.append)
    assert (stopped.pid, stopped.killed) == (process.pid, True)
    assert any("killing it" in notice for notice in notices)
    process.communicate()
    assert not lives(process.pid)


def test_servers_of_a_killed_runner_are_waited_for(project: Project) -> None:
    server = holder(project.run / "broker-1.lock")
    notices: list[str] = []

    def notice(text: str) -> None:
        notices.append(text)
        server.kill()

    assert control.stop_runner(project, 1, notice).leftovers == ("broker-1",)
    assert notices == [f"broker-1 (pid {server.pid}) is ending"]
    server.communicate()


# --- errors through the state file ---


def test_an_error_travels_whole(project: Project) -> None:
    error = PortTakenError(
        "Port 9092 is taken", expected="a free port", found="another", hint="Stop it", lines=["one", "two"], port=9092
    )
    told = state(1, "failed")
    told.error = control.error_to_state(error)
    told.write(state_path(project))
    found = control._state_of(project, 1)
    assert found is not None
    back = control.error_from_state(found.error)
    assert type(back) is PortTakenError
    assert str(back) == str(error)
    assert back.fields == {"port": 9092}


@pytest.mark.parametrize(
    "content", [{}, {"class": "os"}, {"class": "NoSuchError", "what": "x"}, {"class": "Any", "what": "x"}]
)
def test_an_error_that_is_not_ours_becomes_one(content: dict[str, str]) -> None:
    assert isinstance(control.error_from_state(content), RiverrunError)


def test_errors_with_a_constructor_of_their_own_travel_too() -> None:
    back = control.error_from_state(control.error_to_state(ConfigError(["riverrun.toml:3: wrong"])))
    assert type(back) is ConfigError
    assert "riverrun.toml:3: wrong" in str(back)
    assert str(control.error_from_state(control.error_to_state(ValueError("bug")))) == "ValueError: bug."


# --- detached ---


def test_a_detached_runner_that_fails_at_once(project: Project) -> None:
    with pytest.raises(ServerDiedError) as caught:
        control.start_detached(project, ["no-such-command"], 10)
    assert caught.value.fields["exit_code"] == 2
    assert any("no-such-command" in line for line in caught.value.lines)


# As `riverrun run` starts Kafka, with a small program in the place of the runner. `soon`: a signal arrives when the runner's
# process is there, and nobody knows it yet.
STARTER = """
import os, signal, subprocess, sys
from pathlib import Path
from riverrun.cluster import control
from riverrun.cluster.control import start_detached
from riverrun.cluster.signals import SignalInterrupt, interrupt_on_signals
from riverrun.config import Project
sys.executable = {program!r}
class Popen(subprocess.Popen):
    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        print(self.pid, flush=True)
        if {soon}:
            os.kill(os.getpid(), signal.SIGTERM)
control.subprocess.Popen = Popen
try:
    with interrupt_on_signals():
        start_detached(Project(Path({root!r})), ["up"], 60)
except SignalInterrupt as request:
    sys.exit(request.exit_code)
"""


@pytest.fixture
def starter(project: Project) -> Iterator[Callable[..., tuple["subprocess.Popen[str]", int]]]:
    """Start a starter; it, and the id of its runner."""
    program, pids = project.root / "runner", list[int]()
    program.write_text(f"#!{sys.executable}\n" + HOLDER.format(path=str(lock_path(project)), stubborn=False))
    program.chmod(0o700)

    def start(*, soon: bool = False) -> tuple["subprocess.Popen[str]", int]:
        code = STARTER.format(program=str(program), root=str(project.root), soon=soon)
        process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        runner = int(process.stdout.readline())
        pids.extend([process.pid, runner])
        return process, runner

    yield start
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_runner_whose_starter_is_ended_does_not_stay_behind(
    project: Project, number: signal.Signals, starter: Callable[..., tuple["subprocess.Popen[str]", int]]
) -> None:
    process, runner = starter()
    deadline = Deadline(60.0)
    while not is_locked(lock_path(project)):
        assert not deadline.passed, "it is not there"
        time.sleep(0.02)
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert not lives(runner)


def test_one_whose_starter_is_ended_at_once_does_not_stay_behind(
    starter: Callable[..., tuple["subprocess.Popen[str]", int]],
) -> None:
    process, runner = starter(soon=True)
    process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    assert not lives(runner)


# --- delete ---


def test_deleting_names_topics_and_leaves_nothing(project: Project) -> None:
    assert control.describe_data_losses(project) == []
    broker = project.data / "kafka/broker-1"
    for topic in ("orders-0", "orders-1", "__consumer_offsets-0"):
        (broker / topic).mkdir(parents=True)
        (broker / topic / "00.log").write_bytes(b"x" * 1_000_000)
    (broker / "meta.properties").write_text("")
    losses = control.describe_data_losses(project)
    assert losses[0] == "topic orders (2.0 MB)"
    assert len(losses) == 2
    (project.home / "data.deleted-old").mkdir()
    control.delete_data(project)
    assert sorted(path.name for path in project.home.iterdir()) == ["logs", "run"]
    control.delete_data(project)
