"""Tests of streams: events in, rows and dead letters out. No broker, no sleep; event time moves when the test says so.

    def test_average(stream_test):
        t = stream_test("meters.py")
        t.send("readings", Reading(house_id="a", load_kw=1.0, at=at), b"not a reading")
        t.advance("2026-01-01T00:05:00Z")
        assert t.rows("house_load") == [{"minute": {"start": ..., "end": ...}, "house_id": "a", "load_kw": 1.0}]
        assert [row.value for row in t.dead("readings")] == [b"not a reading"]

The streams are compiled as for Kafka and run by Spark as streams, with state and watermark; only their records come from
files and their rows go to memory. A stream runs when its rows are asked for. Records sent between two calls of `advance`, or
between two reads of the rows, are one batch; the events themselves also move event time, at the end of a batch.
"""

import json
import threading
import uuid
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from riverrun.app import App, load_app
from riverrun.config import KafkaSettings
from riverrun.connectors.postgres.columns import apply_cached_columns
from riverrun.errors import RecordUnreadableError, RiverrunError, StreamFailedError, UsageError
from riverrun.kafka.connection import Connection
from riverrun.kafka.producer.record_serializer import RecordSerializer
from riverrun.model.event import Event, schema_of
from riverrun.model.positions import parse_time
from riverrun.model.progress import RecordCounts
from riverrun.model.suggest import nearest
from riverrun.model.table import TableSpec
from riverrun.model.topic import Topic
from riverrun.model.units import parse_duration_ms
from riverrun.streams.compile.compiler import OUT_OBSERVATION, CompiledStream, compile_app, encode_records
from riverrun.streams.compile.sources import COUNT, DEAD, Counters, KafkaRecordSource, event_time_of, input_observation
from riverrun.streams.compile.tables import build_tables
from riverrun.streams.pipeline import build_checked_graph
from riverrun.streams.run.failures import StreamFiles, explain_failure
from riverrun.testing.topics import FolderRecordSource, SentRecord, decode_value

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from riverrun.testing.alerts import AlertNotification, AlertSimulator

Row = dict[str, Any]
TimeLike = str | datetime

# Never connected to: compiling needs no broker.
_NO_BROKER = Connection(KafkaSettings(bootstrap_servers="127.0.0.1:9"))
_TIMEOUT_SECONDS = 120.0


@dataclass(frozen=True)
class DeadRow:
    """A record that did not parse or broke a constraint, and why."""

    value: bytes | None
    reason: str
    key: bytes | None = field(default=None, compare=False)
    offset: int = field(default=0, compare=False)


@dataclass
class _TestStep:
    """Records of one batch, then the event times that topics advance to."""

    records: dict[str, list[SentRecord]] = field(default_factory=dict)
    times: dict[str, datetime] = field(default_factory=dict)


