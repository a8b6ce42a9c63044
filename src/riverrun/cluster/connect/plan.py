"""The plan of a Connect: its size and properties, and the files kept beside the cluster's data."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from riverrun.cluster.home import ClusterHome
from riverrun.config import ConnectSettings, Project
from riverrun.errors import ConfigError

NAME = "connect"
# Connect's own state topics on the cluster.
TOPICS = {"config": "_connect-configs", "offset": "_connect-offsets", "status": "_connect-status"}
# The config provider that reads the files of `secrets_folder`.
CONFIG_PROVIDER = "secrets"

# The runner sets these: with other values Connect would not be found, not start, or send records twice.
MANAGED_PROPERTIES = frozenset({
    "bootstrap.servers", "group.id", "listeners", "rest.advertised.host.name", "rest.advertised.port",
    "rest.advertised.listener", "rest.extension.classes", "admin.listeners", "plugin.path",
    "exactly.once.source.support", *(f"{topic}.storage.topic" for topic in TOPICS),
    *(f"{topic}.storage.replication.factor" for topic in TOPICS),
})  # fmt: skip


@dataclass(frozen=True)
class ConnectPlan:
    """A worker on this machine. `copies` is the replication factor of its topics."""

    bootstrap_servers: str
    copies: int = 1
    port: int = 0
    heap_mb: int = 256
    start_timeout_seconds: float = 180.0
    stop_timeout_seconds: float = 30.0
    properties: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, settings: ConnectSettings, bootstrap_servers: str, copies: int = 1) -> "ConnectPlan":
        wrong = sorted(MANAGED_PROPERTIES & set(settings.config))
        wrong += sorted(name for name in settings.config if name.startswith(f"config.providers.{CONFIG_PROVIDER}."))
        if wrong:
            raise ConfigError([f"connect.config sets {name}, which riverrun sets itself: remove it" for name in wrong])
        return cls(
            bootstrap_servers=bootstrap_servers,
            copies=copies,
            port=settings.port,
            heap_mb=settings.heap_mb,
            start_timeout_seconds=settings.start_timeout_seconds,
            stop_timeout_seconds=settings.stop_timeout_seconds,
            properties=dict(settings.config),
        )


def connect_settings(settings: ConnectSettings, project: Project) -> ConnectSettings:
    """The settings with the plugin folder resolved: a relative path starts at the project's root."""
    if not settings.plugins:
        return settings
    return replace(settings, plugins=str(project.root / Path(settings.plugins).expanduser()))


def connect_folder(home: ClusterHome) -> Path:
    return home.data / NAME


def secrets_folder(data: Path) -> Path:
    """Where secrets of connectors are, a file each: Connect's topics hold only their names. `data` is the project's."""
    return data / NAME / "secrets"
