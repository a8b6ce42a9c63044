"""Connect's jars: the runtime on the class path after Kafka's own, each plugin in a folder of its own as Connect
expects."""

import contextlib
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from riverrun.artifacts import CacheStatus, FetchProgress, cache_folder, check_set, fetch, find_java
from riverrun.artifacts.unpack import unpack_archive
from riverrun.cluster.jvm import JavaRuntime
from riverrun.config import Settings
from riverrun.errors import ConfigError

BASE_SETS = ("kafka", "connect")
PLUGIN_SETS = ("debezium-postgres", "debezium-jdbc")
ALL_SETS = (*BASE_SETS, *PLUGIN_SETS)
# Drivers of other databases under licences of their own (Oracle's, and the GPL): users who want them add them to their
# own plugin folder.
EXCLUDED_JARS: Mapping[str, tuple[str, ...]] = {"debezium-jdbc": ("ojdbc", "mysql-connector")}


@dataclass(frozen=True)
class ConnectRuntime:
    """A Java with Connect's class path, and the folders of the plugins that come with riverrun."""

    runtime: JavaRuntime
    plugins: Mapping[str, Path]

    @classmethod
    def prepare(
        cls, settings: Settings, *, progress: FetchProgress | None = None, plugins: Sequence[str] = PLUGIN_SETS
    ) -> "ConnectRuntime":
        """Find Java and the jars; fetch what is missing. `plugins` are the required sets; others are used if they are
        cached, for connectors that were created before."""
        cache = cache_folder(settings.artifacts)
        jars = [path for name in BASE_SETS for path in fetch(name, settings.artifacts, progress=progress)]
        folders = {}
        for name in PLUGIN_SETS:
            if name not in plugins and not is_cached(name, settings):
                continue
            (archive,) = fetch(name, settings.artifacts, progress=progress)
            folders[name] = unpack_archive(
                archive, cache / "connect-plugins", excluded_prefixes=EXCLUDED_JARS.get(name, ())
            )
        return cls(JavaRuntime(find_java(settings.java), tuple(jars), cache), folders)

    @property
    def version(self) -> str:
        return self.runtime.kafka_version


def is_cached(name: str, settings: Settings) -> bool:
    """Whether a set is complete in the cache."""
    return all(artifact.status is CacheStatus.GOOD for artifact in check_set(name, settings.artifacts))


def own_plugins(folder: str) -> dict[str, Path]:
    """The plugins in the user's folder, by name: a folder or a jar each."""
    if not folder:
        return {}
    path = Path(folder)
    try:
        entries = sorted(path.iterdir())
    except OSError as error:
        raise ConfigError([f"connect.plugins: the folder {folder} cannot be read: {error.strerror}"]) from error
    return {entry.name: entry.absolute() for entry in entries if entry.is_dir() or entry.suffix == ".jar"}


def link_plugins(folder: Path, plugins: Mapping[str, Path]) -> None:
    """Make a folder of links to plugins, and nothing else: Connect's plugin path."""
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    for name, target in plugins.items():
        os.symlink(target, folder / name)  # noqa: PTH211
