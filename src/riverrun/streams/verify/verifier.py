"""Verifies that a stream has written what its code makes of what it has read: computes it again in batch and compares.

Exactly the records that the stream had read up to its last committed batch are read again, and of the output exactly what it
wrote up to that batch: each record has a header with the batch that wrote it. So a stream can be verified while it runs.

Rows are compared by key if later rows replace earlier ones (an aggregate's updates): then the last one counts. Otherwise
every row counts, as often as it occurs. Numbers that are added up in another order differ in their last digits:
doubles and floats are equal within a billionth.

A stream drops records that come after the watermark has passed their window; a batch knows no watermark and counts them.
Such rows are not counted as wrong: they are missing or differ, their time is before the watermark, and they are no more
than the stream has counted as late. That late records can explain them is all that is known: a row that was lost looks the
same.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from riverrun.errors import UsageError
from riverrun.kafka.admin.admin import Admin
from riverrun.kafka.connection import Connection
from riverrun.kafka.exactly_once import BATCH_HEADER
from riverrun.model.cluster_state import TopicPartition
from riverrun.streams.checkpoint import CheckpointStatus
from riverrun.streams.compile.compiler import Compilation, CompiledStream, encode_records
from riverrun.streams.compile.fingerprint import VersionHistory, compute_fingerprint
from riverrun.streams.compile.record_schema import RecordSchema
from riverrun.streams.compile.sources import Counters, KafkaRecordSource
from riverrun.streams.evolve.change import compare_fingerprints
from riverrun.streams.run.row_identity import IDENTITY_HEADER

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

# So many differing rows are shown; all are counted.
MAX_SHOWN = 10
# How far two doubles may be apart, relative to the larger one.
RELATIVE_TOLERANCE = 1e-9
# Stateful operators with no batch form, or one with other results.
_NO_BATCH_FORM = {
    "DeduplicateWithinWatermark": "dropDuplicatesWithinWatermark() has no batch form",
    "FlatMapGroupsInPandasWithState": "what applyInPandasWithState() does depends on how records were batched",
    "TransformWithStateInPandas": "what transformWithStateInPandas() does depends on how records were batched",
    "TransformWithStateInPySpark": "what transformWithState() does depends on how records were batched",
}


@dataclass(frozen=True)
class RowDifference:
    """One row that differs: `expected` is what the code makes, `found` what the topic has, each as JSON or empty."""

    kind: str
    key: str
    expected: str
    found: str
    partition: int | None = None
    offset: int | None = None
    # The batch that wrote the row in the topic.
    batch: int | None = None


@dataclass
class Verdict:
    """The result for one stream."""

    stream: str
    topic: str
    generation: str = ""
    batch: int = -1
    # The first batch that counts: those before were made by an earlier version of its code.
    since: int = 0
    # Records that were read again, without transaction markers.
    records: int = 0
    rows: int = 0
    equal: int = 0
    # Rows that late records explain, and how many late rows the stream has dropped in all.
    late: int = 0
    dropped: int = 0
    # Rows by what else is wrong with them: missing, extra, twice, differs.
    wrong: dict[str, int] = field(default_factory=dict)
    shown: list[RowDifference] = field(default_factory=list)
    # Possible causes, most likely first.
    causes: list[str] = field(default_factory=list)
    # Why the stream cannot be verified; empty if it can.
    unproved: str = ""

    @property
    def state(self) -> str:
        return "unproved" if self.unproved else "differs" if self.wrong else "equal"


class Verifier:
    """Verifies streams of one app on one cluster."""

    def __init__(self, compilation: Compilation, connection: Connection, admin: Admin) -> None:
        self._compilation = compilation
        self._connection = connection
        self._admin = admin

    def verify(
        self,
        name: str,
        status: CheckpointStatus | None,
        *,
        late: int = 0,
        history: VersionHistory | None = None,
        earlier: Collection[str] = (),
    ) -> Verdict:
        """Compare. `status` is the stream's checkpoint status, `late` how many rows it has dropped as late, `history` the
        versions of its code, `earlier` are topics with rows from before those in its own."""
        compiled = self._compilation.streams[name]
        verdict = Verdict(name, compiled.stream.output_topic)
        if status is None:
            verdict.unproved = "it has not finished a batch yet"
            return verdict
        status, verdict.unproved = self._limit_to_version(compiled, status, history or VersionHistory())
        verdict.generation, verdict.batch, verdict.since = status.query_id, status.batch, status.first_batch
        verdict.unproved = verdict.unproved or self._unverifiable_reason(compiled) or self._expired_reason(status)
        if verdict.unproved:
            return verdict
        verdict.records = sum(self._records(status).read_batch(topic).count() for topic in status.end)
        pairs = self._pairs(compiled, status, earlier).cache()
        try:
            explain_late(verdict, self._count(pairs, verdict, status.watermark_ms), late)
            if verdict.wrong.get("missing"):
                verdict.unproved = self._uncertain_reason(compiled, verdict)
            if verdict.wrong and not verdict.unproved:
                verdict.causes = list(self._causes(compiled, status, verdict, late))
        finally:
            pairs.unpersist()
        return verdict

    def _limit_to_version(
        self, compiled: CompiledStream, status: CheckpointStatus, history: VersionHistory
    ) -> tuple[CheckpointStatus, str]:
        """The status limited to what the current code has read and written, and why that is not possible; else empty."""
        last = history.last
        if last is None:
            return status, ""
        if (
            compare_fingerprints(last.fingerprint, compute_fingerprint(self._compilation, compiled.stream.name)).kind
            != "unchanged"
        ):
            return status, f"its code has changed since it ran as version {last.number}: run it, or put the code back"
        if last.since_batch == 0:
            return status, ""
        if last.fingerprint.stateful:
            before = history.state_versions[-2:-1]
            made_by = f"version {before[0].number}" if before else "a version that was not written down"
            return status, f"rows up to batch {last.since_batch - 1} were made by {made_by} of its code"
        if status.batch < last.since_batch:
            return status, f"it has not finished a batch as version {last.number} of its code yet"
        begin = {
            topic: {
                partition: last.begin.get(topic, {}).get(partition, status.begin[topic].get(partition, 0))
                for partition in partitions
            }
            for topic, partitions in status.end.items()
        }
        return replace(status, begin=begin, first_batch=last.since_batch), ""

    def _unverifiable_reason(self, compiled: CompiledStream) -> str:
        for node, why in _NO_BATCH_FORM.items():
            if node in compiled.query.nodes:
                return why
        if compiled.query.joins_streams:
            return "which rows a join of two streams makes depends on how long it waited for each"
        if compiled.query.aggregated and compiled.emits_updates and not compiled.key:
            return "its rows replace earlier ones and have no key"
        return ""

    def _uncertain_reason(self, compiled: CompiledStream, verdict: Verdict) -> str:
        """Why missing rows may not be an error; else empty."""
        missing = verdict.wrong["missing"]
        if self._sent_in_real_time(compiled):
            return (
                f"{compiled.stream.output_topic} has rows that were sent in real time, "
                "which do not say what batch made them"
            )
        if _is_final_aggregate(compiled) and not _has_window_time(compiled) and set(verdict.wrong) == {"missing"}:
            return (
                f"{missing} of its rows may be of windows that are still open: which rows are final is told by the window, "
                "and it is not the time of its rows"
            )
        return ""

    def _sent_in_real_time(self, compiled: CompiledStream) -> bool:
        records = KafkaRecordSource(self._compilation.spark, self._connection, headers=True).read_batch(
            compiled.stream.output_topic
        )
        named = (
            f"exists(headers, h -> h.key = '{IDENTITY_HEADER}') and not exists(headers, h -> h.key = '{BATCH_HEADER}')"
        )
        return not records.where(named).isEmpty()

    def _expired_reason(self, status: CheckpointStatus) -> str:
        """The reason if retention has deleted records, which cannot be read again; else empty."""
        begin_offsets = {
            TopicPartition(topic, partition_number): offset
            for topic, partitions in status.begin.items()
            for partition_number, offset in partitions.items()
        }
        earliest_offsets = self._admin.offsets(list(begin_offsets), "earliest")
        expired = sum(
            max(0, min(earliest, status.end[partition.topic][partition.partition]) - begin_offsets[partition])
            for partition, earliest in earliest_offsets.items()
        )
        return f"{expired} of the records it has read are not in Kafka any more (retention)" if expired else ""

    # --- expected and actual rows -------------------------------------------------------------------------------------

    def _records(self, status: CheckpointStatus) -> KafkaRecordSource:
        """Exactly the records that the stream has read."""
        ranges = {
            topic: (_string_keys(status.begin[topic]), _string_keys(partitions))
            for topic, partitions in status.end.items()
        }
        return KafkaRecordSource(
            self._compilation.spark, self._connection, ranges=ranges, topics=self._compilation.graph.app.topics
        )

    def _expected(self, compiled: CompiledStream, status: CheckpointStatus) -> "DataFrame":
        """`key` and the row's columns, as the code makes them from the same records."""
        from pyspark.sql import functions as F  # noqa: N812

        counters = Counters(streaming=False)
        rows = self._compilation.rows(compiled.stream.name, self._records(status), counters=counters, streaming=False)
        if _is_final_aggregate(compiled) and _has_window_time(compiled):
            # Rows are sent once, when they are final.
            rows = rows.where(F.unix_millis(F.col(compiled.time).getField("end")) <= status.watermark_ms)
        return self._typed(compiled, encode_records(rows, compiled, counters))

    def _actual(self, compiled: CompiledStream, status: CheckpointStatus, earlier: Collection[str]) -> "DataFrame":
        """The same from the output topic, with partition and offset; if rows replace each other, the last of each key."""
        from pyspark.sql import Window
        from pyspark.sql import functions as F  # noqa: N812

        records = KafkaRecordSource(self._compilation.spark, self._connection, headers=True)
        raw = records.read_batch(compiled.stream.output_topic)
        for topic in self._admin.topics(list(earlier), config=False):
            raw = raw.union(records.read_batch(topic))
        batch = F.expr(f"cast(get(filter(headers, h -> h.key = '{BATCH_HEADER}'), 0).value as string)")
        number = F.element_at(F.split("_batch", "/"), -1).cast("bigint")
        own_rows = raw.withColumn("_batch", batch).where(F.col("_batch").startswith(f"{status.query_id}/"))
        own_rows = own_rows.withColumn("_number", number).where(
            F.col("_number").between(status.first_batch, status.batch)
        )
        times = F.lit(1)
        if _is_compared_by_key(compiled):
            by_key = Window.partitionBy("key")
            own_rows = own_rows.withColumn(
                "_nth", F.row_number().over(by_key.orderBy(F.desc("_number"), F.desc("offset")))
            )
            # If rows do not replace each other, there should be only one of each key.
            times = F.lit(1) if compiled.emits_updates else F.count(F.lit(1)).over(by_key)
            own_rows = own_rows.withColumn("times", times).where("_nth = 1")
        else:
            own_rows = own_rows.withColumn("times", times)
        return self._typed(compiled, own_rows, "partition", "offset", "times", "_number")

    def _typed(self, compiled: CompiledStream, records: "DataFrame", *more: str) -> "DataFrame":
        from pyspark.sql import functions as F  # noqa: N812

        renamed = records.select(
            F.col("key").alias("_key"),
            F.col("value").alias("_value"),
            *[F.col(column).alias(f"_{column.removeprefix('_')}") for column in more],
        )
        return RecordSchema.from_columns(compiled.columns).parse(renamed, "_value")

    def _pairs(self, compiled: CompiledStream, status: CheckpointStatus, earlier: Collection[str]) -> "DataFrame":
        """Expected and actual rows, joined: `_e` and `_f` are their JSON, `_same` whether they are equal."""
        from pyspark.sql import functions as F  # noqa: N812

        expected, actual = self._expected(compiled, status), self._actual(compiled, status, earlier)
        names = compiled.columns.names
        row = F.struct(*[F.col(f"`{name}`") for name in names]).alias("row")
        end_time = _end_time(compiled).alias("_over_ms")
        if _is_compared_by_key(compiled):
            left = expected.select(F.col("_key").alias("k"), row, end_time, F.col("_value").cast("string").alias("_e"))
            right = actual.select(
                F.col("_key").alias("k"),
                row,
                F.col("_value").cast("string").alias("_f"),
                "_partition",
                "_offset",
                "_times",
                "_number",
                "_ok",
            )
            joined = left.alias("l").join(right.alias("r"), F.col("l.k").eqNullSafe(F.col("r.k")), "full")
            once = F.col("_times") == 1
            same = F.col("_ok") & once & _equal(F.col("l.row"), F.col("r.row"), compiled.columns)
            return joined.select(
                F.coalesce("l.k", "r.k").cast("string").alias("key"),
                "_e", "_f", "_partition", "_offset", "_number", "_over_ms",
                F.coalesce(same, F.lit(False)).alias("_same"),
                F.lit(1).alias("_times"),
                F.when(once, 0).otherwise(F.col("_times") - 1).alias("_over"),
            )  # fmt: skip
        # Every row counts, as often as it occurs.
        left = expected.groupBy("_key", "_value").agg(F.count(F.lit(1)).alias("n"), F.max(end_time).alias("_over_ms"))
        right = actual.groupBy("_key", "_value").agg(
            F.count(F.lit(1)).alias("n"),
            F.max("_partition").alias("_partition"),
            F.max("_offset").alias("_offset"),
            F.max("_number").alias("_number"),
        )
        on = F.col("l._key").eqNullSafe(F.col("r._key")) & (F.col("l._value") == F.col("r._value"))
        joined = left.alias("l").join(right.alias("r"), on, "full")
        actual_count, expected_count = F.coalesce("r.n", F.lit(0)), F.coalesce("l.n", F.lit(0))
        return joined.select(
            F.coalesce("l._key", "r._key").cast("string").alias("key"),
            F.when(expected_count > 0, F.col("l._value").cast("string")).alias("_e"),
            F.when(actual_count > 0, F.col("r._value").cast("string")).alias("_f"),
            "_partition", "_offset", "_number", "_over_ms",
            (actual_count == expected_count).alias("_same"),
            F.greatest(actual_count, expected_count).alias("_times"),
            (actual_count - expected_count).alias("_over"),
        )  # fmt: skip

    # --- the result ---------------------------------------------------------------------------------------------------

    def _count(self, pairs: "DataFrame", verdict: Verdict, watermark_ms: int) -> dict[str, int]:
        """Count rows by what is wrong with them. Returns the counts of those that late records could explain."""
        from pyspark.sql import functions as F  # noqa: N812

        over = F.coalesce("_over", F.lit(0))
        kind = (
            F.when(F.col("_same"), "equal")
            .when(F.col("_f").isNull(), "missing")
            .when(F.col("_e").isNull(), "extra")
            .when(over > 0, "twice")
            .when(over < 0, "missing")
            .otherwise("differs")
        )
        times = F.when(F.col("_same"), F.col("_times")).otherwise(F.greatest(F.abs(over), F.lit(1)))
        # Records of a window that has ended are dropped, so its row can be missing or differ, but not be extra.
        is_past = F.coalesce(F.col("_over_ms") <= F.lit(watermark_ms), F.lit(False))
        kinds = pairs.withColumn("_kind", kind).withColumn("_past", is_past & F.col("_kind").isin("missing", "differs"))
        counts: dict[str, int] = {}
        explainable: dict[str, int] = {}
        for row in kinds.groupBy("_kind", "_past").agg(F.sum(times).alias("n")).collect():
            counts[row["_kind"]] = counts.get(row["_kind"], 0) + int(row["n"])
            if row["_past"]:
                explainable[row["_kind"]] = int(row["n"])
        verdict.equal = counts.pop("equal", 0)
        verdict.wrong = dict(sorted(counts.items()))
        verdict.rows = verdict.equal + sum(counts.values())
        for row in kinds.where(~F.col("_same")).orderBy("key").limit(MAX_SHOWN).collect():
            verdict.shown.append(
                RowDifference(
                    row["_kind"],
                    row["key"] or "",
                    row["_e"] or "",
                    row["_f"] or "",
                    row["_partition"],
                    row["_offset"],
                    row["_number"],
                )
            )

        return explainable

    def _causes(self, compiled: CompiledStream, status: CheckpointStatus, verdict: Verdict, late: int) -> Iterator[str]:
        if self._is_nondeterministic(compiled, status):
            yield (
                "the code is not deterministic: computed twice over the same records it gave different rows; look for the "
                "current time, random numbers, or a table that changed"
            )
        elif compiled.query.random_columns:
            yield f"the code is not deterministic: {', '.join(compiled.query.random_columns)}"
        if late:
            yield (
                f"the stream has dropped {late} late rows or groups, which a batch counts: that explains so many rows whose "
                "window was over, and not all of these"
            )
        if compiled.query.joins_tables:
            yield "a table that it joins may have changed since"
        if verdict.wrong.get("twice"):
            yield (
                f"rows are in {compiled.stream.output_topic} more than once, each time with the header of a batch of this "
                "stream: the stream has written them again, which it must not (please report it, with its checkpoint), or "
                "somebody has copied records with their headers"
            )
        if set(verdict.wrong) & {"missing"} and self._is_output_expired(compiled):
            yield f"records of {compiled.stream.output_topic} are gone (retention, or deleted)"
        if verdict.wrong.get("differs") or verdict.wrong.get("extra"):
            yield (
                "every row that was compared has the header of a batch of this stream: what its code calls or reads from "
                "outside may give other results now, or somebody else has written to "
                f"{compiled.stream.output_topic} with that header"
            )

    def _is_nondeterministic(self, compiled: CompiledStream, status: CheckpointStatus) -> bool:
        from pyspark.sql import functions as F  # noqa: N812

        def sums() -> Any:
            rows = self._expected(compiled, status)
            return rows.agg(F.sum(F.xxhash64("_key", "_value").cast("decimal(38,0)")), F.count(F.lit(1))).collect()

        return bool(sums() != sums())

    def _is_output_expired(self, compiled: CompiledStream) -> bool:
        partition_numbers = range(len(self._admin.topic(compiled.stream.output_topic).partitions))
        partitions = [TopicPartition(compiled.stream.output_topic, number) for number in partition_numbers]
        return any(offset > 0 for offset in self._admin.offsets(partitions, "earliest").values())


