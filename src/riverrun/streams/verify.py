"""Proof: is what a stream has written what its code makes of what it has read? Computed again in batch and compared.

Exactly the records that the stream's last whole batch had read are read again, and of the output exactly what it wrote up to
that batch: each record says in a header which batch wrote it. So a stream that runs can be verified while it goes on.

Rows are told apart by their key where later rows replace earlier ones (an aggregate's updates): there the last one counts.
Elsewhere every row counts, as often as it is there. Numbers that are added up in another order differ in their last digits:
doubles and floats are equal within a billionth.

A stream drops records that come after the watermark has passed their window; a batch knows no watermark and counts them.
Such rows are told apart from wrong ones: they are missing or differ, their time is before the watermark, and they are no
more than the stream has counted as late. That they can be of late records is all that is known of them: a row that was lost
looks the same.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from riverrun.errors import UsageError
from riverrun.kafka.admin.admin import Admin
from riverrun.kafka.connection import Connection
from riverrun.kafka.parts import BATCH
from riverrun.model.state import Place
from riverrun.streams.blueprint import History, blueprint_of
from riverrun.streams.change import judge
from riverrun.streams.checkpoint import Stand
from riverrun.streams.compiler import Compilation, Compiled, encoded
from riverrun.streams.identity import IDENTITY
from riverrun.streams.sources import Counters, KafkaRecords
from riverrun.streams.values import Shape

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

# So many differing rows are shown; all are counted.
SHOWN = 10
# How far two doubles may be apart, in parts of the larger one.
CLOSE = 1e-9
# State of these has no batch form, or one with other results.
_NOT_IN_BATCH = {
    "DeduplicateWithinWatermark": "dropDuplicatesWithinWatermark() has no batch form",
    "FlatMapGroupsInPandasWithState": "what applyInPandasWithState() does depends on how records were batched",
    "TransformWithStateInPandas": "what transformWithStateInPandas() does depends on how records were batched",
    "TransformWithStateInPySpark": "what transformWithState() does depends on how records were batched",
}


@dataclass(frozen=True)
class Difference:
    """One row that is not as it should be: `expected` by the code, `found` in the topic, each as JSON or empty."""

    kind: str
    key: str
    expected: str
    found: str
    partition: int | None = None
    offset: int | None = None
    # The batch that wrote what was found.
    batch: int | None = None


@dataclass
class Verdict:
    """What came of it for one stream."""

    stream: str
    topic: str
    generation: str = ""
    batch: int = -1
    # The first batch that counts: those before were made by an earlier version of its code.
    since: int = 0
    # Records that were read again: markers of transactions take offsets too, and are none.
    records: int = 0
    rows: int = 0
    equal: int = 0
    # Rows that are missing or differ as late records make them, and how many of those the stream has dropped in all.
    late: int = 0
    dropped: int = 0
    # Rows by what else is wrong with them: missing, extra, twice, differs.
    wrong: dict[str, int] = field(default_factory=dict)
    shown: list[Difference] = field(default_factory=list)
    # Where to look, most likely first.
    causes: list[str] = field(default_factory=list)
    # Why nothing can be said; empty when something can.
    unproved: str = ""

    @property
    def state(self) -> str:
        return "unproved" if self.unproved else "differs" if self.wrong else "equal"


class Verifier:
    """Verifies streams of one app on one cluster."""

    def __init__(self, done: Compilation, connection: Connection, admin: Admin) -> None:
        self._done = done
        self._connection = connection
        self._admin = admin

    def verify(
        self,
        name: str,
        stand: Stand | None,
        *,
        late: int = 0,
        history: History | None = None,
        earlier: Collection[str] = (),
    ) -> Verdict:
        """Compare. `stand` is where the stream's checkpoint is, `late` how many rows it has dropped as late, `history` the
        versions of its code that it has run as, `earlier` are topics with rows from before those of its own."""
        compiled = self._done.streams[name]
        verdict = Verdict(name, compiled.stream.target)
        if stand is None:
            verdict.unproved = "it has not finished a batch yet"
            return verdict
        stand, verdict.unproved = self._of_this_code(compiled, stand, history or History())
        verdict.generation, verdict.batch, verdict.since = stand.generation, stand.batch, stand.since
        verdict.unproved = verdict.unproved or self._against(compiled) or self._gone(stand)
        if verdict.unproved:
            return verdict
        verdict.records = sum(self._records(stand).still(topic).count() for topic in stand.end)
        pairs = self._pairs(compiled, stand, earlier).cache()
        try:
            explain_late(verdict, self._count(pairs, verdict, stand.watermark_ms), late)
            if verdict.wrong.get("missing"):
                verdict.unproved = self._unsure(compiled, verdict)
            if verdict.wrong and not verdict.unproved:
                verdict.causes = list(self._causes(compiled, stand, verdict, late))
        finally:
            pairs.unpersist()
        return verdict

    def _of_this_code(self, compiled: Compiled, stand: Stand, history: History) -> tuple[Stand, str]:
        """What the code as it is now has read and written, and why that cannot be told apart from what earlier code did."""
        last = history.last
        if last is None:
            return stand, ""
        if judge(last.blueprint, blueprint_of(self._done, compiled.stream.name)).kind != "unchanged":
            return stand, f"its code has changed since it ran as version {last.number}: run it, or put the code back"
        if last.since_batch == 0:
            return stand, ""
        if last.blueprint.stateful:
            before = history.of_state[-2:-1]
            made = f"version {before[0].number}" if before else "a version that was not written down"
            return stand, f"rows up to batch {last.since_batch - 1} were made by {made} of its code"
        if stand.batch < last.since_batch:
            return stand, f"it has not finished a batch as version {last.number} of its code yet"
        begin = {
            topic: {part: last.begin.get(topic, {}).get(part, stand.begin[topic].get(part, 0)) for part in parts}
            for topic, parts in stand.end.items()
        }
        return replace(stand, begin=begin, since=last.since_batch), ""

    def _against(self, compiled: Compiled) -> str:
        for node, why in _NOT_IN_BATCH.items():
            if node in compiled.query.nodes:
                return why
        if compiled.query.joins_streams:
            return "which rows a join of two streams makes depends on how long it waited for each"
        if compiled.query.aggregated and compiled.revises and not compiled.key:
            return "its rows replace earlier ones and have no key"
        return ""

    def _unsure(self, compiled: Compiled, verdict: Verdict) -> str:
        """Why rows that are not there may be missing all the same."""
        missing = verdict.wrong["missing"]
        if self._sent_in_real_time(compiled):
            return (
                f"{compiled.stream.target} has rows that were sent in real time, which do not say what batch made them"
            )
        if _final(compiled) and not _closes(compiled) and set(verdict.wrong) == {"missing"}:
            return (
                f"{missing} of its rows may be of windows that are still open: which rows are final is told by the window, "
                "and it is not the time of its rows"
            )
        return ""

    def _sent_in_real_time(self, compiled: Compiled) -> bool:
        records = KafkaRecords(self._done.spark, self._connection, headers=True).still(compiled.stream.target)
        named = f"exists(headers, h -> h.key = '{IDENTITY}') and not exists(headers, h -> h.key = '{BATCH}')"
        return not records.where(named).isEmpty()

    def _gone(self, stand: Stand) -> str:
        """Records that retention has taken cannot be read again."""
        places = {Place(topic, part): offset for topic, parts in stand.begin.items() for part, offset in parts.items()}
        oldest = self._admin.offsets(list(places), "earliest")
        gone = sum(
            max(0, min(there, stand.end[place.topic][place.partition]) - places[place])
            for place, there in oldest.items()
        )
        return f"{gone} of the records it has read are not in Kafka any more (retention)" if gone else ""

    # --- both sides ---------------------------------------------------------------------------------------------------

    def _records(self, stand: Stand) -> KafkaRecords:
        """Exactly the records that the stream has read."""
        ranges = {topic: (_text(stand.begin[topic]), _text(parts)) for topic, parts in stand.end.items()}
        return KafkaRecords(self._done.spark, self._connection, ranges=ranges, topics=self._done.graph.app.topics)

    def _expected(self, compiled: Compiled, stand: Stand) -> "DataFrame":
        """`key` and the row's columns, as the code makes them of the same records."""
        from pyspark.sql import functions as F  # noqa: N812

        counters = Counters(moving=False)
        rows = self._done.rows(compiled.stream.name, self._records(stand), counters=counters, moving=False)
        if _final(compiled) and _closes(compiled):
            # Rows are sent once, when they are final.
            rows = rows.where(F.unix_millis(F.col(compiled.time).getField("end")) <= stand.watermark_ms)
        return self._typed(compiled, encoded(rows, compiled, counters))

    def _found(self, compiled: Compiled, stand: Stand, earlier: Collection[str]) -> "DataFrame":
        """The same of the output topic, with where each is; where rows replace each other, the last of each key."""
        from pyspark.sql import Window
        from pyspark.sql import functions as F  # noqa: N812

        records = KafkaRecords(self._done.spark, self._connection, headers=True)
        raw = records.still(compiled.stream.target)
        for topic in self._admin.topics(list(earlier), config=False):
            raw = raw.union(records.still(topic))
        batch = F.expr(f"cast(get(filter(headers, h -> h.key = '{BATCH}'), 0).value as string)")
        number = F.element_at(F.split("_batch", "/"), -1).cast("bigint")
        mine = raw.withColumn("_batch", batch).where(F.col("_batch").startswith(f"{stand.generation}/"))
        mine = mine.withColumn("_number", number).where(F.col("_number").between(stand.since, stand.batch))
        times = F.lit(1)
        if _by_key(compiled):
            own = Window.partitionBy("key")
            mine = mine.withColumn("_nth", F.row_number().over(own.orderBy(F.desc("_number"), F.desc("offset"))))
            # Where rows do not replace each other, one of each key is all there should be.
            times = F.lit(1) if compiled.revises else F.count(F.lit(1)).over(own)
            mine = mine.withColumn("times", times).where("_nth = 1")
        else:
            mine = mine.withColumn("times", times)
        return self._typed(compiled, mine, "partition", "offset", "times", "_number")

    def _typed(self, compiled: Compiled, records: "DataFrame", *more: str) -> "DataFrame":
        from pyspark.sql import functions as F  # noqa: N812

        kept = records.select(
            F.col("key").alias("_key"),
            F.col("value").alias("_value"),
            *[F.col(each).alias(f"_{each.removeprefix('_')}") for each in more],
        )
        return Shape.of_columns(compiled.columns).parse(kept, "_value")

    def _pairs(self, compiled: Compiled, stand: Stand, earlier: Collection[str]) -> "DataFrame":
        """Rows of both sides beside each other: `_e` and `_f` are their JSON, `_same` whether they are equal."""
        from pyspark.sql import functions as F  # noqa: N812

        expected, found = self._expected(compiled, stand), self._found(compiled, stand, earlier)
        names = compiled.columns.names
        row = F.struct(*[F.col(f"`{each}`") for each in names]).alias("row")
        over = _over_at(compiled).alias("_over_ms")
        if _by_key(compiled):
            left = expected.select(F.col("_key").alias("k"), row, over, F.col("_value").cast("string").alias("_e"))
            right = found.select(
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
        # Every row counts, so often as it is there.
        left = expected.groupBy("_key", "_value").agg(F.count(F.lit(1)).alias("n"), F.max(over).alias("_over_ms"))
        right = found.groupBy("_key", "_value").agg(
            F.count(F.lit(1)).alias("n"),
            F.max("_partition").alias("_partition"),
            F.max("_offset").alias("_offset"),
            F.max("_number").alias("_number"),
        )
        on = F.col("l._key").eqNullSafe(F.col("r._key")) & (F.col("l._value") == F.col("r._value"))
        joined = left.alias("l").join(right.alias("r"), on, "full")
        have, want = F.coalesce("r.n", F.lit(0)), F.coalesce("l.n", F.lit(0))
        return joined.select(
            F.coalesce("l._key", "r._key").cast("string").alias("key"),
            F.when(want > 0, F.col("l._value").cast("string")).alias("_e"),
            F.when(have > 0, F.col("r._value").cast("string")).alias("_f"),
            "_partition", "_offset", "_number", "_over_ms",
            (have == want).alias("_same"),
            F.greatest(have, want).alias("_times"),
            (have - want).alias("_over"),
        )  # fmt: skip

    # --- what it means ------------------------------------------------------------------------------------------------

    def _count(self, pairs: "DataFrame", verdict: Verdict, watermark_ms: int) -> dict[str, int]:
        """Count rows by what is wrong with them; those of them that late records could explain, likewise."""
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
        # Records of a window that is over are dropped; a row of theirs can be missing or differ, and nothing else.
        past = F.coalesce(F.col("_over_ms") <= F.lit(watermark_ms), F.lit(False))
        kinds = pairs.withColumn("_kind", kind).withColumn("_past", past & F.col("_kind").isin("missing", "differs"))
        counts: dict[str, int] = {}
        explainable: dict[str, int] = {}
        for each in kinds.groupBy("_kind", "_past").agg(F.sum(times).alias("n")).collect():
            counts[each["_kind"]] = counts.get(each["_kind"], 0) + int(each["n"])
            if each["_past"]:
                explainable[each["_kind"]] = int(each["n"])
        verdict.equal = counts.pop("equal", 0)
        verdict.wrong = dict(sorted(counts.items()))
        verdict.rows = verdict.equal + sum(counts.values())
        for each in kinds.where(~F.col("_same")).orderBy("key").limit(SHOWN).collect():
            verdict.shown.append(
                Difference(
                    each["_kind"],
                    each["key"] or "",
                    each["_e"] or "",
                    each["_f"] or "",
                    each["_partition"],
                    each["_offset"],
                    each["_number"],
                )
            )

        return explainable

    def _causes(self, compiled: Compiled, stand: Stand, verdict: Verdict, late: int) -> Iterator[str]:
        if self._changes_by_itself(compiled, stand):
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
                f"rows are in {compiled.stream.target} more than once, each time with the header of a batch of this stream: "
                "the stream has written them again, which it must not (please report it, with its checkpoint), or somebody "
                "has copied records with their headers"
            )
        if set(verdict.wrong) & {"missing"} and self._output_gone(compiled):
            yield f"records of {compiled.stream.target} are gone (retention, or deleted)"
        if verdict.wrong.get("differs") or verdict.wrong.get("extra"):
            yield (
                "every row that was compared has the header of a batch of this stream: what its code calls or reads from "
                "outside may give other results now, or somebody else has written to "
                f"{compiled.stream.target} with that header"
            )

    def _changes_by_itself(self, compiled: Compiled, stand: Stand) -> bool:
        from pyspark.sql import functions as F  # noqa: N812

        def sums() -> Any:
            rows = self._expected(compiled, stand)
            return rows.agg(F.sum(F.xxhash64("_key", "_value").cast("decimal(38,0)")), F.count(F.lit(1))).collect()

        return bool(sums() != sums())

    def _output_gone(self, compiled: Compiled) -> bool:
        parts = range(len(self._admin.topic(compiled.stream.target).partitions))
        places = [Place(compiled.stream.target, part) for part in parts]
        return any(offset > 0 for offset in self._admin.offsets(places, "earliest").values())


