"""Brings the records that a stream could not read to their dead-letter topic.

A stream only counts them on its way (streams/sources.py): a second output would make Spark read and parse every record
twice, and real-time mode allows one output only. When a batch has counted some, its range of offsets is read again, this
time for the bad ones alone. How far that has come is kept as a consumer group's offsets, so that a crash between a batch and
its dead letters leaves a range to sweep again, not a loss; what such a range has in the topic already is not written twice.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from riverrun.errors import RecordUnreadableError
from riverrun.kafka.admin.admin import Admin
from riverrun.kafka.connection import Connection
from riverrun.kafka.consumer.consumer import Consumer
from riverrun.kafka.consumer.dead_letter import Copy, DeadLetter, DeadLetters
from riverrun.model.state import Place
from riverrun.streams.compiler import Compilation
from riverrun.streams.sources import KafkaRecords

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession


class Sweeper:
    """Dead letters of all topics of a pipeline. One thread at a time uses it."""

    def __init__(self, spark: "SparkSession", connection: Connection, done: Compilation, group: str) -> None:
        self._spark = spark
        self._connection = connection
        self._done = done
        self._group = group
        self._admin = Admin(connection)
        self._letters = DeadLetters(connection, group)
        self._swept: dict[Place, int] = dict(self._admin.committed(group))
        # What was swept but not committed when an earlier run ended lies behind these.
        self._doubtful = dict(self._swept)
        self._dirty = False

    def prepare(self, topics: list[str]) -> None:
        """Make sure that dead letters have a place before there are any."""
        self._letters.prepare(topics)
        places = [Place(name, each) for name, state in self._admin.topics(topics, config=False).items()
                  for each in range(len(state.partitions))]  # fmt: skip
        for place, first in self._admin.offsets(places, "earliest").items():
            self._swept.setdefault(place, first)

    def batch(self, topic: str, begin: Mapping[int, int], end: Mapping[int, int], dead: int) -> int:
        """A stream has read from `begin` to `end` and counted `dead`: how many letters were written for it."""
        behind = {
            Place(topic, part): last for part, last in end.items() if last > self._swept.get(Place(topic, part), 0)
        }
        hole = any(begin.get(place.partition, 0) > self._swept.get(place, 0) for place in behind)
        written = 0
        if behind and (dead or hole):
            written = self._sweep(topic, {place: (self._swept.get(place, 0), last) for place, last in behind.items()})
        self._swept |= behind
        self._dirty = self._dirty or bool(behind)
        return written

    def commit(self) -> None:
        """Remember how far it has come."""
        if self._dirty:
            self._admin.commit(self._group, self._swept)
            self._dirty = False

    def _sweep(self, topic: str, ranges: Mapping[Place, tuple[int, int]]) -> int:
        known = self._written(topic, ranges)
        return self._letters.write_all(
            (copy, self._reason(copy))
            for copy in self._bad(topic, ranges)
            if (copy.partition, copy.offset) not in known
        )

    def _bad(self, topic: str, ranges: Mapping[Place, tuple[int, int]]) -> Iterator[Copy]:
        from pyspark.sql import functions as F  # noqa: N812

        begin = {str(place.partition): first for place, (first, _) in ranges.items()}
        end = {str(place.partition): last for place, (_, last) in ranges.items()}
        records = KafkaRecords(self._spark, self._connection, ranges={topic: (begin, end)}, headers=True)
        parsed = self._done.shape(topic).parse(records.still(topic)).where(~F.col("_ok"))
        columns: list[Column | str] = [
            "partition",
            "offset",
            "key",
            "value",
            "headers",
            F.unix_millis("timestamp").alias("at"),
        ]
        for row in parsed.select(*columns).toLocalIterator():
            headers = [
                (each["key"], None if each["value"] is None else bytes(each["value"])) for each in row["headers"] or []
            ]
            yield Copy(
                topic, row["partition"], row["offset"], row["at"], _bytes(row["key"]), _bytes(row["value"]), headers
            )

    def _reason(self, copy: Copy) -> RecordUnreadableError:
        """Why a record is no good, in the words of the type it should have."""
        topic = self._done.graph.app.topics.get(copy.topic)
        if copy.raw is None:
            return RecordUnreadableError(f"The record {copy} has no value")
        if topic is not None and topic.schema is not None:
            try:
                topic.schema.decode(copy.raw)
            except RecordUnreadableError as error:
                return error
        return RecordUnreadableError(f"The record {copy} is not what the topic {copy.topic} carries")

    def _written(self, topic: str, ranges: Mapping[Place, tuple[int, int]]) -> set[tuple[int, int]]:
        """Letters of a doubtful range that are in the dead-letter topic: looked up once after a start."""
        doubtful = [place for place in ranges if place in self._doubtful]
        for place in doubtful:
            del self._doubtful[place]
        if not doubtful:
            return set()
        found: set[tuple[int, int]] = set()
        target = self._letters.topic_for(topic)
        with Consumer(target, connection=self._connection, follow=False) as consumer:
            for record in consumer:
                letter = DeadLetter.of(record)
                if letter is not None and letter.topic == topic:
                    found.add((letter.partition, letter.offset))
        return found


def _bytes(value: Any) -> bytes | None:
    return None if value is None else bytes(value)
