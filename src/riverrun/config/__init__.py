"""Settings: declared once in `spec`, read in layers by `load`, each value with its origin."""

from riverrun.config.load import LoadedSettings, load
from riverrun.config.project import Project, find_project
from riverrun.config.secret import Secret
from riverrun.config.spec import (
    ArtifactSettings,
    ConnectSettings,
    DruidSettings,
    JavaSettings,
    KafkaSettings,
    MqttSettings,
    ProjectSettings,
    RegistrySettings,
    Settings,
    SparkSettings,
    StoreSettings,
    StreamSettings,
)

__all__ = [
    "ArtifactSettings",
    "ConnectSettings",
    "DruidSettings",
    "JavaSettings",
    "KafkaSettings",
    "LoadedSettings",
    "MqttSettings",
    "Project",
    "ProjectSettings",
    "RegistrySettings",
    "Secret",
    "Settings",
    "SparkSettings",
    "StoreSettings",
    "StreamSettings",
    "find_project",
    "load",
]
