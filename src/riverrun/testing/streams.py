"""Tests of streams: events in, rows and dead letters out. No broker, no sleep; event time moves when the test says so.

    def test_average(stream_test):
        t = stream_test("meters.py")
        t.send("readings", Reading(house_id="a", load_kw=1.0, at=at), b"not a reading")
        t.advance("2026-01-01T00:05:00Z")
        assert t.rows("house_load") == [{"minute": {"start": ..., "end": ...}, "house_id": "a", "load_kw": 1.0}]
        assert [each.value for each in t.dead("readings")] == [b"not a reading"]

The streams are compiled as for Kafka and run by Spark as streams, with state and watermark; only their records come from
files and their rows go to memory. A stream runs when its rows are asked for. What is sent between two calls of `advance` or
two looks at the rows is one batch; event time also moves by the events themselves, at the end of a batch.
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
from riverrun.connectors.postgres.columns import recall_columns
from riverrun.errors import RecordUnreadableError, RiverrunError, StreamFailedError, UsageError
from riverrun.kafka.connection import Connection
from riverrun.kafka.producer.outgoing import Route
from riverrun.model.event import Event, schema_of
from riverrun.model.near import nearest
from riverrun.model.progress import Account
from riverrun.model.quantity import milliseconds
from riverrun.model.table import TableSpec
from riverrun.model.topic import Topic
from riverrun.model.when import parse_time
from riverrun.streams.compiler import OUT, Compiled, compile_app, encoded
from riverrun.streams.failures import Files, explain
from riverrun.streams.pipeline import checked_graph
from riverrun.streams.sources import COUNT, DEAD, Counters, KafkaRecords, observation, time_of
from riverrun.streams.tables import tables_of
from riverrun.testing.topics import Folders, Sent, python_value

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from riverrun.testing.alerts import Judge, Told

Row = dict[str, Any]
Moment = str | datetime

# Compiling asks no broker.
_NOWHERE = Connection(KafkaSettings(bootstrap_servers="127.0.0.1:9"))
_SECONDS = 120.0


@dataclass(frozen=True)
class DeadRow:
    """A record that did not parse or broke a constraint, and why."""

    value: bytes | None
    reason: str
    key: bytes | None = field(default=None, compare=False)
    offset: int = field(default=0, compare=False)


@dataclass
class _Step:
    """Records of one batch, then the times that topics reach."""

    records: dict[str, list[Sent]] = field(default_factory=dict)
    times: dict[str, datetime] = field(default_factory=dict)


class StreamTest:
    """One app under test. The fixture `stream_test` makes it; on its own, use it in a `with`.

    `seconds` is how long one look at a stream may take.
    """

    def __init__(
        self, app: App | str | Path, spark: "SparkSession", folder: Path, *, seconds: float = _SECONDS
    ) -> None:
        self.app = app if isinstance(app, App) else load_app(Path(app))
        recall_columns(self.app)
        self._spark = spark
        self._folder = folder
        self._seconds = seconds
        self._done = compile_app(checked_graph(self.app), spark, KafkaRecords(spark, _NOWHERE)).require()
        self._steps: list[_Step] = []
        self._offsets: dict[str, int] = {}
        self._runs: dict[str, _Run] = {}
        self._judge: Judge | None = None

    # --- in -----------------------------------------------------------------------------------------------------------

    def send(
        self, topic: str, *events: Event | Row | str | bytes | None, key: str | bytes | None = None, at: Moment = ""
    ) -> None:
        """Put records into a topic: events, dicts as JSON, text and bytes as they are, None to delete `key` from a table.

        Nothing but an Event is checked, so that a test can send what is wrong. `at` is Kafka's own timestamp.
        """
        name = self._topic(topic)
        stamp = _moment(at) if at else datetime.now(UTC)
        step = self._open_step()
        for each in events:
            value, own, _ = Route(name).record(each, key, None) if each is not None else (None, key, None)
            if own is None and isinstance(each, dict):
                own = self._key_of(name, each)
            data = own.encode() if isinstance(own, str) else own
            step.records.setdefault(name, []).append(Sent(name, self._next_offset(name), data, value, stamp))

    def advance(self, to: Moment = "", /, **times: Moment) -> None:
        """Move event time, as a record of that time would, without a record: of all topics, or of those named.

        A topic's watermark is this minus the time its events may be late.
        """
        wanted = dict.fromkeys(self._timed_topics(), _moment(to)) if to else {}
        for name, moment in times.items():
            topic = self._topic(name)
            if topic not in self._timed_topics():
                raise UsageError(f"{name} has no event time to advance", expected=", ".join(self._timed_topics()))
            wanted[topic] = _moment(moment)
        self._open_step().times.update(wanted)

    # --- out ----------------------------------------------------------------------------------------------------------

    def rows(self, stream: str) -> list[Row]:
        """The rows of a stream; where it sends a row again with new values, the newest of each key.

        Operators that mix rows (state, joins) leave them sorted by time and key.
        """
        run = self._run(stream)
        if not run.compiled.revises:
            return run.sorted(run.changes)
        return run.sorted(list({key: (key, row) for key, row in run.changes}.values()))

    def changes(self, stream: str) -> list[Row]:
        """Every row of a stream as it was sent, batch after batch."""
        return [row for _, row in self._run(stream).changes]

    def dead(self, topic: str) -> list[DeadRow]:
        """The records of a topic that streams set aside, in order."""
        from pyspark.sql import functions as F  # noqa: N812

        name = self._topic(topic)
        records = [each for step in self._steps for each in step.records.get(name, [])]
        declared = self.app.topics.get(name)
        if declared is not None and declared.event is None and not self._writer(name):
            return []
        folders = Folders(self._spark, self._folder / uuid.uuid4().hex)
        folders.put(name, records)
        raw = folders.still(name).select(F.col("offset").alias("_offset"), F.col("value").alias("_value"))
        bad = self._done.shape(name).parse(raw, "_value").where(~F.col("_ok"))
        offsets = {row["_offset"] for row in bad.select("_offset").collect()}
        return [
            DeadRow(each.value, self._reason(each), each.key, each.offset) for each in records if each.offset in offsets
        ]

    def account(self, stream: str) -> Account:
        """What became of the records a stream has read."""
        return self._run(stream).account

    def batch(self, stream: str) -> list[Row]:
        """The rows of a stream, worked out at the speed batch over all that was sent: sorted by time and key."""
        return _sorted(self._stream(stream), [(each.key, row) for each, row in self._batch(stream)])

    # --- the store ----------------------------------------------------------------------------------------------------

    def query(self, sql: str) -> list[Row]:
        """The answer to a question in riverrun's SQL, over the tables that the streams have filled so far."""
        from riverrun.testing.asking import answer

        return answer(sql, tables_of(self._done), self._table_rows)

    def tile(self, title: str, **filters: str | None) -> list[Row]:
        """The rows behind a tile, under the page's filters: `t.tile("Houses of {street}", street="Elm")`."""
        from riverrun.testing.asking import tile_of, tile_rows

        return tile_rows(tile_of(self.app, title), tables_of(self._done), self._table_rows, filters)

    def _table_rows(self, table: TableSpec) -> list[Row]:
        """A table's rows: those of a stream as they were sent, or the good records of a topic."""
        writer = self._writer(table.topic)
        if writer is not None:
            return self.rows(writer.stream.name) if writer.revises else self.changes(writer.stream.name)
        bad = {each.offset for each in self.dead(table.topic)}
        columns = self._done.shape(table.topic).columns
        records = [each for step in self._steps for each in step.records.get(table.topic, [])]
        return [python_value(each.value, columns) for each in records if each.value and each.offset not in bad]

    # --- alerts -------------------------------------------------------------------------------------------------------

    def alerts(self, name: str = "", *, unsent: bool = False) -> "list[Told]":
        """What an alert (all of them, if none is named) has sent so far, by the app's own rules. With `unsent`, also what is
        held or was not sent, with its stage and why.

        The clock is event time: the newest that a row of theirs, or `advance`, has told. A message is taken at once.
        """
        if name and name not in self.app.alerts:
            raise self._unknown("alert", name, list(self.app.alerts))
        return [each for each in self._judged().told(unsent=unsent) if name in ("", each.alert)]

    def silence(self, alert: str = "", *, key: str = "", lasting: str | timedelta, why: str = "") -> None:
        """Silence an alert, a key, both or all from the time it is now."""
        if alert and alert not in self.app.alerts:
            raise self._unknown("alert", alert, list(self.app.alerts))
        self._judged().silence(alert, key, milliseconds(lasting, what="lasting of a silence"), why)

    def acknowledge(self, alert: str, key: str = "") -> None:
        """Acknowledge what fires now for a key."""
        if alert not in self.app.alerts:
            raise self._unknown("alert", alert, list(self.app.alerts))
        self._judged().acknowledge(alert, key)

    def _judged(self) -> "Judge":
        """Bring the alerts, and the streams they watch, up to the last step."""
        from riverrun.streams.tables import required_rules
        from riverrun.testing.alerts import Judge

        if self._judge is None:
            self._judge = Judge(required_rules(self._done))
        judge = self._judge
        writers = {topic: self._writer(topic) for topic in judge.topics}
        runs = {topic: self._run(each.stream.name) for topic, each in writers.items() if each is not None}
        while judge.steps_done < len(self._steps):
            number = judge.steps_done
            step = self._steps[number]
            records = {
                topic: [*(runs[topic].outputs[number] if topic in runs else ()), *step.records.get(topic, ())]
                for topic in judge.topics
            }
            judge.step(
                records, {topic: self._reached(topic, step.times) for topic in judge.topics}, step.times.values()
            )
        return judge

    def _reached(self, topic: str, times: dict[str, datetime]) -> datetime | None:
        """The time that a topic reaches in a step: what a stream writes, with what it reads."""
        writer = self._writer(topic)
        sources = self._done.sources(writer.stream.name) if writer is not None else []
        return max((times[each] for each in (topic, *sources) if each in times), default=None)

    def close(self) -> None:
        """Stop what runs."""
        for each in self._runs.values():
            each.stop()

    def __enter__(self) -> "Self":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: "TracebackType | None"
    ) -> None:
        self.close()

    # --- running ------------------------------------------------------------------------------------------------------

    def _run(self, name: str) -> "_Run":
        """Bring a stream, and those it reads, up to the last step."""
        compiled = self._stream(name)
        if name not in self._runs:
            folders = Folders(self._spark, self._folder / name / uuid.uuid4().hex)
            self._runs[name] = _Run(self, compiled, folders, self._folder / name / uuid.uuid4().hex)
        run = self._runs[name]
        above = [self._run(each) for each in self._above(compiled)]
        while run.steps_done < len(self._steps):
            number = run.steps_done
            step = self._steps[number]
            records = {topic: list(sent) for topic, sent in step.records.items()}
            for each in above:
                target = each.compiled.stream.target
                records[target] = each.outputs[number] + records.get(target, [])
            run.step(records, step.times, self._seconds)
        return run

    def _above(self, compiled: Compiled) -> list[str]:
        """The streams whose topics a stream reads, as streams, as topics or as tables."""
        found = []
        for name in compiled.inputs:
            source = self.app.tables[name].source if name in self.app.tables else None
            writer = self._writer(source.name if isinstance(source, Topic) else name)
            found.append(name if name in self.app.streams else writer.stream.name if writer is not None else "")
        return [each for each in dict.fromkeys(found) if each and each not in compiled.fused]

    def _open_step(self) -> _Step:
        """The step that is not closed: no time was reached after its records, and no stream has seen it."""
        looks = [run.steps_done for run in self._runs.values()]
        seen = max([*looks, self._judge.steps_done if self._judge is not None else 0])
        if not self._steps or self._steps[-1].times or seen == len(self._steps):
            self._steps.append(_Step())
        return self._steps[-1]

    def _batch(self, name: str) -> list[tuple[Sent, Row]]:
        compiled = self._stream(name)
        if "DeduplicateWithinWatermark" in compiled.query.nodes:
            raise UsageError(f"Spark has no batch form of {name}'s dropDuplicatesWithinWatermark()", hint="Use rows()")
        folders = Folders(self._spark, self._folder / name / uuid.uuid4().hex)
        for step in self._steps:
            for topic, records in step.records.items():
                folders.put(topic, records)
        for each in self._above(compiled):
            folders.put(self._stream(each).stream.target, [sent for sent, _ in self._batch(each)])
        counters = Counters(moving=False)
        frame = self._done.rows(name, folders, counters=counters, moving=False)
        return _decoded(compiled, encoded(frame, compiled, counters))

    # --- names --------------------------------------------------------------------------------------------------------

    def _topic(self, name: str) -> str:
        """A topic by its name, or that of the stream that writes it."""
        if name in self.app.topics:
            return name
        if name in self.app.streams:
            return self.app.streams[name].target
        targets = [each.target for each in self.app.streams.values()]
        if name in targets:
            return name
        raise self._unknown("topic", name, [*self.app.topics, *targets])

    def _stream(self, name: str) -> Compiled:
        if name not in self._done.streams:
            raise self._unknown("stream", name, list(self._done.streams))
        return self._done.streams[name]

    def _unknown(self, kind: str, name: str, known: list[str]) -> UsageError:
        near = nearest(name, known)
        return UsageError(
            f"The app {self.app.name} has no {kind} {name}",
            expected=", ".join(known),
            hint=f"Did you mean {near}?" if near else "",
        )

    def _writer(self, topic: str) -> Compiled | None:
        return next((each for each in self._done.streams.values() if each.stream.target == topic), None)

    def _timed_topics(self) -> list[str]:
        declared = [name for name, topic in self.app.topics.items() if time_of(topic)[0]]
        written = [each.stream.target for each in self._done.streams.values() if each.time]
        return list(dict.fromkeys([*declared, *written]))

    def _key_of(self, topic: str, event: Row) -> str | bytes | None:
        declared = self.app.topics.get(topic)
        writer = self._writer(topic)
        name = schema_of(declared.event).key_field if declared is not None and declared.event is not None else None
        if name is None and writer is not None and len(writer.key) == 1:
            name = writer.key[0]
        value = event.get(name) if name is not None else None
        return value if value is None or isinstance(value, bytes) else str(value)

    def _next_offset(self, topic: str) -> int:
        self._offsets[topic] = self._offsets.get(topic, -1) + 1
        return self._offsets[topic]

    def _reason(self, record: Sent) -> str:
        declared = self.app.topics.get(record.topic)
        if record.value is None:
            return "the record has no value"
        if declared is not None and declared.schema is not None:
            try:
                declared.schema.decode(record.value)
            except RecordUnreadableError as error:
                return error.found
        return f"the record is not what the topic {record.topic} carries"


