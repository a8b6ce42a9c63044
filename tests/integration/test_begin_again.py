"""What a stream must not go on with: a checkpoint it was told to forget, a topic made again, another code's half batch."""

import json
import secrets
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from riverrun.app import load_app
from riverrun.errors import CheckpointError, StreamChangedError
from riverrun.kafka.admin.admin import Admin
from riverrun.kafka.connection import Connection
from riverrun.model.progress import PipelineProgress
from riverrun.streams.checkpoint import remove_checkpoint
from riverrun.streams.evolve.versions import TOPIC_IDS_FILE
from riverrun.streams.run.batch_run import BatchRun, read_topic_ranges
from riverrun.streams.run.progress import ProgressTracker
from riverrun.testing import KafkaUnderTest
from support.streaming import make_pipeline, read_rows, run_streams

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300)]

PIPELINE = """
import riverrun as rr

app = rr.App("again_X")

class Reading(rr.Event):
    house: str = rr.key()
    number: int

app.topic("numbers_X", Reading)

@app.stream(key="house")
def even_X(numbers_X):
    return numbers_X.where("number % 2 = 0")
"""


@dataclass
class Pipe:
    """A pipeline of one stream that copies even numbers, and its cluster."""

    connection: Connection
    root: Path
    spark: SparkSession
    mark: str

    @property
    def stream(self) -> str:
        return f"even{self.mark}"

    @property
    def topic(self) -> str:
        return f"numbers{self.mark}"

    @property
    def folder(self) -> Path:
        return self.root / ".riverrun" / "streams" / f"again{self.mark}" / self.stream

    def write(self, text: str = PIPELINE) -> None:
        (self.root / "app.py").write_text(text.replace("_X", self.mark))

    def send(self, *numbers: int) -> None:
        producer = Producer(self.connection.properties())
        for number in numbers:
            producer.produce(self.topic, json.dumps({"house": "h", "number": number}), "h")
        producer.flush()

    def run(self, **options: Any) -> list[str]:
        said: list[str] = []
        load_app(self.root / "app.py").apply(self.connection)
        run_streams(self.spark, self.root / "app.py", self.connection, self.root, notice=said.append, **options)
        return said

    def numbers(self) -> list[int]:
        return [row["number"] for row in read_rows(self.connection, self.stream)]


@pytest.fixture
def pipe(kafka: KafkaUnderTest, spark: SparkSession, tmp_path: Path) -> Iterator[Pipe]:
    found = Pipe(kafka.connection, tmp_path, spark, f"_{secrets.token_hex(3)}")
    found.write()
    load_app(tmp_path / "app.py").apply(kafka.connection)
    yield found
    Admin(kafka.connection).delete_topics([found.topic, found.stream])


def test_a_topic_that_was_made_again_is_not_gone_on_in(pipe: Pipe) -> None:
    pipe.send(1, 2, 3, 4)
    pipe.run(speed="near-real-time")
    admin = Admin(pipe.connection)
    admin.delete_topics([pipe.topic])
    load_app(pipe.root / "app.py").apply(pipe.connection)
    pipe.send(6, 7, 8)
    with pytest.raises(StreamChangedError) as caught:
        pipe.run(speed="near-real-time")
    assert f"{pipe.topic}, which it reads, was deleted and made again since" in str(caught.value)
    assert f"--fresh {pipe.stream}" in str(caught.value)
    pipe.run(speed="near-real-time", fresh=[pipe.stream])
    pipe.send(10)
    pipe.run(speed="near-real-time")
    assert pipe.numbers() == [2, 4, 6, 8, 10]
    assert json.loads((pipe.folder / TOPIC_IDS_FILE).read_text()) == {pipe.topic: admin.topic(pipe.topic).topic_id}


def test_a_topic_made_again_under_a_running_stream_ends_it(pipe: Pipe) -> None:
    pipe.send(1, 2, 3, 4)
    admin = Admin(pipe.connection)
    begun = make_pipeline(
        pipe.spark, pipe.root / "app.py", pipe.connection, pipe.root, speed="near-real-time", every="0 s"
    )
    stop = threading.Event()
    timer = threading.Timer(120, stop.set)
    timer.start()
    remade = False

    def changed(progress: PipelineProgress) -> None:
        nonlocal remade
        if not remade and progress.streams[0].record_counts.read == 4:
            remade = True
            admin.delete_topics([pipe.topic])
            load_app(pipe.root / "app.py").apply(pipe.connection)
            # More than were read of the old one: by offsets alone nothing tells the two apart, and 6 and 8 are skipped.
            pipe.send(6, 8, 10, 12, 14)

    with pytest.raises(CheckpointError) as caught:
        begun.run(stop, changed)
    timer.cancel()
    assert not stop.is_set(), "nothing was noticed"
    assert "made again" in str(caught.value)
    assert f"--fresh {pipe.stream}" in str(caught.value)
    with pytest.raises(StreamChangedError, match="was deleted and made again since"):
        pipe.run(speed="near-real-time")
    pipe.run(speed="near-real-time", fresh=[pipe.stream])
    assert {2, 4, 6, 8, 10, 12, 14} == set(pipe.numbers())