class StreamTest:
    """One app under test. The fixture `stream_test` makes it; on its own, use it in a `with`.

    `seconds` is how long reading the rows of a stream may take.
    """

    def __init__(
        self, app: App | str | Path, spark: "SparkSession", folder: Path, *, seconds: float = _TIMEOUT_SECONDS
    ) -> None:
        self.app = app if isinstance(app, App) else load_app(Path(app))
        apply_cached_columns(self.app)
        self._spark = spark
        self._folder = folder
        self._seconds = seconds
        self._compilation = compile_app(
            build_checked_graph(self.app), spark, KafkaRecordSource(spark, _NO_BROKER)
        ).require()
        self._steps: list[_TestStep] = []
        self._offsets: dict[str, int] = {}
        self._runs: dict[str, _StreamUnderTest] = {}
        self._alert_simulator: AlertSimulator | None = None

    # --- in -----------------------------------------------------------------------------------------------------------

    def send(
        self, topic: str, *events: Event | Row | str | bytes | None, key: str | bytes | None = None, at: TimeLike = ""
    ) -> None:
        """Put records into a topic: events, dicts as JSON, text and bytes as they are, None to delete `key` from a table.

        Only an Event is checked, so that a test can send bad records. `at` is Kafka's own timestamp.
        """
        name = self._topic(topic)
        stamp = _to_utc(at) if at else datetime.now(UTC)
        step = self._open_step()
        for event in events:
            value, record_key, _ = (
                RecordSerializer(name).serialize(event, key, None) if event is not None else (None, key, None)
            )
            if record_key is None and isinstance(event, dict):
                record_key = self._key_of(name, event)
            data = record_key.encode() if isinstance(record_key, str) else record_key
            step.records.setdefault(name, []).append(SentRecord(name, self._next_offset(name), data, value, stamp))

    def advance(self, to: TimeLike = "", /, **times: TimeLike) -> None:
        """Move event time, as a record of that time would, without a record: for all topics, or for those named.

        A topic's watermark is this time minus the lateness it allows.
        """
        new_times = dict.fromkeys(self._timed_topics(), _to_utc(to)) if to else {}
        for name, moment in times.items():
            topic = self._topic(name)
            if topic not in self._timed_topics():
                raise UsageError(f"{name} has no event time to advance", expected=", ".join(self._timed_topics()))
            new_times[topic] = _to_utc(moment)
        self._open_step().times.update(new_times)

    # --- out ----------------------------------------------------------------------------------------------------------

    def rows(self, stream: str) -> list[Row]:
        """The rows of a stream; where it updates rows, the newest of each key.

        After operators that change the order of rows (state, joins), they are sorted by time and key.
        """
        run = self._run(stream)
        if not run.compiled.emits_updates:
            return run.sort_rows(run.changes)
        return run.sort_rows(list({key: (key, row) for key, row in run.changes}.values()))

    def changes(self, stream: str) -> list[Row]:
        """Every row of a stream as it was sent, batch after batch."""
        return [row for _, row in self._run(stream).changes]

    def dead(self, topic: str) -> list[DeadRow]:
        """The records of a topic that streams send to its dead letters, in order."""
        from pyspark.sql import functions as F  # noqa: N812

        name = self._topic(topic)
        records = [record for step in self._steps for record in step.records.get(name, [])]
        declared = self.app.topics.get(name)
        if declared is not None and declared.event is None and not self._writing_stream(name):
            return []
        folders = FolderRecordSource(self._spark, self._folder / uuid.uuid4().hex)
        folders.put(name, records)
        raw = folders.read_batch(name).select(F.col("offset").alias("_offset"), F.col("value").alias("_value"))
        bad = self._compilation.record_schema(name).parse(raw, "_value").where(~F.col("_ok"))
        offsets = {row["_offset"] for row in bad.select("_offset").collect()}
        return [
            DeadRow(record.value, self._reason(record), record.key, record.offset)
            for record in records
            if record.offset in offsets
        ]

    def record_counts(self, stream: str) -> RecordCounts:
        """How many records a stream has read, and what became of them."""
        return self._run(stream).record_counts

    def batch(self, stream: str) -> list[Row]:
        """The rows of a stream, computed at speed batch over all records sent: sorted by time and key."""
        return _sort_rows(self._stream(stream), [(record.key, row) for record, row in self._batch(stream)])

    # --- the store ----------------------------------------------------------------------------------------------------

    def query(self, sql: str) -> list[Row]:
        """The result of a query in riverrun's SQL, over the tables that the streams have filled so far."""
        from riverrun.testing.queries import run_query

        return run_query(sql, build_tables(self._compilation), self._table_rows)

    def tile(self, title: str, **filters: str | None) -> list[Row]:
        """The rows behind a tile, under the page's filters: `t.tile("Houses of {street}", street="Elm")`."""
        from riverrun.testing.queries import find_tile, tile_rows

        return tile_rows(find_tile(self.app, title), build_tables(self._compilation), self._table_rows, filters)

    def _table_rows(self, table: TableSpec) -> list[Row]:
        """A table's rows: the rows of a stream, or the valid records of a topic."""
        writer = self._writing_stream(table.topic)
        if writer is not None:
            return self.rows(writer.stream.name) if writer.emits_updates else self.changes(writer.stream.name)
        bad = {row.offset for row in self.dead(table.topic)}
        columns = self._compilation.record_schema(table.topic).columns
        records = [record for step in self._steps for record in step.records.get(table.topic, [])]
        return [decode_value(record.value, columns) for record in records if record.value and record.offset not in bad]

    # --- alerts -------------------------------------------------------------------------------------------------------

    def alerts(self, name: str = "", *, unsent: bool = False) -> "list[AlertNotification]":
        """The notifications an alert (all of them, if none is named) has sent so far, by the app's own rules. With `unsent`,
        also those that are held or were not sent, with stage and reason.

        The clock is event time: the newest of a watched row or of `advance`. Every notification is delivered at once.
        """
        if name and name not in self.app.alerts:
            raise self._unknown("alert", name, list(self.app.alerts))
        return [
            notification
            for notification in self._run_alerts().notifications(unsent=unsent)
            if name in ("", notification.alert)
        ]

    def silence(self, alert: str = "", *, key: str = "", lasting: str | timedelta, why: str = "") -> None:
        """Silence an alert, a key, both or all, from now on."""
        if alert and alert not in self.app.alerts:
            raise self._unknown("alert", alert, list(self.app.alerts))
        self._run_alerts().silence(alert, key, parse_duration_ms(lasting, what="lasting of a silence"), why)

    def acknowledge(self, alert: str, key: str = "") -> None:
        """Acknowledge the incident of an alert that is firing for a key."""
        if alert not in self.app.alerts:
            raise self._unknown("alert", alert, list(self.app.alerts))
        self._run_alerts().acknowledge(alert, key)

    def _run_alerts(self) -> "AlertSimulator":
        """Bring the alerts, and the streams they watch, up to the last step."""
        from riverrun.streams.compile.tables import require_alert_rules
        from riverrun.testing.alerts import AlertSimulator

        if self._alert_simulator is None:
            self._alert_simulator = AlertSimulator(require_alert_rules(self._compilation))
        simulator = self._alert_simulator
        writers = {topic: self._writing_stream(topic) for topic in simulator.topics}
        runs = {topic: self._run(writer.stream.name) for topic, writer in writers.items() if writer is not None}
        while simulator.steps_done < len(self._steps):
            number = simulator.steps_done
            step = self._steps[number]
            records = {
                topic: [*(runs[topic].outputs[number] if topic in runs else ()), *step.records.get(topic, ())]
                for topic in simulator.topics
            }
            simulator.step(
                records,
                {topic: self._time_reached(topic, step.times) for topic in simulator.topics},
                step.times.values(),
            )
        return simulator

    def _time_reached(self, topic: str, times: dict[str, datetime]) -> datetime | None:
        """The time a topic advances to in a step: its own, or the latest of the topics its stream reads."""
        writer = self._writing_stream(topic)
        sources = self._compilation.sources(writer.stream.name) if writer is not None else []
        return max((times[name] for name in (topic, *sources) if name in times), default=None)

    def close(self) -> None:
        """Stop all streams."""
        for run in self._runs.values():
            run.stop()

    def __enter__(self) -> "Self":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: "TracebackType | None"
    ) -> None:
        self.close()

    # --- running ------------------------------------------------------------------------------------------------------

    def _run(self, name: str) -> "_StreamUnderTest":
        """Bring a stream, and those it reads, up to the last step."""
        compiled = self._stream(name)
        if name not in self._runs:
            folders = FolderRecordSource(self._spark, self._folder / name / uuid.uuid4().hex)
            self._runs[name] = _StreamUnderTest(self, compiled, folders, self._folder / name / uuid.uuid4().hex)
        run = self._runs[name]
        upstream_runs = [self._run(upstream) for upstream in self._upstream(compiled)]
        while run.steps_done < len(self._steps):
            number = run.steps_done
            step = self._steps[number]
            records = {topic: list(sent) for topic, sent in step.records.items()}
            for upstream_run in upstream_runs:
                target = upstream_run.compiled.stream.output_topic
                records[target] = upstream_run.outputs[number] + records.get(target, [])
            run.step(records, step.times, self._seconds)
        return run

    def _upstream(self, compiled: CompiledStream) -> list[str]:
        """The streams whose topics a stream reads, as streams, as topics or as tables."""
        names = []
        for name in compiled.inputs:
            source = self.app.tables[name].source if name in self.app.tables else None
            writer = self._writing_stream(source.name if isinstance(source, Topic) else name)
            names.append(name if name in self.app.streams else writer.stream.name if writer is not None else "")
        return [name for name in dict.fromkeys(names) if name and name not in compiled.fused]

    def _open_step(self) -> _TestStep:
        """The step that records are still added to: no time was advanced after it, and no stream has processed it."""
        steps_seen = [run.steps_done for run in self._runs.values()]
        seen = max([*steps_seen, self._alert_simulator.steps_done if self._alert_simulator is not None else 0])
        if not self._steps or self._steps[-1].times or seen == len(self._steps):
            self._steps.append(_TestStep())
        return self._steps[-1]

    def _batch(self, name: str) -> list[tuple[SentRecord, Row]]:
        compiled = self._stream(name)
        if "DeduplicateWithinWatermark" in compiled.query.nodes:
            raise UsageError(f"Spark has no batch form of {name}'s dropDuplicatesWithinWatermark()", hint="Use rows()")
        folders = FolderRecordSource(self._spark, self._folder / name / uuid.uuid4().hex)
        for step in self._steps:
            for topic, records in step.records.items():
                folders.put(topic, records)
        for upstream in self._upstream(compiled):
            folders.put(self._stream(upstream).stream.output_topic, [sent for sent, _ in self._batch(upstream)])
        counters = Counters(streaming=False)
        frame = self._compilation.rows(name, folders, counters=counters, streaming=False)
        return _decode_rows(compiled, encode_records(frame, compiled, counters))

    # --- names --------------------------------------------------------------------------------------------------------

    def _topic(self, name: str) -> str:
        """The name of a topic, given its own or that of the stream that writes it."""
        if name in self.app.topics:
            return name
        if name in self.app.streams:
            return self.app.streams[name].output_topic
        targets = [stream.output_topic for stream in self.app.streams.values()]
        if name in targets:
            return name
        raise self._unknown("topic", name, [*self.app.topics, *targets])

    def _stream(self, name: str) -> CompiledStream:
        if name not in self._compilation.streams:
            raise self._unknown("stream", name, list(self._compilation.streams))
        return self._compilation.streams[name]

    def _unknown(self, kind: str, name: str, known: list[str]) -> UsageError:
        suggestion = nearest(name, known)
        return UsageError(
            f"The app {self.app.name} has no {kind} {name}",
            expected=", ".join(known),
            hint=f"Did you mean {suggestion}?" if suggestion else "",
        )

    def _writing_stream(self, topic: str) -> CompiledStream | None:
        return next(
            (stream for stream in self._compilation.streams.values() if stream.stream.output_topic == topic), None
        )

    def _timed_topics(self) -> list[str]:
        declared = [name for name, topic in self.app.topics.items() if event_time_of(topic)[0]]
        written = [stream.stream.output_topic for stream in self._compilation.streams.values() if stream.time]
        return list(dict.fromkeys([*declared, *written]))

    def _key_of(self, topic: str, event: Row) -> str | bytes | None:
        declared = self.app.topics.get(topic)
        writer = self._writing_stream(topic)
        name = schema_of(declared.event).key_field if declared is not None and declared.event is not None else None
        if name is None and writer is not None and len(writer.key) == 1:
            name = writer.key[0]
        value = event.get(name) if name is not None else None
        return value if value is None or isinstance(value, bytes) else str(value)

    def _next_offset(self, topic: str) -> int:
        self._offsets[topic] = self._offsets.get(topic, -1) + 1
        return self._offsets[topic]

    def _reason(self, record: SentRecord) -> str:
        declared = self.app.topics.get(record.topic)
        if record.value is None:
            return "the record has no value"
        if declared is not None and declared.schema is not None:
            try:
                declared.schema.decode(record.value)
            except RecordUnreadableError as error:
                return error.found
        return f"the record is not what the topic {record.topic} carries"


