"""From declarations to queries: builds every stream's DataFrame, finds problems in it, and determines the schema of its
rows.

Nothing is started and no broker is needed. A stream reads another one through that stream's topic, unless it keeps state
over rows that may be sent more than once (an aggregate's updates): it would count a row with every update. Then the
two run as one query, and only final rows pass from the first to the second.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from riverrun.errors import DeclarationError, PipelineError
from riverrun.model.connectors.postgres import postgres
from riverrun.model.event import schema_of
from riverrun.model.pipeline import FileSource, Stream, Table
from riverrun.model.topic import Topic
from riverrun.streams.compile.csv_check import csv_file, find_bad_row, is_empty_csv
from riverrun.streams.compile.diagnostics import (
    TWO_EVENT_TIMES,
    StreamProblemError,
    did_you_mean,
    explain_build_error,
    unreadable_table_error,
    unsupported_query_error,
)
from riverrun.streams.compile.graph import Graph, Problem
from riverrun.streams.compile.query_analysis import (
    AnalyzedQuery,
    analyze_query,
    has_two_event_times,
    unsupported_reason,
)
from riverrun.streams.compile.record_schema import RecordSchema, encode_key, encode_value
from riverrun.streams.compile.row_order import order_note
from riverrun.streams.compile.sources import COUNT, Counters, RecordSource, event_time_of, parse_records, read_table
from riverrun.streams.compile.state_timezones import utc_state_times
from riverrun.streams.compile.user_code import pickle_user_modules

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

OUT_OBSERVATION = "out"


@dataclass(frozen=True)
class CompiledStream:
    """A compiled stream: all that is known of it before it runs."""

    stream: Stream
    inputs: tuple[str, ...]
    columns: "StructType"
    key: tuple[str, ...]
    time: str
    late_ms: int
    # Output mode for micro-batches: append or update.
    mode: str
    # Whether a row may be sent again with other values.
    emits_updates: bool
    query: AnalyzedQuery
    # Streams that run inside this one's query, because it needs their final rows.
    fused: tuple[str, ...] = ()
    # Whether the readers need a watermark; without one a record costs less.
    watermark: bool = True
    # Why real-time mode does not support it; empty if it does.
    real_time_blockers: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    # Who depends on an order of rows that it does not have (streams/compile/row_order.py); empty when nobody does.
    order_note: str = ""
    # Why it cannot run on a stream at all, of one that says speed="batch"; empty when it can.
    streaming_blocker: str = ""


@dataclass
class Compilation:
    """All streams of an app."""

    graph: Graph
    spark: "SparkSession"
    streams: dict[str, CompiledStream] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    # The frames of topics, built once for all streams: Spark takes half a second for each.
    topic_frames: "dict[str, DataFrame]" = field(default_factory=dict)
    # Of each table in a CSV file that was looked at, its first row that cannot be read; empty when all can.
    bad_rows: dict[str, str] = field(default_factory=dict)

    def require(self) -> "Compilation":
        if self.problems:
            raise PipelineError([str(problem) for problem in self.problems], file=self.graph.app.file)
        return self

    def sources(self, name: str) -> list[str]:
        """The topics a stream's query reads."""
        topics: dict[str, None] = {}
        for input_name in self.streams[name].inputs if name in self.streams else self.graph.inputs[name]:
            if input_name in self.graph.app.topics:
                topics[input_name] = None
            elif input_name in self.graph.app.streams:
                input_topics = (
                    self.sources(input_name)
                    if input_name in self.streams[name].fused
                    else [self.graph.app.streams[input_name].output_topic]
                )
                topics |= dict.fromkeys(input_topics)
        return list(topics)

    def record_schema(self, topic: str) -> RecordSchema:
        """The schema of a topic's records: as declared, or of the stream that writes it."""
        declared = self.graph.app.topics.get(topic)
        if declared is not None and declared.event is not None:
            return RecordSchema.from_event(declared.event)
        writer = next(stream for stream in self.streams.values() if stream.stream.output_topic == topic)
        return RecordSchema.from_columns(writer.columns)

    def rows(
        self,
        name: str,
        records: RecordSource,
        *,
        counters: Counters | None = None,
        streaming: bool = True,
        broadcast: bool = False,
    ) -> "DataFrame":
        """The rows of a stream as the user's code makes them."""
        compiled = self.streams[name]
        watermark = streaming and compiled.watermark
        builder = _QueryBuilder(self, records, counters, streaming=streaming, watermark=watermark, broadcast=broadcast)
        return builder.stream(self.graph.app.streams[name], set(compiled.fused))

    def output_topic(self, name: str) -> Topic[Any]:
        """The topic a stream writes: as declared in the app, else from the stream's options."""
        compiled = self.streams[name]
        stream = compiled.stream
        if stream.output_topic in self.graph.app.topics:
            return self.graph.app.topics[stream.output_topic]
        inputs = [topic.partitions for topic in self.graph.topics(name)]
        return Topic(
            stream.output_topic, None, stream.partitions or max(inputs, default=1), stream.replicas, stream.retention
        )


