"""The file system that checkpoints are kept on: what Spark's promises rest on holds, and it starts no processes."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from riverrun.config import Settings
from riverrun.config.spec import SparkSettings, StreamSettings
from riverrun.streams.run.session import LOCAL_FILES, _properties

pytestmark = pytest.mark.slow


@pytest.fixture
def jvm(spark: SparkSession) -> Any:
    return spark._jvm


def file_system(spark: SparkSession) -> Any:
    jvm: Any = spark._jvm
    session: Any = spark._jsparkSession
    return jvm.org.apache.hadoop.fs.FileSystem.get(jvm.java.net.URI("file:///"), session.sessionState().newHadoopConf())


def manager(spark: SparkSession, folder: Path) -> Any:
    """What Spark itself makes for a checkpoint in that folder."""
    jvm: Any = spark._jvm
    session: Any = spark._jsparkSession
    kind = jvm.org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager
    return kind.create(jvm.org.apache.hadoop.fs.Path(f"file:{folder}"), session.sessionState().newHadoopConf())


def write(jvm: Any, files: Any, place: Path, text: bytes, *, replace: bool) -> Any:
    """An atomic write as Spark makes it; nothing is there before it is closed."""
    stream = files.createAtomic(jvm.org.apache.hadoop.fs.Path(f"file:{place}"), replace)
    stream.write(bytearray(text))
    return stream


def test_spark_keeps_its_checkpoints_on_it(spark: SparkSession, tmp_path: Path) -> None:
    assert file_system(spark).getClass().getName() == LOCAL_FILES["spark.hadoop.fs.file.impl"]
    made = manager(spark, tmp_path).getClass().getName()
    # Spark may put its own checksums around it.
    assert made == LOCAL_FILES["spark.sql.streaming.checkpointFileManagerClass"] or "Checksum" in made


def test_a_file_is_there_whole_or_not_at_all(spark: SparkSession, jvm: Any, tmp_path: Path) -> None:
    files, place = manager(spark, tmp_path), tmp_path / "0"
    stream = write(jvm, files, place, b"offsets", replace=False)
    assert not place.exists()
    stream.close()
    assert place.read_bytes() == b"offsets"


def test_a_write_that_is_given_up_leaves_nothing(spark: SparkSession, jvm: Any, tmp_path: Path) -> None:
    files = manager(spark, tmp_path)
    write(jvm, files, tmp_path / "0", b"offsets", replace=False).cancel()
    assert list(tmp_path.iterdir()) == []


def test_what_is_there_is_replaced_in_one_step_or_kept(spark: SparkSession, jvm: Any, tmp_path: Path) -> None:
    files, place = manager(spark, tmp_path), tmp_path / "0"
    write(jvm, files, place, b"first", replace=False).close()
    with place.open("rb") as reader:
        write(jvm, files, place, b"second", replace=True).close()
        # A rename, not a copy: who has the old file open goes on reading it.
        assert reader.read() == b"first"
    assert place.read_bytes() == b"second"
    with pytest.raises(Exception, match=r"FileAlreadyExists|already exists"):
        write(jvm, files, place, b"third", replace=False).close()
    assert place.read_bytes() == b"second"


def test_setting_a_permission_starts_no_process(spark: SparkSession, jvm: Any, tmp_path: Path) -> None:
    place = tmp_path / "0"
    place.touch()
    path = jvm.org.apache.hadoop.fs.Path(f"file:{place}")
    ours, hadoops = file_system(spark), jvm.org.apache.hadoop.fs.RawLocalFileSystem()
    hadoops.initialize(jvm.java.net.URI("file:///"), ours.getConf())
    before = traces_of_children(jvm)
    ours.setPermission(path, jvm.org.apache.hadoop.fs.permission.FsPermission("640"))
    assert place.stat().st_mode & 0o777 == 0o640
    assert traces_of_children(jvm) == before
    hadoops.setPermission(path, jvm.org.apache.hadoop.fs.permission.FsPermission("600"))
    assert place.stat().st_mode & 0o777 == 0o600
    assert traces_of_children(jvm) > before, "Hadoop's own starts none either: ours is not needed any more"


def traces_of_children(jvm: Any) -> int:
    """Grows with every process that the JVM started and that has ended: their page faults, field 11 of proc_pid_stat(5)."""
    pid = int(jvm.java.lang.ProcessHandle.current().pid())
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[8])


def test_checkpoints_elsewhere_are_kept_as_spark_does(tmp_path: Path) -> None:
    def found(place: str, master: str = "") -> bool:
        settings = Settings(streams=StreamSettings(checkpoints=place), spark=SparkSettings(master=master))
        return LOCAL_FILES.items() <= _properties(settings, tmp_path, "test", 2, []).items()

    assert found("")
    assert found("/mnt/disk/checkpoints")
    assert found("file:///mnt/disk/checkpoints")
    assert not found("hdfs://namenode/riverrun")
    assert not found("", master="spark://master:7077")
