"""Rows of a batch into their topic, exactly once, whatever is killed (kafka/parts.py).

Every part of a batch is written by the worker that computes it. Spark computes a batch that a crash cut off again, from the
same records and split the same way: parts that were written already are computed for their state, and not written.
"""

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from riverrun.errors import RiverrunError, TopicNotFoundError
from riverrun.kafka.admin.admin import Admin
from riverrun.kafka.connection import Connection
from riverrun.kafka.parts import Target, release, write_part

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
    # What the last batch failed of, if it did.
    error: Exception | None = field(default=None, init=False)
    _parts: int = field(default=0, init=False)
    # For how many parts the marks topic is known to have room.
    _room: int = field(default=0, init=False)
    _open: bool = field(default=False, init=False)

    @classmethod
    def of(
        cls, connection: Connection, admin: Admin, *, name: str, topic: str, transaction_seconds: float
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
        return cls(admin, target)

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
        rows: Any = frame._jdf  # noqa: SLF001
        parts = int(rows.queryExecution().toRdd().getNumPartitions())
        target = replace(self.target, generation=generation)
        self._make_room(target, parts)
        self._parts, self._open = parts, True
        frame.mapInArrow(_writing(target, batch, parts), _DONE).collect()
        self._open = False

    def _make_room(self, target: Target, parts: int) -> None:
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
            release(target, range(parts, have))
        self._room = parts

    def failed(self) -> None:
        """After a batch that failed: look again whether all is there before the next."""
        self._room = 0

    def close(self) -> None:
        """After a batch that was cut off: readers of the topic must not wait for what will never be committed."""
        if self._open:
            self._open = False
            try:
                release(replace(self.target, timeout_seconds=RELEASE_SECONDS), range(self._parts))
            except RiverrunError:
                # Kafka ends them itself when their time is over.
                return


def _writing(target: Target, batch: int, parts: int) -> "Callable[[Iterator[Any]], Iterator[Any]]":
    """What a worker does with the Arrow batches of its part."""

    def write(batches: "Iterator[Any]") -> "Iterator[Any]":
        import pyarrow as pa
        from pyspark import TaskContext

        context = TaskContext.get()
        part = context.partitionId() if context is not None else 0
        pairs = (pair for each in batches for pair in zip(each[0].to_pylist(), each[1].to_pylist(), strict=True))
        rows, now = write_part(target, batch, part, parts, pairs)
        yield pa.RecordBatch.from_pydict({"rows": [rows], "written": [now]})

    return write
