"""Writes the records that a stream could not read to their dead-letter topic.

A stream only counts them (streams/compile/sources.py): a second output would make Spark read and parse every
record twice, and real-time mode allows one output only. When a batch has counted some, its range of offsets is read again in
a thread of its own, this time for the bad ones only. How far this has come is kept as a consumer group's offsets, so that
after a crash between a batch and its dead letters the range is read again and nothing is lost; dead letters of such a range
that are in the topic already are not written twice.
"""

import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from riverrun.errors import RecordUnreadableError
from riverrun.kafka.admin.admin import Admin
from riverrun.kafka.connection import Connection
from riverrun.kafka.consumer.consumer import Consumer
from riverrun.kafka.consumer.dead_letter import DeadLetter, DeadLetterProducer, RecordCopy
from riverrun.kafka.reading.range_reader import read_offset_ranges
from riverrun.kafka.registry.wire_format import wire_format_of
from riverrun.model.cluster_state import TopicPartition
from riverrun.streams.compile.compiler import Compilation
from riverrun.streams.compile.registry_decoding import decode_values
from riverrun.streams.compile.sources import KafkaRecordSource

if TYPE_CHECKING:
    from pyspark.sql import Column

RETRY_SECONDS = 5.0


@dataclass(frozen=True)
class _BatchRange:
    topic: str
    begin: Mapping[int, int]
    end: Mapping[int, int]
    dead: int


