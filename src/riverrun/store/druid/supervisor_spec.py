"""The supervisor spec of a table: how Druid reads the table's topic into typed columns.

What Druid 33 cannot hold as it is: a boolean is 0 or 1, a time that is not the row's own is milliseconds, a date is ISO
text, a decimal a double, JSON its text. The row's own time is `__time`, in milliseconds.

Hidden columns: `__version`, which orders the records of a key where a table upserts, and `__id`, which copies of one
record share.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from riverrun.errors import StoreTableError
from riverrun.model.table import Column, TableSpec, table_from_dict

# Where a row's version comes from. offset: partition and offset, which cluster/druid/record_headers.py adds as a
# header: strict. time: the record's timestamp, in milliseconds; records of a key in one millisecond are equal.
VersionSource = Literal["offset", "time"]

VERSION, IDENTITY = "__version", "__id"
# The key in a supervisor spec's context that holds the table's declaration.
CONTEXT_KEY = "riverrun"
# The consumer interceptors, and the headers they add, as decimal text: the record's version, offset * 65536 +
# partition; and its identity. (An attached Druid that has the first has the second: they are in one jar.)
OFFSET_INTERCEPTOR, IDENTITY_INTERCEPTOR = "riverrun.OffsetHeader", "riverrun.IdentityHeader"
# Header columns have this prefix: so these are the columns `__version` and `__id` without further transforms.
HEADER_PREFIX = "__"
_IDENTITY_HEADER = "riverrun-id"
_RECORD_TIME_COLUMN = "__recorded"

_DAY_MS = 86_400_000
_DIMENSION_TYPES = {
    "text": "string",
    "json": "string",
    "date": "string",
    "boolean": "long",
    "bigint": "long",
    "timestamp": "long",
    "double": "double",
}
_METRIC_SUFFIXES = {"sum": "Sum", "min": "Min", "max": "Max"}


@dataclass(frozen=True)
class SupervisorOptions:
    """How Druid reads from Kafka: consumer settings, task length, source of versions."""

    consumer: Mapping[str, str]
    task_seconds: int = 3600
    version: VersionSource = "time"


@dataclass(frozen=True)
class TableDeclaration:
    """A supervisor spec's own declaration: the table, and its former columns, which must not change their type."""

    app: str
    table: TableSpec
    version: VersionSource = "time"
    retired: Mapping[str, str] = field(default_factory=dict)

    def as_context(self) -> dict[str, Any]:
        # As text: Druid returns it unchanged, whatever it does to numbers and empty lists.
        content = {
            "app": self.app,
            "table": self.table.as_dict(),
            "version": self.version,
            "retired": dict(self.retired),
        }
        return {CONTEXT_KEY: json.dumps(content)}


def read_declaration(spec: Mapping[str, Any]) -> TableDeclaration | None:
    """The declaration in a supervisor's spec; None when it is not riverrun's, or cannot be read."""
    try:
        content = json.loads((spec.get("context") or {})[CONTEXT_KEY])
        return TableDeclaration(
            content["app"], table_from_dict(content["table"]), content["version"], content["retired"]
        )
    except (KeyError, TypeError, ValueError):
        return None


def datasource_name(app: str, table: str) -> str:
    return f"{app}.{table}"


def druid_type(column: Column) -> str:
    """The type of a column in Druid: string, long or double."""
    return "double" if column.decimal else _DIMENSION_TYPES[column.type]