class _StreamUnderTest:
    """One stream that runs in a test."""

    def __init__(
        self, test: StreamTest, compiled: CompiledStream, folders: FolderRecordSource, checkpoint: Path
    ) -> None:
        self._test = test
        self._folders = folders
        self._checkpoint = checkpoint
        self._query: StreamingQuery | None = None
        self._table = f"riverrun_{uuid.uuid4().hex}"
        self._error: RiverrunError | None = None
        self._rows_taken = 0
        self._last_batch = -1
        self._sources = test._compilation.sources(compiled.stream.name)  # noqa: SLF001
        self.compiled = compiled
        self.steps_done = 0
        # Its output records by step, for the streams that read it; and its rows with their keys, in order of arrival.
        self.outputs: list[list[SentRecord]] = []
        self.changes: list[tuple[bytes | None, Row]] = []
        exact = compiled.query.one_to_one
        self.record_counts = RecordCounts(
            exact=exact, note="" if exact else "not every row that leaves is one that came"
        )

    def step(self, records: dict[str, list[SentRecord]], times: dict[str, datetime], seconds: float) -> None:
        """Process a step's records, then advance to its times."""
        sources = self._sources
        # Tables first, so that they are complete when the batch reads them.
        for topic in sorted(records, key=lambda topic: topic in sources):
            if records[topic]:
                self._folders.put(topic, records[topic])
        ticks = {topic: at for topic, at in times.items() if topic in sources and self.compiled.watermark}
        # A running query may read the times before the records, so it takes them in two batches. A query that starts reads
        # both in one batch: its records are compared with the watermark of the batch before.
        if self._query is not None and any(records.get(topic) for topic in sources):
            self._process(seconds)
        for topic, at in ticks.items():
            self._folders.tick(topic, at)
        if ticks or (self._query is None and any(records.get(topic) for topic in sources)):
            self._process(seconds)
        self._collect_rows()
        self.steps_done += 1

    def sort_rows(self, rows: list[tuple[bytes | None, Row]]) -> list[Row]:
        query = self.compiled.query
        mixed = query.stateful or query.joins_tables
        return _sort_rows(self.compiled, rows) if mixed else [row for _, row in rows]

    def _process(self, seconds: float) -> None:
        """Let the query process all available records. A stream that has failed stays failed."""
        if self._error is not None:
            raise self._error
        name = self.compiled.stream.name
        late = threading.Event()
        try:
            query = self._query = self._query or self._start()

            def give_up() -> None:
                late.set()
                query.stop()

            timer = threading.Timer(seconds, give_up)
            timer.start()
            try:
                query.processAllAvailable()
            finally:
                timer.cancel()
                timer.join()
        except Exception as error:
            # Any error of Spark's is explained as in a running pipeline.
            files = StreamFiles("in the session's folder", str(self._checkpoint), "the session's folder")
            self._error = explain_failure(self.compiled.stream, error, files)
            if not late.is_set():
                raise self._error from error
        if late.is_set():
            self._error = StreamFailedError(f"{name} was not done after {seconds:g} s", stream=name)
            raise self._error
        self._count_records()

    def _start(self) -> "StreamingQuery":
        compilation = self._test._compilation  # noqa: SLF001
        counters = Counters(streaming=True)
        frame = compilation.rows(self.compiled.stream.name, self._folders, counters=counters)
        return (
            encode_records(frame, self.compiled, counters)
            .writeStream.format("memory")
            .queryName(self._table)
            .option("checkpointLocation", str(self._checkpoint))
            .outputMode(self.compiled.mode)
            .start()
        )

    def _collect_rows(self) -> None:
        """Collect the rows that were written since the last call."""
        target = self.compiled.stream.output_topic
        new: list[tuple[SentRecord, Row]] = []
        if self._query is not None:
            frame = self._test._spark.table(self._table)  # noqa: SLF001
            all_rows = _decode_rows(self.compiled, frame)
            new = all_rows[self._rows_taken :]
            self._rows_taken = len(all_rows)
        if self.compiled.query.stateful or self.compiled.query.joins_tables:
            new.sort(key=lambda pair: _sort_key(self.compiled, (pair[0].key, pair[1])))
        test = self._test
        self.outputs.append(
            [SentRecord(target, test._next_offset(target), sent.key, sent.value, sent.at) for sent, _ in new]  # noqa: SLF001
        )
        self.changes += [(sent.key, row) for sent, row in new]

    def _count_records(self) -> None:
        """Add up the progress reports of the batches that ended."""
        query: Any = self._query
        record_counts = self.record_counts
        for update in query._jsq.recentProgress():  # noqa: SLF001
            report = json.loads(update.json())
            if report["batchId"] <= self._last_batch:
                continue
            self._last_batch = report["batchId"]
            counts = report.get("observedMetrics") or {}
            inputs = [counts.get(input_observation(topic), {}) for topic in self._sources]
            record_counts.read += sum(int(topic_counts.get(COUNT) or 0) for topic_counts in inputs)
            record_counts.dead_letters += sum(int(topic_counts.get(DEAD) or 0) for topic_counts in inputs)
            record_counts.late += sum(
                operator.get("numRowsDroppedByWatermark", 0) for operator in report.get("stateOperators") or []
            )
            record_counts.out += int(counts.get(OUT_OBSERVATION, {}).get(COUNT) or 0)
        if record_counts.exact:
            record_counts.filtered = (
                record_counts.read - record_counts.dead_letters - record_counts.late - record_counts.out
            )

    def stop(self) -> None:
        if self._query is not None:
            self._query.stop()
            self._test._spark.catalog.dropTempView(self._table)  # noqa: SLF001


