"""Writes the rows of a batch to their topic exactly once, whatever is killed (kafka/exactly_once.py).

Spark computes an interrupted batch again, from the same records and partitioned the same way: tasks whose rows were written
already are computed for their state, and not written again. A task is identified by what it reads (batch_layout.py), never
by the number that Spark gives it: that is another one the second time.

On a cluster, and in batch runs, every task of a batch is written by the worker that computes it. Near real time on one
machine, the rows are collected in this process and written as one task: the producer stays open from batch to batch, while
a task would run in another worker each time and have to open a new one, and no worker has to be set up for a few rows.
"""

import contextlib
import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from riverrun.errors import RiverrunError, TopicNotFoundError
from riverrun.kafka.admin.admin import Admin
from riverrun.kafka.commit_markers import (
    Claim,
    CommitMarkerReader,
    OutputBatch,
    OutputTopic,
    claim_output,
    marker_partition_count,
    max_tasks,
)
from riverrun.kafka.connection import Connection, with_pem_contents
from riverrun.kafka.exactly_once import abort_open_transactions, check_removed_tasks, close_writers, write_task_output
from riverrun.streams.run.batch_layout import BatchLayout, batch_offsets_digest, read_layout
from riverrun.streams.run.session import is_local

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame, SparkSession

# What a worker returns for its task: how many rows it has, and whether it has written them now.
_RESULT_SCHEMA = "rows bigint, written boolean"
# The property of a Spark job that has the task number of each partition.
_TASKS_PROPERTY = "riverrun.parts"
# How long `close` may wait for a Kafka that does not answer.
RELEASE_SECONDS = 5.0
# Compacted, with small segments: otherwise it would not be compacted for a week.
_MARKER_TOPIC_CONFIG = {
    "cleanup.policy": "compact",
    "segment.bytes": "1048576",
    "segment.ms": "3600000",
    "retention.ms": "-1",
}


