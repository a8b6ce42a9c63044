"""From declarations to queries: builds every stream's DataFrame, finds what is wrong with it, and what its rows look like.

Nothing is started and no broker is asked. A stream reads another one through that stream's topic, unless it keeps state
over rows that may be sent more than once (an aggregate's updates): counting those would count a row with every update. Then
the two run as one query, and only rows that are final pass from the first to the second.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from riverrun.errors import DeclarationError, PipelineError
from riverrun.model.connectors.postgres import postgres
from riverrun.model.event import schema_of
from riverrun.model.pipeline import Stream
from riverrun.model.topic import Topic
from riverrun.streams.graph import Graph, Problem
from riverrun.streams.logical import Query, read_query, refusal, two_event_times
from riverrun.streams.mistakes import TWO_EVENT_TIMES, Found, cannot_run, explained, meant, unreadable_table
from riverrun.streams.sources import COUNT, Counters, Records, checked, table_frame, time_of
from riverrun.streams.state_times import with_zones
from riverrun.streams.user_code import send_along
from riverrun.streams.values import Shape, key_text, write_value

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

OUT = "out"


@dataclass(frozen=True)
class Compiled:
    """A stream that can run, and all that is known of it before it does."""

    stream: Stream
    inputs: tuple[str, ...]
    columns: "StructType"
    key: tuple[str, ...]
    time: str
    late_ms: int
    # Output mode for micro-batches: append or update.
    mode: str
    # Whether a row may be sent again with other values.
    revises: bool
    query: Query
    # Streams that run inside this one's query, because it needs their final rows.
    fused: tuple[str, ...] = ()
    # Whether the readers need to track event time; without it a record costs less.
    watermark: bool = True
    # Why real-time mode does not take it; empty when it does.
    against_real_time: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    # Why it cannot run on a stream at all, of one that says speed="batch"; empty when it can.
    against_moving: str = ""


@dataclass
class Compilation:
    """All streams of an app."""

    graph: Graph
    spark: "SparkSession"
    streams: dict[str, Compiled] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    # The readers of topics, made once for all streams that are looked at: Spark takes half a second for each.
    read: "dict[str, DataFrame]" = field(default_factory=dict)

    def require(self) -> "Compilation":
        if self.problems:
            raise PipelineError([str(each) for each in self.problems], file=self.graph.app.file)
        return self

    def sources(self, name: str) -> list[str]:
        """The topics a stream's query reads."""
        found: dict[str, None] = {}
        for each in self.streams[name].inputs if name in self.streams else self.graph.inputs[name]:
            if each in self.graph.app.topics:
                found[each] = None
            elif each in self.graph.app.streams:
                below = (
                    self.sources(each) if each in self.streams[name].fused else [self.graph.app.streams[each].target]
                )
                found |= dict.fromkeys(below)
        return list(found)

    def shape(self, topic: str) -> Shape:
        """What the records of a topic look like: as declared, or as the stream that writes it makes them."""
        declared = self.graph.app.topics.get(topic)
        if declared is not None and declared.event is not None:
            return Shape.of_event(declared.event)
        writer = next(each for each in self.streams.values() if each.stream.target == topic)
        return Shape.of_columns(writer.columns)

    def rows(
        self,
        name: str,
        records: Records,
        *,
        counters: Counters | None = None,
        moving: bool = True,
        broadcast: bool = False,
    ) -> "DataFrame":
        """The rows of a stream as the user's code makes them."""
        compiled = self.streams[name]
        watermark = moving and compiled.watermark
        builder = _Builder(self, records, counters, moving=moving, watermark=watermark, broadcast=broadcast)
        return builder.stream(self.graph.app.streams[name], set(compiled.fused))

    def output_topic(self, name: str) -> Topic[Any]:
        """The topic a stream writes: as declared in the app, else made from what the stream says."""
        compiled = self.streams[name]
        stream = compiled.stream
        if stream.target in self.graph.app.topics:
            return self.graph.app.topics[stream.target]
        inputs = [topic.partitions for topic in self.graph.topics(name)]
        return Topic(
            stream.target, None, stream.partitions or max(inputs, default=1), stream.replicas, stream.retention
        )


