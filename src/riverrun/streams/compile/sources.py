"""Where the DataFrames of a stream's inputs come from: raw records of a topic, typed, checked and counted; files.

Every record is counted on its way in, good or bad, by an observation named after its topic. The observation is also what
keeps Spark from parsing a record more than once: the optimizer does not merge projections across it.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from riverrun.kafka.connection import Connection
from riverrun.kafka.java_client import java_properties
from riverrun.model.event import schema_of
from riverrun.model.pipeline import FileSource, Table
from riverrun.model.topic import Topic
from riverrun.streams.compile.registry_decoding import decode_values

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Observation, SparkSession
    from pyspark.sql.types import StructField, StructType

    from riverrun.streams.compile.record_schema import RecordSchema

COUNT, DEAD = "n", "dead"
# Prefix of the observation behind a topic's watermark, followed by the topic's name. Its count is not used.
WATERMARK_OBSERVATION = "time "
# Spark's reader asks for a partition's offsets on the connection on which the broker still holds its last fetch: for up to
# Kafka's 500 ms when no new record comes, while its task keeps its slot. On bursty topics that was most of a batch.
FETCH_WAIT_MS = 10
# Metadata by which Spark recognizes a window column.
_WINDOWS = ("spark.timeWindow", "spark.sessionWindow")
RAW_SCHEMA = "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp"


class RecordSource(Protocol):
    """Raw records of topics: Spark's columns key, value, topic, partition, offset, timestamp."""

    def read_stream(self, topic: str) -> "DataFrame":
        """All records, as they come."""

    def read_batch(self, topic: str) -> "DataFrame":
        """The records that are there."""

    def with_watermark(self, frame: "DataFrame", topic: str, time: str, late_ms: int) -> "DataFrame":
        """Rows of a topic whose event time Spark follows, so that it knows what is late and what is final."""


class KafkaRecordSource:
    """Records of a cluster. `options` are more of Spark's for streams, `ranges` the offsets that `read_batch` reads of a
    topic, from and to, by partition; without one, all that is there. `start_offsets` is where a query that is new begins."""

    def __init__(
        self,
        spark: "SparkSession",
        connection: Connection,
        *,
        options: Mapping[str, str] | None = None,
        ranges: Mapping[str, tuple[Mapping[str, int], Mapping[str, int]]] | None = None,
        start_offsets: Mapping[str, Mapping[int, int]] | None = None,
        headers: bool = False,
        topics: Mapping[str, Topic[Any]] | None = None,
    ) -> None:
        """`topics` are those declared: values of one with a schema registry are given as JSON."""
        self._spark = spark
        self._topics = dict(topics or {})
        self._registry = connection.registry
        self._options = {f"kafka.{name}": value for name, value in java_properties(connection).items()}
        # Records of aborted transactions never happened.
        self._options["kafka.isolation.level"] = "read_committed"
        self._options["kafka.fetch.max.wait.ms"] = str(FETCH_WAIT_MS)
        # We count the records that retention deleted (streams/run/progress.py), and the stream goes on.
        self._options["failOnDataLoss"] = "false"
        self._stream_options = {"startingOffsets": "earliest"} | dict(options or {})
        self._ranges = dict(ranges or {})
        self._start_offsets = dict(start_offsets or {})
        if headers:
            self._options["includeHeaders"] = "true"

    def read_stream(self, topic: str) -> "DataFrame":
        options = {**self._options, **self._stream_options, "subscribe": topic}
        if topic in self._start_offsets:
            options["startingOffsets"] = json.dumps({topic: self._start_offsets[topic]})
        frame = self._spark.readStream.format("kafka").options(**options).load()
        return decode_values(frame, self._topics.get(topic), self._registry)

    def read_batch(self, topic: str) -> "DataFrame":
        options = {**self._options, "subscribe": topic}
        if topic in self._ranges:
            # Only these partitions: what is not in a range is not read.
            begin, end = self._ranges[topic]
            del options["subscribe"]
            options["assign"] = json.dumps({topic: [int(each) for each in begin]})
            options |= {"startingOffsets": json.dumps({topic: begin}), "endingOffsets": json.dumps({topic: end})}
        frame = self._spark.read.format("kafka").options(**options).load()
        return decode_values(frame, self._topics.get(topic), self._registry)

    def with_watermark(self, frame: "DataFrame", topic: str, time: str, late_ms: int) -> "DataFrame":
        return add_watermark(frame, topic, time, late_ms)


class Counters:
    """Counts rows inside a query. A stream's counts come with its progress, a batch's when it is done."""

    def __init__(self, *, streaming: bool) -> None:
        self._streaming = streaming
        self._batch: dict[str, Observation] = {}

    def count(self, frame: "DataFrame", name: str, *columns: "Column") -> "DataFrame":
        from pyspark.sql import Observation

        if self._streaming:
            return frame.observe(name, *columns)
        self._batch[name] = Observation(name)
        return frame.observe(self._batch[name], *columns)

    def results(self) -> dict[str, dict[str, int]]:
        """The counts of a batch that is done."""
        return {name: dict(each.get) for name, each in self._batch.items()}