def build_supervisor_spec(declaration: TableDeclaration, options: SupervisorOptions) -> dict[str, Any]:
    """The full spec with which Druid follows the table's topic. StoreTableError for a roll-up it cannot do."""
    table = declaration.table
    return {
        "type": "kafka",
        "spec": {
            "dataSchema": {
                "dataSource": datasource_name(declaration.app, table.name),
                "timestampSpec": _timestamp(table, declaration.version),
                "dimensionsSpec": {"dimensions": _dimensions(table)},
                "metricsSpec": [_metric(table, name, how) for name, how in sorted(table.rollup.items())],
                "granularitySpec": {
                    "type": "uniform",
                    "segmentGranularity": segment_granularity(table).upper(),
                    "queryGranularity": query_granularity(table).upper(),
                    "rollup": bool(table.rollup),
                },
                "transformSpec": {"transforms": _transforms(table, declaration.version)},
            },
            "ioConfig": {
                "topic": table.topic,
                "inputFormat": _input_format(table, declaration.version),
                "consumerProperties": _consumer_properties(table, options, declaration.version),
                "taskCount": 1,
                "replicas": 1,
                "taskDuration": f"PT{options.task_seconds}S",
                # The supervisor's own periods: how soon it starts, and how soon it notices that a task is gone.
                "startDelay": "PT1S",
                "period": "PT5S",
                "completionTimeout": "PT30M",
                "useEarliestOffset": True,
            },
            "tuningConfig": {
                "type": "kafka",
                "maxRowsPerSegment": 5_000_000,
                # A segment merges everything that was persisted since the task started, column by column, each with a
                # buffer of 64 kB outside the heap: so many at a time.
                "maxColumnsToMerge": 200,
                # What a task persists until it publishes is read once more and thrown away: not worth compressing.
                "indexSpecForIntermediatePersists": {
                    "dimensionCompression": "uncompressed",
                    "metricCompression": "none",
                },
                "offsetFetchPeriod": "PT5S",
                "httpTimeout": "PT10S",
                "shutdownTimeout": "PT10S",
                # A record that cannot be read is counted, logged and skipped; the last ones are kept to be shown.
                "logParseExceptions": True,
                "maxSavedParseExceptions": 10,
                # Records that retention deleted before they were read are an error to be seen, not skipped.
                "resetOffsetAutomatically": False,
            },
        },
        "context": declaration.as_context(),
    }


def segment_granularity(table: TableSpec) -> str:
    """A day, or an hour where rows are kept for less than three days: rows are dropped by whole segments."""
    if table.segment_granularity:
        return table.segment_granularity
    return "hour" if 0 <= table.retention_ms < 3 * _DAY_MS else "day"


def query_granularity(table: TableSpec) -> str:
    """How precisely the row's time is kept: fully. For a roll-up that does not say, the minute."""
    return table.query_granularity or ("minute" if table.rollup else "none")


def compaction_config(app: str, table: TableSpec) -> dict[str, Any]:
    """Segments of closed days (hours, …) become few and large. The newest is left to the tasks that write to it."""
    granularity = segment_granularity(table)
    skip = {"week": "P1W", "month": "P1M", "year": "P1Y", "day": "P1D"}.get(granularity, "PT6H")
    return {
        "dataSource": datasource_name(app, table.name),
        "skipOffsetFromLatest": skip,
        "granularitySpec": {"segmentGranularity": granularity.upper()},
        "tuningConfig": {"partitionsSpec": {"type": "dynamic", "maxRowsPerSegment": 5_000_000}},
    }


def retention_rules(table: TableSpec) -> list[dict[str, Any]]:
    """What is kept: everything, by the cluster's own rules, or what is younger than the table's retention."""
    if table.retention_ms < 0:
        return []
    period = f"PT{max(1, table.retention_ms // 1000)}S"
    return [{"type": "loadByPeriod", "period": period, "includeFuture": True}, {"type": "dropForever"}]


def _timestamp(table: TableSpec, version: VersionSource) -> dict[str, Any]:
    column = _time_column(table)
    if not column.path:
        return {"column": _record_time(table, version), "format": "millis"}
    return {"column": column.name, "format": "iso"}


def _record_time(table: TableSpec, version: VersionSource) -> str:
    """The name of the record's timestamp in Druid's input format."""
    return VERSION if table.upserts and version == "time" else _RECORD_TIME_COLUMN


def _time_column(table: TableSpec) -> Column:
    column = table.column(table.time)
    if column is None:
        raise StoreTableError(
            f"The table {table.name} has no column {table.time}, which is to be its time", table=table.name
        )
    return column