def encoded(frame: "DataFrame", compiled: Compiled, counters: Counters) -> "DataFrame":
    """Rows as records: `key` (null where rows have none) and `value`, as bytes, counted on their way out.

    Counted last, because Spark merges no projections across that: what is made of `key` and `value` would make them again.
    """
    from pyspark.sql import functions as F  # noqa: N812

    # The one row of an aggregate over everything has an empty key: its updates stay in order, in one partition.
    nothing = F.lit("" if compiled.revises else None).cast("string")
    key = key_text(compiled.columns, compiled.key) if compiled.key else nothing
    value = write_value(compiled.columns)
    records = frame.select(key.cast("binary").alias("key"), value.cast("binary").alias("value"))
    return counters.count(records, OUT, F.count(F.lit(1)).alias(COUNT))


def compile_app(graph: Graph, spark: "SparkSession", records: Records) -> Compilation:
    """Build every stream once. Problems are collected; a stream whose input has a problem is not looked at."""
    done = Compilation(graph, spark, problems=list(graph.problems))
    send_along(graph.app)
    names = {each.place for each in graph.problems}
    for name in graph.order:
        stream = graph.app.streams[name]
        waits = [each for each in graph.before(name) if each not in done.streams]
        if waits or str(stream.line) in names:
            continue
        try:
            done.streams[name] = _compile(done, stream, records)
        except Found as found:
            # Two streams may meet the same one, such as a file that is not there.
            if found.problem not in done.problems:
                done.problems.append(found.problem)
        except DeclarationError as error:
            done.problems.append(Found(stream.line, *_texts(error)).problem)
    return done


def _texts(error: DeclarationError) -> tuple[str, str]:
    """What is wrong, and all else the error says."""
    return error.what, str(error).removeprefix(f"{error.what}.").strip().removesuffix(".")


class _Builder:
    """Builds the frames of one query; an input that is used twice is the same frame."""

    def __init__(
        self,
        done: Compilation,
        records: Records,
        counters: Counters | None = None,
        *,
        moving: bool,
        watermark: bool,
        broadcast: bool = False,
        topics: "dict[str, DataFrame] | None" = None,
    ) -> None:
        self._counters = counters or Counters(moving=moving)
        self._topics: dict[str, DataFrame] = {} if topics is None else topics
        self._done = done
        self._app = done.graph.app
        self._records = records
        self._moving = moving
        self._watermark = watermark
        self._broadcast = broadcast
        self._frames: dict[str, DataFrame] = {}

    def stream(self, stream: Stream, fused: set[str]) -> "DataFrame":
        names = self._done.graph.inputs[stream.name]
        frames = [self._input(name, fused) for name in names]
        try:
            with with_zones():
                made = self._sql(stream, names, frames) if stream.function is None else stream.function(*frames)
        except Exception as error:
            columns = dict.fromkeys(name for frame in frames for name in frame.columns)
            raise explained(stream, error, columns) from error
        from pyspark.sql import DataFrame

        if not isinstance(made, DataFrame):
            given = "nothing" if made is None else f"a {type(made).__name__}"
            raise Found(stream.line, f"{stream.name} returns {given}", "Return a DataFrame")
        return made

    def _sql(self, stream: Stream, names: tuple[str, ...], frames: "list[DataFrame]") -> "DataFrame":
        spark = self._done.spark
        for name, frame in zip(names, frames, strict=True):
            frame.createOrReplaceTempView(name)
        try:
            return spark.sql(stream.sql)
        finally:
            for name in names:
                spark.catalog.dropTempView(name)

    def _input(self, name: str, fused: set[str]) -> "DataFrame":
        if name not in self._frames:
            self._frames[name] = self._make(name, fused)
        return self._frames[name]

    def _make(self, name: str, fused: set[str]) -> "DataFrame":
        app = self._app
        if name in app.tables:
            return self._table(name)
        if name in app.topics:
            return self._topic(name, *time_of(app.topics[name]))
        if name in fused:
            return self.stream(app.streams[name], fused)
        above = self._done.streams[name]
        return self._topic(above.stream.target, above.time, above.late_ms)

    def _table(self, name: str) -> "DataFrame":
        from pyspark.errors import PySparkException
        from pyspark.sql import functions as F  # noqa: N812

        table = self._app.tables[name]
        if isinstance(table.source, postgres):
            raise Found(
                table.line,
                f"The columns of the table {name} are not known: nothing has looked at {table.source.table} yet",
                "Run `riverrun connect check` once, where the database is: they are remembered. Or say which it has: "
                'riverrun.postgres("…", columns="id int, …")',
            )
        try:
            frame = table_frame(self._done.spark, table, self._records, self._app.folder)
        except PySparkException as error:
            raise unreadable_table(table, error, self._app.folder) from error
        if missing := [each for each in table.key if each not in frame.columns]:
            raise Found(
                table.line,
                f"The table {name} has the key {missing[0]}, which is not one of its columns",
                meant(missing[0], frame.columns),
            )
        return F.broadcast(frame) if self._broadcast else frame

    def _topic(self, topic: str, time: str, late_ms: int) -> "DataFrame":
        if topic not in self._topics:
            self._topics[topic] = self._read(topic, time, late_ms)
        return self._topics[topic]

    def _read(self, topic: str, time: str, late_ms: int) -> "DataFrame":
        declared = self._app.topics.get(topic)
        raw = self._records.moving(topic) if self._moving else self._records.still(topic)
        if declared is not None and declared.event is None and not self._written(topic):
            return raw
        try:
            shape = self._done.shape(topic)
        except DeclarationError as error:
            raise Found(self._app.lines[topic], *_texts(error)) from error
        frame = checked(raw, shape, topic, self._counters)
        return self._records.timed(frame, topic, time, late_ms) if time and self._watermark else frame

    def _written(self, topic: str) -> bool:
        return any(each.stream.target == topic for each in self._done.streams.values())


