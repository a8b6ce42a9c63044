"""Files of checkpoints, wherever Spark keeps them: local ones as paths, all others through Hadoop."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from riverrun.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession


class CheckpointFolder(Protocol):
    """The part of `Path` that reading a checkpoint needs."""

    @property
    def name(self) -> str: ...

    def __truediv__(self, name: str) -> "CheckpointFolder": ...

    def exists(self) -> bool: ...

    def iterdir(self) -> "Iterator[CheckpointFolder]": ...

    def read_text(self, encoding: str) -> str: ...


class HadoopFolder:
    """A folder or file of any file system that Spark knows, such as hdfs://…"""

    def __init__(self, spark: "SparkSession", location: str) -> None:
        self._spark = spark
        self._location = location.rstrip("/")

    @property
    def name(self) -> str:
        return self._location.rpartition("/")[2]

    def __str__(self) -> str:
        return self._location

    def __truediv__(self, name: str) -> "HadoopFolder":
        return HadoopFolder(self._spark, f"{self._location}/{name}")

    def exists(self) -> bool:
        files, path = self._open()
        return bool(self._call(lambda: files.exists(path)))

    def iterdir(self) -> "Iterator[HadoopFolder]":
        """Its entries; raises FileNotFoundError as `Path` does."""
        if not self.exists():
            raise FileNotFoundError(self._location)
        files, path = self._open()
        for status in self._call(lambda: files.listStatus(path)):
            yield self / str(status.getPath().getName())

    def read_text(self, encoding: str = "utf-8") -> str:
        if not self.exists():
            raise FileNotFoundError(self._location)
        files, path = self._open()
        jvm: Any = self._spark._jvm  # noqa: SLF001

        def read() -> bytes:
            stream = files.open(path)
            try:
                return bytes(jvm.org.apache.commons.io.IOUtils.toByteArray(stream))
            finally:
                stream.close()

        return bytes(self._call(read)).decode(encoding)

    def _open(self) -> tuple[Any, Any]:
        jvm: Any = self._spark._jvm  # noqa: SLF001
        path = jvm.org.apache.hadoop.fs.Path(self._location)
        return self._call(lambda: path.getFileSystem(self._spark._jsc.hadoopConfiguration())), path  # noqa: SLF001

    def _call(self, operation: Any) -> Any:
        """Call the file system. A failed call must not be taken for a missing file, so it raises CheckpointError."""
        from py4j.protocol import Py4JJavaError

        try:
            return operation()
        except Py4JJavaError as error:
            raise CheckpointError(
                f"The place of the checkpoints does not answer: {self._location}",
                found=str(error.java_exception.getMessage()),
                hint="Is it up, does the setting streams.checkpoints name it rightly, and may we read there?",
            ) from error


def checkpoint_folder(spark: "SparkSession", location: str) -> "Path | HadoopFolder":
    """The folder of a checkpoint, for reading."""
    folder = local_folder(location)
    return HadoopFolder(spark, location) if folder is None else folder


def local_folder(location: str) -> Path | None:
    """The local folder of a checkpoint location written as a path or as file:///…; None for any other file system."""
    path = location.removeprefix("file:")
    return None if "://" in path else Path(path)
