"""Druid's jars: the base on the class path, each extension in a folder of its own as Druid expects."""

import hashlib
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from riverrun.artifacts import FetchProgress, cache_folder, fetch
from riverrun.cluster.druid.record_headers import record_headers_jar
from riverrun.cluster.jvm import JavaRuntime
from riverrun.config import Settings
from riverrun.errors import CacheError, ClusterError

BASE_SET = "druid"
# Druid's name of an extension, and the set with its jars.
KAFKA_EXTENSION = "druid-kafka-indexing-service"
EXTENSION_SETS: Mapping[str, str] = {
    KAFKA_EXTENSION: "druid-kafka-indexing",
    "druid-datasketches": "druid-datasketches",
}
ALL_SETS = (BASE_SET, *EXTENSION_SETS.values())


@dataclass(frozen=True)
class DruidRuntime:
    """A Java with Druid's class path, and the folder of its extensions."""

    runtime: JavaRuntime
    extensions: Path

    @classmethod
    def prepare(cls, settings: Settings, *, progress: FetchProgress | None = None) -> "DruidRuntime":
        """Find Java and the jars; fetch what is missing."""
        runtime = JavaRuntime.prepare(settings, server_set=BASE_SET, progress=progress)
        jars = {
            name: list(fetch(server_set, settings.artifacts, progress=progress))
            for name, server_set in EXTENSION_SETS.items()
        }
        cache = cache_folder(settings.artifacts)
        # Next to Kafka's client, so that the client finds them.
        jars[KAFKA_EXTENSION].append(record_headers_jar(cache / "druid-record-headers"))
        return cls(runtime, extension_folder(jars, cache))

    @property
    def version(self) -> str:
        """The version in the jars' names: 33.0.0."""
        for path in self.runtime.class_path:
            if match := re.fullmatch(r"druid-services-(\d.*)\.jar", path.name):
                return match[1]
        raise ClusterError("The class path has no druid-services jar")


def extension_folder(jars: Mapping[str, Sequence[Path]], cache: Path) -> Path:
    """A folder below the cache with a folder per extension, made of links to the cached jars; created when it is
    missing.

    Links are relative, so the cache may be moved. The folder's name covers everything that determines its content.
    """
    parent = cache / "druid-extensions"
    links = {
        f"{name}/{jar.name}": os.path.relpath(jar, parent / "x" / name) for name, files in jars.items() for jar in files
    }
    identity = "\n".join(f"{link} {target}" for link, target in sorted(links.items()))
    folder = parent / hashlib.sha256(identity.encode()).hexdigest()[:16]
    try:
        if not _is_complete(folder, links):
            _make(folder, links)
    except OSError as error:
        raise CacheError(
            f"The folder {folder} could not be made: {error.strerror or error}",
            hint="Correct the rights of the cache, or name another folder with artifacts.cache_dir",
            path=folder,
        ) from error
    return folder


def _is_complete(folder: Path, links: Mapping[str, str]) -> bool:
    try:
        return all(os.readlink(folder / link) == target for link, target in links.items())  # noqa: PTH115
    except OSError:
        return False


def _make(folder: Path, links: Mapping[str, str]) -> None:
    """Build it in a temporary folder and rename it; if another process was faster, its folder is the same."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".new-") as temporary:
        new = Path(temporary) / folder.name
        for link, target in links.items():
            (new / link).parent.mkdir(parents=True, exist_ok=True)
            (new / link).symlink_to(target)
        try:
            new.rename(folder)
        except OSError:
            if not _is_complete(folder, links):
                # Somebody changed the folder: move it aside, it is deleted with the temporary folder.
                folder.rename(Path(temporary) / "old")
                new.rename(folder)