def encode_records(frame: "DataFrame", compiled: CompiledStream, counters: Counters) -> "DataFrame":
    """Rows as records: `key` (null if rows have none) and `value`, as bytes, counted.

    Counted last, because Spark does not merge projections across the count: what uses `key` and `value` would compute them
    again.
    """
    from pyspark.sql import functions as F  # noqa: N812

    # The one row of a global aggregate has an empty key, so that its updates stay in order in one partition.
    no_key = F.lit("" if compiled.emits_updates else None).cast("string")
    key = encode_key(compiled.columns, compiled.key) if compiled.key else no_key
    value = encode_value(compiled.columns)
    records = frame.select(key.cast("binary").alias("key"), value.cast("binary").alias("value"))
    return counters.count(records, OUT_OBSERVATION, F.count(F.lit(1)).alias(COUNT))


def compile_app(graph: Graph, spark: "SparkSession", records: RecordSource) -> Compilation:
    """Build every stream once. Problems are collected; a stream whose input has a problem is skipped."""
    compilation = Compilation(graph, spark, problems=list(graph.problems))
    pickle_user_modules(graph.app)
    problem_locations = {problem.location for problem in graph.problems}
    for name in graph.order:
        stream = graph.app.streams[name]
        uncompiled = [upstream for upstream in graph.upstream(name) if upstream not in compilation.streams]
        if uncompiled or str(stream.line) in problem_locations:
            continue
        try:
            compilation.streams[name] = _compile(compilation, stream, records)
        except StreamProblemError as raised:
            # Two streams may have the same problem, such as a missing file.
            if raised.problem not in compilation.problems:
                compilation.problems.append(raised.problem)
        except DeclarationError as error:
            compilation.problems.append(StreamProblemError(stream.line, *_error_texts(error)).problem)
    return compilation


def _error_texts(error: DeclarationError) -> tuple[str, str]:
    """The error's message, and the rest of its text."""
    return error.what, str(error).removeprefix(f"{error.what}.").strip().removesuffix(".")


