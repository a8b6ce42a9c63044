"""The runner behind `riverrun up`: holds the project's lock, starts its servers, restarts what dies, stops in order."""

import contextlib
import errno
import os
import select
import signal
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from types import FrameType

from riverrun._version import __version__
from riverrun.cluster.connect import ConnectRuntime, LocalConnect, connect_settings
from riverrun.cluster.control import compared_settings, error_to_state, server_state
from riverrun.cluster.druid import DruidRuntime, LocalDruid
from riverrun.cluster.home import ClusterHome, folder_error
from riverrun.cluster.jvm import JavaRuntime
from riverrun.cluster.kafka.local import LocalKafka
from riverrun.cluster.lock import RunnerLock
from riverrun.cluster.node import PROBE_SECONDS, ServerNode
from riverrun.cluster.registry import LocalRegistry, RegistryRuntime
from riverrun.cluster.server import Deadline
from riverrun.cluster.signals import handle_signals
from riverrun.config import Project, Settings
from riverrun.config.run_state import RunState, ServerState, last_state, lock_path, state_path
from riverrun.errors import AlreadyRunningError, ClusterError, DiskFullError, RiverrunError

# The servers are polled at least this often; the end of one wakes the runner at once.
POLL_SECONDS = 0.5
# An exit sooner than this is early; after this many early exits in a row of a required server the runner gives up.
# Without Druid, Connect or the registry, Kafka still takes records: those are retried without end.
EARLY_EXIT_SECONDS = 60.0
MAX_EARLY_EXITS = 4
FIRST_BACKOFF_SECONDS = 0.5
MAX_BACKOFF_SECONDS = 15.0


class StopRequestedError(BaseException):
    """SIGINT, SIGTERM or SIGHUP arrived. Not an Exception: no handler may take it for a failure."""


@dataclass
class SupervisedServer:
    """A server as the runner sees it. `last_exit` is why it last ended, or could not be started."""

    node: ServerNode
    state: str = "starting"
    detail: str = ""
    last_exit: str = ""
    restarts: int = 0
    early_exits: int = 0
    backoff: float = 0.0
    start_at: float = 0.0
    deadline: Deadline | None = None


