"""One Kafka node: a JVM that is a broker, a controller, or both."""

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from riverrun.cluster import storage
from riverrun.cluster.archive import ClassArchive
from riverrun.cluster.diagnosis import explain
from riverrun.cluster.home import Home, check_space, make_folder
from riverrun.cluster.jvm import Runtime, environment, java_options
from riverrun.cluster.plan import ClusterRecord, KafkaPlan, NodePlan
from riverrun.cluster.ports import HOST
from riverrun.cluster.process import ORPHAN_GRACE_SECONDS, GuardedProcess
from riverrun.cluster.properties import format_properties
from riverrun.cluster.server import Deadline, Server
from riverrun.errors import AlreadyRunningError, ClusterError, ServerNotReadyError

# Between two looks at a server that starts; its end is noticed at once.
LOOK_SECONDS = 0.05

# When the runner was killed, controllers of their own outlive the brokers by this: without them no broker can leave.
CONTROLLER_DELAY_SECONDS = 3.0
# Kafka's own mark of a log folder that was closed properly; gone again once the broker runs.
CLEAN = ".kafka_cleanshutdown"

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
# Two hundred lines of values at each start, which the configuration file has as well.
logger.values.name = org.apache.kafka.common.config.AbstractConfig
logger.values.level = warn
logger.shown.name = org.apache.kafka.common.config.ConfigDef
logger.shown.level = warn
"""


class KafkaNode(Server):
    """One node of a cluster. Everything it writes is under the home's folders, by its name."""

    def __init__(
        self,
        node: NodePlan,
        plan: KafkaPlan,
        record: ClusterRecord,
        *,
        home: Home,
        runtime: Runtime,
        archive: ClassArchive | None = None,
        notice: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.node = node
        self.plan = plan
        self.record = record
        self.home = home
        self.runtime = runtime
        self.started_at = 0.0
        self._archive = archive
        self._archive_used = False
        self._notice = notice
        self._process: GuardedProcess | None = None
        self._log_start = 0

    # --- what it is ---

    @property
    def name(self) -> str:
        return self.node.name

    @property
    def start_timeout_seconds(self) -> float:
        return self.plan.start_timeout_seconds

    @property
    def port(self) -> int:
        """The port clients use; of a controller of its own, the port brokers use."""
        return self.record.ports[self.name if self.node.is_broker else f"{self.name}.controller"]

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def log(self) -> Path:
        return self.home.logs / f"{self.name}.log"

    @property
    def output(self) -> Path:
        """What Java itself says: normally nothing."""
        return self.home.logs / f"{self.name}.out"

    @property
    def folder(self) -> Path:
        """The node's storage."""
        return kafka_folder(self.home) / self.name

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

    # --- its life ---

    def start(self) -> None:
        if self.alive:
            return
        make_folder(self.folder)
        check_space(self.folder)
        self._format()
        configuration = self.home.run / f"{self.name}.properties"
        configuration.write_text(format_properties(self.properties()), encoding="ascii")
        logging = self.home.run / "log4j2.properties"
        logging.write_text(LOG4J, encoding="ascii")
        self._log_start = size(self.log)
        archive = self._archive.options() if self._archive is not None else []
        self._archive_used = any(option.startswith("-XX:SharedArchiveFile") for option in archive)
        lock = node_lock(self.home, self.name, self._notice)
        try:
            # Paths are relative to the working folder: a comma or a colon in the project's own would not survive.
            self._process = GuardedProcess(
                self.runtime.command(
                    "kafka.Kafka",
                    [f"../../run/{configuration.name}"],
                    options=[
                        *java_options(self.plan.heap_mb, self.plan.jvm_options),
                        *archive,
                        f"-XX:ErrorFile=../../logs/{self.name}.crash",
                        f"-Driverrun.log=../../logs/{self.log.name}",
                        f"-Dlog4j2.configurationFile=../../run/{logging.name}",
                    ],
                ),
                cwd=kafka_folder(self.home),
                output=self.output,
                environ=environment(),
                keep_fd=lock,
                orphan_delay_seconds=0.0 if self.node.is_broker else CONTROLLER_DELAY_SECONDS,
            )
            self._process.start()
            self.started_at = time.time()
            os.pwrite(lock, b"%-20d" % self._process.pid, 0)
        finally:
            # From here on the child alone holds the lock.
            os.close(lock)

    def ready(self, deadline: Deadline) -> None:
        from riverrun.kafka.probe import answers

        while not answers(HOST, self.port, 0.25):
            self.check()
            if deadline.passed:
                raise self.not_ready(deadline)
            self.pause()

    def check(self) -> None:
        """Raise what the node died of, if it did. A node that an archive may have killed is started once more without."""
        if self.alive:
            return
        if self._archive is not None and self._archive_used and size(self.log) <= self._log_start:
            self._notice(f"{self.name} ended before Kafka began; trying without the class archive")
            self._archive.drop()
            self._archive = None
            self.start()
            return
        raise self.death()

    def pause(self) -> None:
        """Wait a moment, or less if the node ends."""
        if self._process is not None:
            self._process.wait(LOOK_SECONDS)

    def ask_to_stop(self) -> None:
        if self._process is not None:
            self._process.ask_to_stop()

    def wait(self, seconds: float) -> bool:
        """Wait until it has ended; False when it still lives then."""
        return self._process is None or self._process.wait(seconds)

    def stop(self) -> None:
        if self._process is not None:
            self._process.stop(Deadline(self.plan.stop_timeout_seconds))

    @property
    def closed_its_logs(self) -> bool:
        """Whether it has stopped being a broker: all records are in closed files, and the next start need not check them."""
        return not self.node.is_broker or (self.folder / CLEAN).exists()

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

    # --- what it says when it fails ---

    def death(self) -> ClusterError:
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
            ports=tuple(self._own_ports().values()),
            folder=self.folder,
            heap_mb=self.plan.heap_mb,
        )

    def not_ready(self, deadline: Deadline) -> ServerNotReadyError:
        return ServerNotReadyError(
            f"{self.name} runs and was not ready after {deadline.seconds:.0f} s",
            expected=f"an answer on {self.address}",
            found="none",
            hint=f"See {self.log}, or give it more time with kafka.start_timeout_seconds",
            server=self.name,
            log=self.log,
        )

    # --- its files ---

    def properties(self) -> dict[str, str]:
        """The node's server.properties."""
        ports = self.record.ports
        listeners = []
        if self.node.is_broker:
            listeners.append(f"CLIENT://{HOST}:{ports[self.name]}")
        if self.node.is_controller:
            listeners.append(f"CONTROLLER://{HOST}:{ports[f'{self.name}.controller']}")
        voters = {each.id: each.name for each in self.plan.nodes(self.record.controller_ids) if each.is_controller}
        found = {
            "process.roles": self.node.roles,
            "node.id": str(self.node.id),
            "controller.quorum.voters": ",".join(
                f"{id_}@{HOST}:{ports[f'{name}.controller']}" for id_, name in voters.items()
            ),
            "controller.listener.names": "CONTROLLER",
            "listeners": ",".join(listeners),
            "listener.security.protocol.map": "CLIENT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "log.dirs": self.name,
        }
        if self.node.is_broker:
            found["advertised.listeners"] = f"CLIENT://{HOST}:{ports[self.name]}"
            found["inter.broker.listener.name"] = "CLIENT"
        return found | small_machine(self.plan) | dict(self.plan.properties)

    def _own_ports(self) -> Mapping[str, int]:
        names = (self.name, f"{self.name}.controller")
        return {name: self.record.ports[name] for name in names if name in self.record.ports}

    def _format(self) -> None:
        if storage.is_formatted(self.folder):
            storage.check_storage(self.folder, self.record.cluster_id, self.node.id)
            return
        minor = ".".join(self.runtime.kafka_version.split(".")[:2])
        if features := storage.FEATURES.get(minor):
            storage.format_storage(self.folder, self.record.cluster_id, self.node.id, features)
        else:
            storage.format_with_tool(
                self.runtime,
                self.home,
                self.name,
                cluster_id=self.record.cluster_id,
                properties=self.properties(),
            )


