"""Checkpoints in a file system that is not this machine's own: read as those on the disk, and missed when they are gone."""

import secrets
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from riverrun.app import load_app
from riverrun.config import Project, Settings, SparkSettings, StreamSettings
from riverrun.errors import CheckpointError, StreamChangedError
from riverrun.kafka.admin.admin import Admin
from riverrun.kafka.producer.producer import Producer
from riverrun.model.table import TableGeneration
from riverrun.store.catalog import Catalog, publish_generations
from riverrun.streams.checkpoint import read_checkpoint_offsets, read_checkpoint_status
from riverrun.streams.checkpoint_files import HadoopFolder
from riverrun.streams.pipeline import Pipeline, build_checked_graph
from riverrun.testing import KafkaUnderTest

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300)]

PIPELINE = """
import riverrun as rr

app = rr.App("far_X")

class Reading(rr.Event):
    house: str = rr.key()

app.topic("houses_X", Reading)

@app.stream
def copy_X(houses_X):
    return houses_X
"""


@pytest.fixture
def far(spark: SparkSession, tmp_path: Path) -> tuple[str, Path]:
    """A place that only Hadoop knows, and where it is."""
    name, folder = f"far{secrets.token_hex(3)}", tmp_path / "far"
    folder.mkdir()
    configuration: Any = spark._jsc.hadoopConfiguration()
    configuration.set(f"fs.viewfs.mounttable.{name}.link./c", f"file://{folder}")
    return f"viewfs://{name}/c", folder


def test_a_remote_checkpoint_that_is_gone_is_missed(
    spark: SparkSession, kafka: KafkaUnderTest, tmp_path: Path, far: tuple[str, Path]
) -> None:
    place, folder = far
    mark = secrets.token_hex(3)
    file = tmp_path / "app.py"
    file.write_text(PIPELINE.replace("_X", mark))
    app = load_app(file)
    app.apply(kafka.connection)
    settings = Settings(spark=SparkSettings(shuffle_partitions=2), streams=StreamSettings(checkpoints=place))

    def made(root: Path = tmp_path, **options: Any) -> Pipeline:
        pipeline = Pipeline(
            build_checked_graph(app),
            spark,
            settings,
            Project(root),
            kafka.connection,
            speed="near-real-time",
            **options,
        )
        pipeline.prepare()
        return pipeline

    try:
        with Producer(kafka.connection) as producer:
            for house in ("a", "b"):
                producer.send(f"houses{mark}", {"house": house}, key=house)
        made().run(threading.Event(), until_caught_up=True)
        local = folder / f"far{mark}" / f"copy{mark}"
        remote = HadoopFolder(spark, f"{place}/far{mark}/copy{mark}")
        assert read_checkpoint_offsets(remote) == read_checkpoint_offsets(local)
        assert read_checkpoint_status(remote, "copy") == read_checkpoint_status(local, "copy")
        assert read_checkpoint_offsets(remote).end == {f"houses{mark}": {0: 2}}
        made()
        # A driver on another host sees the checkpoint, and has no file that says of which code and topics it is.
        with pytest.raises(StreamChangedError, match=r"code_versions\.json is not there.*Copy the folder"):
            made(tmp_path / "other-host")
        shutil.rmtree(local)
        # As a copy of the project does not know it.
        replayed = TableGeneration(2, f"copy{mark}.2", {0: 2})
        assert publish_generations(kafka.connection, app.name, f"copy{mark}", [replayed]) == [f"copy{mark}"]
        with pytest.raises(CheckpointError, match="has run before, and its checkpoint is gone"):
            made()
        with Catalog(kafka.connection, app.name) as catalog:
            assert catalog.refresh()[f"copy{mark}"].generations == (replayed,), (
                "what is refused tells the stores nothing"
            )
        assert read_checkpoint_status(remote, "copy") is None
        made(fresh=[f"copy{mark}"])
    finally:
        Admin(kafka.connection).delete_topics([f"houses{mark}", f"copy{mark}"])


def test_a_place_that_does_not_answer_is_not_an_empty_one(spark: SparkSession) -> None:
    with pytest.raises(CheckpointError, match="does not answer: viewfs://nowhere/c"):
        HadoopFolder(spark, "viewfs://nowhere/c").exists()