class ServerSupervisor:
    """Runs a project's Kafka, and Connect, the registry and Druid when their runtimes are given, until it is asked to
    stop.

    `on_change` gets the state whenever it differs from before, `on_poll` every half second, `notice` sentences for the user.
    """

    def __init__(
        self,
        project: Project,
        settings: Settings,
        *,
        runtime: JavaRuntime,
        druid: DruidRuntime | None = None,
        connect: ConnectRuntime | None = None,
        registry: RegistryRuntime | None = None,
        notice: Callable[[str], None] = lambda _: None,
        on_change: Callable[[RunState], None] = lambda _: None,
        on_poll: Callable[[RunState], None] = lambda _: None,
    ) -> None:
        self._project = project
        self._settings = settings
        self._runtime = runtime
        self._druid_runtime = druid
        self._connect_runtime = connect
        self._registry_runtime = registry
        self._on_notice = notice
        self._on_change = on_change
        self._on_poll = on_poll
        self._lock = RunnerLock(lock_path(project))
        self._kafka: LocalKafka | None = None
        self._druid: LocalDruid | None = None
        self._connect: LocalConnect | None = None
        self._registry: LocalRegistry | None = None
        self._supervised: list[SupervisedServer] = []
        run_settings = compared_settings(settings.kafka)
        optional_servers = (("druid", druid), ("connect", connect), ("registry", registry))
        run_settings |= {name: 1 for name, runtime in optional_servers if runtime is not None}
        self._state = RunState(os.getpid(), "starting", __version__, settings=run_settings)
        self._written: RunState | None = None
        self._write_failed = False

    def run(self) -> None:
        """Start, keep running, and stop on a signal. Raises what kept the servers from running."""
        ClusterHome(self._project.home).make()
        try:
            (self._project.home / ".gitignore").write_text("*\n", encoding="ascii")
        except OSError as error:
            raise folder_error(error, self._project.home) from error
        with _signals() as stop_signals:
            try:
                self._take_lock()
                self._run(stop_signals)
            except StopRequestedError:
                # Before anything was started.
                return
            finally:
                self._lock.release()

    def _take_lock(self) -> None:
        if not self._lock.take():
            raise AlreadyRunningError(
                "Another runner has this project's lock",
                hint="`riverrun status` shows it, `riverrun down` stops it",
                project=str(self._project.root),
            )

    def _run(self, stop_signals: "_StopSignals") -> None:
        self._report_stale_state()
        self._state.started_at = time.time()
        self._write()
        try:
            self._start()
            self._supervise(stop_signals)
        except StopRequestedError:
            self._stop(stop_signals)
            state_path(self._project).unlink(missing_ok=True)
        except BaseException as error:
            self._stop(stop_signals, failed=error)
            raise

    def _report_stale_state(self) -> None:
        old = last_state(self._project)
        if old is not None and old.state != "failed":
            self._notice(f"the last runner (pid {old.pid}) ended without cleaning up; its state file is replaced")

    # --- start ---

    def _start(self) -> None:
        kafka = self._kafka = LocalKafka(
            self._project.home, self._settings.kafka, runtime=self._runtime, notice=self._notice
        )
        deadline = Deadline(kafka.start_timeout_seconds)
        kafka.start()
        self._show()
        kafka.ready(deadline)
        self._state.bootstrap_servers = kafka.bootstrap_servers
        self._show_responding()
        # All at once: each takes its time, and none needs another.
        connect = self._start_connect(self._connect_runtime, kafka) if self._connect_runtime is not None else None
        registry = self._start_registry(self._registry_runtime, kafka) if self._registry_runtime is not None else None
        if self._druid_runtime is not None:
            self._start_druid(self._druid_runtime)
        if connect is not None:
            self._await_connect(*connect)
        if registry is not None:
            self._await_registry(*registry)
        self._update(state="ready")

    def _start_connect(self, runtime: ConnectRuntime, kafka: LocalKafka) -> tuple[LocalConnect, Deadline]:
        connect = self._connect = LocalConnect(
            self._project.home,
            kafka.bootstrap_servers,
            connect_settings(self._settings.connect, self._project),
            copies=kafka.plan.replication,
            runtime=runtime,
            notice=self._notice,
        )
        deadline = Deadline(connect.start_timeout_seconds)
        connect.start()
        self._show_responding()
        return connect, deadline

    def _await_connect(self, connect: LocalConnect, deadline: Deadline) -> None:
        connect.ready(deadline)
        self._state.connect_url = connect.url
        self._show_responding()

    def _start_registry(self, runtime: RegistryRuntime, kafka: LocalKafka) -> tuple[LocalRegistry, Deadline]:
        registry = self._registry = LocalRegistry(
            self._project.home, kafka.bootstrap_servers, self._settings.registry, runtime=runtime, notice=self._notice
        )
        deadline = Deadline(registry.start_timeout_seconds)
        registry.start()
        self._show_responding()
        return registry, deadline

    def _await_registry(self, registry: LocalRegistry, deadline: Deadline) -> None:
        registry.ready(deadline)
        self._state.registry_url = registry.url
        self._show_responding()

    def _start_druid(self, runtime: DruidRuntime) -> None:
        """After Kafka: that is up in a moment, and users may begin while Druid starts."""
        druid = self._druid = LocalDruid(
            self._project.home,
            self._settings.druid,
            runtime=runtime,
            notice=self._notice,
            progressed=self._show_responding,
        )
        deadline = Deadline(druid.start_timeout_seconds)
        druid.start()
        self._show_responding()
        druid.ready(deadline)
        self._show_responding()
        self._state.druid_url = druid.url

    def _show_responding(self) -> None:
        """Kafka is ready when anything else is started."""
        ready = {node.name for node in self._kafka.nodes} if self._kafka is not None else set()
        if self._druid is not None:
            ready |= self._druid.responding
        if self._connect is not None and self._state.connect_url:
            ready |= {node.name for node in self._connect.nodes}
        if self._registry is not None and self._state.registry_url:
            ready |= {node.name for node in self._registry.nodes}
        self._show(ready=ready)

    def _show(self, ready: Collection[str] = ()) -> None:
        """Watch the current servers. Ports may have been chosen again, with new nodes, while they became ready."""
        nodes = [node for server in self._servers for node in server.nodes]
        self._supervised = [
            SupervisedServer(node, state="ready" if node.name in ready else "starting") for node in nodes
        ]
        self._update()

    @property
    def _servers(self) -> list[LocalKafka | LocalConnect | LocalRegistry | LocalDruid]:
        servers = (self._kafka, self._connect, self._registry, self._druid)
        return [server for server in servers if server is not None]

    # --- keep running ---

    def _supervise(self, stop_signals: "_StopSignals") -> None:
        while True:
            for supervised in self._supervised:
                self._poll_server(supervised)
            down = [supervised.node.name for supervised in self._supervised if supervised.state != "ready"]
            self._update(state="degraded" if down else "ready")
            with contextlib.suppress(OSError):
                self._on_poll(self._state)
            stop_signals.wait(POLL_SECONDS)

    def _poll_server(self, supervised: SupervisedServer) -> None:
        """Servers are independent: whatever goes wrong with one, the others go on."""
        try:
            if supervised.state in ("ready", "starting") and not supervised.node.alive:
                self._on_exit(
                    supervised,
                    supervised.node.exit_error(),
                    is_early=supervised.node.lived_seconds < EARLY_EXIT_SECONDS,
                )
            elif supervised.state == "restarting" and time.monotonic() >= supervised.start_at:
                self._restart(supervised)
            elif supervised.state == "starting" and supervised.deadline is not None:
                self._poll_start(supervised, supervised.deadline)
        except OSError as error:
            self._on_exit(supervised, _start_error(supervised.node, error), is_early=True)

    def _on_exit(self, supervised: SupervisedServer, error: ClusterError, *, is_early: bool) -> None:
        """It ended, or could not be started: schedule a restart, with backoff."""
        supervised.early_exits = supervised.early_exits + 1 if is_early else 1
        # A full disk is for the user to clear, and Kafka must be there when it is.
        may_give_up = supervised.node.is_required and not isinstance(error, DiskFullError)
        if may_give_up and supervised.early_exits > MAX_EARLY_EXITS:
            self._notice(f"{supervised.node.name} died {supervised.early_exits} times in a row; giving up")
            raise error
        times = min(supervised.early_exits - 1, 10)
        supervised.backoff = min(FIRST_BACKOFF_SECONDS * 2**times, MAX_BACKOFF_SECONDS)
        supervised.start_at = time.monotonic() + supervised.backoff
        supervised.state = "restarting"
        supervised.detail = supervised.last_exit = f"{error.what} ({error.found})" if error.found else error.what
        self._notice(f"{supervised.detail}; starting it again in {supervised.backoff:g} s")

    def _restart(self, supervised: SupervisedServer) -> None:
        supervised.restarts += 1
        supervised.state = "starting"
        supervised.deadline = Deadline(supervised.node.start_timeout_seconds)
        try:
            supervised.node.start()
        except ClusterError as error:
            # Its earlier lifetime says nothing about a failed start.
            self._on_exit(supervised, error, is_early=True)

    def _poll_start(self, supervised: SupervisedServer, deadline: Deadline) -> None:
        if supervised.node.is_responding(PROBE_SECONDS):
            supervised.state, supervised.detail, supervised.deadline = "ready", "", None
            self._notice(f"{supervised.node.name} runs again (pid {supervised.node.pid})")
        elif deadline.passed:
            supervised.node.kill()
            self._on_exit(supervised, supervised.node.not_ready_error(deadline), is_early=True)

    # --- stop ---

    def _stop(self, stop_signals: "_StopSignals", failed: BaseException | None = None) -> None:
        if any(node.alive for server in self._servers for node in server.nodes):
            try:
                stop_signals.armed = True
                self._notice("stopping; press Ctrl-C again to kill" if stop_signals.from_terminal else "stopping")
                self._update(state="stopping")
                # All others use Kafka: they stop first.
                for server in reversed(self._servers):
                    server.stop()
            except StopRequestedError:
                self._notice("killing")
                stop_signals.armed = False
                for server in reversed(self._servers):
                    server.kill()
            finally:
                stop_signals.armed = False
        if isinstance(failed, Exception):
            self._state.error = error_to_state(failed)
            self._update(state="failed", detail=failed.what if isinstance(failed, RiverrunError) else str(failed))

    # --- report ---

    def _update(self, *, state: str = "", detail: str | None = None) -> None:
        if state:
            self._state.state = state
        if detail is not None:
            self._state.detail = detail
        self._state.servers = [self._server_state(supervised) for supervised in self._supervised]
        self._write()

    def _server_state(self, supervised: SupervisedServer) -> ServerState:
        state = self._state.state if self._state.state in ("stopping", "failed") else supervised.state
        if state in ("stopping", "failed") and not supervised.node.alive:
            state = "stopped"
        return server_state(
            supervised.node,
            state=state,
            restarts=supervised.restarts,
            detail=supervised.detail,
            last_exit=supervised.last_exit,
        )

    def _write(self) -> None:
        if self._state == self._written and not self._write_failed:
            return
        try:
            self._state.write(state_path(self._project))
        except OSError as error:
            if self._state.state == "starting":
                raise folder_error(error, self._project.run) from error
            # Running servers are not stopped because their state cannot be written.
            if not self._write_failed:
                self._notice(f"the state file cannot be written: {error.strerror}")
            self._write_failed = True
        else:
            self._write_failed = False
        self._written = RunState(**vars(self._state))
        with contextlib.suppress(OSError):
            self._on_change(self._state)

    def _notice(self, text: str) -> None:
        """Tell the user. A terminal that was closed, or a log on a full disk, stops no server."""
        with contextlib.suppress(OSError):
            self._on_notice(text)


def _start_error(node: ServerNode, error: OSError) -> ClusterError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return folder_error(error, node.folder)
    return ClusterError(f"{node.name} cannot be started: {error.strerror or error}", server=node.name)


class _StopSignals:
    """Turns the first stop signal into StopRequestedError, at once while `armed`; later ones count only when armed again."""

    def __init__(self, reader: int) -> None:
        self.armed = True
        self.from_terminal = False
        self._reader = reader

    def arrived(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        self.from_terminal = number == signal.SIGINT
        if self.armed:
            self.armed = False
            raise StopRequestedError

    def wait(self, seconds: float) -> None:
        """Wait for a signal, which includes a child's end."""
        ready, _, _ = select.select([self._reader], [], [], seconds)
        if ready:
            os.read(self._reader, 512)


@contextlib.contextmanager
def _signals() -> Iterator[_StopSignals]:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    stop = _StopSignals(reader)
    before = signal.signal(signal.SIGCHLD, lambda *_: None)
    old_wakeup = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    try:
        with handle_signals(stop.arrived):
            yield stop
    finally:
        signal.set_wakeup_fd(old_wakeup)
        signal.signal(signal.SIGCHLD, before)
        os.close(reader)
        os.close(writer)
