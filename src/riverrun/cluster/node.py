"""One server in a JVM of its own, under a guard: what Kafka's nodes, ZooKeeper and Druid's roles have in common."""

import abc
import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Protocol

from riverrun.cluster.class_archive import ClassArchive
from riverrun.cluster.diagnosis import KAFKA, Product, explain
from riverrun.cluster.home import ClusterHome
from riverrun.cluster.jvm import JavaRuntime, child_environment
from riverrun.cluster.ports import HOST
from riverrun.cluster.process import ORPHAN_GRACE_SECONDS, GuardedProcess
from riverrun.cluster.server import Deadline, ManagedServer
from riverrun.config.private_files import write_private
from riverrun.errors import AlreadyRunningError, ClusterError, ServerNotReadyError

# Between two polls of a server that starts; its end is noticed at once.
POLL_SECONDS = 0.05
# How long one probe of a server that may not be there yet may take.
PROBE_SECONDS = 0.25
# When the runner was killed, servers that others need while they stop (controllers, ZooKeeper) outlive those by this.
DEPENDENT_DELAY_SECONDS = 3.0

LOG4J = """\
status = error
appender.file.type = RollingFile
appender.file.name = file
appender.file.fileName = ${sys:riverrun.log}
appender.file.filePattern = ${sys:riverrun.log}.%i
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{yyyy-MM-dd HH:mm:ss.SSS} %-5p %m (%c{1})%n%ex
appender.file.policies.type = Policies
appender.file.policies.size.type = SizeBasedTriggeringPolicy
appender.file.policies.size.size = 8MB
appender.file.strategy.type = DefaultRolloverStrategy
appender.file.strategy.max = 3
rootLogger.level = info
rootLogger.appenderRef.file.ref = file
"""


class ServerTimeouts(Protocol):
    """How long a server may take to start and stop: its plan or its settings."""

    @property
    def start_timeout_seconds(self) -> float: ...

    @property
    def stop_timeout_seconds(self) -> float: ...


