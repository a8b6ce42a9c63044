# ruff: noqa: S608  -- SQL is made here, of names and values that are quoted
"""The schema of the store's file: a row table and a view for every table, and riverrun's metadata.

- `_rows."NAME"`: the rows, including columns that are no longer declared. Views in `main` show the declared ones.
- `_seen."NAME"`: identities of recent records, for tables whose records have them.
- `_riverrun`: the tables as declared with their counts and positions, and the rejected rows.
"""

import json
from collections.abc import Sequence

from riverrun.errors import StoreError, StoreTableError
from riverrun.model.table import Column, TableSpec, table_from_dict
from riverrun.store.embedded.session import DuckDBSession

FILE_FORMAT = 1
_TYPES = {
    "text": "VARCHAR", "boolean": "BOOLEAN", "bigint": "BIGINT", "double": "DOUBLE", "timestamp": "TIMESTAMPTZ",
    "date": "DATE", "json": "VARCHAR",
}  # fmt: skip
# Settings of a table that may change at any time: they do not affect existing rows.
_MUTABLE_SETTINGS = frozenset(
    {"columns", "retention_ms", "segment_granularity", "query_granularity", "rollup", "generations"}
)
_METADATA_SQL = f"""
CREATE SCHEMA IF NOT EXISTS _riverrun;
CREATE SCHEMA IF NOT EXISTS _rows;
CREATE SCHEMA IF NOT EXISTS _seen;
CREATE TABLE IF NOT EXISTS _riverrun.about (format INTEGER);
INSERT INTO _riverrun.about SELECT {FILE_FORMAT} WHERE NOT EXISTS (FROM _riverrun.about);
CREATE TABLE IF NOT EXISTS _riverrun.tables (
    name VARCHAR, spec VARCHAR, topic_id VARCHAR DEFAULT '', positions VARCHAR DEFAULT '{{}}',
    rows BIGINT DEFAULT 0, rejected BIGINT DEFAULT 0, repeated BIGINT DEFAULT 0,
    gone BIGINT DEFAULT 0, newest DOUBLE DEFAULT 0, updated DOUBLE DEFAULT 0
);
CREATE TABLE IF NOT EXISTS _riverrun.rejected (
    "table" VARCHAR, topic VARCHAR, partition INTEGER, "offset" BIGINT, reason VARCHAR, bytes BLOB
);
ALTER TABLE _riverrun.tables ADD COLUMN IF NOT EXISTS generation INTEGER DEFAULT 1;
ALTER TABLE _riverrun.tables ADD COLUMN IF NOT EXISTS replaces VARCHAR DEFAULT '';
"""


def quote_identifier(name: str) -> str:
    """A quoted identifier in SQL."""
    return '"' + name.replace('"', '""') + '"'


def quote_literal(text: str) -> str:
    """A quoted text in SQL."""
    return "'" + text.replace("'", "''") + "'"


def rows_table(table: str) -> str:
    return f"_rows.{quote_identifier(table)}"


def identities_table(table: str) -> str:
    return f"_seen.{quote_identifier(table)}"


def duckdb_type(column: Column) -> str:
    """The column's type in DuckDB."""
    return f"DECIMAL{column.decimal[0], column.decimal[1]}" if column.decimal else _TYPES[column.type]


def create_metadata(database: DuckDBSession) -> None:
    """Create the metadata tables of a store's file. StoreError for a file of a later riverrun."""
    database.run(f"BEGIN; {_METADATA_SQL} COMMIT")
    rows = database.run("FROM _riverrun.about")
    if rows != [(FILE_FORMAT,)]:
        raise StoreError(
            "The store's file is of another riverrun",
            expected=f"format {FILE_FORMAT}",
            found=f"format {rows[0][0]}" if rows else "none",
            hint="Use the riverrun that wrote it, or remove the file: the tables are read anew from their topics",
        )


def load_tables(database: DuckDBSession) -> dict[str, TableSpec]:
    rows = database.run("SELECT name, spec FROM _riverrun.tables ORDER BY name")
    return {name: table_from_dict(json.loads(spec)) for name, spec in rows}


def create_statements(table: TableSpec) -> list[str]:
    """The statements that create a table that nobody sees yet."""
    columns = ", ".join(f"{quote_identifier(column.name)} {duckdb_type(column)}" for column in table.columns)
    return [
        f"CREATE TABLE {rows_table(table.name)} ({columns})",
        f"CREATE TABLE {identities_table(table.name)} (identity UBIGINT, sent BIGINT)",
        "INSERT INTO _riverrun.tables (name, spec) VALUES "
        f"({quote_literal(table.name)}, {quote_literal(json.dumps(table.as_dict()))})",
    ]


