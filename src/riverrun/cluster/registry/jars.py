"""The registry's program: one archive with all it needs, unpacked in the cache."""

from dataclasses import dataclass

from riverrun.artifacts import FetchProgress, cache_folder, fetch, find_java, read_lock
from riverrun.artifacts.unpack import unpack_archive
from riverrun.cluster.jvm import JavaRuntime
from riverrun.config import Settings
from riverrun.errors import ArtifactCorruptError

SET = "registry"
PROGRAM = "apicurio-registry-app"


@dataclass(frozen=True)
class RegistryRuntime:
    """A Java with the registry's class path: one jar, which names the others."""

    runtime: JavaRuntime
    version: str

    @classmethod
    def prepare(cls, settings: Settings, *, progress: FetchProgress | None = None) -> "RegistryRuntime":
        """Find Java and the archive; fetch what is missing."""
        cache = cache_folder(settings.artifacts)
        (archive,) = fetch(SET, settings.artifacts, progress=progress)
        folder = unpack_archive(archive, cache / "registry", flat=True)
        jars = list(folder.glob(f"{PROGRAM}-*-runner.jar"))
        if len(jars) != 1:
            raise ArtifactCorruptError(f"The archive {archive} has no {PROGRAM}-…-runner.jar", path=archive)
        return cls(JavaRuntime(find_java(settings.java), (jars[0],), cache), read_lock(SET).artifacts[0].version)