class _QueryBuilder:
    """Builds the frames of one query; an input that is used twice is the same frame."""

    def __init__(
        self,
        compilation: Compilation,
        records: RecordSource,
        counters: Counters | None = None,
        *,
        streaming: bool,
        watermark: bool,
        broadcast: bool = False,
        topics: "dict[str, DataFrame] | None" = None,
    ) -> None:
        self._counters = counters or Counters(streaming=streaming)
        self._topics: dict[str, DataFrame] = {} if topics is None else topics
        self._compilation = compilation
        self._app = compilation.graph.app
        self._records = records
        self._streaming = streaming
        self._watermark = watermark
        self._broadcast = broadcast
        self._frames: dict[str, DataFrame] = {}

    def stream(self, stream: Stream, fused: set[str]) -> "DataFrame":
        names = self._compilation.graph.inputs[stream.name]
        frames = [self._input(name, fused) for name in names]
        try:
            with utc_state_times():
                result = self._sql(stream, names, frames) if stream.function is None else stream.function(*frames)
        except Exception as error:
            columns = dict.fromkeys(name for frame in frames for name in frame.columns)
            raise explain_build_error(stream, error, columns) from error
        from pyspark.sql import DataFrame

        if not isinstance(result, DataFrame):
            returned = "nothing" if result is None else f"a {type(result).__name__}"
            raise StreamProblemError(stream.line, f"{stream.name} returns {returned}", "Return a DataFrame")
        return result

    def _sql(self, stream: Stream, names: tuple[str, ...], frames: "list[DataFrame]") -> "DataFrame":
        spark = self._compilation.spark
        for name, frame in zip(names, frames, strict=True):
            frame.createOrReplaceTempView(name)
        try:
            return spark.sql(stream.sql)
        finally:
            for name in names:
                spark.catalog.dropTempView(name)

    def _input(self, name: str, fused: set[str]) -> "DataFrame":
        if name not in self._frames:
            self._frames[name] = self._make_input(name, fused)
        return self._frames[name]

    def _make_input(self, name: str, fused: set[str]) -> "DataFrame":
        app = self._app
        if name in app.tables:
            return self._table(name)
        if name in app.topics:
            return self._topic(name, *event_time_of(app.topics[name]))
        if name in fused:
            return self.stream(app.streams[name], fused)
        upstream = self._compilation.streams[name]
        return self._topic(upstream.stream.output_topic, upstream.time, upstream.late_ms)

    def _table(self, name: str) -> "DataFrame":
        from pyspark.errors import PySparkException
        from pyspark.sql import functions as F  # noqa: N812

        table = self._app.tables[name]
        if isinstance(table.source, postgres):
            raise StreamProblemError(
                table.line,
                f"The columns of the table {name} are not known: nothing has looked at {table.source.table} yet",
                "Run `riverrun connect check` once, where the database is: they are remembered. Or say which it has: "
                'riverrun.postgres("…", columns="id int, …")',
            )
        file = csv_file(table.source, self._app.folder) if isinstance(table.source, FileSource) else None
        if file is not None and not table.source.columns and is_empty_csv(file):
            raise StreamProblemError(
                table.line, f"The table {name} reads {file}, which is empty", "Its first line names the columns"
            )
        try:
            frame = read_table(self._compilation.spark, table, self._records, self._app.folder)
            if file is not None:
                self._check_values(table, file, frame)
        except PySparkException as error:
            raise unreadable_table_error(table, error, self._app.folder) from error
        if missing := [column for column in table.key if column not in frame.columns]:
            raise StreamProblemError(
                table.line,
                f"The table {name} has the key {missing[0]}, which is not one of its columns",
                did_you_mean(missing[0], frame.columns),
            )
        return F.broadcast(frame) if self._broadcast else frame

    def _check_values(self, table: Table, file: Path, frame: "DataFrame") -> None:
        """Once for a table, however many streams join it."""
        checked = self._compilation.bad_rows
        if table.name not in checked:
            checked[table.name] = find_bad_row(self._compilation.spark, table.source, file, frame.schema)
        if checked[table.name]:
            raise StreamProblemError(
                table.line,
                f"The table {table.name} cannot be read: {checked[table.name]}",
                "Correct the file, or the types in columns=",
            )

    def _topic(self, topic: str, time: str, late_ms: int) -> "DataFrame":
        if topic not in self._topics:
            self._topics[topic] = self._read(topic, time, late_ms)
        return self._topics[topic]

    def _read(self, topic: str, time: str, late_ms: int) -> "DataFrame":
        declared = self._app.topics.get(topic)
        raw = self._records.read_stream(topic) if self._streaming else self._records.read_batch(topic)
        if declared is not None and declared.event is None and not self._is_written_by_stream(topic):
            return raw
        try:
            record_schema = self._compilation.record_schema(topic)
        except DeclarationError as error:
            raise StreamProblemError(self._app.declared_at[topic], *_error_texts(error)) from error
        frame = parse_records(raw, record_schema, topic, self._counters)
        return self._records.with_watermark(frame, topic, time, late_ms) if time and self._watermark else frame

    def _is_written_by_stream(self, topic: str) -> bool:
        return any(stream.stream.output_topic == topic for stream in self._compilation.streams.values())


