"""The tables of an app: every stream's rows, and the topics that `app.store` names, as the store needs to know them."""

from dataclasses import replace
from typing import TYPE_CHECKING, cast

import msgspec
from pyspark.sql.types import (
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
)

from riverrun.app import App
from riverrun.errors import PipelineError, RiverrunError
from riverrun.model.event import schema_of
from riverrun.model.pipeline import SourceLine, TableOptions
from riverrun.model.table import RECORD_TIME, Column, TableSpec
from riverrun.model.units import parse_duration_ms
from riverrun.streams.compile.compiler import Compilation, CompiledStream
from riverrun.streams.compile.graph import Problem, build_graph
from riverrun.streams.compile.record_schema import RecordSchema

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import SparkSession

    from riverrun.alerts.rules import Rule

_TYPES: dict[type[DataType], str] = {
    BooleanType: "boolean",
    ByteType: "bigint",
    ShortType: "bigint",
    IntegerType: "bigint",
    LongType: "bigint",
    FloatType: "double",
    DoubleType: "double",
    TimestampType: "timestamp",
    DateType: "date",
    StringType: "text",
}


def compilation_without_streams(app: App) -> Compilation:
    """What `build_tables` and its kin need of an app that has no streams: no Spark is started for it."""
    return Compilation(build_graph(app), cast("SparkSession", None))


def build_tables(compilation: Compilation) -> list[TableSpec]:
    """All tables of the app: streams first. PipelineError when something is wrong with the app, its tables included."""
    app = compilation.graph.app
    problems: list[Problem] = []
    tables: list[TableSpec] = []
    configured = {each.source for each in app.table_options.values()}
    for name, compiled in compilation.streams.items():
        if compiled.stream.store and name not in configured:
            tables.append(_stream_table(compiled, TableOptions(name, compiled.stream.line)))
    for options in app.table_options.values():
        if options.source in app.streams and options.source not in compilation.streams:
            continue  # The stream's problem is reported already.
        table = (
            _stream_table(compilation.streams[options.source], options)
            if options.source in compilation.streams
            else _topic_table(compilation, options)
        )
        if isinstance(table, Problem):
            problems.append(table)
            continue
        problems += _table_problems(table, options)
        tables.append(table)
    if not problems and not compilation.problems:
        problems += _tile_problems(app, tables)
        problems += _alert_problems(alert_rules(compilation)[1])
    compilation.problems += problems
    compilation.require()
    return tables


def _tile_problems(app: App, tables: list[TableSpec]) -> list[Problem]:
    """Problems of tiles whose queries do not fit the tables."""
    if not app.dashboards:
        return []
    from riverrun.dashboard.tiles.checks import tile_problems

    errors = tile_problems(app.dashboards.values(), {table.name: table for table in tables})
    return [Problem(str(line), *_error_text(error)) for line, error in errors]


def _error_text(error: RiverrunError) -> tuple[str, str]:
    return error.what + (f"; expected {error.expected}" if error.expected else ""), error.hint


def alert_rules(compilation: Compilation) -> "tuple[list[Rule], list[tuple[SourceLine, RiverrunError]]]":
    """The app's alerts as rules over what they watch, and what is wrong with the others, each with its line."""
    app = compilation.graph.app
    if not app.alerts:
        return [], []
    from riverrun.alerts.rules import build_app_rules

    return build_app_rules(app, watchable_tables(compilation))


def require_alert_rules(compilation: Compilation) -> "list[Rule]":
    """The app's alerts as rules; PipelineError with all that is wrong with them."""
    rules, errors = alert_rules(compilation)
    if errors:
        raise PipelineError(
            [str(wrong_alert) for wrong_alert in _alert_problems(errors)], file=compilation.graph.app.file
        )
    return rules


def _alert_problems(errors: "Iterable[tuple[SourceLine, RiverrunError]]") -> list[Problem]:
    return [Problem(str(line), *_error_text(error)) for line, error in errors]


def watched_tables(compilation: Compilation) -> dict[str, TableSpec]:
    """The tables that the app's alerts watch."""
    watched_names = {alert.source for alert in compilation.graph.app.alerts.values()}
    return {name: table for name, table in watchable_tables(compilation).items() if name in watched_names}