def _equal(left: "Column", right: "Column", kind: "DataType") -> "Column":
    """Whether two values are equal, doubles within `RELATIVE_TOLERANCE`; null is equal to null."""
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql.types import ArrayType, DoubleType, FloatType, StructType

    if isinstance(kind, StructType):
        all_equal = F.lit(True)
        for member in kind.fields:
            all_equal = all_equal & _equal(left.getField(member.name), right.getField(member.name), member.dataType)
        return all_equal
    if "map<" in kind.simpleString():
        # Maps cannot be compared; their JSON can.
        return F.to_json(F.struct(left)).eqNullSafe(F.to_json(F.struct(right)))
    if isinstance(kind, ArrayType):
        equal = F.zip_with(left, right, lambda one, other: _equal(one, other, kind.elementType))
        same = (F.size(left) == F.size(right)) & F.forall(equal, lambda one: one)
        return F.coalesce(same, left.isNull() & right.isNull())
    if isinstance(kind, DoubleType | FloatType):
        near = F.abs(left - right) <= F.lit(RELATIVE_TOLERANCE) * F.greatest(F.abs(left), F.abs(right))
        return F.coalesce(near, left.isNull() & right.isNull()) | left.eqNullSafe(right)
    return left.eqNullSafe(right)


def _is_compared_by_key(compiled: CompiledStream) -> bool:
    """Whether rows are compared by key: those of an aggregate are; rows made one by one from such rows are not."""
    return bool(compiled.key) and compiled.query.aggregated


