"""Questions over rows that are at hand: the embedded store's SQL without its file, its reader and its process."""

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa

from riverrun.model.table import Column, TableSpec
from riverrun.store.contract import Limits
from riverrun.store.embedded.asking import Asking
from riverrun.store.embedded.schema import quoted, type_of
from riverrun.store.formats import dicts

if TYPE_CHECKING:
    from datetime import datetime

_ARROW = {"text": pa.string(), "bigint": pa.int64(), "double": pa.float64(), "boolean": pa.bool_(), "json": pa.string(),
          "timestamp": pa.timestamp("us", "UTC"), "date": pa.date32()}  # fmt: skip


def ask_rows(
    sql: str, tables: Mapping[str, TableSpec], rows: Mapping[str, Sequence[Mapping[str, Any]]]
) -> list[dict[str, Any]]:
    """The answer to a question in riverrun's SQL over these rows, a dict a row. `rows` are records' values by their tables'
    names; a table that is not in it is empty. Of a table that is updated by key, the last row of each key counts."""
    with duckdb.connect() as database:
        database.execute("SET TimeZone = 'UTC'")
        for spec in tables.values():
            _fill(database, spec, rows.get(spec.name, ()))
        asking = Asking(lambda: database)
        try:
            answer = asking.ask(sql, tables, Limits(), "")
        finally:
            asking.close()
    return dicts(answer.rows)


def newest_of(spec: TableSpec, rows: Sequence[Mapping[str, Any]]) -> "datetime | None":
    """The newest time there is in a table's rows."""
    column = spec.column(spec.time)
    times = [] if column is None or not column.path else [_value(column, row) for row in rows]
    return max((each for each in times if each is not None), default=None)


def _fill(database: duckdb.DuckDBPyConnection, spec: TableSpec, rows: Sequence[Mapping[str, Any]]) -> None:
    made = [{each.name: _value(each, row) for each in spec.columns} for row in rows]
    if spec.upserts:
        made = list({tuple(row[name] for name in spec.key): row for row in made}.values())
    columns = ", ".join(f"{quoted(each.name)} {type_of(each)}" for each in spec.columns)
    database.execute(f"CREATE TABLE {quoted(spec.name)} ({columns})")
    values = {each.name: pa.array([row[each.name] for row in made], _arrow(each)) for each in spec.columns}
    found = pa.table(values)  # noqa: F841  -- DuckDB finds it by its name
    database.execute(f"INSERT INTO {quoted(spec.name)} SELECT * FROM found")  # noqa: S608  -- quoted above


def _arrow(column: Column) -> pa.DataType:
    return pa.decimal128(*column.decimal) if column.decimal else _ARROW[column.type]


def _value(column: Column, row: Mapping[str, Any]) -> Any:
    """A column's value in a record's; a record's own time is not at hand."""
    if not column.path:
        return None
    value: Any = row
    for part in column.path:
        value = None if value is None else value.get(part)
    return value if column.type != "json" or value is None else json.dumps(value, default=str)