def parse_records(raw: "DataFrame", schema: "RecordSchema", topic: str, counters: Counters) -> "DataFrame":
    """Typed rows of a topic's valid records; all records are counted."""
    from pyspark.sql import functions as F  # noqa: N812

    counts = F.count(F.lit(1)).alias(COUNT), F.count_if(~F.col("_ok")).alias(DEAD)
    # Without Kafka's own columns: a field may be called `value` or `timestamp`.
    parsed = schema.parse(raw.select(F.col("value").alias("_value")), "_value")
    counted = counters.count(parsed, input_observation(topic), *counts)
    return counted.where("_ok").select(*[_column(field) for field in schema.columns.fields])


def _column(field: "StructField") -> "Column":
    """A column with its window metadata: Spark allows a window over a window, which it recognizes by that."""
    from pyspark.sql import functions as F  # noqa: N812

    column = F.col(f"`{field.name}`")
    metadata = {name: value for name, value in (field.metadata or {}).items() if name in _WINDOWS}
    return column.alias(field.name, metadata=metadata) if metadata else column


def input_observation(topic: str) -> str:
    return f"in {topic}"


def add_watermark(frame: "DataFrame", topic: str, time: str, late_ms: int) -> "DataFrame":
    """Rows with a watermark. The optimizer would move a user's filter below it, and event time would not move while no row
    passes the filter: the observation prevents that."""
    from pyspark.sql import functions as F  # noqa: N812

    timed = frame.withWatermark(time, f"{late_ms} milliseconds")
    return timed.observe(f"{WATERMARK_OBSERVATION}{topic}", F.count(F.lit(1)).alias(COUNT))


def read_table(spark: "SparkSession", table: Table, records: RecordSource, folder: Path) -> "DataFrame":
    """The rows of a table. A topic is read anew for every batch of a stream that joins it; of files, what was there when the
    stream started counts: Spark remembers their names and lengths."""
    if isinstance(table.source, FileSource):
        return _read_files(spark, table.source, folder)
    return _latest_rows(table.source, records)


def _read_files(spark: "SparkSession", source: FileSource, folder: Path) -> "DataFrame":
    path = source.path if "://" in source.path else str(folder / Path(source.path).expanduser())
    reader = spark.read.format(source.format)
    options = dict(source.options)
    if source.format == "csv":
        options = {"header": "true", "mode": "FAILFAST"} | options
    elif source.format == "json":
        options = {"mode": "FAILFAST"} | options
    if source.columns:
        reader = reader.schema(source.columns)
    elif source.format == "csv" and options.setdefault("inferSchema", "true") == "true":
        reader = reader.schema(_infer_csv_schema(spark, options, path))
    return reader.options(**options).load(path)


def _infer_csv_schema(spark: "SparkSession", options: Mapping[str, str], path: str) -> "StructType":
    """The types of a CSV file's columns by their values, as Spark guesses them; but a column with values that begin with
    a plus or a zero stays text: a phone or article number would be changed."""
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql.types import NumericType, StringType, StructField, StructType

    fields = spark.read.format("csv").options(**options).load(path).schema.fields
    numbers = [field.name for field in fields if isinstance(field.dataType, NumericType)]
    if not numbers:
        return StructType(fields)
    texts = spark.read.format("csv").options(**{**options, "inferSchema": "false"}).load(path)
    written = [F.max(F.col(f"`{name}`").rlike(r"^\s*(\+|0[0-9])")) for name in numbers]
    row = texts.agg(*written).first()
    text_columns = {name for name, found in zip(numbers, row or (), strict=False) if found}
    return StructType([
        StructField(field.name, StringType() if field.name in text_columns else field.dataType) for field in fields
    ])  # fmt: skip


def _latest_rows(topic: Topic, records: RecordSource) -> "DataFrame":  # type: ignore[type-arg]
    """The newest record of each key. A record without a value deletes its key; a bad record changes nothing."""
    from pyspark.sql import functions as F  # noqa: N812

    from riverrun.streams.compile.record_schema import RecordSchema

    assert topic.event is not None  # noqa: S101  -- App.table saw to it
    schema = RecordSchema.from_event(topic.event)
    raw = records.read_batch(topic.name).select(*[F.col(name).alias(f"_{name}") for name in ("key", "value", "offset")])
    parsed = schema.parse(raw, "_value")
    row = F.struct(*[F.col(f"`{name}`") for name in schema.columns.names])
    usable = parsed.where(F.col("_ok") | F.col("_value").isNull())
    newest = usable.groupBy("_key").agg(
        F.max_by(F.struct(F.when(F.col("_ok"), row).alias("row")), "_offset").alias("last")
    )
    return newest.where("last.row is not null").select("last.row.*")


def event_time_of(topic: Topic) -> tuple[str, int]:  # type: ignore[type-arg]
    """A topic's event-time column and how late its records may be; empty when it has none."""
    if topic.event is None:
        return "", 0
    schema = schema_of(topic.event)  # type: ignore[arg-type]
    return schema.time_field or "", schema.late_ms