def plan_changes(
    database: DuckDBSession, before: TableSpec | None, table: TableSpec, *, replaces: str = ""
) -> tuple[list[str], list[str]]:
    """The statements that make a table what is declared, and a sentence for each change that readers see. A table that
    is to replace another has no readers yet.

    StoreTableError when existing rows do not allow it.
    """
    _check_names(table)
    if before is None:
        return (
            [*create_statements(table), view_statement(table)],
            [f"The table {table.name} is new, of {len(table.columns)} columns, from the topic {table.topic}"],
        )
    if before == table:
        return [], []
    _check_settings(before, table)
    existing = {
        name.lower(): kind
        for name, kind in database.run(
            "SELECT column_name, data_type FROM duckdb_columns() WHERE schema_name = '_rows' AND table_name = ?",
            [table.name],
        )
    }
    added = [column for column in table.columns if column.name.lower() not in existing]
    for column in table.columns:
        _check_type(table, column, existing.get(column.name.lower()))
    shown = {column.name for column in before.columns}
    new = [column for column in table.columns if column.name not in shown]
    hidden = [column for column in before.columns if table.column(column.name) is None]
    sentences = [f"The table {table.name} has a new column {column.name} ({column.type})" for column in new]
    sentences += [f"The table {table.name} shows its column {column.name} no more" for column in hidden]
    if before.retention_ms != table.retention_ms:
        retention = f"{table.retention_ms / 1000:.0f} s" if table.retention_ms >= 0 else "forever"
        sentences.append(f"The table {table.name} keeps its rows {retention}")
    return (
        [
            *(
                f"ALTER TABLE {rows_table(table.name)} ADD COLUMN {quote_identifier(column.name)} {duckdb_type(column)}"
                for column in added
            ),
            *([] if replaces else [view_statement(table)]),
            update_spec_statement(table),
        ],
        sentences,
    )


def update_spec_statement(table: TableSpec) -> str:
    """The statement that writes a table's declaration."""
    return (
        f"UPDATE _riverrun.tables SET spec = {quote_literal(json.dumps(table.as_dict()))} "
        f"WHERE name = {quote_literal(table.name)}"
    )


def drop_statements(table: str) -> list[str]:
    """The statements that drop a table and all its metadata."""
    name = quote_literal(table)
    return [
        f"DROP VIEW IF EXISTS main.{quote_identifier(table)}",
        f"DROP TABLE IF EXISTS {rows_table(table)}",
        f"DROP TABLE IF EXISTS {identities_table(table)}",
        f"DELETE FROM _riverrun.tables WHERE name = {name}",
        f'DELETE FROM _riverrun.rejected WHERE "table" = {name}',
    ]


def view_statement(table: TableSpec) -> str:
    """The statement that creates the view by which readers see a table."""
    columns = ", ".join(quote_identifier(column.name) for column in table.columns)
    return (
        f"CREATE OR REPLACE VIEW main.{quote_identifier(table.name)} AS SELECT {columns} FROM {rows_table(table.name)}"
    )


def _check_settings(before: TableSpec, table: TableSpec) -> None:
    """Raise for a change that existing rows do not allow."""
    was, now = before.as_dict(), table.as_dict()
    for name in sorted(was.keys() - _MUTABLE_SETTINGS):
        if was[name] != now[name]:
            raise StoreTableError(
                f"The table {table.name} cannot have another {'way to keep rows' if name == 'upserts' else name}",
                expected=_describe_value(name, was[name]),
                found=_describe_value(name, now[name]),
                hint=_rebuild_hint(table.name),
                table=table.name,
            )


def _describe_value(name: str, value: object) -> str:
    if name == "upserts":
        return "rows that are updated by key" if value else "every record as a row"
    return (", ".join(value) or "none") if isinstance(value, Sequence) and not isinstance(value, str) else str(value)


def _check_type(table: TableSpec, column: Column, kind: str | None) -> None:
    expected_type = "TIMESTAMP WITH TIME ZONE" if column.type == "timestamp" else duckdb_type(column).replace(", ", ",")
    if kind is not None and kind != expected_type:
        raise StoreTableError(
            f"The column {column.name} of the table {table.name} cannot change its type",
            expected=kind.lower(),
            found=f"{column.type} ({expected_type.lower()})",
            hint=_rebuild_hint(table.name),
            table=table.name,
            column=column.name,
        )


def _rebuild_hint(table: str) -> str:
    return f"Give the table another name, or let it be made anew from its topic: riverrun tables remove {table}"


def _check_names(table: TableSpec) -> None:
    """Refuse names that DuckDB does not allow, and a path that is a value and an object at once."""
    lower = [column.name.lower() for column in table.columns]
    twice = sorted({column.name for column in table.columns if lower.count(column.name.lower()) > 1})
    leaves = [column.path for column in table.columns if column.path]
    inside = [path for path in leaves if any(other != path and other[: len(path)] == path for other in leaves)]
    ours = [column.name for column in table.columns if column.name.startswith("~")]
    if not table.columns or twice or inside or ours or table.name.startswith("_"):
        raise StoreTableError(
            f"The table {table.name} cannot be kept",
            expected="a name that does not begin with _, and columns of which none is inside another, with names that "
            "differ by more than capitals and do not begin with ~",
            found=", ".join(twice or ours) or ", ".join(".".join(path) for path in inside) or table.name,
            table=table.name,
        )