def _compile(done: Compilation, stream: Stream, records: Records) -> Compiled:
    names = done.graph.inputs[stream.name]
    above = [done.streams[name] for name in names if name in done.streams]
    frame = _Builder(done, records, moving=True, watermark=True, topics=done.read).stream(stream, set())
    query = read_query(frame)
    fused: tuple[str, ...] = ()
    if query.stateful and (revising := [each for each in above if each.revises]):
        fused = tuple(name for each in revising for name in (each.stream.name, *each.fused))
        frame = _Builder(done, records, moving=True, watermark=True, topics=done.read).stream(stream, set(fused))
        query = read_query(frame)
    if not frame.isStreaming:
        raise Found(stream.line, f"{stream.name} reads no stream of records", "Use a topic or a stream it names")
    _check_columns(stream, frame)
    _check_time(done, stream, query)
    mode, against_moving = _mode_of(stream, frame, query, final=bool(fused) or stream.emit == "final")
    key = _key(done, stream, frame.columns, query, above)
    time, late_ms = _time(done, stream, frame, above)
    compiled = Compiled(
        stream=stream,
        inputs=names,
        columns=frame.schema,
        key=key,
        time=time,
        late_ms=late_ms,
        mode=mode,
        revises=(mode == "update" and query.aggregated) or any(each.revises for each in above if not fused),
        query=query,
        fused=fused,
        watermark=bool(query.stateful),
        against_real_time=(*_opened_by_python(done, names), *_against_real_time(stream, frame, query, mode, fused)),
        notes=_notes(query, fused),
        against_moving=against_moving,
    )
    _check_declared(done, compiled)
    return compiled


def _check_columns(stream: Stream, frame: "DataFrame") -> None:
    seen: set[str] = set()
    if not frame.columns:
        raise Found(stream.line, f"{stream.name} has no columns")
    for each in frame.columns:
        if each.lower() in seen:
            raise Found(stream.line, f"{stream.name} has two columns {each}", "Rename one with alias()")
        seen.add(each.lower())
    try:
        Shape.of_columns(frame.schema)
    except DeclarationError as error:
        column = f"{stream.name}.{error.fields.get('column', '')}"
        text = f"{column} is of type {error.found}, which a JSON record cannot carry"
        raise Found(stream.line, text, error.hint) from error


