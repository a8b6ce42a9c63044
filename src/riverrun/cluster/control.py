"""What other processes do with a project's runner: find it, compare it, wait for it, stop it, delete its data."""

import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from riverrun import errors
from riverrun.cluster.diagnosis import read_from, tail
from riverrun.cluster.home import check_space, make_folder
from riverrun.cluster.kafka.plan import KafkaPlan
from riverrun.cluster.lock import POLL_SECONDS, lock_pid, wait_until_free
from riverrun.cluster.node import DEPENDENT_DELAY_SECONDS, ServerNode
from riverrun.cluster.process import ORPHAN_GRACE_SECONDS
from riverrun.cluster.server import Deadline
from riverrun.cluster.signals import defer_signals
from riverrun.config import ConnectSettings, DruidSettings, KafkaSettings, Project, RegistrySettings, Settings
from riverrun.config.processes import LiveProcess
from riverrun.config.run_state import RunState, ServerState, is_locked, last_state, lock_path, running_state
from riverrun.errors import AlreadyRunningError, ClusterError, RiverrunError, ServerDiedError, ServerNotReadyError

RUNNER_LOG = "runner.log"
RUNNER_LOG_BYTES = 1 << 20
# What a runner needs on top of its servers' own time: Python, Java, checking files.
RUNNER_EXTRA_SECONDS = 30.0


# --- compare --------------------------------------------------------------------------------------------------------


def compared_settings(settings: KafkaSettings) -> dict[str, int]:
    """The settings by which a second `up` decides whether the first one fits."""
    plan = KafkaPlan.of(settings)
    return {
        "brokers": plan.brokers,
        "controllers": plan.controllers,
        "replication": plan.replication,
        "min_insync": plan.min_insync,
        "heap_mb": plan.heap_mb,
        "port": plan.port,
    }


def check_same(state: RunState, settings: KafkaSettings) -> None:
    """Refuse a running cluster whose settings differ from the requested ones."""
    requested = compared_settings(settings)
    first = next((server.address for server in state.servers if server.kind == "broker"), "")
    running = {**state.settings, "port": int(first.rpartition(":")[2] or 0)}
    # 0 is any port.
    differing = [
        name for name, value in requested.items() if running.get(name) != value and not (name == "port" and not value)
    ]
    if differing:
        raise AlreadyRunningError(
            f"This project's Kafka runs already (pid {state.pid}), and not as asked for",
            expected=", ".join(f"{name} {requested[name]}" for name in differing),
            found=", ".join(f"{name} {running.get(name, 0)}" for name in differing),
            hint="Stop it first with `riverrun down`, or leave those options out",
            pid=state.pid,
            differ=", ".join(differing),
        )


def require_server(state: RunState, server: str, label: str) -> None:
    """Refuse running servers without this one (`druid`, `connect`, `registry`) when it was requested."""
    if not state.settings.get(server):
        raise AlreadyRunningError(
            f"This project's Kafka runs already (pid {state.pid}), without {label}",
            expected=f"a runner with {label}",
            found=f"one that was started without --{server}",
            hint=f"Stop it with `riverrun down`, then start both with `riverrun up --{server}`; its data stays",
            pid=state.pid,
            differ=server,
        )


def require_druid(state: RunState) -> None:
    """Refuse running servers without Druid when it was requested."""
    require_server(state, "druid", "Druid")


def require_connect(state: RunState) -> None:
    """Refuse running servers without Kafka Connect when it was requested."""
    require_server(state, "connect", "Kafka Connect")


def server_state(
    node: ServerNode, *, state: str, restarts: int = 0, detail: str = "", last_exit: str = ""
) -> ServerState:
    return ServerState(
        name=node.name,
        kind=node.kind,
        state=state,
        pid=node.pid,
        address=node.address,
        log=str(node.log),
        started_at=node.started_at,
        restarts=restarts,
        detail=detail,
        last_exit=last_exit,
    )


# --- start in the background ----------------------------------------------------------------------------------------


