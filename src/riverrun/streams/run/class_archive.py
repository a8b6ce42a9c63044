"""Spark's class-data archive: Spark is ready in half the time from the second run on.

The first run records which classes it loads; once its streams run, a low-priority process builds the
archive (about 40 seconds of one core, 210 MB in the user's cache). Measured: docs/decisions/0007-streams.md. As with
Kafka's, everything works without it.
"""

from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from riverrun.artifacts.java import Java
from riverrun.cluster.class_archive import ClassArchive
from riverrun.cluster.jvm import JavaRuntime

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# There is one Spark per process, so there is one archive.
_current: ClassArchive | None = None


def spark_class_archive(java: Java, jars: list[Path], cache: Path, folder: Path) -> ClassArchive:
    """The archive of this Spark with these extra jars; the output of the build goes into `folder`."""
    runtime = JavaRuntime(java, (*jars, *_own_jars()), cache)
    return ClassArchive(runtime, folder / "class-archive.out", f"spark-{version('pyspark')}", ("-Xmx1g",))


def archive_options(java: Java, jars: list[Path], cache: Path, folder: Path) -> list[str]:
    """Flags for the JVM that is about to start: use the archive, or record the classes for it."""
    global _current  # noqa: PLW0603
    close_archive()
    _current = spark_class_archive(java, jars, cache, folder)
    return _current.options()


def make_archive(spark: "SparkSession") -> None:
    """Start to build the archive if it is missing, now that the classes are loaded."""
    if _current is not None and _current.has_recordings:
        # As the JVM reports it: its launcher expands `*` in an order of its own.
        jvm: Any = spark._jvm  # noqa: SLF001
        _current.start_build(str(jvm.java.lang.System.getProperty("java.class.path")))


def drop_archive() -> bool:
    """Delete an archive that may have kept Spark from starting. Returns whether there was one."""
    if _current is None or not _current.path.is_file():
        return False
    _current.discard()
    return True


def close_archive() -> None:
    global _current  # noqa: PLW0603
    if _current is not None:
        _current.close()
        _current = None


def _own_jars() -> list[Path]:
    import pyspark

    return sorted((Path(pyspark.__file__).parent / "jars").glob("*.jar"))