class _Run:
    """One stream at work in a test."""

    def __init__(self, test: StreamTest, compiled: Compiled, folders: Folders, checkpoint: Path) -> None:
        self._test = test
        self._folders = folders
        self._checkpoint = checkpoint
        self._query: StreamingQuery | None = None
        self._table = f"riverrun_{uuid.uuid4().hex}"
        self._error: RiverrunError | None = None
        self._taken = 0
        self._booked = -1
        self._sources = test._done.sources(compiled.stream.name)  # noqa: SLF001
        self.compiled = compiled
        self.steps_done = 0
        # Records for those who read this stream, step by step; and its rows with their keys, in the order they came.
        self.outputs: list[list[Sent]] = []
        self.changes: list[tuple[bytes | None, Row]] = []
        exact = compiled.query.one_to_one
        self.account = Account(exact=exact, note="" if exact else "not every row that leaves is one that came")

    def step(self, records: dict[str, list[Sent]], times: dict[str, datetime], seconds: float) -> None:
        """Let the stream see a step's records, then its times."""
        sources = self._sources
        # Tables first: they are there when the batch reads them.
        for topic in sorted(records, key=lambda each: each in sources):
            if records[topic]:
                self._folders.put(topic, records[topic])
        ticks = {topic: at for topic, at in times.items() if topic in sources and self.compiled.watermark}
        # A query that runs may see the times before the records; one that begins sees all at once, and a batch's records
        # are held against the time that the batch before it reached.
        if self._query is not None and any(records.get(topic) for topic in sources):
            self._process(seconds)
        for topic, at in ticks.items():
            self._folders.tick(topic, at)
        if ticks or (self._query is None and any(records.get(topic) for topic in sources)):
            self._process(seconds)
        self._take()
        self.steps_done += 1

    def sorted(self, rows: list[tuple[bytes | None, Row]]) -> list[Row]:
        query = self.compiled.query
        mixed = query.stateful or query.joins_tables
        return _sorted(self.compiled, rows) if mixed else [row for _, row in rows]

    def _process(self, seconds: float) -> None:
        """Let the query take in all that is there. A stream that failed stays so."""
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
            # Whatever Spark raises is explained as in a running pipeline.
            files = Files("in the session's folder", str(self._checkpoint), "the session's folder")
            self._error = explain(self.compiled.stream, error, files)
            if not late.is_set():
                raise self._error from error
        if late.is_set():
            self._error = StreamFailedError(f"{name} was not done after {seconds:g} s", stream=name)
            raise self._error
        self._book()

    def _start(self) -> "StreamingQuery":
        done = self._test._done  # noqa: SLF001
        counters = Counters(moving=True)
        frame = done.rows(self.compiled.stream.name, self._folders, counters=counters)
        return (
            encoded(frame, self.compiled, counters)
            .writeStream.format("memory")
            .queryName(self._table)
            .option("checkpointLocation", str(self._checkpoint))
            .outputMode(self.compiled.mode)
            .start()
        )

    def _take(self) -> None:
        """The rows that came since the last time."""
        target = self.compiled.stream.target
        new: list[tuple[Sent, Row]] = []
        if self._query is not None:
            frame = self._test._spark.table(self._table)  # noqa: SLF001
            all_rows = _decoded(self.compiled, frame)
            new = all_rows[self._taken :]
            self._taken = len(all_rows)
        if self.compiled.query.stateful or self.compiled.query.joins_tables:
            new.sort(key=lambda each: _order(self.compiled, (each[0].key, each[1])))
        test = self._test
        self.outputs.append(
            [Sent(target, test._next_offset(target), sent.key, sent.value, sent.at) for sent, _ in new]  # noqa: SLF001
        )
        self.changes += [(sent.key, row) for sent, row in new]

    def _book(self) -> None:
        """Add up the reports of the batches that ended."""
        query: Any = self._query
        account = self.account
        for each in query._jsq.recentProgress():  # noqa: SLF001
            report = json.loads(each.json())
            if report["batchId"] <= self._booked:
                continue
            self._booked = report["batchId"]
            counts = report.get("observedMetrics") or {}
            inputs = [counts.get(observation(topic), {}) for topic in self._sources]
            account.read += sum(int(one.get(COUNT) or 0) for one in inputs)
            account.dead += sum(int(one.get(DEAD) or 0) for one in inputs)
            account.late += sum(one.get("numRowsDroppedByWatermark", 0) for one in report.get("stateOperators") or [])
            account.out += int(counts.get(OUT, {}).get(COUNT) or 0)
        if account.exact:
            account.filtered = account.read - account.dead - account.late - account.out

    def stop(self) -> None:
        if self._query is not None:
            self._query.stop()
            self._test._spark.catalog.dropTempView(self._table)  # noqa: SLF001


def _decoded(compiled: Compiled, frame: "DataFrame") -> list[tuple[Sent, Row]]:
    """Encoded rows as records and as Python values: what a consumer of the topic would get."""
    now = datetime.now(UTC)
    found = []
    for offset, each in enumerate(frame.collect()):
        key = bytes(each["key"]) if each["key"] is not None else None
        value = bytes(each["value"])
        record = Sent(compiled.stream.target, offset, key, value, now)
        found.append((record, python_value(value, compiled.columns)))
    return found


def _order(compiled: Compiled, row: tuple[bytes | None, Row]) -> tuple[Any, ...]:
    at = row[1].get(compiled.time)
    if isinstance(at, dict):
        at = at["start"]
    return (at is not None, at or 0, row[0] or b"")


def _sorted(compiled: Compiled, rows: list[tuple[bytes | None, Row]]) -> list[Row]:
    return [row for _, row in sorted(rows, key=lambda each: _order(compiled, each))]


def _moment(value: Moment) -> datetime:
    moment = parse_time(value) if isinstance(value, str) else value
    if moment.tzinfo is None:
        raise UsageError("A time has no time zone", found=moment.isoformat(), hint="Use datetime(…, tzinfo=UTC)")
    return moment.astimezone(UTC)
