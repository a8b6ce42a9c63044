"""Rows of a batch into their topic, exactly once, whatever is killed (kafka/parts.py).

Spark computes a batch that a crash cut off again, from the same records and split the same way: parts that were written
already are computed for their state, and not written.

On a cluster, and in batch runs, every part of a batch is written by the worker that computes it. Near real time on one
machine, the rows come to this process and are written as one part: the producer stays open from batch to batch, where a
part would meet another worker each time and have to open it anew, and no worker has to be set up for a few rows.
"""

import contextlib
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from riverrun.errors import RiverrunError, TopicNotFoundError
from riverrun.kafka.admin.admin import Admin
from riverrun.kafka.connection import Connection
from riverrun.kafka.parts import Target, check_left, drop_writers, release, write_part

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame

# What a worker answers for its part: how many rows it has, and whether they were written now.
_DONE = "rows bigint, written boolean"
# How long a stop may wait for a Kafka that does not answer.
RELEASE_SECONDS = 5.0
# Compacted, and in small segments, or compaction would not touch it for a week.
_MARKS = {"cleanup.policy": "compact", "segment.bytes": "1048576", "segment.ms": "3600000", "retention.ms": "-1"}


@dataclass
class ExactSink:
    """The sink of one stream. `write` is what Spark calls with every batch."""

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

    @classmethod
    def of(
        cls, connection: Connection, admin: Admin, *, name: str, topic: str, transaction_seconds: float, here: bool
    ) -> "ExactSink":
        # The user's own name for it comes first: quotas go by it.
        own = {} if "client.id" in connection.settings.client else {"client.id": f"riverrun-{name}"}
        target = Target(
            connection.properties(own),
            topic,
            f"{name}.marks",
            name,
            "",
            transaction_seconds=transaction_seconds,
        )
        return cls(admin, target, here)

    def write(self, frame: "DataFrame", batch: int, generation: str = "") -> None:
        """Write a batch. `generation` names one life of the checkpoint; a stream's is its query's id."""
        self.error = None
        try:
            self._write(frame, batch, generation)
        except Exception as error:
            # Spark tells of it as text of a failed callback; here it is as it was raised.
            self.error = error
            raise

    def _write(self, frame: "DataFrame", batch: int, generation: str) -> None:
        context = frame.sparkSession.sparkContext
        generation = generation or str(context.getLocalProperty("sql.streaming.queryId"))
        target = replace(self.target, generation=generation)
        parts = 1 if self.here else _parts_of(frame)
        self._make_room(target, batch, parts)
        self._parts, self._open = parts, True
        if self.here:
            write_part(target, batch, 0, 1, _pairs(_arriving(frame)))
        else:
            frame.mapInArrow(_writing(target, batch, parts), _DONE).collect()
        self._open = False

    def _make_room(self, target: Target, batch: int, parts: int) -> None:
        """A partition for the marks of every part; parts of an earlier run that are no more are let go."""
        if parts <= self._room:
            return
        try:
            have = len(self.admin.topic(target.marks).partitions)
        except TopicNotFoundError:
            self.admin.create_topic(target.marks, partitions=parts, replicas=0, config=_MARKS)
            have = parts
        if have < parts:
            self.admin.add_partitions(target.marks, parts)
        elif not self._room:
            left = range(parts, have)
            # Part 0 too: it may have been all of a batch, and no part may be looked for before its writer is fenced.
            release(target, left if parts == 1 else [0, *left])
            check_left(target, left, batch, parts)
        self._room = parts

    def failed(self) -> None:
        """After a batch that failed: look again whether all is there before the next."""
        self._room = 0

    def close(self) -> None:
        """After a batch that was cut off: readers of the topic must not wait for what will never be committed."""
        if self._open:
            self._open = False
            # If Kafka does not answer, it ends them itself when their time is over.
            with contextlib.suppress(RiverrunError):
                release(replace(self.target, timeout_seconds=RELEASE_SECONDS), range(self._parts))
        drop_writers(self.target.name)


def _parts_of(frame: "DataFrame") -> int:
    rows: Any = frame._jdf  # noqa: SLF001
    return int(rows.queryExecution().toRdd().getNumPartitions())


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


def _writing(target: Target, batch: int, parts: int) -> "Callable[[Iterator[Any]], Iterator[Any]]":
    """What a worker does with the Arrow batches of its part."""

    def write(batches: "Iterator[Any]") -> "Iterator[Any]":
        import pyarrow as pa
        from pyspark import TaskContext

        context = TaskContext.get()
        part = context.partitionId() if context is not None else 0
        rows, now = write_part(target, batch, part, parts, _pairs(batches))
        yield pa.RecordBatch.from_pydict({"rows": [rows], "written": [now]})

    return write
