"""Where Spark runs, and which settings it needs when that is not this machine: checked before a JVM is started.

A worker on another machine has none of this machine's files. What it needs is sent to it, or must be where it can read it.
"""

import os
import sys
from pathlib import Path

from riverrun.app import App
from riverrun.config import Settings
from riverrun.errors import UsageError
from riverrun.model.pipeline import FileSource

# Object stores cannot replace a file atomically. This class of Spark's, which is not in PySpark, aborts an upload instead.
S3_CHECKPOINTS = "org.apache.spark.internal.io.cloud.AbortableStreamBasedCheckpointFileManager"
_FILE_MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
# Settings that add jars.
_JARS = ("spark.jars", "spark.jars.packages", "spark.driver.extraClassPath")
_S3_FILES, _S3_MANAGER = "hadoop-aws", "spark-hadoop-cloud"
_SAME_VERSIONS = "in the versions of PySpark's own Hadoop and Spark"


def master_of(settings: Settings) -> str:
    """Spark's master, from either setting; empty means this machine. UsageError if two settings disagree."""
    own, from_config = settings.spark.master, settings.spark.config.get("spark.master", "")
    if own and from_config and own != from_config:
        raise UsageError(
            "Two settings say where Spark runs",
            found=f"spark.master is {own}, and spark.master in [spark.config] is {from_config}",
            hint="Leave it to the setting spark.master, and remove the other",
        )
    return own or from_config


def is_local_master(master: str) -> bool:
    """Whether such a Spark runs in one JVM of this machine. `local-cluster[…]` does not: it has separate workers."""
    return master in ("", "local") or master.startswith("local[")


def has_other_machines(settings: Settings) -> bool:
    """Whether Spark's workers may be on other machines; those of `local-cluster[…]` are processes of this one."""
    master = master_of(settings)
    return not is_local_master(master) and not master.startswith("local-cluster")


def worker_python(settings: Settings) -> str:
    """The Python that Spark's workers are started with: a path on their machines."""
    return (
        settings.spark.python
        or settings.spark.config.get("spark.pyspark.python", "")
        or os.environ.get("PYSPARK_PYTHON", "")
        or sys.executable
    )


def check_spark_settings(settings: Settings) -> None:
    """UsageError for settings that Spark cannot use."""
    _check_worker_python(settings)
    if settings.streams.checkpoints.startswith("s3a://"):
        _check_s3a(settings, "streams.checkpoints", settings.streams.checkpoints, checkpoints=True)


def check_table_files(app: App, settings: Settings) -> None:
    """UsageError for a table whose files Spark, or a worker on another machine, could not read."""
    for table in app.tables.values():
        if not isinstance(table.source, FileSource):
            continue
        path = table.source.path
        if path.startswith("s3a://"):
            _check_s3a(settings, f"the table {table.name}", path, checkpoints=False)
        elif "://" not in path and has_other_machines(settings):
            here = (app.folder / Path(path).expanduser()).absolute()
            raise UsageError(
                f"{table.line}: the table {table.name} is a file of this machine, and Spark's workers are on others "
                f"({master_of(settings)})",
                found=path,
                hint=f"Put it on HDFS and write hdfs://…; or, where its folder is mounted on every machine, file://{here}",
                table=table.name,
            )


def python_notice(settings: Settings) -> str:
    """The notice for workers on other machines whose Python no setting names; else empty."""
    if not has_other_machines(settings) or _names_python(settings):
        return ""
    return (
        f"Spark's workers start {worker_python(settings)}, the Python of this process: every worker must have it, with "
        "riverrun[spark] installed. The setting spark.python names another one"
    )


def _names_python(settings: Settings) -> bool:
    config = settings.spark.config
    return bool(settings.spark.python or config.get("spark.pyspark.python") or os.environ.get("PYSPARK_PYTHON"))


def _check_worker_python(settings: Settings) -> None:
    """Refuse a virtual environment as the default: workers rarely have it at the same path, and those who do can name it."""
    if has_other_machines(settings) and not _names_python(settings) and sys.prefix != sys.base_prefix:
        raise UsageError(
            f"Spark runs on a cluster ({master_of(settings)}), and no setting names the Python of its workers",
            found=f"{sys.executable}, of a virtual environment of this machine",
            hint="Let spark.python name a Python that every worker has, with riverrun[spark] installed; if all of them have "
            "this environment at this path, name it",
        )


def _check_s3a(settings: Settings, what: str, location: str, *, checkpoints: bool) -> None:
    config = settings.spark.config
    jars = " ".join(config.get(name, "") for name in _JARS)
    missing = []
    wanted = {_S3_FILES: f"org.apache.hadoop:{_S3_FILES}"}
    if checkpoints:
        wanted[_S3_MANAGER] = f"org.apache.spark:{_S3_MANAGER}_2.13"
    if packages := [package for jar, package in wanted.items() if jar not in jars]:
        missing.append(f'"spark.jars.packages" with {" and ".join(packages)}, {_SAME_VERSIONS}')
    if checkpoints and not config.get(_FILE_MANAGER):
        missing.append(f'"{_FILE_MANAGER}" = "{S3_CHECKPOINTS}"')
    if missing:
        raise UsageError(
            f"Spark has nothing by which it could {'keep checkpoints' if checkpoints else 'read files'} on S3",
            found=f"{what} is {location}",
            hint=f"Add to [spark.config]: {'; and '.join(missing)}. Or name a place on HDFS",
        )