def _compile(compilation: Compilation, stream: Stream, records: RecordSource) -> CompiledStream:
    names = compilation.graph.inputs[stream.name]
    upstream = [compilation.streams[name] for name in names if name in compilation.streams]
    frame = _QueryBuilder(compilation, records, streaming=True, watermark=True, topics=compilation.topic_frames).stream(
        stream, set()
    )
    query = analyze_query(frame)
    fused: tuple[str, ...] = ()
    if query.stateful and (revising := [input_ for input_ in upstream if input_.emits_updates]):
        fused = tuple(name for input_ in revising for name in (input_.stream.name, *input_.fused))
        frame = _QueryBuilder(
            compilation, records, streaming=True, watermark=True, topics=compilation.topic_frames
        ).stream(stream, set(fused))
        query = analyze_query(frame)
    if not frame.isStreaming:
        raise StreamProblemError(
            stream.line, f"{stream.name} reads no stream of records", "Use a topic or a stream it names"
        )
    _check_columns(stream, frame)
    _check_time(compilation, stream, query)
    mode, streaming_blocker = _mode_or_reason(stream, frame, query, final=bool(fused) or stream.emit == "final")
    key = _key(compilation, stream, frame.columns, query, upstream)
    time, late_ms = _time(compilation, stream, frame, upstream)
    compiled = CompiledStream(
        stream=stream,
        inputs=names,
        columns=frame.schema,
        key=key,
        time=time,
        late_ms=late_ms,
        mode=mode,
        emits_updates=(mode == "update" and query.aggregated)
        or any(input_.emits_updates for input_ in upstream if not fused),
        query=query,
        fused=fused,
        watermark=bool(query.stateful),
        real_time_blockers=(
            *_python_decoded_inputs(compilation, names),
            *_real_time_blockers(stream, frame, query, mode, fused),
        ),
        notes=_notes(query, fused),
        order_note=order_note(compilation.graph.app, stream, key, time, query),
        streaming_blocker=streaming_blocker,
    )
    _check_declared(compilation, compiled)
    return compiled


def _check_columns(stream: Stream, frame: "DataFrame") -> None:
    seen: set[str] = set()
    if not frame.columns:
        raise StreamProblemError(stream.line, f"{stream.name} has no columns")
    for column_name in frame.columns:
        if column_name.lower() in seen:
            raise StreamProblemError(
                stream.line, f"{stream.name} has two columns {column_name}", "Rename one with alias()"
            )
        seen.add(column_name.lower())
    try:
        RecordSchema.from_columns(frame.schema)
    except DeclarationError as error:
        column = f"{stream.name}.{error.fields.get('column', '')}"
        message = f"{column} is of type {error.found}, which a JSON record cannot carry"
        raise StreamProblemError(stream.line, message, error.hint) from error


def _check_time(compilation: Compilation, stream: Stream, query: AnalyzedQuery) -> None:
    """Refuse a window without event time: it would keep its state for ever."""
    if query.aggregated and query.windowed and not query.watermarked:
        topics = [topic for topic in compilation.graph.topics(stream.name) if not event_time_of(topic)[0]]
        whose = topics[0].event.__name__ if topics and topics[0].event is not None else "its input"
        raise StreamProblemError(
            stream.line,
            f"{stream.name} has a time window, and {whose} has no event time, so no window would ever end",
            'Mark the field that says when the event happened: riverrun.event_time(late="2 minutes")',
        )


def _mode_or_reason(stream: Stream, frame: "DataFrame", query: AnalyzedQuery, *, final: bool) -> tuple[str, str]:
    """The output mode of a stream's micro-batches, and why it cannot stream at all: a query with speed="batch" may use what
    Spark computes only over all records, such as a distinct count."""
    try:
        return _mode(stream, frame, query, final=final), ""
    except StreamProblemError as raised:
        if stream.speed != "batch":
            raise
        return "update" if query.aggregated else "append", raised.problem.text