def _check_time(done: Compilation, stream: Stream, query: Query) -> None:
    """A window without event time would keep its state for ever."""
    if query.aggregated and query.windowed and not query.watermarked:
        topics = [topic for topic in done.graph.topics(stream.name) if not time_of(topic)[0]]
        whose = topics[0].event.__name__ if topics and topics[0].event is not None else "its input"
        raise Found(
            stream.line,
            f"{stream.name} has a time window, and {whose} has no event time, so no window would ever end",
            'Mark the field that says when the event happened: riverrun.event_time(late="2 minutes")',
        )


def _mode_of(stream: Stream, frame: "DataFrame", query: Query, *, final: bool) -> tuple[str, str]:
    """The output mode of a stream's micro-batches, and why it can have none: a question about history (speed="batch") may
    ask what Spark answers only when all is there, such as a count of what is distinct."""
    try:
        return _mode(stream, frame, query, final=final), ""
    except Found as found:
        if stream.speed != "batch":
            raise
        return "update" if query.aggregated else "append", found.problem.text


def _mode(stream: Stream, frame: "DataFrame", query: Query, *, final: bool) -> str:
    if query.watermarked and two_event_times(query):
        raise Found(stream.line, f"{stream.name} {TWO_EVENT_TIMES[0]}", TWO_EVENT_TIMES[1])
    wanted = ["append"] if final else ["update", "append"] if query.aggregated else ["append", "update"]
    answers = {mode: refusal(frame, query, mode) for mode in wanted}
    for mode, against in answers.items():
        if not against:
            return mode
    against = answers[wanted[0]]
    if "without watermark" in against:
        raise Found(
            stream.line,
            f"{stream.name} waits for rows to be final, and nothing says when they are",
            "Group by a window over an event time",
        )
    if "correctness" in against and stream.emit == "updates":
        raise Found(stream.line, f"{stream.name} keeps state over rows that are not final yet", 'Give it emit="final"')
    raise cannot_run(stream, against)


def _key(done: Compilation, stream: Stream, columns: list[str], query: Query, above: list[Compiled]) -> tuple[str, ...]:
    declared = done.graph.app.topics.get(stream.target)
    key = stream.key
    if not key and declared is not None and declared.event is not None:
        own = schema_of(declared.event).key_field
        key = (own,) if own else ()
    if not key and query.grouping is not None:
        key = tuple(name for name in query.grouping if name in columns)
        lost = [name for name in query.grouping if name not in columns]
        if lost:
            raise Found(
                stream.line,
                f"{stream.name} groups by {lost[0]} and does not keep it, so its rows have no key",
                "Select it, or name the columns that tell rows apart: @app.stream(key=…)",
            )
    if not key:
        inputs = [
            done.graph.app.topics[name] for name in done.graph.inputs[stream.name] if name in done.graph.app.topics
        ]
        known = [schema_of(each.event).key_field for each in inputs if each.event is not None]
        carried = [each.key for each in above]
        candidates = [(each,) for each in known if each] + carried
        key = next((each for each in candidates if each and set(each) <= set(columns)), ())
    if unknown := [name for name in key if name not in columns]:
        text = f"{stream.name} has the key {unknown[0]}, which is not one of its columns"
        raise Found(stream.line, text, meant(unknown[0], columns))
    if random := [name for name in key if name in query.random_columns]:
        raise Found(
            stream.line,
            f"{stream.name} has the key {random[0]}, which is different each time it is computed",
            "A row that is sent again after a crash would be another row: make the key of values in the record",
        )
    return key


def _time(done: Compilation, stream: Stream, frame: "DataFrame", above: list[Compiled]) -> tuple[str, int]:
    """The column that says when a row happened: named, or an input's, or a window."""
    from pyspark.sql.types import StructType, TimestampType

    def is_time(name: str) -> bool:
        kind = frame.schema[name].dataType
        ends = isinstance(kind, StructType) and {"start", "end"} == set(kind.names)
        return ends or isinstance(kind, TimestampType)

    topics = done.graph.topics(stream.name)
    late = max([time_of(topic)[1] for topic in topics] + [each.late_ms for each in above], default=0)
    if stream.time:
        if stream.time not in frame.columns:
            text = f"{stream.name} has the time {stream.time}, which is not one of its columns"
            raise Found(stream.line, text, meant(stream.time, frame.columns))
        if not is_time(stream.time):
            kind = frame.schema[stream.time].dataType.simpleString()
            raise Found(
                stream.line,
                f"{stream.name} has the time {stream.time}, which is a {kind}",
                "Give a timestamp or a window",
            )
        return stream.time, late
    candidates = [time_of(topic)[0] for topic in topics] + [each.time for each in above]
    windows = [
        each.name for each in frame.schema.fields if isinstance(each.dataType, StructType) and is_time(each.name)
    ]
    found = next((each for each in candidates if each and each in frame.columns and is_time(each)), "")
    return found or next(iter(windows), ""), late


