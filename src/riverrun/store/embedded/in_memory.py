"""Queries over rows in memory: the embedded store's SQL without its file, its reader and its process."""

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa

from riverrun.model.table import Column, TableSpec
from riverrun.store.contract import QueryLimits
from riverrun.store.embedded.queries import QueryRunner
from riverrun.store.embedded.schema import duckdb_type, quote_identifier
from riverrun.store.formats import to_dicts

if TYPE_CHECKING:
    from datetime import datetime

_ARROW_TYPES = {"text": pa.string(), "bigint": pa.int64(), "double": pa.float64(), "boolean": pa.bool_(),
                "json": pa.string(), "timestamp": pa.timestamp("us", "UTC"), "date": pa.date32()}  # fmt: skip


def query_rows(
    sql: str, tables: Mapping[str, TableSpec], rows: Mapping[str, Sequence[Mapping[str, Any]]]
) -> list[dict[str, Any]]:
    """The result of a query in riverrun's SQL over these rows, one dict per row. `rows` maps table names to records'
    values; a table that is not in it is empty. Of a table that is updated by key, the last row of each key counts."""
    with duckdb.connect() as database:
        database.execute("SET TimeZone = 'UTC'")
        for spec in tables.values():
            _create_table(database, spec, rows.get(spec.name, ()))
        runner = QueryRunner(lambda: database)
        try:
            result = runner.query(sql, tables, QueryLimits(), "")
        finally:
            runner.close()
    return to_dicts(result.rows)


def newest_time(spec: TableSpec, rows: Sequence[Mapping[str, Any]]) -> "datetime | None":
    """The newest time in a table's rows."""
    column = spec.column(spec.time)
    times = [] if column is None or not column.path else [_column_value(column, row) for row in rows]
    return max((value for value in times if value is not None), default=None)


def _create_table(database: duckdb.DuckDBPyConnection, spec: TableSpec, rows: Sequence[Mapping[str, Any]]) -> None:
    records = [{column.name: _column_value(column, row) for column in spec.columns} for row in rows]
    if spec.upserts:
        records = list({tuple(row[name] for name in spec.key): row for row in records}.values())
    columns = ", ".join(f"{quote_identifier(column.name)} {duckdb_type(column)}" for column in spec.columns)
    database.execute(f"CREATE TABLE {quote_identifier(spec.name)} ({columns})")
    values = {
        column.name: pa.array([row[column.name] for row in records], _arrow_type(column)) for column in spec.columns
    }
    found = pa.table(values)  # noqa: F841  -- DuckDB finds it by its name
    database.execute(f"INSERT INTO {quote_identifier(spec.name)} SELECT * FROM found")  # noqa: S608  -- quoted above


def _arrow_type(column: Column) -> pa.DataType:
    return pa.decimal128(*column.decimal) if column.decimal else _ARROW_TYPES[column.type]


def _column_value(column: Column, row: Mapping[str, Any]) -> Any:
    """A column's value in a record's value; the record's own time is not available."""
    if not column.path:
        return None
    value: Any = row
    for part in column.path:
        value = None if value is None else value.get(part)
    return value if column.type != "json" or value is None else json.dumps(value, default=str)
