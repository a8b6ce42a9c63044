"""Which records a batch is made of, and which of them each of its tasks reads: asked of Spark before the batch is written.

Spark numbers the tasks of a batch in an order that is not the same when the batch is computed again: the offsets of a batch
that was just planned are in hash order, those read back from the checkpoint in ascending order. So a task is identified by
what it reads: its Kafka partitions, or the number of its shuffle partition, which depends on the rows' keys. Sorted by that,
the tasks of a batch have the same numbers each time.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_RANGE = re.compile(r"KafkaOffsetRange\((.+),(-?\d+),(-?\d+),")


@dataclass(frozen=True)
class BatchLayout:
    """How a batch is split: the task number of each of Spark's partitions, and a digest of what the tasks read."""

    task_numbers: tuple[int, ...]
    digest: str


def read_layout(rdd: Any) -> BatchLayout:
    """The layout of a batch whose rows are in this RDD of the JVM."""
    reads = _InputTracer().trace(rdd, list(range(rdd.getNumPartitions())))
    order = sorted(range(len(reads)), key=lambda index: sorted(reads[index]))
    numbers = [0] * len(reads)
    for number, index in enumerate(order):
        numbers[index] = number
    # Without the start of each range: that of a new partition depends on what retention has left of it.
    return BatchLayout(tuple(numbers), digest([sorted(name for name, _ in reads[index]) for index in order]))


def batch_offsets_digest(spark: "SparkSession", query: str) -> str:
    """A digest of the offsets at which the current batch of a query begins and ends."""
    running: Any = spark._jsparkSession.streams().get(query)  # noqa: SLF001
    context = running.streamingQuery().getLatestExecutionContext()
    return digest([_offsets(context.startOffsets()), _offsets(context.endOffsets())])


def _offsets(progress: Any) -> list[Any]:
    """The offsets of all sources, sorted, because their order has no meaning."""
    offsets = [json.loads(source_offsets.json()) for source_offsets in _iterate(progress.values())]
    return sorted(offsets, key=lambda source_offsets: json.dumps(source_offsets, sort_keys=True))


def digest(content: list[Any] | Mapping[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


# What a partition reads: a name and a start offset, because a Kafka partition may be read in several ranges.
_PartitionInput = tuple[str, int]


class _InputTracer:
    """Follows the partitions of an RDD down to what they read. A call to the JVM takes a tenth of a millisecond, so all
    partitions are followed together."""

    def __init__(self) -> None:
        self._shuffles: list[int] = []

    def trace(self, rdd: Any, partitions: list[int]) -> list[frozenset[_PartitionInput]]:
        dependencies = list(_iterate(rdd.dependencies()))
        if not dependencies:
            return self._leaf_inputs(rdd, partitions)
        inputs: list[frozenset[_PartitionInput]] = [frozenset()] * len(partitions)
        for dependency in dependencies:
            for index, reads in self._trace_parents(dependency, partitions):
                inputs[index] |= reads
        return inputs

    def _trace_parents(
        self, dependency: Any, partitions: list[int]
    ) -> Iterator[tuple[int, frozenset[_PartitionInput]]]:
        kind = dependency.getClass().getSimpleName()
        if kind == "ShuffleDependency":
            name = self._shuffle_name(int(dependency.shuffleId()))
            yield from ((index, frozenset({(name, partition)})) for index, partition in enumerate(partitions))
            return
        if kind == "OneToOneDependency":
            parents = [[partition] for partition in partitions]
        else:
            parents = [
                [int(parent) for parent in _iterate(dependency.getParents(partition))] for partition in partitions
            ]
        below = sorted({parent for own_parents in parents for parent in own_parents})
        if below:
            reads = dict(zip(below, self.trace(dependency.rdd(), below), strict=True))
            yield from ((index, reads[parent]) for index, own_parents in enumerate(parents) for parent in own_parents)

    def _shuffle_name(self, number: int) -> str:
        """A name for a shuffle by the order in which it is met: Spark's own numbers go on over all queries of the
        session."""
        if number not in self._shuffles:
            self._shuffles.append(number)
        # With leading zeros, so that sorting by name sorts by number.
        return f"shuffle {self._shuffles.index(number):06}"

    def _leaf_inputs(self, rdd: Any, partitions: list[int]) -> list[frozenset[_PartitionInput]]:
        kind = str(rdd.getClass().getSimpleName())
        if kind != "DataSourceRDD":
            return [frozenset({(kind, partition)}) for partition in partitions]
        rdd_partitions = rdd.partitions()
        return [frozenset({self._kafka_input(rdd_partitions[partition], partition)}) for partition in partitions]

    def _kafka_input(self, partition: Any, index: int) -> _PartitionInput:
        source = partition.inputPartition()
        if not source.isDefined() or source.get().getClass().getSimpleName() != "KafkaBatchInputPartition":
            return "DataSourceRDD", index
        range_match = _RANGE.match(str(source.get().offsetRange().toString()))
        assert range_match is not None  # noqa: S101
        return range_match[1], int(range_match[2])


def _iterate(sequence: Any) -> Iterator[Any]:
    iterator = sequence.iterator()
    while iterator.hasNext():
        yield iterator.next()