def _mode(stream: Stream, frame: "DataFrame", query: AnalyzedQuery, *, final: bool) -> str:
    if query.watermarked and has_two_event_times(query):
        raise StreamProblemError(stream.line, f"{stream.name} {TWO_EVENT_TIMES[0]}", TWO_EVENT_TIMES[1])
    modes = ["append"] if final else ["update", "append"] if query.aggregated else ["append", "update"]
    reasons = {mode: unsupported_reason(frame, query, mode) for mode in modes}
    for mode, reason in reasons.items():
        if not reason:
            return mode
    reason = reasons[modes[0]]
    if "without watermark" in reason:
        raise StreamProblemError(
            stream.line,
            f"{stream.name} waits for rows to be final, and nothing says when they are",
            "Group by a window over an event time",
        )
    if "correctness" in reason and stream.emit == "updates":
        raise StreamProblemError(
            stream.line, f"{stream.name} keeps state over rows that are not final yet", 'Give it emit="final"'
        )
    raise unsupported_query_error(stream, reason)


def _key(
    compilation: Compilation, stream: Stream, columns: list[str], query: AnalyzedQuery, upstream: list[CompiledStream]
) -> tuple[str, ...]:
    declared = compilation.graph.app.topics.get(stream.output_topic)
    key = stream.key
    if not key and declared is not None and declared.event is not None:
        own = schema_of(declared.event).key_field
        key = (own,) if own else ()
    if not key and query.grouping is not None:
        key = tuple(name for name in query.grouping if name in columns)
        dropped = [name for name in query.grouping if name not in columns]
        if dropped:
            raise StreamProblemError(
                stream.line,
                f"{stream.name} groups by {dropped[0]} and does not keep it, so its rows have no key",
                "Select it, or name the columns that tell rows apart: @app.stream(key=…)",
            )
    if not key:
        inputs = [
            compilation.graph.app.topics[name]
            for name in compilation.graph.inputs[stream.name]
            if name in compilation.graph.app.topics
        ]
        known = [schema_of(input_.event).key_field for input_ in inputs if input_.event is not None]
        carried = [input_.key for input_ in upstream]
        candidates = [(column,) for column in known if column] + carried
        key = next((candidate for candidate in candidates if candidate and set(candidate) <= set(columns)), ())
    if unknown := [name for name in key if name not in columns]:
        text = f"{stream.name} has the key {unknown[0]}, which is not one of its columns"
        raise StreamProblemError(stream.line, text, did_you_mean(unknown[0], columns))
    if random := [name for name in key if name in query.random_columns]:
        raise StreamProblemError(
            stream.line,
            f"{stream.name} has the key {random[0]}, which is different each time it is computed",
            "A row that is sent again after a crash would be another row: make the key of values in the record",
        )
    return key


def _time(
    compilation: Compilation, stream: Stream, frame: "DataFrame", upstream: list[CompiledStream]
) -> tuple[str, int]:
    """The event-time column of a stream: the one it names, else an input's, else a window. With the lateness allowed."""
    from pyspark.sql.types import StructType, TimestampType

    def is_time(name: str) -> bool:
        kind = frame.schema[name].dataType
        ends = isinstance(kind, StructType) and {"start", "end"} == set(kind.names)
        return ends or isinstance(kind, TimestampType)

    topics = compilation.graph.topics(stream.name)
    late = max([event_time_of(topic)[1] for topic in topics] + [input_.late_ms for input_ in upstream], default=0)
    if stream.time:
        if stream.time not in frame.columns:
            text = f"{stream.name} has the time {stream.time}, which is not one of its columns"
            raise StreamProblemError(stream.line, text, did_you_mean(stream.time, frame.columns))
        if not is_time(stream.time):
            kind = frame.schema[stream.time].dataType.simpleString()
            raise StreamProblemError(
                stream.line,
                f"{stream.name} has the time {stream.time}, which is a {kind}",
                "Give a timestamp or a window",
            )
        return stream.time, late
    candidates = [event_time_of(topic)[0] for topic in topics] + [input_.time for input_ in upstream]
    windows = [
        column.name
        for column in frame.schema.fields
        if isinstance(column.dataType, StructType) and is_time(column.name)
    ]
    time_column = next(
        (candidate for candidate in candidates if candidate and candidate in frame.columns and is_time(candidate)), ""
    )
    return time_column or next(iter(windows), ""), late