class DeadLetterWriter:
    """Dead letters of all topics of a pipeline, written by a thread of its own."""

    def __init__(
        self,
        connection: Connection,
        compilation: Compilation,
        group: str,
        notice: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._notice = notice
        self._connection = connection
        self._compilation = compilation
        self._group = group
        self._admin = Admin(connection)
        self._letters = DeadLetterProducer(connection, group)
        self._written_offsets: dict[TopicPartition, int] = dict(self._admin.committed_offsets(group))
        # Partitions for which an earlier run may have written dead letters without committing: all, until looked up.
        self._unverified: set[TopicPartition] = set()
        self._queue: queue.SimpleQueue[_BatchRange | None] = queue.SimpleQueue()
        self._pending = 0
        self._idle = threading.Condition()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="riverrun-sweeper", daemon=True)

    def start(self, topics: list[str]) -> None:
        """Create the dead-letter topics before there is a dead letter, and start the thread."""
        self._letters.prepare(topics)
        partitions = [
            TopicPartition(name, number)
            for name, state in self._admin.topics(topics, config=False).items()
            for number in range(len(state.partitions))
        ]
        for partition, first in self._admin.offsets(partitions, "earliest").items():
            self._written_offsets.setdefault(partition, first)
        self._unverified = set(self._written_offsets)
        self._thread.start()

    def add_batch(self, topic: str, begin: Mapping[int, int], end: Mapping[int, int], dead: int) -> None:
        """Queue a batch: a stream has read from `begin` to `end` and counted `dead` bad records."""
        with self._idle:
            self._pending += 1
        self._queue.put(_BatchRange(topic, begin, end, dead))

    def written_offset(self, place: TopicPartition) -> int:
        """The offset up to which the dead letters of a partition are written."""
        return self._written_offsets.get(place, 0)

    def drain(self, seconds: float) -> bool:
        """Wait until all queued batches are done. Returns whether they are."""
        with self._idle:
            return self._idle.wait_for(lambda: self._pending == 0, seconds)

    def close(self, seconds: float = 60.0) -> None:
        """End after the current batch; the rest is done after the next start."""
        self._stopping.set()
        self._queue.put(None)
        if self._thread.is_alive():
            self._thread.join(seconds)

    def _run(self) -> None:
        while (batch := self._queue.get()) is not None and not self._stopping.is_set():
            while not self._stopping.is_set():
                try:
                    self._write_batch(batch)
                except Exception as error:  # noqa: BLE001  -- a dead letter is never given up
                    self._notice(f"Dead letters of {batch.topic} wait: {error}")
                    self._stopping.wait(RETRY_SECONDS)
                else:
                    break
            with self._idle:
                self._pending -= 1
                self._idle.notify_all()

    def _write_batch(self, batch: _BatchRange) -> None:
        new_ends = {
            TopicPartition(batch.topic, number): last
            for number, last in batch.end.items()
            if last > self.written_offset(TopicPartition(batch.topic, number))
        }
        has_gap = any(
            batch.begin.get(partition.partition, 0) > self.written_offset(partition) for partition in new_ends
        )
        if new_ends and (batch.dead or has_gap):
            ranges = {partition: (self.written_offset(partition), last) for partition, last in new_ends.items()}
            already_written = self._already_written(batch.topic, ranges)
            first_offsets = {partition.partition: first for partition, (first, last) in ranges.items() if last > first}
            same_range = all(batch.begin.get(number) == first for number, first in first_offsets.items())
            letters = self._find_bad_records(batch.topic, ranges, batch.dead if same_range else -1)
            self._letters.write_all(
                (copy, reason) for copy, reason in letters if (copy.partition, copy.offset) not in already_written
            )
        if new_ends:
            self._written_offsets |= new_ends
            self._admin.alter_group_offsets(self._group, new_ends)

    def _find_bad_records(
        self, topic: str, ranges: Mapping[TopicPartition, tuple[int, int]], dead: int
    ) -> list[tuple[RecordCopy, RecordUnreadableError]]:
        """The bad records of a range. The event type's own decoder finds them at a fraction of Spark's cost; if it does not
        find as many as Spark has counted, Spark decides."""
        declared = self._compilation.graph.app.topics.get(topic)
        if declared is not None and declared.schema is not None:
            bad_records = []
            wire = wire_format_of(declared, self._connection.registry)
            for block in read_offset_ranges(self._connection, ranges):
                for message in block:
                    try:
                        wire.decode(message.value() or b"")
                    except RecordUnreadableError as error:
                        copy = _copy(message)
                        bad_records.append((copy, error if copy.raw is not None else _no_value(copy)))
            if dead in (len(bad_records), -1):
                return bad_records
        return [(copy, self._reason(copy)) for copy in self._find_bad_with_spark(topic, ranges)]

    def _find_bad_with_spark(
        self, topic: str, ranges: Mapping[TopicPartition, tuple[int, int]]
    ) -> Iterator[RecordCopy]:
        from pyspark.sql import functions as F  # noqa: N812

        begin = {str(partition.partition): first for partition, (first, _) in ranges.items()}
        end = {str(partition.partition): last for partition, (_, last) in ranges.items()}
        records = KafkaRecordSource(
            self._compilation.spark, self._connection, ranges={topic: (begin, end)}, headers=True
        )
        names = ("partition", "offset", "key", "value", "headers", "timestamp")
        raw = records.read_batch(topic).select(*[F.col(name).alias(f"_{name}") for name in names])
        # In a column of its own: the dead letter needs the bytes as they are.
        declared = self._compilation.graph.app.topics.get(topic)
        raw = decode_values(raw.withColumn("_opened", F.col("_value")), declared, self._connection.registry, "_opened")
        bad = self._compilation.record_schema(topic).parse(raw, "_opened").where(~F.col("_ok"))
        columns: list[Column] = [F.col(f"_{name}").alias(name) for name in names[:-1]]
        for row in bad.select(*columns, F.unix_millis("_timestamp").alias("at")).toLocalIterator():
            headers = [(header["key"], _bytes(header["value"])) for header in row["headers"] or []]
            location = (topic, row["partition"], row["offset"])
            yield RecordCopy(*location, row["at"], _bytes(row["key"]), _bytes(row["value"]), headers)

    def _reason(self, copy: RecordCopy) -> RecordUnreadableError:
        """Why a record is bad, as the decoder of its event type says it."""
        topic = self._compilation.graph.app.topics.get(copy.topic)
        if copy.raw is None:
            return _no_value(copy)
        if topic is not None and topic.schema is not None:
            try:
                wire_format_of(topic, self._connection.registry).decode(copy.raw)
            except RecordUnreadableError as error:
                return error
        return RecordUnreadableError(f"The record {copy} is not what the topic {copy.topic} carries")

    def _already_written(self, topic: str, ranges: Mapping[TopicPartition, tuple[int, int]]) -> set[tuple[int, int]]:
        """Partition and offset of the dead letters that are in the topic already; looked up once after a start."""
        unverified = [partition for partition in ranges if partition in self._unverified]
        if not unverified:
            return set()
        written: set[tuple[int, int]] = set()
        target = self._letters.topic_for(topic)
        with Consumer(target, connection=self._connection, follow=False) as consumer:
            for record in consumer:
                dead_letter = DeadLetter.from_record(record)
                if dead_letter is not None and dead_letter.topic == topic:
                    written.add((dead_letter.partition, dead_letter.offset))
        self._unverified.difference_update(unverified)
        return written


def _no_value(copy: RecordCopy) -> RecordUnreadableError:
    return RecordUnreadableError(f"The record {copy} has no value")


def _copy(message: Any) -> RecordCopy:
    kind, timestamp = message.timestamp()
    headers = list(message.headers() or [])
    location = (message.topic(), message.partition(), message.offset())
    return RecordCopy(*location, timestamp if kind else None, message.key(), message.value(), headers)


def _bytes(value: Any) -> bytes | None:
    return None if value is None else bytes(value)