def start_detached(project: Project, arguments: Sequence[str], start_timeout_seconds: float) -> RunState:
    """Start a runner in a session of its own (`python -m riverrun ARGUMENTS`) and wait until its servers are ready.

    Raises the runner's error. A runner that is not ready in time is stopped again.
    """
    make_folder(project.logs)
    # Here too: on a full disk the runner could not record why it failed.
    check_space(project.logs)
    log = project.logs / RUNNER_LOG
    runner: subprocess.Popen[bytes] | None = None
    try:
        # Appended: another runner that starts at the same moment may be writing there.
        with log.open("ab") as output:
            if output.tell() > RUNNER_LOG_BYTES:
                output.truncate(0)
            log_start = output.tell()
            # Otherwise a signal might arrive when its process exists, and nobody knows of it.
            with defer_signals():
                runner = subprocess.Popen(
                    [sys.executable, "-m", "riverrun", *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    cwd=project.root,
                    start_new_session=True,
                )
        deadline = Deadline(start_timeout_seconds + RUNNER_EXTRA_SECONDS)
        while True:
            state = _state_of(project, runner.pid)
            if state is not None and state.state == "ready":
                # It outlives this process; without this, Python would warn that nobody waited for it.
                runner.returncode = 0
                return state
            if _has_exited(runner, POLL_SECONDS):
                raise _start_failure(project, runner, log, log_start)
            if deadline.passed:
                raise ServerNotReadyError(
                    f"The runner was not ready after {deadline.seconds:.0f} s", hint=f"See {log}", log=log
                )
    except BaseException:
        if runner is not None and runner.poll() is None:
            runner.terminate()
            if not _has_exited(runner, RUNNER_EXTRA_SECONDS):
                runner.kill()
                runner.wait()
        raise


def _has_exited(process: subprocess.Popen[bytes], seconds: float) -> bool:
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def _state_of(project: Project, pid: int) -> RunState | None:
    state = last_state(project)
    return state if state is not None and state.pid == pid else None


def _start_failure(project: Project, runner: "subprocess.Popen[bytes]", log: Path, log_start: int) -> RiverrunError:
    state = _state_of(project, runner.pid)
    if state is not None and state.error:
        return error_from_state(state.error)
    if runner.returncode == 0:
        # It found another runner that was quicker, and left it to that.
        return AlreadyRunningError("Another runner has this project's lock", hint="`riverrun status` shows it")
    return ServerDiedError(
        f"The runner exited with code {runner.returncode}",
        hint=f"See {log}",
        lines=tail(read_from(log, log_start)),
        exit_code=runner.returncode,
        log=log,
    )


def find_running(
    project: Project,
    settings: KafkaSettings,
    notice: Callable[[str], None] = lambda _: None,
    *,
    druid: DruidSettings | None = None,
    connect: ConnectSettings | None = None,
    registry: RegistrySettings | None = None,
) -> RunState | None:
    """The project's runner if it lives and runs what the settings ask for; None when nothing runs.

    `druid`, `connect` and `registry` are given when those are requested as well. A runner that is starting is waited
    for; so is the end of one that is stopping.
    """
    path = lock_path(project)
    deadline = Deadline(settings.start_timeout_seconds + RUNNER_EXTRA_SECONDS)
    waits_for: set[str] = set()
    optional_servers: dict[str, DruidSettings | ConnectSettings | RegistrySettings] = {
        "druid": druid or DruidSettings(),
        "connect": connect or ConnectSettings(),
        "registry": registry or RegistrySettings(),
    }
    last_notice = ""
    while is_locked(path):
        state = running_state(project)
        for name, server_settings in optional_servers.items():
            if state is not None and state.settings.get(name) and name not in waits_for:
                waits_for.add(name)
                deadline = Deadline(deadline.seconds + server_settings.start_timeout_seconds)
        if state is not None and state.settings and state.state != "stopping":
            if druid is not None:
                require_druid(state)
            if connect is not None:
                require_connect(state)
            if registry is not None:
                require_server(state, "registry", "a schema registry")
        if state is not None and state.state in ("ready", "degraded"):
            check_same(state, settings)
            return state
        pid = lock_pid(path)
        activity = state.state if state is not None else "starting"
        if deadline.passed:
            raise ServerNotReadyError(
                f"The runner of this project (pid {pid}) is still {activity} after {deadline.seconds:.0f} s",
                hint="`riverrun logs` shows what it does, `riverrun down` stops it",
                pid=pid,
            )
        if activity != last_notice:
            notice(f"a runner of this project (pid {pid}) is {activity}; waiting for it")
            last_notice = activity
        time.sleep(POLL_SECONDS)
    return None


# --- errors that travel through the state file ----------------------------------------------------------------------


def error_to_state(error: Exception) -> dict[str, Any]:
    if not isinstance(error, RiverrunError):
        return {"class": "ClusterError", "what": f"{type(error).__name__}: {error}"}
    return {
        "class": type(error).__name__,
        "what": error.what,
        "expected": error.expected,
        "found": error.found,
        "hint": error.hint,
        "lines": list(error.lines),
        "fields": error.as_dict()["fields"],
    }


def error_from_state(content: Mapping[str, Any]) -> RiverrunError:
    """The error as it was raised in the runner."""
    cls = getattr(errors, str(content.get("class", "")), None)
    known = isinstance(cls, type) and issubclass(cls, RiverrunError)
    # Without its own constructor: the attributes below are what any constructor makes of its arguments.
    error: RiverrunError = RiverrunError.__new__(cls if known and cls is not None else ClusterError)
    parts = {name: content.get(name, "") for name in ("what", "expected", "found", "hint")}
    RiverrunError.__init__(error, **parts, lines=content.get("lines", ()), **content.get("fields", {}))
    return error


# --- how long ---


def start_seconds(settings: Settings, *, druid: bool, connect: bool = False, registry: bool = False) -> float:
    """How long a runner's servers may take to be ready."""
    optional_servers = ((settings.druid, druid), (settings.connect, connect), (settings.registry, registry))
    return settings.kafka.start_timeout_seconds + sum(
        server_settings.start_timeout_seconds for server_settings, asked in optional_servers if asked
    )


def stop_seconds(project: Project, settings: Settings) -> float:
    """How long the project's runner may take to stop what it runs, before it is to be killed."""
    state = running_state(project)
    runs = state.settings if state is not None else {}
    optional_servers = (
        ("druid", settings.druid.stop_timeout_seconds),
        ("connect", settings.connect.stop_timeout_seconds),
        ("registry", settings.registry.stop_timeout_seconds),
    )
    return (
        settings.kafka.stop_timeout_seconds
        + sum(seconds for name, seconds in optional_servers if runs.get(name))
        + 10.0
    )


# --- stop -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StopResult:
    """What `stop_runner` found and did."""

    pid: int = 0
    killed: bool = False
    leftovers: tuple[str, ...] = ()


def stop_runner(project: Project, timeout: float, notice: Callable[[str], None] = lambda _: None) -> StopResult:
    """Stop a project's runner and wait until it and all its servers are gone.

    A runner that does not react is killed; its servers' guards then stop them. Servers of a runner that was killed
    before are waited for, too. Without a runner nothing happens.
    """
    path = lock_path(project)
    pid, killed = 0, False
    if is_locked(path):
        pid = lock_pid(path)
        _signal(pid, signal.SIGTERM)
        if not wait_until_free(path, Deadline(timeout)):
            notice(f"the runner (pid {pid}) did not stop in {timeout:.0f} s; killing it")
            killed = True
            _signal(pid, signal.SIGKILL)
            if not wait_until_free(path, Deadline(10.0)):
                raise ClusterError(f"The runner (pid {pid}) cannot be killed", pid=pid)
    return StopResult(pid, killed, _wait_for_leftovers(project, notice))


def stop_pipeline(process: LiveProcess, timeout: float, notice: Callable[[str], None] = lambda _: None) -> bool:
    """Ask a pipeline or a demo to stop, wait, then kill it. False when it had to be killed."""
    _signal(process.pid, signal.SIGTERM)
    if wait_until_free(process.lock, Deadline(timeout)):
        return True
    notice(f"{process} did not end in {timeout:.0f} s; killing it")
    _signal(process.pid, signal.SIGKILL)
    if not wait_until_free(process.lock, Deadline(10.0)):
        raise ClusterError(f"{process} cannot be killed", pid=process.pid)
    return False


def _wait_for_leftovers(project: Project, notice: Callable[[str], None]) -> tuple[str, ...]:
    """Wait for servers whose runner is gone; their guards end them. Returns their names."""
    left = [path for path in sorted(project.run.glob("*.lock")) if is_locked(path)]
    deadline = Deadline(DEPENDENT_DELAY_SECONDS + ORPHAN_GRACE_SECONDS + 10)
    for path in left:
        notice(f"{path.stem} (pid {lock_pid(path)}) is ending")
        if not wait_until_free(path, deadline):
            raise ClusterError(
                f"{path.stem} (pid {lock_pid(path)}) did not end",
                hint=f"End it: kill -9 {lock_pid(path)}",
                server=path.stem,
                pid=lock_pid(path),
            )
    return tuple(path.stem for path in left)


def _signal(pid: int, number: int) -> None:
    if pid <= 0:
        return
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return
    except PermissionError as error:
        raise ClusterError(
            f"The process {pid} belongs to another user", hint="Stop it as that user", pid=pid
        ) from error


# --- delete ---------------------------------------------------------------------------------------------------------


def describe_data_losses(project: Project) -> list[str]:
    """What `delete_data` would delete, one line each: the topics, and the folder."""
    from riverrun.kafka.admin.disk_usage import topic_sizes_in

    if not any(path.is_file() for path in project.data.rglob("*")):
        return []
    topics = {name: size for name, size in topic_sizes_in(project.data).items() if not name.startswith("__")}
    druid = sum(path.stat().st_size for path in (project.data / "druid").rglob("*") if path.is_file())
    connect = (project.data / "connect").is_dir()
    registry = (project.data / "registry").is_dir()
    return [
        *(f"topic {name} ({size / 1e6:.1f} MB)" for name, size in sorted(topics.items())),
        *([f"all tables in Druid ({druid / 1e6:.1f} MB)"] if druid else []),
        *(["all connectors in Kafka Connect, how far they are, and their secrets"] if connect else []),
        *(["all schemas in the registry"] if registry else []),
        f"all that is in {project.data}, with the offsets of all groups",
    ]


def delete_data(project: Project) -> None:
    """Delete all data of a project whose servers do not run. Moved aside first: no partial cluster is ever left."""
    if not project.data.exists():
        return
    aside = project.data.with_name(f"data.deleted-{secrets.token_hex(4)}")
    project.data.rename(aside)
    for old in project.home.glob("data.deleted-*"):
        shutil.rmtree(old)