def test_a_batch_that_was_cut_off_is_not_finished_by_other_code(pipe: Pipe) -> None:
    pipe.send(1, 2, 3, 4)
    ids, begin, _ = read_topic_ranges(Admin(pipe.connection), [pipe.topic])
    ends = {pipe.topic: {0: 2}}
    begun = BatchRun.create(pipe.folder / "batch-run.json", "of other code", ids, begin, ends)
    (said,) = [each for each in pipe.run(speed="batch") if "cut off" in each]
    assert "its code has changed since: it begins a new one over all records" in said
    assert pipe.numbers() == [2, 4]
    assert BatchRun.read(begun.file) is None


def test_a_batch_that_was_cut_off_goes_on_over_the_same_records(pipe: Pipe) -> None:
    pipe.send(1, 2, 3, 4)
    pipe.run(speed="batch")
    # What that one wrote down of its code, and half of what it read.
    file = pipe.folder / "batch-run.json"
    begun: list[BatchRun] = []
    original = BatchRun.create.__func__  # type: ignore[attr-defined]

    def keep(cls: type[BatchRun], *what: Any) -> BatchRun:
        begun.append(original(cls, *what))
        return begun[-1]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(BatchRun, "create", classmethod(keep))
        pipe.run(speed="batch")
    BatchRun.create(file, begun[0].code, begun[0].topics, {pipe.topic: {0: 0}}, {pipe.topic: {0: 2}})
    (said,) = [each for each in pipe.run(speed="batch") if "cut off" in each]
    assert "what it wrote is not written again" in said
    assert pipe.numbers() == [2, 4, 2, 4, 2]


def test_a_batch_that_another_host_was_cut_off_in_is_not_begun_again(
    pipe: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    def power_cut(*_: object) -> None:
        raise CheckpointError("the power is off")

    pipe.send(1, 2, 3, 4)
    pipe.run(speed="batch")
    with monkeypatch.context() as patched:
        patched.setattr(ProgressTracker, "record_full_run", power_cut)
        with pytest.raises(CheckpointError, match="the power is off"):
            pipe.run(speed="batch")
    # As on a host that does not have the stream's folder.
    (pipe.folder / "batch-run.json").unlink()
    with pytest.raises(CheckpointError, match=f"over which records it was is not known here.*--fresh {pipe.stream}"):
        pipe.run(speed="batch")
    assert pipe.numbers() == [2, 4, 2, 4]
    pipe.run(speed="batch", fresh=[pipe.stream])
    pipe.run(speed="batch")
    assert pipe.numbers() == [2, 4] * 4


def test_a_batch_that_was_cut_off_is_not_finished_on_a_topic_that_was_made_again(
    pipe: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    def power_cut(*_: object) -> None:
        raise CheckpointError("the power is off")

    pipe.send(1, 2, 3, 4)
    with monkeypatch.context() as patched:
        # Its rows and its marks are written, and it is not over.
        patched.setattr(ProgressTracker, "record_full_run", power_cut)
        with pytest.raises(CheckpointError, match="the power is off"):
            pipe.run(speed="batch")
    Admin(pipe.connection).delete_topics([pipe.topic])
    load_app(pipe.root / "app.py").apply(pipe.connection)
    # As many: by offsets alone nothing tells the two topics apart.
    pipe.send(6, 7, 8, 9)
    (said,) = [each for each in pipe.run(speed="batch") if "cut off" in each]
    assert "was deleted and made again since: it begins a new one over all records" in said
    assert pipe.numbers() == [2, 4, 6, 8]


@pytest.mark.parametrize("place", ["{path}", "file://{path}", "viewfs://table/kept"])
def test_a_checkpoint_is_removed_wherever_it_is(spark: SparkSession, tmp_path: Path, place: str) -> None:
    folder = tmp_path / "kept"
    (folder / "state").mkdir(parents=True)
    (folder / "metadata").write_text("{}")
    hadoop: Any = spark._jsc.hadoopConfiguration()
    hadoop.set("fs.viewfs.mounttable.table.link./kept", f"file://{folder}")
    remove_checkpoint(spark, place.format(path=folder) if "viewfs" not in place else f"{place}/state")
    assert not (folder / "state").exists()
    assert folder.exists() is ("viewfs" in place)