def _check_declared(done: Compilation, compiled: Compiled) -> None:
    """An output topic that the app declares with a type must get rows of that type."""
    stream = compiled.stream
    declared = done.graph.app.topics.get(stream.target)
    if declared is None or declared.event is None:
        return
    if declared.registered:
        text = f"{stream.name} writes {stream.target}, whose format is {declared.format}: streams write plain JSON"
        raise Found(stream.line, text, f"Leave the format of {stream.target} out")
    event = declared.event.__name__
    wanted = Shape.of_event(declared.event).columns
    have = {each.name: each.dataType.simpleString() for each in compiled.columns.fields}
    for each in wanted.fields:
        kind = each.dataType.simpleString()
        if each.name not in have and not each.nullable:
            text = f"{stream.name} writes {stream.target}, whose type {event} needs the column {each.name}"
            raise Found(stream.line, text, f"Select it, or give the field of {event} a default")
        if have.get(each.name, kind) != kind:
            raise Found(
                stream.line,
                f"{stream.name}.{each.name} is {have[each.name]}, and {event} says {kind}",
                f"Cast it, or change the type of the topic {stream.target}",
            )
    if extra := [name for name in have if name not in wanted.names]:
        text = f"{stream.name} has the column {extra[0]}, and the type {event} of {stream.target} does not"
        raise Found(stream.line, text, f"Leave it out of the result, or add it to {event}")


def _opened_by_python(done: Compilation, names: tuple[str, ...]) -> list[str]:
    """Inputs that real-time mode cannot read, whatever is done with them (streams/unpacking.py)."""
    topics = done.graph.app.topics
    return [f"{name} in Avro, which Python opens" for name in names if name in topics and topics[name].format == "avro"]


def _against_real_time(
    stream: Stream, frame: "DataFrame", query: Query, mode: str, fused: tuple[str, ...]
) -> tuple[str, ...]:
    from riverrun.streams.logical import NOT_REAL_TIME

    found = [NOT_REAL_TIME[each] for each in query.nodes if each in NOT_REAL_TIME]
    in_nodes = any(each in NOT_REAL_TIME for each in query.nodes)
    found += [f"the Python function {name}()" for name in query.python_functions if not in_nodes]
    if query.joins_streams:
        found.append("a join of two streams")
    if query.repeated_sources:
        found.append("a topic that is read twice")
    if "Union" in query.nodes and query.stateful:
        below = query.nodes[query.nodes.index("Union") :]
        if any(each in below for each in ("Aggregate", "Deduplicate")):
            found.append("state before a union")
    if fused:
        found.append(f"it needs the final rows of {', '.join(fused)}")
    elif stream.emit == "final":
        found.append('the stream says emit="final"')
    elif not found and (against := refusal(frame, query, "update", real_time=True)):
        found.append("a session window" if "session window" in against else against)
    if query.nodes.count("Aggregate") > 1 and not found:
        found.append("two aggregations in a row")
    if mode == "append" and not found and query.aggregated:
        found.append("rows that are sent once, when they are final")
    return tuple(dict.fromkeys(found))


def _notes(query: Query, fused: tuple[str, ...]) -> tuple[str, ...]:
    notes = []
    if fused:
        notes.append(f"runs {', '.join(fused)} inside its own query, so that every row counts once, when it is final")
    keeps = ("Aggregate" in query.nodes and not query.windowed) or (
        "Deduplicate" in query.nodes and not query.watermarked
    )
    if keeps:
        notes.append("its state has a row for every key for ever")
    return tuple(notes)