@dataclass
class ExactlyOnceSink:
    """The sink of one stream. `write` is what Spark calls with every batch."""

    spark: "SparkSession"
    admin: Admin
    target: OutputTopic
    # Whether rows are written by this process instead of Spark's workers.
    in_driver: bool = False
    # The error of the last batch, if it failed.
    error: Exception | None = field(default=None, init=False)
    _parts: int = field(default=0, init=False)
    # For how many tasks the marker topic is known to have partitions.
    _marker_capacity: int = field(default=0, init=False)
    _transaction_open: bool = field(default=False, init=False)
    _abandoned: bool = field(default=False, init=False)
    # The generation that the claim was made for.
    _claimed: str = field(default="", init=False)

    @classmethod
    def create(
        cls,
        spark: "SparkSession",
        connection: Connection,
        admin: Admin,
        *,
        name: str,
        topic: str,
        transaction_seconds: float,
        in_driver: bool,
    ) -> "ExactlyOnceSink":
        # The user's own client.id has precedence: quotas depend on it.
        own = {} if "client.id" in connection.settings.client else {"client.id": f"riverrun-{name}"}
        properties = connection.properties(own)
        target = OutputTopic(
            properties if is_local(spark) else with_pem_contents(properties),
            topic,
            f"{name}.marks",
            name,
            "",
            transaction_seconds=transaction_seconds,
        )
        return cls(spark, admin, target, in_driver)

    def write(self, frame: "DataFrame", batch: int, generation: str = "", records: str = "") -> None:
        """Write a batch. `generation` is the query id of the checkpoint or the id of a batch run, `records` a digest of
        the offsets the batch begins and ends at; for a streaming query both are looked up."""
        self.error = None
        try:
            if not generation:
                generation = str(frame.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId"))
                records = batch_offsets_digest(self.spark, generation)
            self._write(frame, batch, generation, records)
        except Exception as error:
            # Spark reports it only as the text of a failed callback; keep it as it was raised.
            self.error = error
            raise

    def _write(self, frame: "DataFrame", batch: int, generation: str, records: str) -> None:
        target = replace(self.target, generation=generation)
        if self.in_driver:
            batch_info = OutputBatch(batch, input_digest=records)
            target = self._ensure_markers(target, batch_info)
            write_task_output(target, batch_info, 0, _key_value_pairs(_stream_arrow_batches(frame)))
        else:
            written = frame.mapInArrow(_make_task_writer(target, batch), _RESULT_SCHEMA)
            # From the very plan that is run: another plan may have its tasks in another order.
            layout = read_layout(_rdd(written))
            batch_info = OutputBatch(batch, len(layout.task_numbers), records, layout.digest)
            target = self._ensure_markers(target, batch_info)
            with _share_task_numbers(frame.sparkSession, target, batch_info, layout):
                written.collect()
        self._transaction_open = False

    def _ensure_markers(self, target: OutputTopic, batch: OutputBatch) -> OutputTopic:
        """Make sure that the marker topic has a partition for every task, that other producers are fenced, and that tasks
        left over from an earlier run are not of this batch."""
        tasks = batch.tasks
        if tasks > self._marker_capacity:
            try:
                available = max_tasks(len(self.admin.topic(target.marker_topic).partitions))
            except TopicNotFoundError:
                partitions = marker_partition_count(tasks)
                self.admin.create_topic(
                    target.marker_topic, partitions=partitions, replicas=0, config=_MARKER_TOPIC_CONFIG
                )
                available = tasks
            if available < tasks:
                self.admin.add_partitions(target.marker_topic, marker_partition_count(tasks))
            if not self._marker_capacity:
                target = self._claim_output(target, max(available, tasks))
                check_removed_tasks(target, range(tasks, available), batch)
            self._marker_capacity = tasks
        self._parts, self._transaction_open = tasks, True
        return replace(target, claim_offset=self.target.claim_offset, writer_epoch=self.target.writer_epoch)

    def _claim_output(self, target: OutputTopic, tasks: int) -> OutputTopic:
        """Claim the output for this run: once per generation, so that two runs that share a checkpoint do not take it from
        each other for ever."""
        if self.target.claim_offset < 0 or self._claimed != target.generation:
            self.target, self._claimed = replace(self.target, claim_offset=claim_output(target)), target.generation
        # This may fence producers of this very run, here or in a worker, which wait for the next batch.
        self.target = replace(self.target, writer_epoch=self.target.writer_epoch + 1)
        close_writers(self.target.name)
        target = replace(target, claim_offset=self.target.claim_offset, writer_epoch=self.target.writer_epoch)
        # No task's marker may be read before its producer is fenced.
        abort_open_transactions(target, range(tasks))
        return target

    def last_claim(self) -> Claim | None:
        """The claim of the run that has written last; None if there is none."""
        if not self.admin.topics([self.target.marker_topic], config=False):
            return None
        with CommitMarkerReader(self.target) as reader:
            return reader.last_claim()

    def finished(self, generation: str) -> None:
        """Record that a run has ended, so that another host can tell it from an interrupted one."""
        claim_output(replace(self.target, generation=generation), ended=True)

    def reset_writers(self) -> None:
        """After a failure, in a batch or between two: check the marker topic again before the next batch, with new
        producers."""
        self._marker_capacity = 0

    def abandon(self) -> None:
        """Kafka is gone: `close` does not wait for it, because it aborts open transactions itself after their timeout."""
        self._abandoned = True

    def close(self) -> None:
        """Abort the transactions of an interrupted batch: readers of the topic must not wait for what is never committed."""
        if self._abandoned:
            return
        if self._transaction_open:
            self._transaction_open = False
            # If Kafka does not answer, it aborts them itself after their timeout.
            with contextlib.suppress(RiverrunError):
                abort_open_transactions(replace(self.target, timeout_seconds=RELEASE_SECONDS), range(self._parts))
            self.reset_writers()
        close_writers(self.target.name)


def forget_runs(connection: Connection, admin: Admin, name: str) -> None:
    """Record that a stream begins again, so that no host resumes an interrupted run of it."""
    marker_topic = f"{name}.marks"
    if admin.topics([marker_topic], config=False):
        claim_output(OutputTopic(connection.properties(), "", marker_topic, name, "fresh"), ended=True)


def _rdd(frame: "DataFrame") -> Any:
    rows: Any = frame._jdf  # noqa: SLF001
    return rows.queryExecution().toRdd()


def _stream_arrow_batches(frame: "DataFrame") -> "Iterator[Any]":
    """The Arrow batches of a frame, those of each partition as soon as it is computed. (`DataFrame.toArrow` waits for all of
    them, and holds them twice.)"""
    from pyspark.errors.exceptions.captured import unwrap_spark_exception
    from pyspark.serializers import read_int
    from pyspark.sql.pandas.serializers import ArrowStreamSerializer
    from pyspark.util import _load_from_socket

    class ArrowBatchStream(ArrowStreamSerializer):
        def load_stream(self, stream: Any) -> "Iterator[Any]":
            yield from super().load_stream(stream)
            # After the batches come their numbers, or -1 if some are missing: the server says why.
            for _ in range(read_int(stream)):  # type: ignore[no-untyped-call]
                read_int(stream)  # type: ignore[no-untyped-call]

    rows: Any = frame._jdf  # noqa: SLF001
    port, secret, server = rows.collectAsArrowToPython()
    try:
        with _load_from_socket((port, secret), ArrowBatchStream()) as batches:
            yield from batches
    except Exception:
        with unwrap_spark_exception():
            # The error of the job comes first, whatever was wrong with the batches.
            server.getResult()
        raise
    with unwrap_spark_exception():
        server.getResult()


def _key_value_pairs(batches: "Iterator[Any]") -> "Iterator[tuple[bytes | None, bytes | None]]":
    return (pair for batch in batches for pair in zip(batch[0].to_pylist(), batch[1].to_pylist(), strict=True))


@contextlib.contextmanager
def _share_task_numbers(
    spark: "SparkSession", target: OutputTopic, batch: OutputBatch, layout: BatchLayout
) -> "Iterator[None]":
    """Pass the task numbers of the batch to the Spark tasks of the jobs that are started here."""
    assignment = {
        "claim": target.claim_offset,
        "turn": target.writer_epoch,
        "records": batch.input_digest,
        "layout": batch.layout_digest,
        "parts": layout.task_numbers,
    }
    context = spark.sparkContext
    context.setLocalProperty(_TASKS_PROPERTY, json.dumps(assignment))
    try:
        yield
    finally:
        context.setLocalProperty(_TASKS_PROPERTY, None)  # type: ignore[arg-type]


def _make_task_writer(target: OutputTopic, batch: int) -> "Callable[[Iterator[Any]], Iterator[Any]]":
    """The function with which a worker writes the Arrow batches of its task."""

    def write(batches: "Iterator[Any]") -> "Iterator[Any]":
        import pyarrow as pa
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None  # noqa: S101
        assignment = json.loads(str(context.getLocalProperty(_TASKS_PROPERTY)))
        batch_info = OutputBatch(batch, len(assignment["parts"]), assignment["records"], assignment["layout"])
        task = assignment["parts"][context.partitionId()]
        rows, written_now = write_task_output(
            replace(target, claim_offset=assignment["claim"], writer_epoch=assignment["turn"]),
            batch_info,
            task,
            _key_value_pairs(batches),
        )
        yield pa.RecordBatch.from_pydict({"rows": [rows], "written": [written_now]})

    return write
