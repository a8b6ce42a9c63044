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
from riverrun.cluster.home import Home, folder_error
from riverrun.cluster.jvm import Runtime
from riverrun.cluster.lock import RunnerLock
from riverrun.cluster.node import ANSWER_SECONDS, Node
from riverrun.cluster.registry import LocalRegistry, RegistryRuntime
from riverrun.cluster.runner import LocalKafka
from riverrun.cluster.server import Deadline
from riverrun.cluster.signals import handling
from riverrun.config import Project, Settings
from riverrun.config.run_state import RunState, ServerState, last_state, lock_path, state_path
from riverrun.errors import AlreadyRunningError, ClusterError, DiskFullError, RiverrunError

# A look at the servers happens at least this often; the end of one wakes the runner at once.
LOOK_SECONDS = 0.5
# A server that lived shorter than this died young; after so many young deaths in a row of one that is vital the runner
# gives up. Without one of Druid's, Connect or the registry, Kafka still takes records: that one is tried without end.
YOUNG_SECONDS = 60.0
MOST_YOUNG_DEATHS = 4
FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 15.0


class StopRequestedError(BaseException):
    """SIGINT, SIGTERM or SIGHUP arrived. Not an Exception: nothing on the way may take it for a failure."""


@dataclass
class Watched:
    """A server as the runner sees it. `last_exit` is what it last ended of, or could not be started for."""

    node: Node
    state: str = "starting"
    detail: str = ""
    last_exit: str = ""
    restarts: int = 0
    young_deaths: int = 0
    pause: float = 0.0
    start_at: float = 0.0
    deadline: Deadline | None = None


