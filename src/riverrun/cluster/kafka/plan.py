"""The plan of a Kafka cluster: its nodes, their roles and ids, replication, and whether existing data fits."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from riverrun.cluster.kafka.storage import new_id
from riverrun.cluster.manifest import ServerManifest
from riverrun.config import KafkaSettings
from riverrun.errors import ConfigError, DataDirectoryError

MAX_COMBINED_CONTROLLERS = 3
MAX_REPLICATION = 3
# Dedicated controllers are numbered from here, so that any number of brokers may be added.
FIRST_CONTROLLER_ID = 1001

# The runner sets these; a cluster in which [kafka.broker] changed them would not be found or not start.
MANAGED_PROPERTIES = frozenset({
    "process.roles", "node.id", "broker.id", "listeners", "advertised.listeners", "controller.listener.names",
    "controller.quorum.voters", "controller.quorum.bootstrap.servers", "inter.broker.listener.name",
    "security.inter.broker.protocol", "listener.security.protocol.map", "log.dir", "log.dirs", "metadata.log.dir",
})  # fmt: skip


@dataclass(frozen=True)
class NodePlan:
    """One JVM: a broker, a controller, or both."""

    id: int
    name: str
    is_broker: bool
    is_controller: bool

    @property
    def kind(self) -> str:
        return "broker" if self.is_broker else "controller"

    @property
    def roles(self) -> str:
        return ",".join(name for name, has in (("broker", self.is_broker), ("controller", self.is_controller)) if has)


@dataclass(frozen=True)
class KafkaPlan:
    """A cluster on this machine."""

    brokers: int = 1
    controllers: int = 0
    replication: int = 1
    min_insync: int = 1
    heap_mb: int = 256
    port: int = 0
    start_timeout_seconds: float = 90.0
    stop_timeout_seconds: float = 30.0
    jvm_options: tuple[str, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, settings: KafkaSettings) -> "KafkaPlan":
        if wrong := sorted(MANAGED_PROPERTIES & set(settings.broker)):
            raise ConfigError([f"kafka.broker sets {name}, which riverrun sets itself: remove it" for name in wrong])
        replication = settings.replication or min(MAX_REPLICATION, settings.brokers)
        return cls(
            brokers=settings.brokers,
            controllers=settings.controllers,
            replication=replication,
            min_insync=settings.min_insync or max(1, replication - 1),
            heap_mb=settings.heap_mb,
            port=settings.port,
            start_timeout_seconds=settings.start_timeout_seconds,
            stop_timeout_seconds=settings.stop_timeout_seconds,
            jvm_options=tuple(settings.jvm_options.split()),
            properties=dict(settings.broker),
        )

    @property
    def broker_ids(self) -> list[int]:
        return list(range(1, self.brokers + 1))

    @property
    def controller_ids(self) -> list[int]:
        """The controllers of a new cluster. They cannot change afterwards: see KafkaManifest."""
        if self.controllers:
            return list(range(FIRST_CONTROLLER_ID, FIRST_CONTROLLER_ID + self.controllers))
        return self.broker_ids[:MAX_COMBINED_CONTROLLERS]

    def nodes(self, controller_ids: list[int]) -> list[NodePlan]:
        """All JVMs, dedicated controllers first: brokers wait for them anyway."""
        controllers = [
            NodePlan(id_, f"controller-{number}", is_broker=False, is_controller=True)
            for number, id_ in enumerate(sorted(set(controller_ids) - set(self.broker_ids)), start=1)
        ]
        brokers = [
            NodePlan(id_, f"broker-{id_}", is_broker=True, is_controller=id_ in controller_ids)
            for id_ in self.broker_ids
        ]
        return controllers + brokers


@dataclass
class KafkaManifest(ServerManifest):
    """What a cluster's data was created with, kept beside it: `data/kafka/cluster.json`.

    The controllers are a static quorum: their ids are written into their own state, so they stay what they were when
    the cluster was created. Their ports may change, and brokers may be added. `min_insync` is the cluster's value:
    Kafka keeps the one of the first start and ignores the configuration file afterwards.
    """

    cluster_id: str
    kafka_version: str
    controller_ids: list[int]
    broker_ids: list[int]
    min_insync: int
    ports: dict[str, int] = field(default_factory=dict)

    @classmethod
    def new(cls, plan: KafkaPlan, kafka_version: str) -> "KafkaManifest":
        return cls(new_id(), kafka_version, plan.controller_ids, plan.broker_ids, plan.min_insync)

    def check(self, plan: KafkaPlan, kafka_version: str, folder: Path) -> None:
        """Refuse a plan that does not fit the data."""
        if self._numbers(self.kafka_version) > self._numbers(kafka_version):
            raise self._refusal(
                folder, "was written by a newer Kafka", f"Kafka {self.kafka_version} or newer", f"Kafka {kafka_version}"
            )
        dedicated_controllers = [id_ for id_ in self.controller_ids if id_ >= FIRST_CONTROLLER_ID]
        if len(dedicated_controllers) != plan.controllers:
            raise self._refusal(
                folder,
                "is of a cluster with other controllers",
                f"kafka.controllers = {len(dedicated_controllers)}",
                f"kafka.controllers = {plan.controllers}",
            )
        if plan.brokers < len(self.broker_ids):
            raise self._refusal(
                folder,
                f"is spread over {len(self.broker_ids)} brokers",
                f"kafka.brokers = {len(self.broker_ids)} or more",
                f"kafka.brokers = {plan.brokers}",
            )

    @staticmethod
    def _numbers(version: str) -> tuple[int, ...]:
        return tuple(int(part) for part in version.split(".")[:2] if part.isdigit())

    @staticmethod
    def _refusal(folder: Path, why: str, expected: str, found: str) -> DataDirectoryError:
        return DataDirectoryError(
            f"The data in {folder} {why}",
            expected=expected,
            found=found,
            hint="Start it as it was, or begin anew with `riverrun down --delete-data`",
            path=folder,
        )
