"""Files of checkpoints wherever Spark keeps them: those of this machine as paths, those of another place through Hadoop."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from riverrun.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession


class Folder(Protocol):
    """As much of a `Path` as reading a checkpoint takes."""

    @property
    def name(self) -> str: ...

    def __truediv__(self, name: str) -> "Folder": ...

    def exists(self) -> bool: ...

    def iterdir(self) -> "Iterator[Folder]": ...

    def read_text(self, encoding: str) -> str: ...


class HadoopFolder:
    """A folder or file of any file system that Spark knows, such as hdfs://…"""

    def __init__(self, spark: "SparkSession", place: str) -> None:
        self._spark = spark
        self._place = place.rstrip("/")

    @property
    def name(self) -> str:
        return self._place.rpartition("/")[2]

    def __str__(self) -> str:
        return self._place

    def __truediv__(self, name: str) -> "HadoopFolder":
        return HadoopFolder(self._spark, f"{self._place}/{name}")

    def exists(self) -> bool:
        files, path = self._open()
        return bool(self._asked(lambda: files.exists(path)))

    def iterdir(self) -> "Iterator[HadoopFolder]":
        """Of its own entries; FileNotFoundError as a `Path` has it."""
        if not self.exists():
            raise FileNotFoundError(self._place)
        files, path = self._open()
        for status in self._asked(lambda: files.listStatus(path)):
            yield self / str(status.getPath().getName())

    def read_text(self, encoding: str = "utf-8") -> str:
        if not self.exists():
            raise FileNotFoundError(self._place)
        files, path = self._open()
        jvm: Any = self._spark._jvm  # noqa: SLF001

        def read() -> bytes:
            stream = files.open(path)
            try:
                return bytes(jvm.org.apache.commons.io.IOUtils.toByteArray(stream))
            finally:
                stream.close()

        return bytes(self._asked(read)).decode(encoding)

    def _open(self) -> tuple[Any, Any]:
        jvm: Any = self._spark._jvm  # noqa: SLF001
        path = jvm.org.apache.hadoop.fs.Path(self._place)
        return self._asked(lambda: path.getFileSystem(self._spark._jsc.hadoopConfiguration())), path  # noqa: SLF001

    def _asked(self, ask: Any) -> Any:
        """An answer of the file system. One that does not come must not pass for «there is nothing»."""
        from py4j.protocol import Py4JJavaError

        try:
            return ask()
        except Py4JJavaError as error:
            raise CheckpointError(
                f"The place of the checkpoints does not answer: {self._place}",
                found=str(error.java_exception.getMessage()),
                hint="Is it up, does the setting streams.checkpoints name it rightly, and may we read there?",
            ) from error


def checkpoint_folder(spark: "SparkSession", place: str) -> "Path | HadoopFolder":
    """The folder of a checkpoint, to be read."""
    folder = local_folder(place)
    return HadoopFolder(spark, place) if folder is None else folder


def local_folder(place: str) -> Path | None:
    """The folder of this machine that a place of checkpoints is, written as a path or as file:///…; None of any other."""
    path = place.removeprefix("file:")
    return None if "://" in path else Path(path)
