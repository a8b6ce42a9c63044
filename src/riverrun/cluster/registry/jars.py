"""The registry's program: one archive with all it needs, unpacked in the cache."""

from dataclasses import dataclass

from riverrun.artifacts import Progress, cache_folder, fetch, find_java, read_lock
from riverrun.artifacts.unpack import unpacked
from riverrun.cluster.jvm import Runtime
from riverrun.config import Settings
from riverrun.errors import ArtifactCorruptError

SET = "registry"
PROGRAM = "apicurio-registry-app"


@dataclass(frozen=True)
class RegistryRuntime:
    """A Java with the registry's class path: one jar, which names the others."""

    runtime: Runtime
    version: str

    @classmethod
    def prepare(cls, settings: Settings, *, progress: Progress | None = None) -> "RegistryRuntime":
        """Find Java and the archive; fetch what is missing."""
        cache = cache_folder(settings.artifacts)
        (archive,) = fetch(SET, settings.artifacts, progress=progress)
        folder = unpacked(archive, cache / "registry", bare=True)
        jars = list(folder.glob(f"{PROGRAM}-*-runner.jar"))
        if len(jars) != 1:
            raise ArtifactCorruptError(f"The archive {archive} has no {PROGRAM}-…-runner.jar", path=archive)
        return cls(Runtime(find_java(settings.java), (jars[0],), cache), read_lock(SET).artifacts[0].version)
