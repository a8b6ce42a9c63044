"""Files of checkpoints wherever Spark keeps them: those of this machine as paths, those of another place through Hadoop."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from riverrun.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession


class CheckpointFolder(Protocol):
    """As much of a `Path` as reading a checkpoint takes."""

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
        """Of its own entries; FileNotFoundError as a `Path` has it."""
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
        """An answer of the file system. One that does not come must not pass for «there is nothing»."""
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
    """The folder of a checkpoint, to be read."""
    folder = local_folder(location)
    return HadoopFolder(spark, location) if folder is None else folder


def local_folder(location: str) -> Path | None:
    """The folder of this machine that a place of checkpoints is, written as a path or as file:///…; None of any other."""
    path = location.removeprefix("file:")
    return None if "://" in path else Path(path)
