"""The Java that runs servers, with flags that make a small one start quickly."""

import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from riverrun.artifacts import FetchProgress, Java, cache_folder, fetch, find_java
from riverrun.config import Settings
from riverrun.errors import ClusterError

# Measured in docs/decisions/0003-cluster-runner.md: a broker on a laptop is mostly short-lived, and the second compiler
# and a parallel collector cost it more than they bring.
FAST_START_FLAGS = (
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:ReservedCodeCacheSize=64m",
)
SAFETY_FLAGS = (
    # A server without memory is useless and logs strange errors: exit, and let the runner say why.
    "-XX:+ExitOnOutOfMemoryError",
    "-XX:-UsePerfData",
    "-Djava.awt.headless=true",
    "-Dfile.encoding=UTF-8",
)
# The initial heap; it grows when needed.
FIRST_HEAP_MB = 16


@dataclass(frozen=True)
class JavaRuntime:
    """A Java, the jars of one server set, and a cache folder for what makes them start faster."""

    java: Java
    class_path: tuple[Path, ...]
    cache: Path

    @classmethod
    def prepare(
        cls, settings: Settings, *, server_set: str = "kafka", progress: FetchProgress | None = None
    ) -> "JavaRuntime":
        """Find Java and the jars; fetch what is missing."""
        java = find_java(settings.java)
        jars = fetch(server_set, settings.artifacts, progress=progress)
        return cls(java, tuple(jars), cache_folder(settings.artifacts))

    @property
    def class_path_text(self) -> str:
        return os.pathsep.join(str(path) for path in self.class_path)

    @property
    def kafka_version(self) -> str:
        """The version in the jars' names: 4.3.1."""
        for path in self.class_path:
            if match := re.fullmatch(r"kafka-clients-(\d.*)\.jar", path.name):
                return match[1]
        raise ClusterError(
            "The class path has no kafka-clients jar",
            found=", ".join(path.name for path in self.class_path) or "nothing",
        )

    def command(self, main_class: str, arguments: Sequence[str] = (), *, options: Sequence[str] = ()) -> list[str]:
        return [str(self.java.executable), *options, "-cp", self.class_path_text, main_class, *arguments]


def java_options(heap_mb: int, extra: Sequence[str] = ()) -> list[str]:
    """Our flags, then the user's; of two values for one flag Java takes the later. Two collectors it refuses."""
    own_collector = any(re.fullmatch(r"-XX:\+Use\w+GC", option) for option in extra)
    quick = [option for option in FAST_START_FLAGS if not (own_collector and option == "-XX:+UseSerialGC")]
    return [f"-Xms{heap_mb}m", f"-Xmx{heap_mb}m", *quick, *SAFETY_FLAGS, *extra]


def small_heap_options(heap_mb: int) -> list[str]:
    """A heap that grows when needed: Java would start with all of it, and most of it is used only under load."""
    return [f"-Xms{FIRST_HEAP_MB}m", f"-Xmx{heap_mb}m", *FAST_START_FLAGS, *SAFETY_FLAGS]


def child_environment() -> dict[str, str]:
    """The child's environment: ours, with a locale in which Java can name any file."""
    environ = dict(os.environ)
    if sys.platform == "linux":
        environ["LC_ALL"] = "C.UTF-8"
    return environ