def _equal(left: "Column", right: "Column", kind: "DataType") -> "Column":
    """Whether two values are equal, doubles within `CLOSE`; null is equal to null."""
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql.types import ArrayType, DoubleType, FloatType, StructType

    if isinstance(kind, StructType):
        both = F.lit(True)
        for each in kind.fields:
            both = both & _equal(left.getField(each.name), right.getField(each.name), each.dataType)
        return both
    if "map<" in kind.simpleString():
        # Maps cannot be compared; their JSON can.
        return F.to_json(F.struct(left)).eqNullSafe(F.to_json(F.struct(right)))
    if isinstance(kind, ArrayType):
        equal = F.zip_with(left, right, lambda one, other: _equal(one, other, kind.elementType))
        same = (F.size(left) == F.size(right)) & F.forall(equal, lambda one: one)
        return F.coalesce(same, left.isNull() & right.isNull())
    if isinstance(kind, DoubleType | FloatType):
        near = F.abs(left - right) <= F.lit(CLOSE) * F.greatest(F.abs(left), F.abs(right))
        return F.coalesce(near, left.isNull() & right.isNull()) | left.eqNullSafe(right)
    return left.eqNullSafe(right)


def _by_key(compiled: Compiled) -> bool:
    """Whether rows are told apart by their key: those of an aggregate are. What is made of such rows, one by one, is not."""
    return bool(compiled.key) and compiled.query.aggregated


