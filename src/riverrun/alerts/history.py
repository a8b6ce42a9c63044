"""Reads topics in the order they were written: partitions merged by their records' Kafka timestamps."""

import heapq
from collections.abc import Collection, Iterable, Iterator
from contextlib import ExitStack

from riverrun.alerts.engine import InputRecord, PollResult
from riverrun.alerts.kafka_log import to_input_record
from riverrun.kafka.admin.admin import Admin
from riverrun.kafka.connection import Connection
from riverrun.kafka.reading.partition_reader import PartitionReader, resolve_offset_ranges
from riverrun.model.positions import OffsetSpec

_CHUNK = 500


def read_history(
    connection: Connection, topics: Collection[str], *, start: OffsetSpec, end: OffsetSpec | None = None
) -> Iterator[PollResult]:
    """Read all records of these topics from `start` to `end`, or to their current end."""
    partition_spans = resolve_offset_ranges(Admin(connection), topics, start=start, end=end)
    with ExitStack() as stack:
        # One reader per partition: a single one would return a whole partition before the next.
        readers = [
            stack.enter_context(PartitionReader(connection, {partition: span}))
            for partition, span in partition_spans.items()
        ]
        yield from merge_by_time(
            [(to_input_record(record) for batch in reader for record in batch) for reader in readers]
        )


def merge_by_time(partitions: Iterable[Iterable[InputRecord]]) -> Iterator[PollResult]:
    """Merge the records of partitions by timestamp, keeping each partition's offset order whatever its timestamps."""
    chunk: list[InputRecord] = []
    for record in heapq.merge(*partitions, key=lambda record: record.record_time):
        chunk.append(record)
        if len(chunk) == _CHUNK:
            yield PollResult(chunk)
            chunk = []
    if chunk:
        yield PollResult(chunk)
