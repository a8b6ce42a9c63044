"""Which records a batch is made of, and which of them each of its parts reads: asked of Spark before the batch is written.

Spark numbers the tasks of a batch in an order that is not the same when the batch is computed again: the offsets of a batch
that was just planned are in hash order, those read back from the checkpoint in ascending order. So a part is told by what it
reads: its Kafka partitions, or the number of its shuffle partition, which goes by the rows' keys. Sorted by that, the
parts of a batch have the same numbers each time.
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
class Layout:
    """How a batch is split: the part number of each of Spark's partitions, and a digest of what the parts read."""

    numbers: tuple[int, ...]
    digest: str


def layout_of(rdd: Any) -> Layout:
    """The layout of a batch whose rows are in this RDD of the JVM."""
    reads = _Reads().of(rdd, list(range(rdd.getNumPartitions())))
    order = sorted(range(len(reads)), key=lambda index: sorted(reads[index]))
    numbers = [0] * len(reads)
    for number, index in enumerate(order):
        numbers[index] = number
    # Without where a range begins: that of a partition which is new follows what retention has left of it.
    return Layout(tuple(numbers), digest([sorted(name for name, _ in reads[index]) for index in order]))


def batch_input(spark: "SparkSession", query: str) -> str:
    """A digest of the offsets at which the batch that a query is in begins and ends."""
    running: Any = spark._jsparkSession.streams().get(query)  # noqa: SLF001
    context = running.streamingQuery().getLatestExecutionContext()
    return digest([_offsets(context.startOffsets()), _offsets(context.endOffsets())])


def _offsets(progress: Any) -> list[Any]:
    """The offsets of all sources; their order says nothing."""
    found = [json.loads(each.json()) for each in _each(progress.values())]
    return sorted(found, key=lambda each: json.dumps(each, sort_keys=True))


def digest(content: list[Any] | Mapping[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


# What a partition reads: a name, and where it begins, for a Kafka partition that is read in several ranges.
_Read = tuple[str, int]


class _Reads:
    """Follows the partitions of an RDD down to what they read. Every question to the JVM takes a tenth of a millisecond, so
    all partitions go down together."""

    def __init__(self) -> None:
        self._shuffles: list[int] = []

    def of(self, rdd: Any, partitions: list[int]) -> list[frozenset[_Read]]:
        dependencies = list(_each(rdd.dependencies()))
        if not dependencies:
            return self._leaves(rdd, partitions)
        found: list[frozenset[_Read]] = [frozenset()] * len(partitions)
        for dependency in dependencies:
            for index, reads in self._parents(dependency, partitions):
                found[index] |= reads
        return found

    def _parents(self, dependency: Any, partitions: list[int]) -> Iterator[tuple[int, frozenset[_Read]]]:
        kind = dependency.getClass().getSimpleName()
        if kind == "ShuffleDependency":
            name = self._shuffle(int(dependency.shuffleId()))
            yield from ((index, frozenset({(name, each)})) for index, each in enumerate(partitions))
            return
        if kind == "OneToOneDependency":
            parents = [[each] for each in partitions]
        else:
            parents = [[int(parent) for parent in _each(dependency.getParents(each))] for each in partitions]
        below = sorted({parent for each in parents for parent in each})
        if below:
            reads = dict(zip(below, self.of(dependency.rdd(), below), strict=True))
            yield from ((index, reads[parent]) for index, each in enumerate(parents) for parent in each)

    def _shuffle(self, number: int) -> str:
        """Shuffles are named in the order in which they are met; Spark counts them through its whole life."""
        if number not in self._shuffles:
            self._shuffles.append(number)
        # What is sorted by its name has to be sorted by number.
        return f"shuffle {self._shuffles.index(number):06}"

    def _leaves(self, rdd: Any, partitions: list[int]) -> list[frozenset[_Read]]:
        kind = str(rdd.getClass().getSimpleName())
        if kind != "DataSourceRDD":
            return [frozenset({(kind, each)}) for each in partitions]
        all_there_are = rdd.partitions()
        return [frozenset({self._kafka(all_there_are[each], each)}) for each in partitions]

    def _kafka(self, partition: Any, index: int) -> _Read:
        source = partition.inputPartition()
        if not source.isDefined() or source.get().getClass().getSimpleName() != "KafkaBatchInputPartition":
            return "DataSourceRDD", index
        found = _RANGE.match(str(source.get().offsetRange().toString()))
        assert found is not None  # noqa: S101
        return found[1], int(found[2])


def _each(sequence: Any) -> Iterator[Any]:
    iterator = sequence.iterator()
    while iterator.hasNext():
        yield iterator.next()
