"""Rows of a batch into their topic, exactly once, whatever is killed (kafka/parts.py).

Spark computes a batch that a crash cut off again, from the same records and split the same way: parts that were written
already are computed for their state, and not written. Which part is which goes by what it reads (layout.py), never by the
number that Spark gives its task: that is another one the second time.

On a cluster, and in batch runs, every part of a batch is written by the worker that computes it. Near real time on one
machine, the rows come to this process and are written as one part: the producer stays open from batch to batch, where a
part would meet another worker each time and have to open it anew, and no worker has to be set up for a few rows.
"""

import contextlib
import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from riverrun.errors import RiverrunError, TopicNotFoundError
from riverrun.kafka.admin.admin import Admin
from riverrun.kafka.connection import Connection, with_pem_contents
from riverrun.kafka.marks import Batch, Claim, MarksReader, Target, claim, marks_partitions, parts_in
from riverrun.kafka.parts import check_left, drop_writers, release, write_part
from riverrun.streams.layout import Layout, batch_input, layout_of
from riverrun.streams.session import is_local

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame, SparkSession

# What a worker answers for its part: how many rows it has, and whether they were written now.
_DONE = "rows bigint, written boolean"
# The property of a Spark job that says which part of the batch each of its tasks is.
_PARTS = "riverrun.parts"
# How long a stop may wait for a Kafka that does not answer.
RELEASE_SECONDS = 5.0
# Compacted, and in small segments, or compaction would not touch it for a week.
_MARKS = {"cleanup.policy": "compact", "segment.bytes": "1048576", "segment.ms": "3600000", "retention.ms": "-1"}


