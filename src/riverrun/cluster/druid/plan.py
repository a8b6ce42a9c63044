"""The plan of a Druid: its roles, the size of each, and whether existing data fits."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from riverrun.cluster.manifest import ServerManifest
from riverrun.config import DruidSettings
from riverrun.errors import ConfigError, DataDirectoryError

ZOOKEEPER = "zookeeper"


@dataclass(frozen=True)
class RolePlan:
    """One JVM of Druid. `name` is what users see, `role` Druid's own name; sizes in MiB."""

    role: str
    heap_mb: int
    direct_mb: int

    @property
    def name(self) -> str:
        return f"druid-{self.role}"

    @property
    def memory_mb(self) -> int:
        return self.heap_mb + self.direct_mb


# The minimum that works: measured in docs/decisions/0010-druid.md. ZooKeeper holds a few hundred small nodes, whatever
# Druid's own size is.
ZOOKEEPER_HEAP_MB = 48
SMALLEST_ROLES = (
    RolePlan("coordinator", 128, 16),
    RolePlan("broker", 112, 72),
    RolePlan("historical", 96, 72),
    RolePlan("indexer", 256, 112),
    RolePlan("router", 64, 16),
)
MIN_MEMORY_MB = sum(role.memory_mb for role in SMALLEST_ROLES)
# The router only forwards queries: it does not grow with the others.
FIXED_SIZE_ROLES = frozenset({"router"})

# The runner sets these: with other values Druid would not be found, would not start, or would count rows twice.
MANAGED_PROPERTIES = frozenset({
    "druid.host", "druid.bindOnHost", "druid.port", "druid.plaintextPort", "druid.tlsPort", "druid.enablePlaintextPort",
    "druid.service", "druid.zk.service.host", "druid.zk.paths.base", "druid.extensions.directory",
    "druid.extensions.loadList", "druid.metadata.storage.type", "druid.metadata.storage.connector.connectURI",
    "druid.metadata.storage.connector.host", "druid.metadata.storage.connector.port", "druid.storage.type",
    "druid.storage.storageDirectory", "druid.segmentCache.locations", "druid.indexer.task.baseTaskDir",
    "druid.indexer.task.restoreTasksOnRestart", "druid.coordinator.asOverlord.enabled",
})  # fmt: skip


@dataclass(frozen=True)
class DruidPlan:
    """A Druid on this machine."""

    roles: tuple[RolePlan, ...] = SMALLEST_ROLES
    port: int = 0
    start_timeout_seconds: float = 240.0
    stop_timeout_seconds: float = 30.0
    properties: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, settings: DruidSettings) -> "DruidPlan":
        if wrong := sorted(MANAGED_PROPERTIES & set(settings.config)):
            raise ConfigError([f"druid.config sets {name}, which riverrun sets itself: remove it" for name in wrong])
        return cls(
            roles=scale_roles(settings.memory_mb),
            port=settings.port,
            start_timeout_seconds=settings.start_timeout_seconds,
            stop_timeout_seconds=settings.stop_timeout_seconds,
            properties=dict(settings.config),
        )

    @property
    def memory_mb(self) -> int:
        """Heaps and buffers of all roles."""
        return ZOOKEEPER_HEAP_MB + sum(role.memory_mb for role in self.roles)

    @property
    def names(self) -> list[str]:
        """All servers, in the order they are shown."""
        return [ZOOKEEPER, *(role.name for role in self.roles)]


def scale_roles(memory_mb: int) -> tuple[RolePlan, ...]:
    """The roles, scaled to this total; never less than the minimum that works."""
    fixed = sum(role.memory_mb for role in SMALLEST_ROLES if role.role in FIXED_SIZE_ROLES)
    factor = max(1.0, (memory_mb - fixed) / (MIN_MEMORY_MB - fixed))
    return tuple(
        role
        if role.role in FIXED_SIZE_ROLES
        else RolePlan(role.role, int(role.heap_mb * factor), int(role.direct_mb * factor))
        for role in SMALLEST_ROLES
    )


@dataclass
class DruidManifest(ServerManifest):
    """What Druid's data was created with, kept beside it: `data/druid/druid.json`.

    `folder` is where it was created: Druid writes the whole path of each segment into its metadata.
    """

    druid_version: str
    folder: str
    ports: dict[str, int] = field(default_factory=dict)

    def check(self, druid_version: str, folder: Path) -> None:
        """Refuse data that this Druid cannot use."""
        if _numbers(self.druid_version) > _numbers(druid_version):
            raise DataDirectoryError(
                f"The data in {folder} was written by a newer Druid",
                expected=f"Druid {self.druid_version} or newer",
                found=f"Druid {druid_version}",
                hint="Use the riverrun that wrote it, or begin anew with `riverrun down --delete-data`",
                path=folder,
            )
        if self.folder != str(folder) and any((folder / "segments").rglob("*.zip")):
            raise DataDirectoryError(
                f"The data in {folder} was made in another folder, whose name Druid has written into it",
                expected=self.folder,
                found=str(folder),
                hint="Move the project back, or make a link there; or begin anew with `riverrun down --delete-data`",
                path=folder,
            )
        self.druid_version, self.folder = druid_version, str(folder)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())
