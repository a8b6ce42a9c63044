"""The supervisor spec of a table, as Druid gets it."""

import json
from typing import Any

import pytest

from riverrun.errors import StoreTableError
from riverrun.model.table import RECORD_TIME, Column, TableSpec
from riverrun.store.druid.supervisor_spec import (
    IDENTITY_INTERCEPTOR,
    OFFSET_INTERCEPTOR,
    SupervisorOptions,
    TableDeclaration,
    VersionSource,
    build_supervisor_spec,
    compaction_config,
    read_declaration,
    retention_rules,
)

AT = Column("at", "timestamp", ("at",))
ALL = TableSpec(
    "everything",
    "meters.everything",
    (
        AT,
        Column("house", "text", ("house",)),
        Column("count", "bigint", ("count",)),
        Column("load", "double", ("load",)),
        Column("price", "decimal(10,2)", ("price",)),
        Column("open", "boolean", ("open",)),
        Column("seen", "timestamp", ("seen",)),
        Column("day", "date", ("day",)),
        Column("tags", "json", ("a b", 'c"d')),
        Column("minute_end", "timestamp", ("minute", "end")),
    ),
    time="at",
)
UPSERTED = TableSpec("latest", "meters.latest", (AT, Column("house", "text", ("house",))), ("house",), True, "at")


def data_schema(table: TableSpec, version: VersionSource = "offset") -> dict[str, Any]:
    return dict(spec_of(table, version)["dataSchema"])


def spec_of(table: TableSpec, version: VersionSource = "offset", **reading: Any) -> dict[str, Any]:
    consumer = {"bootstrap.servers": "127.0.0.1:9092"}
    made = build_supervisor_spec(TableDeclaration("meters", table, version), SupervisorOptions(consumer, **reading))
    return dict(made["spec"])


def test_columns_have_druids_types() -> None:
    dimensions = data_schema(ALL)["dimensionsSpec"]["dimensions"]
    assert [(dimension["name"], dimension["type"]) for dimension in dimensions] == [
        ("house", "string"),
        ("count", "long"),
        ("load", "double"),
        ("price", "double"),
        ("open", "long"),
        ("seen", "long"),
        ("day", "string"),
        ("tags", "string"),
        ("minute_end", "long"),
        ("__id", "long"),
    ]


def test_the_rows_time_is_read_by_its_own_name() -> None:
    assert data_schema(ALL)["timestampSpec"] == {"column": "at", "format": "iso"}
    assert data_schema(ALL)["dataSource"] == "meters.everything"


def test_other_times_become_milliseconds() -> None:
    transforms = {each["name"]: each["expression"] for each in data_schema(ALL)["transformSpec"]["transforms"]}
    assert transforms["seen"] == 'timestamp_parse("seen")'
    assert transforms["minute_end"] == 'timestamp_parse("minute_end")'
    assert set(transforms) == {"seen", "minute_end"}


def test_the_identity_is_a_header_where_that_can_be_had_and_else_an_expression() -> None:
    here = spec_of(ALL)
    assert here["ioConfig"]["consumerProperties"]["interceptor.classes"] == IDENTITY_INTERCEPTOR
    assert here["ioConfig"]["inputFormat"]["headerColumnPrefix"] == "__"
    elsewhere = spec_of(ALL, "time")
    assert "interceptor.classes" not in elsewhere["ioConfig"]["consumerProperties"]
    transforms = {each["name"]: each["expression"] for each in elsewhere["dataSchema"]["transformSpec"]["transforms"]}
    assert transforms["__id"] == 'parse_long(right("__riverrun-id", 15), 16)'


def test_values_are_found_by_their_paths() -> None:
    fields = spec_of(ALL)["ioConfig"]["inputFormat"]["valueFormat"]["flattenSpec"]
    by_name = {each["name"]: each for each in fields["fields"]}
    assert fields["useFieldDiscovery"] is False
    assert by_name["house"] == {"type": "root", "name": "house", "expr": "house"}
    assert by_name["minute_end"] == {"type": "tree", "name": "minute_end", "nodes": ["minute", "end"]}
    assert by_name["tags"]["type"] == "jq"
    assert by_name["tags"]["expr"].startswith(r'.["a b"]["c\"d"] | if')


def test_an_upserted_table_has_its_key_first_and_a_version() -> None:
    dimensions = data_schema(UPSERTED)["dimensionsSpec"]["dimensions"]
    assert [dimension["name"] for dimension in dimensions] == ["house", "__version"]


def test_the_version_is_the_offset_where_it_can_be_had() -> None:
    spec = spec_of(UPSERTED)["ioConfig"]
    assert spec["consumerProperties"]["interceptor.classes"] == OFFSET_INTERCEPTOR
    assert spec["inputFormat"]["headerColumnPrefix"] == "__"
    assert spec["inputFormat"]["timestampColumnName"] == "__recorded"