@dataclass
class ExactSink:
    """The sink of one stream. `write` is what Spark calls with every batch."""

    spark: "SparkSession"
    admin: Admin
    target: Target
    # Whether rows are written by this process instead of Spark's workers.
    here: bool = False
    # What the last batch failed of, if it did.
    error: Exception | None = field(default=None, init=False)
    _parts: int = field(default=0, init=False)
    # For how many parts the marks topic is known to have room.
    _room: int = field(default=0, init=False)
    _open: bool = field(default=False, init=False)
    _abandoned: bool = field(default=False, init=False)
    # The generation that the claim was made for.
    _claimed: str = field(default="", init=False)

    @classmethod
    def of(
        cls,
        spark: "SparkSession",
        connection: Connection,
        admin: Admin,
        *,
        name: str,
        topic: str,
        transaction_seconds: float,
        here: bool,
    ) -> "ExactSink":
        # The user's own name for it comes first: quotas go by it.
        own = {} if "client.id" in connection.settings.client else {"client.id": f"riverrun-{name}"}
        properties = connection.properties(own)
        target = Target(
            properties if is_local(spark) else with_pem_contents(properties),
            topic,
            f"{name}.marks",
            name,
            "",
            transaction_seconds=transaction_seconds,
        )
        return cls(spark, admin, target, here)

    def write(self, frame: "DataFrame", batch: int, generation: str = "", records: str = "") -> None:
        """Write a batch. `generation` names one life of the checkpoint, `records` is a digest of the offsets the batch
        begins and ends at; of a streaming query both are known."""
        self.error = None
        try:
            if not generation:
                generation = str(frame.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId"))
                records = batch_input(self.spark, generation)
            self._write(frame, batch, generation, records)
        except Exception as error:
            # Spark tells of it as text of a failed callback; here it is as it was raised.
            self.error = error
            raise

    def _write(self, frame: "DataFrame", batch: int, generation: str, records: str) -> None:
        target = replace(self.target, generation=generation)
        if self.here:
            whole = Batch(batch, input=records)
            target = self._make_room(target, whole)
            write_part(target, whole, 0, _pairs(_arriving(frame)))
        else:
            written = frame.mapInArrow(_writing(target, batch), _DONE)
            # Of the very plan that is run: one that is made again may have its parts in another order.
            layout = layout_of(_rdd(written))
            whole = Batch(batch, len(layout.numbers), records, layout.digest)
            target = self._make_room(target, whole)
            with _telling(frame.sparkSession, target, whole, layout):
                written.collect()
        self._open = False

    def _make_room(self, target: Target, batch: Batch) -> Target:
        """A partition for the marks of every part; who else may still write is fenced, and what is left of an earlier run
        must not be of this batch."""
        parts = batch.parts
        if parts > self._room:
            try:
                have = parts_in(len(self.admin.topic(target.marks).partitions))
            except TopicNotFoundError:
                partitions = marks_partitions(parts)
                self.admin.create_topic(target.marks, partitions=partitions, replicas=0, config=_MARKS)
                have = parts
            if have < parts:
                self.admin.add_partitions(target.marks, marks_partitions(parts))
            if not self._room:
                target = self._take_over(target, max(have, parts))
                check_left(target, range(parts, have), batch)
            self._room = parts
        self._parts, self._open = parts, True
        return replace(target, claim=self.target.claim, turn=self.target.turn)

    def _take_over(self, target: Target, parts: int) -> Target:
        """Be the run that writes: once a generation, so that two that share a checkpoint do not take it from each other for
        ever."""
        if self.target.claim < 0 or self._claimed != target.generation:
            self.target, self._claimed = replace(self.target, claim=claim(target)), target.generation
        # What this fences can be writers of this very run, here or in a worker, which wait for the next batch.
        self.target = replace(self.target, turn=self.target.turn + 1)
        drop_writers(self.target.name)
        target = replace(target, claim=self.target.claim, turn=self.target.turn)
        # No part may be looked for before its writer is fenced.
        release(target, range(parts))
        return target

    def last_claim(self) -> Claim | None:
        """Which run has written last; None when none has."""
        if not self.admin.topics([self.target.marks], config=False):
            return None
        with MarksReader(self.target) as reader:
            return reader.last_claim()

    def finished(self, generation: str) -> None:
        """Say that a run which is whole is over: another host can tell it from one that was cut off."""
        claim(replace(self.target, generation=generation), ended=True)

    def failed(self) -> None:
        """After a failure, of a batch or between two: look again whether all is there before the next, with new writers."""
        self._room = 0

    def abandon(self) -> None:
        """Kafka is gone: it ends what is open itself when its time is over, and `close` does not wait for it."""
        self._abandoned = True

    def close(self) -> None:
        """After a batch that was cut off: readers of the topic must not wait for what will never be committed."""
        if self._abandoned:
            return
        if self._open:
            self._open = False
            # If Kafka does not answer, it ends them itself when their time is over.
            with contextlib.suppress(RiverrunError):
                release(replace(self.target, timeout_seconds=RELEASE_SECONDS), range(self._parts))
            self.failed()
        drop_writers(self.target.name)


def forget_runs(connection: Connection, admin: Admin, name: str) -> None:
    """A stream begins anew: a run of it that was cut off is gone on with nowhere."""
    marks = f"{name}.marks"
    if admin.topics([marks], config=False):
        claim(Target(connection.properties(), "", marks, name, "fresh"), ended=True)


def _rdd(frame: "DataFrame") -> Any:
    rows: Any = frame._jdf  # noqa: SLF001
    return rows.queryExecution().toRdd()


def _arriving(frame: "DataFrame") -> "Iterator[Any]":
    """The Arrow batches of a frame, those of each of its parts as soon as that is computed. (`DataFrame.toArrow` waits for
    all of them, and holds them twice.)"""
    from pyspark.errors.exceptions.captured import unwrap_spark_exception
    from pyspark.serializers import read_int
    from pyspark.sql.pandas.serializers import ArrowStreamSerializer
    from pyspark.util import _load_from_socket

    class Arriving(ArrowStreamSerializer):
        def load_stream(self, stream: Any) -> "Iterator[Any]":
            yield from super().load_stream(stream)
            # Behind the batches are their numbers, or -1 when there are not all: the server says why.
            for _ in range(read_int(stream)):  # type: ignore[no-untyped-call]
                read_int(stream)  # type: ignore[no-untyped-call]

    rows: Any = frame._jdf  # noqa: SLF001
    port, secret, server = rows.collectAsArrowToPython()
    try:
        with _load_from_socket((port, secret), Arriving()) as batches:
            yield from batches
    except Exception:
        with unwrap_spark_exception():
            # Whatever was wrong with the batches: what the job failed of comes first.
            server.getResult()
        raise
    with unwrap_spark_exception():
        server.getResult()


def _pairs(batches: "Iterator[Any]") -> "Iterator[tuple[bytes | None, bytes | None]]":
    return (pair for each in batches for pair in zip(each[0].to_pylist(), each[1].to_pylist(), strict=True))


@contextlib.contextmanager
def _telling(spark: "SparkSession", target: Target, batch: Batch, layout: Layout) -> "Iterator[None]":
    """Let the tasks of the jobs that are started here know which parts of the batch they are."""
    told = {
        "claim": target.claim,
        "turn": target.turn,
        "records": batch.input,
        "layout": batch.layout,
        "parts": layout.numbers,
    }
    context = spark.sparkContext
    context.setLocalProperty(_PARTS, json.dumps(told))
    try:
        yield
    finally:
        context.setLocalProperty(_PARTS, None)  # type: ignore[arg-type]


def _writing(target: Target, batch: int) -> "Callable[[Iterator[Any]], Iterator[Any]]":
    """What a worker does with the Arrow batches of its part."""

    def write(batches: "Iterator[Any]") -> "Iterator[Any]":
        import pyarrow as pa
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None  # noqa: S101
        told = json.loads(str(context.getLocalProperty(_PARTS)))
        whole = Batch(batch, len(told["parts"]), told["records"], told["layout"])
        part = told["parts"][context.partitionId()]
        rows, now = write_part(replace(target, claim=told["claim"], turn=told["turn"]), whole, part, _pairs(batches))
        yield pa.RecordBatch.from_pydict({"rows": [rows], "written": [now]})

    return write
