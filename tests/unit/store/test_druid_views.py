"""A table as Druid is asked for it, and its answers as Arrow."""

from typing import Any

import pyarrow as pa
import pytest

from riverrun.model.table import RECORD_TIME, Column, TableSpec
from riverrun.store.druid.answers import as_arrow
from riverrun.store.druid.client import Result
from riverrun.store.druid.views import count_of_keys, relation, ties

COLUMNS = (
    Column("minute", "timestamp", ("minute", "start")),
    Column("minute_end", "timestamp", ("minute", "end")),
    Column("house", "text", ("house",)),
    Column("open", "boolean", ("open",)),
    Column("load", "double", ("load",)),
)
APPENDED = TableSpec("loads", "t", COLUMNS, time="minute")
UPSERTED = TableSpec("loads", "t", COLUMNS, ("minute", "house"), True, "minute")


def test_rows_have_the_tables_names_and_types() -> None:
    assert relation(APPENDED, "meters.loads") == (
        'SELECT "__time" AS "minute", MILLIS_TO_TIMESTAMP("minute_end") AS "minute_end", "house" AS "house", '
        '("open" = 1) AS "open", "load" AS "load" FROM "meters.loads"'
    )


def test_the_newest_version_of_a_key_is_its_row() -> None:
    said = relation(UPSERTED, "meters.loads").replace(', MILLIS_TO_TIMESTAMP("__version")', "")
    assert said == (
        'SELECT "__time" AS "minute", MILLIS_TO_TIMESTAMP(LATEST_BY("minute_end")) AS "minute_end", '
        '"house" AS "house", (LATEST_BY("open") = 1) AS "open", LATEST_BY("load") AS "load" '
        'FROM "meters.loads" GROUP BY "__time", "house"'
    )


def test_rows_can_be_had_as_druid_stores_them() -> None:
    assert relation(APPENDED, "meters.loads", raw=True) == (
        'SELECT "__time" AS "__time", "minute_end" AS "minute_end", "house" AS "house", "open" AS "open", '
        '"load" AS "load" FROM "meters.loads"'
    )


def test_a_table_without_a_key_has_one_row_or_none() -> None:
    table = TableSpec("all", "t", (Column("n", "bigint", ("n",)), Column(RECORD_TIME, "timestamp", ())), upserts=True)
    assert relation(table, "a.all").endswith('FROM "a.all" HAVING COUNT(*) > 0')
    assert "CASE WHEN COUNT(*) > 0" in count_of_keys(table, "a.all")
    assert "k0" not in ties(table, "a.all")


def test_a_column_without_a_row_is_null() -> None:
    said = relation(UPSERTED, "meters.loads", {"__time", "minute_end", "house", "open"})
    assert 'CAST(NULL AS DOUBLE) AS "load"' in said


def test_a_table_without_a_row_is_empty() -> None:
    said = relation(UPSERTED, "meters.loads", frozenset())
    assert '"meters.loads"' not in said
    assert 'CAST(NULL AS TIMESTAMP) AS "minute"' in said
    assert said.endswith("WHERE x = 1")


@pytest.mark.parametrize(
    ("kind", "value", "arrow"),
    [
        ("BIGINT", 9_223_372_036_854_775_807, pa.int64()),
        ("INTEGER", 1, pa.int64()),
        ("DOUBLE", 1.5, pa.float64()),
        ("BOOLEAN", True, pa.bool_()),
        ("VARCHAR", "Zürich", pa.string()),
    ],
)
def test_values_have_the_types_of_every_store(kind: str, value: object, arrow: pa.DataType) -> None:
    table = as_arrow(Result(["x", "x"], [kind, "VARCHAR"], [[value, None], [None, "b"]]))
    assert table.schema.types == [arrow, pa.string()]
    assert table.column(0).to_pylist() == [value, None]


def test_times_are_utc_and_not_numbers_are_numbers() -> None:
    rows: list[list[Any]] = [["2026-01-02T03:04:05.678Z", "2026-01-02", "NaN"], [None, None, "Infinity"]]
    table = as_arrow(Result(["t", "d", "n"], ["TIMESTAMP", "DATE", "DOUBLE"], rows))
    assert table.schema.types == [pa.timestamp("us", "UTC"), pa.date32(), pa.float64()]
    assert table.column(0)[0].as_py().isoformat() == "2026-01-02T03:04:05.678000+00:00"
    assert str(table.column(2).to_pylist()) == "[nan, inf]"


def test_no_rows_have_types_too() -> None:
    table = as_arrow(Result(["t"], ["TIMESTAMP"], []))
    assert (table.num_rows, table.schema.types) == (0, [pa.timestamp("us", "UTC")])
