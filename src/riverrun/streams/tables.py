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
from riverrun.model.pipeline import Kept, Line
from riverrun.model.quantity import milliseconds
from riverrun.model.table import RECORD_TIME, Column, TableSpec
from riverrun.streams.compiler import Compilation, Compiled
from riverrun.streams.graph import Problem, graph_of
from riverrun.streams.values import Shape

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
    """What `tables_of` and its kin need of an app that has no streams: no Spark is started for it."""
    return Compilation(graph_of(app), cast("SparkSession", None))


def tables_of(done: Compilation) -> list[TableSpec]:
    """All tables of the app: streams first. PipelineError when something is wrong with the app, its tables included."""
    app = done.graph.app
    problems: list[Problem] = []
    found: list[TableSpec] = []
    said = {each.source for each in app.kept.values()}
    for name, compiled in done.streams.items():
        if compiled.stream.store and name not in said:
            found.append(_of_stream(compiled, Kept(name, compiled.stream.line)))
    for kept in app.kept.values():
        if kept.source in app.streams and kept.source not in done.streams:
            continue  # What is wrong with the stream is said already.
        table = _of_stream(done.streams[kept.source], kept) if kept.source in done.streams else _of_topic(done, kept)
        if isinstance(table, Problem):
            problems.append(table)
            continue
        problems += _wrong(table, kept)
        found.append(table)
    if not problems and not done.problems:
        problems += _wrong_tiles(app, found)
        problems += _wrong_alerts(alert_rules(done)[1])
    done.problems += problems
    done.require()
    return found


def _wrong_tiles(app: App, tables: list[TableSpec]) -> list[Problem]:
    """What the dashboards ask for and the tables do not have."""
    if not app.dashboards:
        return []
    from riverrun.dash.checking import wrong_tiles

    found = wrong_tiles(app.dashboards.values(), {each.name: each for each in tables})
    return [Problem(str(line), *_said(error)) for line, error in found]


def _said(error: RiverrunError) -> tuple[str, str]:
    return error.what + (f"; expected {error.expected}" if error.expected else ""), error.hint


def alert_rules(done: Compilation) -> "tuple[list[Rule], list[tuple[Line, RiverrunError]]]":
    """The app's alerts as rules over what they watch, and what is wrong with the others, each with its line."""
    app = done.graph.app
    if not app.alerts:
        return [], []
    from riverrun.alerts.rules import rules_of_app

    return rules_of_app(app, watchable(done))


def required_rules(done: Compilation) -> "list[Rule]":
    """The app's alerts as rules; PipelineError with all that is wrong with them."""
    rules, wrong = alert_rules(done)
    if wrong:
        raise PipelineError([str(each) for each in _wrong_alerts(wrong)], file=done.graph.app.file)
    return rules


def _wrong_alerts(wrong: "Iterable[tuple[Line, RiverrunError]]") -> list[Problem]:
    return [Problem(str(line), *_said(error)) for line, error in wrong]


def watched_by(done: Compilation) -> dict[str, TableSpec]:
    """What the app's alerts do watch."""
    named = {each.watched for each in done.graph.app.alerts.values()}
    return {name: table for name, table in watchable(done).items() if name in named}


def watchable(done: Compilation) -> dict[str, TableSpec]:
    """What alerts can watch: the rows of every stream, and of every topic of events, with the key of their records."""
    found = {}
    for name, topic in done.graph.app.topics.items():
        table = _of_topic(done, Kept(name, Line("", 0)))
        if isinstance(table, TableSpec) and topic.event is not None:
            key = schema_of(topic.event).key_field
            found[name] = replace(table, key=(key,) if key else ())
    for name, compiled in done.streams.items():
        found[name] = replace(_of_stream(compiled, Kept(name, compiled.stream.line)), key=compiled.key)
    return found


def _of_stream(compiled: Compiled, kept: Kept) -> TableSpec:
    key = kept.key or (compiled.key if compiled.revises else ())
    upserts = bool(kept.key) or compiled.revises
    return _table(kept, compiled.stream.target, compiled.columns, key, compiled.time, upserts=upserts)


def _of_topic(done: Compilation, kept: Kept) -> TableSpec | Problem:
    topic = done.graph.app.topics.get(kept.source)
    if topic is None or topic.event is None:
        return Problem(str(kept.line), f"The table {kept.table} is made of {kept.source}, whose records have no type")
    if topic.registered:
        said = (
            f"The table {kept.table} is made of {kept.source}, whose format is {topic.format}: stores read plain JSON"
        )
        return Problem(str(kept.line), said, f"Make a stream of {kept.source}, and keep that")
    time = schema_of(topic.event).time_field or ""
    made = _table(kept, topic.name, Shape.of_event(topic.event).columns, kept.key, time, upserts=bool(kept.key))
    # A field may be called otherwise in the record (msgspec's `rename`).
    names = {each.name: each.encode_name for each in msgspec.structs.fields(topic.event)}
    columns = [
        replace(each, path=(names[each.path[0]], *each.path[1:])) if each.path else each for each in made.columns
    ]
    return replace(made, columns=tuple(columns))


def _table(kept: Kept, topic: str, fields: StructType, key: tuple[str, ...], time: str, *, upserts: bool) -> TableSpec:
    columns = [column for each in fields.fields for column in columns_of(each.name, each.dataType)]
    if not time:
        columns.append(Column(RECORD_TIME, "timestamp", ()))
    retention = -1 if kept.retention is None else milliseconds(kept.retention, what=f"retention of {kept.table}")
    return TableSpec(
        kept.table, topic, tuple(columns), key, upserts, time or RECORD_TIME, retention,
        kept.segment, kept.granularity, dict(kept.rollup),
    )  # fmt: skip


def columns_of(name: str, spark: DataType) -> list[Column]:
    """The columns a stream's column becomes: a window is its start by the same name, and its end."""
    if isinstance(spark, StructType) and spark.names == ["start", "end"] and _is_time(spark["start"].dataType):
        return [Column(name, "timestamp", (name, "start")), Column(f"{name}_end", "timestamp", (name, "end"))]
    if isinstance(spark, DecimalType):
        return [Column(name, f"decimal({spark.precision},{spark.scale})", (name,))]
    if type(spark) in _TYPES:
        return [Column(name, _TYPES[type(spark)], (name,))]
    # Binary is base64 and a time without a zone is ISO; lists, maps and structs stay JSON.
    simple = spark.typeName() in {"binary", "timestamp_ntz", "char", "varchar"}
    return [Column(name, "text" if simple else "json", (name,))]


def _is_time(spark: DataType) -> bool:
    return isinstance(spark, TimestampType)


def _wrong(table: TableSpec, kept: Kept) -> list[Problem]:
    """What `app.store` names and the table does not have."""
    names = [each.name for each in table.columns]
    found = [
        Problem(
            str(kept.line),
            f"The table {table.name} has no column {each}, which {what} names; it has {', '.join(names)}",
        )
        for what, given in (("key", table.key), ("rollup", table.rollup))
        for each in given
        if each not in names
    ]
    doubled = {each for each in names if names.count(each) > 1}
    found += [Problem(str(kept.line), f"The table {table.name} has two columns {each}") for each in sorted(doubled)]
    if table.rollup and table.upserts:
        found.append(Problem(str(kept.line), f"The table {table.name} is updated by key, and so cannot be rolled up"))
    return found
