"""Settings: declared once in `spec`, found in layers by `load`, each value with its origin."""

from riverrun.config.load import Loaded, load
from riverrun.config.project import Project, find_project
from riverrun.config.secret import Secret
from riverrun.config.spec import (
    ArtifactSettings,
    JavaSettings,
    KafkaSettings,
    ProjectSettings,
    Settings,
    SparkSettings,
    StreamSettings,
)

__all__ = [
    "ArtifactSettings",
    "JavaSettings",
    "KafkaSettings",
    "Loaded",
    "Project",
    "ProjectSettings",
    "Secret",
    "Settings",
    "SparkSettings",
    "StreamSettings",
    "find_project",
    "load",
]