def _dimensions(table: TableSpec) -> list[dict[str, Any]]:
    named = [*table.key, *(spec_column.name for spec_column in table.columns if spec_column.name not in table.key)]
    stored_columns = [
        column for name in named if (column := table.column(name)) and name != table.time and name not in table.rollup
    ]
    dimensions = [{"type": druid_type(spec_column), "name": spec_column.name} for spec_column in stored_columns]
    if table.upserts:
        dimensions.append({"type": "long", "name": VERSION})
    elif not table.rollup:
        dimensions.append({"type": "long", "name": IDENTITY})
    return dimensions


def _metric(table: TableSpec, name: str, how: str) -> dict[str, Any]:
    if how == "count":
        return {"type": "count", "name": name}
    column = table.column(name)
    kind = druid_type(column) if column else ""
    if kind not in ("long", "double") or how not in _METRIC_SUFFIXES:
        raise StoreTableError(
            f"Druid cannot roll up {table.name}.{name} by {how}",
            expected="sum, min or max of a number or time, or count",
            found=f"{how} of {column.type if column else 'no column'}",
            table=table.name,
            column=name,
        )
    return {"type": f"{kind}{_METRIC_SUFFIXES[how]}", "name": name, "fieldName": name}


def _transforms(table: TableSpec, version: VersionSource) -> list[dict[str, Any]]:
    transforms = [
        _expression(
            column.name, f"timestamp_parse({_quoted(column.name)})" if column.path else _quoted(_RECORD_TIME_COLUMN)
        )
        for column in table.columns
        if column.type == "timestamp" and column.name != table.time
    ]
    if version == "time" and not table.upserts and not table.rollup:
        # The lower 60 bits of the writer's identity: as text, each row's would be kept in memory.
        identity = f"parse_long(right({_quoted(HEADER_PREFIX + _IDENTITY_HEADER)}, 15), 16)"
        transforms.append(_expression(IDENTITY, identity))
    return transforms


def _input_format(table: TableSpec, version: VersionSource) -> dict[str, Any]:
    flatten = {"useFieldDiscovery": False, "fields": [_field(column) for column in table.columns if column.path]}
    input_format: dict[str, Any] = {
        "type": "kafka",
        "valueFormat": {"type": "json", "flattenSpec": flatten},
        "timestampColumnName": _record_time(table, version),
        "topicColumnName": "__topic",
    }
    # By time alone no header is read: a header of that name would be taken for the version.
    if version == "offset" if table.upserts else not table.rollup:
        input_format |= {"headerFormat": {"type": "string"}, "headerColumnPrefix": HEADER_PREFIX}
    return input_format


def _field(column: Column) -> dict[str, Any]:
    if column.type == "json":
        # The text as it is; Druid's own expressions would give all elements of a list one type.
        jq_path = "".join(f"[{json.dumps(step)}]" for step in column.path)
        return {"type": "jq", "name": column.name, "expr": f".{jq_path} | if . == null then null else tojson end"}
    if len(column.path) == 1:
        return {"type": "root", "name": column.name, "expr": column.path[0]}
    return {"type": "tree", "name": column.name, "nodes": list(column.path)}


def _consumer_properties(table: TableSpec, options: SupervisorOptions, version: VersionSource) -> dict[str, str]:
    properties = {**options.consumer, "isolation.level": "read_committed"}
    named = properties.pop("interceptor.classes", "").split(",")
    chosen = [
        interceptor
        for interceptor in named
        if interceptor and interceptor not in (OFFSET_INTERCEPTOR, IDENTITY_INTERCEPTOR)
    ]
    if version == "offset" and not table.rollup:
        chosen.append(OFFSET_INTERCEPTOR if table.upserts else IDENTITY_INTERCEPTOR)
    return properties | ({"interceptor.classes": ",".join(chosen)} if chosen else {})


def _expression(name: str, expression: str) -> dict[str, Any]:
    return {"type": "expression", "name": name, "expression": expression}


def _quoted(name: str) -> str:
    return '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'