def _final(compiled: Compiled) -> bool:
    """Whether it is an aggregate that sends a row once, when its window is over."""
    return compiled.mode == "append" and compiled.query.aggregated


def _closes(compiled: Compiled) -> bool:
    """Whether the time of its rows is their window, so that it can be told when one is over."""
    from pyspark.sql.types import StructType

    kind = compiled.columns[compiled.time].dataType if compiled.time else None
    return isinstance(kind, StructType) and set(kind.names) == {"start", "end"}


def explain_late(verdict: Verdict, explainable: Mapping[str, int], late: int) -> None:
    """Rows that can have come of late records are told apart, where they are no more than the stream has counted as late.
    Where they are more, something else is wrong, and nothing is explained."""
    verdict.dropped = late
    count = sum(explainable.values())
    if 0 < count <= late:
        verdict.late = count
        left = {kind: number - explainable.get(kind, 0) for kind, number in verdict.wrong.items()}
        verdict.wrong = {kind: number for kind, number in left.items() if number}


def _over_at(compiled: Compiled) -> "Column":
    """When a row's time is over, in milliseconds since 1970: the end of its window, or its time. Null without one."""
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql.types import TimestampType

    if _closes(compiled):
        return F.unix_millis(F.col(compiled.time).getField("end"))
    if compiled.time and isinstance(compiled.columns[compiled.time].dataType, TimestampType):
        return F.unix_millis(F.col(compiled.time))
    return F.lit(None).cast("bigint")


def _text(offsets: dict[int, int]) -> dict[str, int]:
    return {str(part): offset for part, offset in offsets.items()}


def require_streams(done: Compilation, names: tuple[str, ...]) -> list[str]:
    """The streams to verify: those named, else all."""
    unknown = [name for name in names if name not in done.streams]
    if unknown:
        raise UsageError(f"The app has no stream {unknown[0]}", expected=", ".join(done.streams), stream=unknown[0])
    return list(names) or list(done.streams)
