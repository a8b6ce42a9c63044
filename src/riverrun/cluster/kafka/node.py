"""One Kafka node: a JVM that is a broker, a controller, or both."""

from collections.abc import Callable, Sequence
from pathlib import Path

from riverrun.cluster.class_archive import ClassArchive
from riverrun.cluster.home import ClusterHome, check_space, make_folder
from riverrun.cluster.jvm import JavaRuntime, java_options
from riverrun.cluster.kafka import storage
from riverrun.cluster.kafka.plan import KafkaManifest, KafkaPlan, NodePlan
from riverrun.cluster.node import DEPENDENT_DELAY_SECONDS, ServerNode, write_logging
from riverrun.cluster.ports import HOST
from riverrun.cluster.properties import format_properties
from riverrun.config.private_files import write_private

# Kafka's own marker of a log folder that was closed properly; deleted once the broker runs.
CLEAN_SHUTDOWN_FILE = ".kafka_cleanshutdown"
LOGGING = "log4j2.properties"
# Two hundred lines of values at each start, which the configuration file has as well.
LOG_LEVELS = {
    "org.apache.kafka.common.config.AbstractConfig": "warn",
    "org.apache.kafka.common.config.ConfigDef": "warn",
}


class KafkaNode(ServerNode):
    """One node of a cluster."""

    def __init__(
        self,
        node: NodePlan,
        plan: KafkaPlan,
        manifest: KafkaManifest,
        *,
        home: ClusterHome,
        runtime: JavaRuntime,
        archive: ClassArchive | None = None,
        notice: Callable[[str], None] = lambda _: None,
    ) -> None:
        super().__init__(node.name, node.kind, plan, home=home, runtime=runtime, archive=archive, notice=notice)
        self.node = node
        self.plan = plan
        self.manifest = manifest
        self.orphan_delay_seconds = 0.0 if node.is_broker else DEPENDENT_DELAY_SECONDS

    # --- what it is ---

    @property
    def heap_mb(self) -> int:
        return self.plan.heap_mb

    @property
    def port(self) -> int:
        """The port clients use; of a dedicated controller, the port brokers use."""
        return self.manifest.ports[self.name if self.node.is_broker else f"{self.name}.controller"]

    @property
    def own_ports(self) -> tuple[int, ...]:
        names = (self.name, f"{self.name}.controller")
        return tuple(self.manifest.ports[name] for name in names if name in self.manifest.ports)

    @property
    def folder(self) -> Path:
        return kafka_folder(self.home) / self.name

    @property
    def work_folder(self) -> Path:
        return kafka_folder(self.home)

    # --- lifecycle ---

    def prepare(self) -> None:
        make_folder(self.folder)
        check_space(self.folder)
        self._format()
        write_private(self._configuration, format_properties(self.properties()))
        write_logging(self.home.run / LOGGING, LOG_LEVELS)

    def command(self, options: Sequence[str]) -> list[str]:
        return self.runtime.command(
            "kafka.Kafka",
            [f"../../run/{self._configuration.name}"],
            options=[
                *java_options(self.plan.heap_mb, self.plan.jvm_options),
                *options,
                f"-Dlog4j2.configurationFile=../../run/{LOGGING}",
            ],
        )

    def is_responding(self, seconds: float) -> bool:
        from riverrun.kafka.probe import is_kafka_responding

        return is_kafka_responding(HOST, self.port, seconds)

    @property
    def is_cleanly_shut_down(self) -> bool:
        """Whether its log is cleanly shut down: all records are in closed files, and the next start need not check
        them."""
        return not self.node.is_broker or (self.folder / CLEAN_SHUTDOWN_FILE).exists()

    # --- its files ---

    @property
    def _configuration(self) -> Path:
        return self.home.run / f"{self.name}.properties"

    def properties(self) -> dict[str, str]:
        """The node's server.properties."""
        ports = self.manifest.ports
        listeners = []
        if self.node.is_broker:
            listeners.append(f"CLIENT://{HOST}:{ports[self.name]}")
        if self.node.is_controller:
            listeners.append(f"CONTROLLER://{HOST}:{ports[f'{self.name}.controller']}")
        voters = {node.id: node.name for node in self.plan.nodes(self.manifest.controller_ids) if node.is_controller}
        properties = {
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
            properties["advertised.listeners"] = f"CLIENT://{HOST}:{ports[self.name]}"
            properties["inter.broker.listener.name"] = "CLIENT"
        return properties | single_machine_properties(self.plan) | dict(self.plan.properties)

    def _format(self) -> None:
        if storage.is_formatted(self.folder):
            storage.check_storage(self.folder, self.manifest.cluster_id, self.node.id)
            return
        minor = ".".join(self.runtime.kafka_version.split(".")[:2])
        if features := storage.FEATURES.get(minor):
            storage.format_storage(self.folder, self.manifest.cluster_id, self.node.id, features)
        else:
            storage.format_with_tool(
                self.runtime,
                self.home,
                self.name,
                cluster_id=self.manifest.cluster_id,
                properties=self.properties(),
            )


def single_machine_properties(plan: KafkaPlan) -> dict[str, str]:
    """Broker settings for a cluster on one laptop, where Kafka's defaults are for a data centre."""
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
        # A transaction left open by a killed producer blocks readers: check for those every second, not every ten.
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
        "log.cleaner.dedupe.buffer.size": "10485760",
        "log.retention.check.interval.ms": "10000",
        "num.network.threads": "2",
        "num.io.threads": "4",
        # A killed broker can rejoin only when its old session has ended. A single broker has nobody to hand over to, so
        # a session that expires by mistake costs it almost nothing; among others it costs a leader change.
        "broker.heartbeat.interval.ms": "250" if plan.brokers == 1 else "500",
        "broker.session.timeout.ms": "2000" if plan.brokers == 1 else "6000",
    }


def kafka_folder(home: ClusterHome) -> Path:
    return home.data / "kafka"