def _check_declared(compilation: Compilation, compiled: CompiledStream) -> None:
    """Check that an output topic that the app declares with an event type gets rows of that type."""
    stream = compiled.stream
    declared = compilation.graph.app.topics.get(stream.output_topic)
    if declared is None or declared.event is None:
        return
    if declared.registered:
        text = (
            f"{stream.name} writes {stream.output_topic}, whose format is {declared.format}: streams write plain JSON"
        )
        raise StreamProblemError(stream.line, text, f"Leave the format of {stream.output_topic} out")
    event = declared.event.__name__
    declared_columns = RecordSchema.from_event(declared.event).columns
    actual_types = {field_.name: field_.dataType.simpleString() for field_ in compiled.columns.fields}
    for field_ in declared_columns.fields:
        kind = field_.dataType.simpleString()
        if field_.name not in actual_types and not field_.nullable:
            text = f"{stream.name} writes {stream.output_topic}, whose type {event} needs the column {field_.name}"
            raise StreamProblemError(stream.line, text, f"Select it, or give the field of {event} a default")
        if actual_types.get(field_.name, kind) != kind:
            raise StreamProblemError(
                stream.line,
                f"{stream.name}.{field_.name} is {actual_types[field_.name]}, and {event} says {kind}",
                f"Cast it, or change the type of the topic {stream.output_topic}",
            )
    if extra := [name for name in actual_types if name not in declared_columns.names]:
        text = f"{stream.name} has the column {extra[0]}, and the type {event} of {stream.output_topic} does not"
        raise StreamProblemError(stream.line, text, f"Leave it out of the result, or add it to {event}")


def _python_decoded_inputs(compilation: Compilation, names: tuple[str, ...]) -> list[str]:
    """Inputs that real-time mode cannot read because Python decodes them (streams/compile/registry_decoding.py)."""
    topics = compilation.graph.app.topics
    return [f"{name} in Avro, which Python opens" for name in names if name in topics and topics[name].format == "avro"]


def _real_time_blockers(
    stream: Stream, frame: "DataFrame", query: AnalyzedQuery, mode: str, fused: tuple[str, ...]
) -> tuple[str, ...]:
    from riverrun.streams.compile.query_analysis import NOT_IN_REAL_TIME

    blockers = [NOT_IN_REAL_TIME[node] for node in query.nodes if node in NOT_IN_REAL_TIME]
    in_nodes = any(node in NOT_IN_REAL_TIME for node in query.nodes)
    blockers += [f"the Python function {name}()" for name in query.python_functions if not in_nodes]
    if query.joins_streams:
        blockers.append("a join of two streams")
    if query.repeated_sources:
        blockers.append("a topic that is read twice")
    if "Union" in query.nodes and query.stateful:
        below = query.nodes[query.nodes.index("Union") :]
        if any(node in below for node in ("Aggregate", "Deduplicate")):
            blockers.append("state before a union")
    if fused:
        blockers.append(f"it needs the final rows of {', '.join(fused)}")
    elif stream.emit == "final":
        blockers.append('the stream says emit="final"')
    elif not blockers and (reason := unsupported_reason(frame, query, "update", real_time=True)):
        blockers.append("a session window" if "session window" in reason else reason)
    if query.nodes.count("Aggregate") > 1 and not blockers:
        blockers.append("two aggregations in a row")
    if mode == "append" and not blockers and query.aggregated:
        blockers.append("rows that are sent once, when they are final")
    return tuple(dict.fromkeys(blockers))


def _notes(query: AnalyzedQuery, fused: tuple[str, ...]) -> tuple[str, ...]:
    notes = []
    if fused:
        notes.append(f"runs {', '.join(fused)} inside its own query, so that every row counts once, when it is final")
    keeps_state_forever = ("Aggregate" in query.nodes and not query.windowed) or (
        "Deduplicate" in query.nodes and not query.watermarked
    )
    if keeps_state_forever:
        notes.append("its state has a row for every key for ever")
    return tuple(notes)
