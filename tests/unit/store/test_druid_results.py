"""What Druid is asked for a table's standing, and its answers as Arrow."""

from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from riverrun.model.table import Column, TableSpec
from riverrun.store.druid.client import DruidSqlResult
from riverrun.store.druid.results import to_arrow
from riverrun.store.druid.status_queries import row_count_sql, tied_keys_sql

LATEST = TableSpec(
    "loads", "t", (Column("at", "timestamp", ("at",)), Column("house", "text", ("house",))), ("at", "house"), True, "at"
)


def test_an_upserted_table_has_as_many_rows_as_keys() -> None:
    assert row_count_sql(LATEST, "m.loads", has_duplicates=False) == (
        'SELECT COUNT(*) FROM (SELECT "__time", "house" FROM "m.loads" GROUP BY "__time", "house")'
    )
    assert "CASE WHEN COUNT(*) > 0" in row_count_sql(replace(LATEST, key=()), "m.loads", has_duplicates=False)


def test_copies_of_a_record_count_once() -> None:
    appended = replace(LATEST, key=(), upserts=False)
    assert row_count_sql(appended, "m.loads", has_duplicates=False) == 'SELECT COUNT(*) FROM "m.loads"'
    assert row_count_sql(appended, "m.loads", has_duplicates=True) == 'SELECT COUNT(DISTINCT "__id") FROM "m.loads"'


def test_newest_records_of_one_version_are_counted_by_key() -> None:
    said = tied_keys_sql(LATEST, "m.loads")
    assert 'GROUP BY "__time", "house", "__version"' in said
    assert said.endswith("GROUP BY k0, k1) WHERE n > 1")
    assert "k0" not in tied_keys_sql(replace(LATEST, key=()), "m.loads")


@pytest.mark.parametrize(
    ("word", "kind", "value", "arrow", "shown"),
    [
        ("boolean", "BIGINT", 1, pa.bool_(), True),
        ("date", "VARCHAR", "2026-01-02", pa.date32(), date(2026, 1, 2)),
        ("timestamp", "BIGINT", 1_500, pa.timestamp("us", "UTC"), datetime(1970, 1, 1, 0, 0, 1, 500_000, tzinfo=UTC)),
        ("decimal(10,2)", "DOUBLE", 19.99, pa.decimal128(10, 2), Decimal("19.99")),
        ("double", "BIGINT", 2, pa.float64(), 2.0),
    ],
)
def test_what_druid_keeps_otherwise_has_the_type_it_was_declared_with(
    word: str, kind: str, value: object, arrow: pa.DataType, shown: object
) -> None:
    table = to_arrow(DruidSqlResult(["x"], [kind], [[value], [None]]), [word])
    assert table.schema.types == [arrow]
    assert table.column(0).to_pylist() == [shown, None]


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
    table = to_arrow(DruidSqlResult(["x", "x"], [kind, "VARCHAR"], [[value, None], [None, "b"]]))
    assert table.schema.types == [arrow, pa.string()]
    assert table.column(0).to_pylist() == [value, None]


def test_times_are_utc_and_not_numbers_are_numbers() -> None:
    rows: list[list[Any]] = [["2026-01-02T03:04:05.678Z", "2026-01-02", "NaN"], [None, None, "Infinity"]]
    table = to_arrow(DruidSqlResult(["t", "d", "n"], ["TIMESTAMP", "DATE", "DOUBLE"], rows))
    assert table.schema.types == [pa.timestamp("us", "UTC"), pa.date32(), pa.float64()]
    assert table.column(0)[0].as_py().isoformat() == "2026-01-02T03:04:05.678000+00:00"
    assert str(table.column(2).to_pylist()) == "[nan, inf]"


def test_no_rows_have_types_too() -> None:
    table = to_arrow(DruidSqlResult(["t"], ["TIMESTAMP"], []))
    assert (table.num_rows, table.schema.types) == (0, [pa.timestamp("us", "UTC")])