def _decode_rows(compiled: CompiledStream, frame: "DataFrame") -> list[tuple[SentRecord, Row]]:
    """Encoded rows as records and as Python values: what a consumer of the topic would get."""
    now = datetime.now(UTC)
    rows = []
    for offset, row in enumerate(frame.collect()):
        key = bytes(row["key"]) if row["key"] is not None else None
        value = bytes(row["value"])
        record = SentRecord(compiled.stream.output_topic, offset, key, value, now)
        rows.append((record, decode_value(value, compiled.columns)))
    return rows


def _sort_key(compiled: CompiledStream, row: tuple[bytes | None, Row]) -> tuple[Any, ...]:
    at = row[1].get(compiled.time)
    if isinstance(at, dict):
        at = at["start"]
    return (at is not None, at or 0, row[0] or b"")


def _sort_rows(compiled: CompiledStream, rows: list[tuple[bytes | None, Row]]) -> list[Row]:
    return [row for _, row in sorted(rows, key=lambda row: _sort_key(compiled, row))]


def _to_utc(value: TimeLike) -> datetime:
    moment = parse_time(value) if isinstance(value, str) else value
    if moment.tzinfo is None:
        raise UsageError("A time has no time zone", found=moment.isoformat(), hint="Use datetime(…, tzinfo=UTC)")
    return moment.astimezone(UTC)