def _is_final_aggregate(compiled: CompiledStream) -> bool:
    """Whether it is an aggregate that sends a row once, when its window has ended."""
    return compiled.mode == "append" and compiled.query.aggregated


def _has_window_time(compiled: CompiledStream) -> bool:
    """Whether the time of its rows is a window, so that its end is known."""
    from pyspark.sql.types import StructType

    kind = compiled.columns[compiled.time].dataType if compiled.time else None
    return isinstance(kind, StructType) and set(kind.names) == {"start", "end"}


def explain_late(verdict: Verdict, explainable: Mapping[str, int], late: int) -> None:
    """Move rows that late records can explain from `wrong` to `late`, if they are no more than the stream has counted as
    late. If they are more, something else is wrong, and nothing is moved."""
    verdict.dropped = late
    count = sum(explainable.values())
    if 0 < count <= late:
        verdict.late = count
        remaining = {kind: number - explainable.get(kind, 0) for kind, number in verdict.wrong.items()}
        verdict.wrong = {kind: number for kind, number in remaining.items() if number}


def _end_time(compiled: CompiledStream) -> "Column":
    """The end of a row's window, or its time, in milliseconds since 1970. Null without one."""
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql.types import TimestampType

    if _has_window_time(compiled):
        return F.unix_millis(F.col(compiled.time).getField("end"))
    if compiled.time and isinstance(compiled.columns[compiled.time].dataType, TimestampType):
        return F.unix_millis(F.col(compiled.time))
    return F.lit(None).cast("bigint")


def _string_keys(offsets: dict[int, int]) -> dict[str, int]:
    return {str(partition): offset for partition, offset in offsets.items()}


def require_streams(compilation: Compilation, names: tuple[str, ...]) -> list[str]:
    """The streams to verify: those named, else all."""
    unknown = [name for name in names if name not in compilation.streams]
    if unknown:
        raise UsageError(
            f"The app has no stream {unknown[0]}", expected=", ".join(compilation.streams), stream=unknown[0]
        )
    return list(names) or list(compilation.streams)