class ServerNode(ManagedServer):
    """One JVM. Everything it writes is under the home's folders, by its name.

    `kind` is what the state file calls it. A server that is not `is_required` is started again without end when it dies; one
    that is ends the runner after some deaths in a row.
    """

    product: ClassVar[Product] = KAFKA
    is_required: ClassVar[bool] = True
    orphan_delay_seconds: float = 0.0

    def __init__(
        self,
        name: str,
        kind: str,
        timeouts: ServerTimeouts,
        *,
        home: ClusterHome,
        runtime: JavaRuntime,
        archive: ClassArchive | None = None,
        notice: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._name = name
        self.kind = kind
        self._timeouts = timeouts
        self.home = home
        self.runtime = runtime
        self.started_at = 0.0
        self._archive = archive
        self._archive_used = False
        self._notice = notice
        self._process: GuardedProcess | None = None
        self._log_start = 0

    # --- what each kind of server defines ---

    @property
    @abc.abstractmethod
    def port(self) -> int:
        """The port others use."""

    @property
    @abc.abstractmethod
    def folder(self) -> Path:
        """Its storage."""

    @property
    @abc.abstractmethod
    def work_folder(self) -> Path:
        """Where Java runs. Paths are relative to it: a comma or a colon in the project's own would not survive."""

    @property
    @abc.abstractmethod
    def heap_mb(self) -> int: ...

    @abc.abstractmethod
    def prepare(self) -> None:
        """Make its folders and write its files."""

    @abc.abstractmethod
    def command(self, options: Sequence[str]) -> list[str]:
        """The command that runs it, with these options for Java among its own."""

    @abc.abstractmethod
    def is_responding(self, seconds: float) -> bool:
        """Whether it answers its own protocol now. `seconds` is for one probe; a refused connection takes none."""

    @property
    def own_ports(self) -> tuple[int, ...]:
        """All ports it listens on."""
        return (self.port,)

    def environment(self) -> dict[str, str]:
        return child_environment()

    # --- what it is ---

    @property
    def name(self) -> str:
        return self._name

    @property
    def start_timeout_seconds(self) -> float:
        return self._timeouts.start_timeout_seconds

    @property
    def stop_timeout_seconds(self) -> float:
        return self._timeouts.stop_timeout_seconds

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def log(self) -> Path:
        return self.home.logs / f"{self.name}.log"

    @property
    def output(self) -> Path:
        """The output of Java itself: normally nothing."""
        return self.home.logs / f"{self.name}.out"

    @property
    def pid(self) -> int:
        """Java's own pid; 0 when it does not run."""
        return self._process.pid if self._process is not None and self._process.alive else 0

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.alive

    @property
    def lived_seconds(self) -> float:
        return self._process.lived_seconds if self._process is not None else 0.0

    # --- lifecycle ---

    def start(self) -> None:
        if self.alive:
            return
        self.prepare()
        self._log_start = size(self.log)
        archive = self._archive.options() if self._archive is not None else []
        self._archive_used = any(option.startswith("-XX:SharedArchiveFile") for option in archive)
        lock = node_lock(self.home, self.name, self._notice)
        logs = os.path.relpath(self.home.logs, self.work_folder)
        options = [*archive, f"-XX:ErrorFile={logs}/{self.name}.crash", f"-Driverrun.log={logs}/{self.log.name}"]
        try:
            self._process = GuardedProcess(
                self.command(options),
                cwd=self.work_folder,
                output=self.output,
                environ=self.environment(),
                keep_fd=lock,
                orphan_delay_seconds=self.orphan_delay_seconds,
            )
            self._process.start()
            self.started_at = time.time()
            os.pwrite(lock, b"%-20d" % self._process.pid, 0)
        finally:
            # From here on the child alone holds the lock.
            os.close(lock)

    def ready(self, deadline: Deadline) -> None:
        while not self.is_responding(PROBE_SECONDS):
            self.check()
            if deadline.passed:
                raise self.not_ready_error(deadline)
            self.pause()

    def check(self) -> None:
        """Raise the error the server died of, if it did. One that an archive may have killed is started once more
        without it."""
        if self.alive:
            return
        if self._archive is not None and self._archive_used and size(self.log) <= self._log_start:
            self._notice(f"{self.name} ended before {self.product.name} began; trying without the class archive")
            self._archive.discard()
            self._archive = None
            self.start()
            return
        raise self.exit_error()

    def pause(self) -> None:
        """Wait a moment, or less if the server ends."""
        if self._process is not None:
            self._process.wait(POLL_SECONDS)

    def ask_to_stop(self) -> None:
        if self._process is not None:
            self._process.ask_to_stop()

    def wait(self, seconds: float) -> bool:
        """Wait until it has ended; False when it still lives then."""
        return self._process is None or self._process.wait(seconds)

    def stop(self) -> None:
        if self._process is not None:
            self._process.stop(Deadline(self.stop_timeout_seconds))

    def kill(self) -> None:
        """Kill it with -9, as a crash would, and wait until it is gone."""
        if self._process is not None:
            self._process.kill()

    def restart(self) -> None:
        """Start it again, after `stop`, `kill` or a death, and wait until it is ready."""
        self.stop()
        deadline = Deadline(self.start_timeout_seconds)
        self.start()
        self.ready(deadline)

    # --- diagnosis of failures ---

    def exit_error(self) -> ClusterError:
        process = self._process
        if process is None:
            return ClusterError(f"{self.name} was not started")
        return explain(
            self.name,
            exit_code=process.exit_code or 0,
            seconds=process.lived_seconds,
            log=self.log,
            log_start=self._log_start,
            output=self.output,
            output_start=process.output_start,
            ports=self.own_ports,
            folder=self.folder,
            heap_mb=self.heap_mb,
            product=self.product,
        )

    def not_ready_error(self, deadline: Deadline) -> ServerNotReadyError:
        return ServerNotReadyError(
            f"{self.name} runs and was not ready after {deadline.seconds:.0f} s",
            expected=f"an answer on {self.address}",
            found="none",
            hint=f"See {self.log}, or give it more time with {self.product.section}.start_timeout_seconds",
            server=self.name,
            log=self.log,
        )


class OptionalNode(ServerNode):
    """A server beside Kafka, which works without it: its death does not end the runner."""

    is_required: ClassVar[bool] = False

    def environment(self) -> dict[str, str]:
        # The C library would give each of many mostly idle threads a memory arena of its own.
        return {"MALLOC_ARENA_MAX": "2"} | super().environment()


def write_logging(path: Path, quiet: Mapping[str, str]) -> None:
    """A log4j2 configuration for servers that get their log path by `-Driverrun.log`; `quiet` maps loggers to levels."""
    loggers = "".join(
        f"logger.quiet{number}.name = {name}\nlogger.quiet{number}.level = {level}\n"
        for number, (name, level) in enumerate(quiet.items())
    )
    write_private(path, LOG4J + loggers)


def node_lock(home: ClusterHome, name: str, notice: Callable[[str], None]) -> int:
    """A node's own lock, once no earlier process holds it: a server whose runner was killed takes seconds to end."""
    path = home.run / f"{name}.lock"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = Deadline(DEPENDENT_DELAY_SECONDS + ORPHAN_GRACE_SECONDS + 10)
    notified = False
    try:
        while True:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return descriptor
            pid = os.pread(descriptor, 20, 0).decode(errors="replace").strip()
            if deadline.passed:
                raise AlreadyRunningError(
                    f"{name} of an earlier runner still lives (pid {pid})",
                    hint=f"End it: kill {pid}",
                    server=name,
                    pid=pid,
                )
            if not notified:
                notice(f"{name} of an earlier runner (pid {pid}) is ending; waiting for it")
                notified = True
            time.sleep(POLL_SECONDS)
    except BaseException:
        os.close(descriptor)
        raise


def size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