def watchable_tables(compilation: Compilation) -> dict[str, TableSpec]:
    """What alerts can watch: the rows of every stream, and of every topic of events, with the key of their records."""
    tables = {}
    for name, topic in compilation.graph.app.topics.items():
        table = _topic_table(compilation, TableOptions(name, SourceLine("", 0)))
        if isinstance(table, TableSpec) and topic.event is not None:
            key = schema_of(topic.event).key_field
            tables[name] = replace(table, key=(key,) if key else ())
    for name, compiled in compilation.streams.items():
        tables[name] = replace(_stream_table(compiled, TableOptions(name, compiled.stream.line)), key=compiled.key)
    return tables


def _stream_table(compiled: CompiledStream, options: TableOptions) -> TableSpec:
    key = options.key or (compiled.key if compiled.emits_updates else ())
    upserts = bool(options.key) or compiled.emits_updates
    return _table(options, compiled.stream.output_topic, compiled.columns, key, compiled.time, upserts=upserts)


def _topic_table(compilation: Compilation, options: TableOptions) -> TableSpec | Problem:
    topic = compilation.graph.app.topics.get(options.source)
    if topic is None or topic.event is None:
        return Problem(
            str(options.line), f"The table {options.table} is made of {options.source}, whose records have no type"
        )
    if topic.registered:
        message = (
            f"The table {options.table} is made of {options.source}, "
            f"whose format is {topic.format}: stores read plain JSON"
        )
        return Problem(str(options.line), message, f"Make a stream of {options.source}, and keep that")
    time = schema_of(topic.event).time_field or ""
    table = _table(
        options, topic.name, RecordSchema.from_event(topic.event).columns, options.key, time, upserts=bool(options.key)
    )
    # A field may be called otherwise in the record (msgspec's `rename`).
    names = {field.name: field.encode_name for field in msgspec.structs.fields(topic.event)}
    columns = [
        replace(column, path=(names[column.path[0]], *column.path[1:])) if column.path else column
        for column in table.columns
    ]
    return replace(table, columns=tuple(columns))


def _table(
    options: TableOptions, topic: str, fields: StructType, key: tuple[str, ...], time: str, *, upserts: bool
) -> TableSpec:
    columns = [column for field in fields.fields for column in table_columns(field.name, field.dataType)]
    if not time:
        columns.append(Column(RECORD_TIME, "timestamp", ()))
    retention = (
        -1 if options.retention is None else parse_duration_ms(options.retention, what=f"retention of {options.table}")
    )
    return TableSpec(
        options.table, topic, tuple(columns), key, upserts, time or RECORD_TIME, retention,
        options.segment, options.granularity, dict(options.rollup),
    )  # fmt: skip


def table_columns(name: str, spark_type: DataType) -> list[Column]:
    """The table columns of a stream's column: a window becomes its start, under the same name, and its end."""
    if (
        isinstance(spark_type, StructType)
        and spark_type.names == ["start", "end"]
        and _is_time(spark_type["start"].dataType)
    ):
        return [Column(name, "timestamp", (name, "start")), Column(f"{name}_end", "timestamp", (name, "end"))]
    if isinstance(spark_type, DecimalType):
        return [Column(name, f"decimal({spark_type.precision},{spark_type.scale})", (name,))]
    if type(spark_type) in _TYPES:
        return [Column(name, _TYPES[type(spark_type)], (name,))]
    # Binary is base64 and a time without a zone is ISO; lists, maps and structs stay JSON.
    simple = spark_type.typeName() in {"binary", "timestamp_ntz", "char", "varchar"}
    return [Column(name, "text" if simple else "json", (name,))]


def _is_time(spark_type: DataType) -> bool:
    return isinstance(spark_type, TimestampType)


def _table_problems(table: TableSpec, options: TableOptions) -> list[Problem]:
    """Columns that `app.store` names and the table does not have."""
    names = [column.name for column in table.columns]
    problems = [
        Problem(
            str(options.line),
            f"The table {table.name} has no column {each}, which {what} names; it has {', '.join(names)}",
        )
        for what, named_columns in (("key", table.key), ("rollup", table.rollup))
        for each in named_columns
        if each not in names
    ]
    doubled = {name for name in names if names.count(name) > 1}
    problems += [
        Problem(str(options.line), f"The table {table.name} has two columns {each}") for each in sorted(doubled)
    ]
    if table.rollup and table.upserts:
        problems.append(
            Problem(str(options.line), f"The table {table.name} is updated by key, and so cannot be rolled up")
        )
    return problems