def node_lock(home: Home, name: str, notice: Callable[[str], None]) -> int:
    """A node's own lock, once no earlier process holds it: a broker whose runner was killed takes seconds to end."""
    path = home.run / f"{name}.lock"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    deadline = Deadline(CONTROLLER_DELAY_SECONDS + ORPHAN_GRACE_SECONDS + 10)
    told = False
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
            if not told:
                notice(f"{name} of an earlier runner (pid {pid}) is ending; waiting for it")
                told = True
            time.sleep(LOOK_SECONDS)
    except BaseException:
        os.close(descriptor)
        raise


def small_machine(plan: KafkaPlan) -> dict[str, str]:
    """Broker settings for a cluster whose machines are one laptop, where Kafka's defaults are for a data centre."""
    copies, least = str(plan.replication), str(plan.min_insync)
    return {
        "default.replication.factor": copies,
        "min.insync.replicas": least,
        "offsets.topic.replication.factor": copies,
        "offsets.topic.num.partitions": "4",
        "transaction.state.log.replication.factor": copies,
        "transaction.state.log.min.isr": least,
        "transaction.state.log.num.partitions": "4",
        "share.coordinator.state.topic.replication.factor": copies,
        "share.coordinator.state.topic.min.isr": least,
        "share.coordinator.state.topic.num.partitions": "4",
        "auto.create.topics.enable": "false",
        "unclean.leader.election.enable": "false",
        # A group waits 3 s for more members by default, at every start of a program.
        "group.initial.rebalance.delay.ms": "0",
        "group.min.session.timeout.ms": "1000",
        # A transaction left open by a killed producer blocks readers: look for those every second, not every ten.
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
        "log.cleaner.dedupe.buffer.size": "10485760",
        "log.retention.check.interval.ms": "10000",
        "num.network.threads": "2",
        "num.io.threads": "4",
        # A broker that was killed may come back only when its old session has ended. Alone it has nobody to hand over to,
        # so an end by mistake costs it a blink; among others it costs a change of leaders.
        "broker.heartbeat.interval.ms": "250" if plan.brokers == 1 else "500",
        "broker.session.timeout.ms": "2000" if plan.brokers == 1 else "6000",
    }


def kafka_folder(home: Home) -> Path:
    return home.data / "kafka"


def size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