class Supervisor:
    """Runs a project's Kafka, and Connect, the registry and Druid when their runtimes are given, until it is told to stop.

    `changed` gets the state whenever it differs from before, `looked` every half second, `notice` sentences for the user.
    """

    def __init__(
        self,
        project: Project,
        settings: Settings,
        *,
        runtime: Runtime,
        druid: DruidRuntime | None = None,
        connect: ConnectRuntime | None = None,
        registry: RegistryRuntime | None = None,
        notice: Callable[[str], None] = lambda _: None,
        changed: Callable[[RunState], None] = lambda _: None,
        looked: Callable[[RunState], None] = lambda _: None,
    ) -> None:
        self._project = project
        self._settings = settings
        self._runtime = runtime
        self._druid_runtime = druid
        self._connect_runtime = connect
        self._registry_runtime = registry
        self._tell = notice
        self._changed = changed
        self._looked = looked
        self._lock = RunnerLock(lock_path(project))
        self._kafka: LocalKafka | None = None
        self._druid: LocalDruid | None = None
        self._connect: LocalConnect | None = None
        self._registry: LocalRegistry | None = None
        self._watched: list[Watched] = []
        told = compared_settings(settings.kafka)
        beside = (("druid", druid), ("connect", connect), ("registry", registry))
        told |= {name: 1 for name, runtime in beside if runtime is not None}
        self._state = RunState(os.getpid(), "starting", __version__, settings=told)
        self._written: RunState | None = None
        self._unwritten = False

    def run(self) -> None:
        """Start, keep running, and stop when a signal asks. Raises what kept the servers from running."""
        Home(self._project.home).make()
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
        self._say_stale()
        self._state.started_at = time.time()
        self._write()
        try:
            self._start()
            self._watch(stop_signals)
        except StopRequestedError:
            self._stop(stop_signals)
            state_path(self._project).unlink(missing_ok=True)
        except BaseException as error:
            self._stop(stop_signals, failed=error)
            raise

    def _say_stale(self) -> None:
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
        self._show_answering()
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
        self._show_answering()
        return connect, deadline

    def _await_connect(self, connect: LocalConnect, deadline: Deadline) -> None:
        connect.ready(deadline)
        self._state.connect_url = connect.url
        self._show_answering()

    def _start_registry(self, runtime: RegistryRuntime, kafka: LocalKafka) -> tuple[LocalRegistry, Deadline]:
        registry = self._registry = LocalRegistry(
            self._project.home, kafka.bootstrap_servers, self._settings.registry, runtime=runtime, notice=self._notice
        )
        deadline = Deadline(registry.start_timeout_seconds)
        registry.start()
        self._show_answering()
        return registry, deadline

    def _await_registry(self, registry: LocalRegistry, deadline: Deadline) -> None:
        registry.ready(deadline)
        self._state.registry_url = registry.url
        self._show_answering()

    def _start_druid(self, runtime: DruidRuntime) -> None:
        """After Kafka: that is up in a moment, and users may begin while Druid takes its time."""
        druid = self._druid = LocalDruid(
            self._project.home,
            self._settings.druid,
            runtime=runtime,
            notice=self._notice,
            progressed=self._show_answering,
        )
        deadline = Deadline(druid.start_timeout_seconds)
        druid.start()
        self._show_answering()
        druid.ready(deadline)
        self._show_answering()
        self._state.druid_url = druid.url

    def _show_answering(self) -> None:
        """Kafka is ready when anything else is started."""
        ready = {node.name for node in self._kafka.nodes} if self._kafka is not None else set()
        if self._druid is not None:
            ready |= self._druid.answering
        if self._connect is not None and self._state.connect_url:
            ready |= {node.name for node in self._connect.nodes}
        if self._registry is not None and self._state.registry_url:
            ready |= {node.name for node in self._registry.nodes}
        self._show(ready=ready)

    def _show(self, ready: Collection[str] = ()) -> None:
        """Watch the servers there are now. Ports may have been chosen anew, with new nodes, while they became ready."""
        nodes = [node for server in self._servers for node in server.nodes]
        self._watched = [Watched(node, state="ready" if node.name in ready else "starting") for node in nodes]
        self._update()

    @property
    def _servers(self) -> list[LocalKafka | LocalConnect | LocalRegistry | LocalDruid]:
        there = (self._kafka, self._connect, self._registry, self._druid)
        return [server for server in there if server is not None]

    # --- keep running ---

    def _watch(self, stop_signals: "_StopSignals") -> None:
        while True:
            for watched in self._watched:
                self._look(watched)
            down = [watched.node.name for watched in self._watched if watched.state != "ready"]
            self._update(state="degraded" if down else "ready")
            with contextlib.suppress(OSError):
                self._looked(self._state)
            stop_signals.wait(LOOK_SECONDS)

    def _look(self, watched: Watched) -> None:
        """Each server's life is its own: whatever goes wrong with one, the others go on."""
        try:
            if watched.state in ("ready", "starting") and not watched.node.alive:
                self._died(watched, watched.node.death(), young=watched.node.lived_seconds < YOUNG_SECONDS)
            elif watched.state == "restarting" and time.monotonic() >= watched.start_at:
                self._start_again(watched)
            elif watched.state == "starting" and watched.deadline is not None:
                self._look_at_start(watched, watched.deadline)
        except OSError as error:
            self._died(watched, _not_started(watched.node, error), young=True)

    def _died(self, watched: Watched, error: ClusterError, *, young: bool) -> None:
        """It ended, or could not be started: to be started again, after a pause that grows from one time to the next."""
        watched.young_deaths = watched.young_deaths + 1 if young else 1
        # A full disk is for the user to clear, and Kafka is to be there when it is.
        may_end = watched.node.vital and not isinstance(error, DiskFullError)
        if may_end and watched.young_deaths > MOST_YOUNG_DEATHS:
            self._notice(f"{watched.node.name} died {watched.young_deaths} times in a row; giving up")
            raise error
        times = min(watched.young_deaths - 1, 10)
        watched.pause = min(FIRST_PAUSE_SECONDS * 2**times, LONGEST_PAUSE_SECONDS)
        watched.start_at = time.monotonic() + watched.pause
        watched.state = "restarting"
        watched.detail = watched.last_exit = f"{error.what} ({error.found})" if error.found else error.what
        self._notice(f"{watched.detail}; starting it again in {watched.pause:g} s")

    def _start_again(self, watched: Watched) -> None:
        watched.restarts += 1
        watched.state = "starting"
        watched.deadline = Deadline(watched.node.start_timeout_seconds)
        try:
            watched.node.start()
        except ClusterError as error:
            # How long it lived before says nothing about a start that failed.
            self._died(watched, error, young=True)

    def _look_at_start(self, watched: Watched, deadline: Deadline) -> None:
        if watched.node.answers(ANSWER_SECONDS):
            watched.state, watched.detail, watched.deadline = "ready", "", None
            self._notice(f"{watched.node.name} runs again (pid {watched.node.pid})")
        elif deadline.passed:
            watched.node.kill()
            self._died(watched, watched.node.not_ready(deadline), young=True)

    # --- stop ---

    def _stop(self, stop_signals: "_StopSignals", failed: BaseException | None = None) -> None:
        if any(node.alive for server in self._servers for node in server.nodes):
            try:
                stop_signals.armed = True
                self._notice("stopping; press Ctrl-C again to kill" if stop_signals.from_terminal else "stopping")
                self._update(state="stopping")
                # All others use Kafka: they go first.
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

    # --- tell ---

    def _update(self, *, state: str = "", detail: str | None = None) -> None:
        if state:
            self._state.state = state
        if detail is not None:
            self._state.detail = detail
        self._state.servers = [self._server(watched) for watched in self._watched]
        self._write()

    def _server(self, watched: Watched) -> ServerState:
        state = self._state.state if self._state.state in ("stopping", "failed") else watched.state
        if state in ("stopping", "failed") and not watched.node.alive:
            state = "stopped"
        return server_state(
            watched.node, state=state, restarts=watched.restarts, detail=watched.detail, last_exit=watched.last_exit
        )

    def _write(self) -> None:
        if self._state == self._written and not self._unwritten:
            return
        try:
            self._state.write(state_path(self._project))
        except OSError as error:
            if self._state.state == "starting":
                raise folder_error(error, self._project.run) from error
            # Servers that run are not stopped because a note about them cannot be written.
            if not self._unwritten:
                self._notice(f"the state file cannot be written: {error.strerror}")
            self._unwritten = True
        else:
            self._unwritten = False
        self._written = RunState(**vars(self._state))
        with contextlib.suppress(OSError):
            self._changed(self._state)

    def _notice(self, text: str) -> None:
        """Tell the user. A terminal that was closed, or a log on a full disk, stops no server."""
        with contextlib.suppress(OSError):
            self._tell(text)


def _not_started(node: Node, error: OSError) -> ClusterError:
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
        """Wait for a signal, of which a child's end is one."""
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
        with handling(stop.arrived):
            yield stop
    finally:
        signal.set_wakeup_fd(old_wakeup)
        signal.signal(signal.SIGCHLD, before)
        os.close(reader)
        os.close(writer)