def test_else_the_version_is_the_records_time_and_no_header_can_be_taken_for_it() -> None:
    spec = spec_of(UPSERTED, "time")["ioConfig"]
    assert "interceptor.classes" not in spec["consumerProperties"]
    assert "headerFormat" not in spec["inputFormat"]
    assert spec["inputFormat"]["timestampColumnName"] == "__version"


@pytest.mark.parametrize("version", ["offset", "time"])
def test_a_table_without_a_time_has_the_records_own(version: VersionSource) -> None:
    table = TableSpec("counts", "c", (Column(RECORD_TIME, "timestamp", ()),), upserts=True)
    stamp = spec_of(table, version)["dataSchema"]["timestampSpec"]
    assert stamp == {"column": "__version" if version == "time" else "__recorded", "format": "millis"}
    assert spec_of(table, version)["ioConfig"]["inputFormat"]["timestampColumnName"] == stamp["column"]


def test_only_committed_records_are_read_from_the_first_and_none_is_skipped() -> None:
    spec = spec_of(ALL, task_seconds=600)
    assert spec["ioConfig"]["consumerProperties"]["isolation.level"] == "read_committed"
    assert spec["ioConfig"]["useEarliestOffset"] is True
    assert spec["ioConfig"]["taskDuration"] == "PT600S"
    assert spec["tuningConfig"]["resetOffsetAutomatically"] is False
    assert "lateMessageRejectionPeriod" not in spec["ioConfig"]
    assert "maxParseExceptions" not in spec["tuningConfig"]


def test_a_users_own_interceptor_stays() -> None:
    consumer = {"bootstrap.servers": "x:1", "interceptor.classes": "their.Own"}
    made = build_supervisor_spec(TableDeclaration("meters", UPSERTED, "offset"), SupervisorOptions(consumer))
    assert made["spec"]["ioConfig"]["consumerProperties"]["interceptor.classes"] == f"their.Own,{OFFSET_INTERCEPTOR}"


def test_a_roll_up_makes_metrics_and_needs_no_identity() -> None:
    table = TableSpec("sums", "s", ALL.columns, time="at", rollup={"load": "sum", "count": "count", "seen": "max"})
    schema = data_schema(table)
    assert schema["metricsSpec"] == [
        {"type": "count", "name": "count"},
        {"type": "doubleSum", "name": "load", "fieldName": "load"},
        {"type": "longMax", "name": "seen", "fieldName": "seen"},
    ]
    assert schema["granularitySpec"]["rollup"] is True
    assert schema["granularitySpec"]["queryGranularity"] == "MINUTE"
    names = [each["name"] for each in schema["dimensionsSpec"]["dimensions"]]
    assert "load" not in names
    assert "__id" not in names
    assert "interceptor.classes" not in spec_of(table)["ioConfig"]["consumerProperties"]


def test_text_cannot_be_summed() -> None:
    table = TableSpec("sums", "s", ALL.columns, time="at", rollup={"house": "sum"})
    with pytest.raises(StoreTableError, match=r"cannot roll up sums\.house by sum"):
        spec_of(table)


@pytest.mark.parametrize(
    ("table", "segment"),
    [
        (ALL, "DAY"),
        (TableSpec("t", "t", (AT,), time="at", retention_ms=3_600_000), "HOUR"),
        (TableSpec("t", "t", (AT,), time="at", segment_granularity="five_minute"), "FIVE_MINUTE"),
    ],
)
def test_segments_are_by_the_day_unless_rows_go_sooner(table: TableSpec, segment: str) -> None:
    assert data_schema(table)["granularitySpec"]["segmentGranularity"] == segment
    assert compaction_config("meters", table)["granularitySpec"]["segmentGranularity"] == segment


def test_retention_is_a_rule() -> None:
    assert retention_rules(ALL) == []
    week = TableSpec("t", "t", (AT,), time="at", retention_ms=7 * 86_400_000)
    assert retention_rules(week) == [
        {"type": "loadByPeriod", "period": "PT604800S", "includeFuture": True},
        {"type": "dropForever"},
    ]


def test_a_spec_says_which_table_it_is_for() -> None:
    declared = TableDeclaration("meters", ALL, "offset", {"gone": "text"})
    made = json.loads(json.dumps(build_supervisor_spec(declared, SupervisorOptions({}))))
    assert read_declaration(made) == declared


@pytest.mark.parametrize(
    "spec", [{}, {"context": None}, {"context": {"riverrun": "{"}}, {"context": {"riverrun": "{}"}}]
)
def test_a_spec_of_somebody_else_is_not_taken_for_ours(spec: dict[str, Any]) -> None:
    assert read_declaration(spec) is None
