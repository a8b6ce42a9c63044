# ruff: noqa: S608  -- SQL is made here, of names and values that are quoted
"""What is in the store's file: a table of rows for every table, a view by its name, and what riverrun knows of them.

- `_rows."NAME"`: the rows, with columns that were declared once and are no more. Views in `main` show what is declared now.
- `_seen."NAME"`: identities of recent records, of tables whose records have them.
- `_riverrun`: the tables as declared with their counts and positions, and the records that did not fit.
"""

import json
from collections.abc import Sequence

from riverrun.errors import StoreError, StoreTableError
from riverrun.model.table import Column, TableSpec, table_from
from riverrun.store.embedded.session import Session

FORMAT = 1
_TYPES = {
    "text": "VARCHAR", "boolean": "BOOLEAN", "bigint": "BIGINT", "double": "DOUBLE", "timestamp": "TIMESTAMPTZ",
    "date": "DATE", "json": "VARCHAR",
}  # fmt: skip
# Settings of a table that may change at any time: they say nothing of rows that are there.
_FREE = frozenset({"columns", "retention_ms", "segment_granularity", "query_granularity", "rollup", "generations"})
_META = f"""
CREATE SCHEMA IF NOT EXISTS _riverrun;
CREATE SCHEMA IF NOT EXISTS _rows;
CREATE SCHEMA IF NOT EXISTS _seen;
CREATE TABLE IF NOT EXISTS _riverrun.about (format INTEGER);
INSERT INTO _riverrun.about SELECT {FORMAT} WHERE NOT EXISTS (FROM _riverrun.about);
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


def quoted(name: str) -> str:
    """A name in SQL."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """Text in SQL."""
    return "'" + text.replace("'", "''") + "'"


def rows_of(table: str) -> str:
    return f"_rows.{quoted(table)}"


def seen_of(table: str) -> str:
    return f"_seen.{quoted(table)}"


def type_of(column: Column) -> str:
    """The column's type in DuckDB."""
    return f"DECIMAL{column.decimal[0], column.decimal[1]}" if column.decimal else _TYPES[column.type]


def prepare(database: Session) -> None:
    """Make what every store's file has. StoreError for one of a later riverrun."""
    database.run(f"BEGIN; {_META} COMMIT")
    found = database.run("FROM _riverrun.about")
    if found != [(FORMAT,)]:
        raise StoreError(
            "The store's file is of another riverrun",
            expected=f"format {FORMAT}",
            found=f"format {found[0][0]}" if found else "none",
            hint="Use the riverrun that wrote it, or remove the file: the tables are read anew from their topics",
        )


def load_tables(database: Session) -> dict[str, TableSpec]:
    rows = database.run("SELECT name, spec FROM _riverrun.tables ORDER BY name")
    return {name: table_from(json.loads(spec)) for name, spec in rows}


def creation(table: TableSpec) -> list[str]:
    """The statements that make a table that nobody sees yet."""
    columns = ", ".join(f"{quoted(each.name)} {type_of(each)}" for each in table.columns)
    return [
        f"CREATE TABLE {rows_of(table.name)} ({columns})",
        f"CREATE TABLE {seen_of(table.name)} (identity UBIGINT, sent BIGINT)",
        "INSERT INTO _riverrun.tables (name, spec) VALUES "
        f"({literal(table.name)}, {literal(json.dumps(table.as_dict()))})",
    ]


def changes(
    database: Session, before: TableSpec | None, table: TableSpec, *, replaces: str = ""
) -> tuple[list[str], list[str]]:
    """The statements that make a table what is declared, and a sentence for each thing that changes for its readers. One
    that is to replace another has no readers yet.

    StoreTableError when rows that are there do not allow it.
    """
    _check_names(table)
    if before is None:
        return (
            [*creation(table), view(table)],
            [f"The table {table.name} is new, of {len(table.columns)} columns, from the topic {table.topic}"],
        )
    if before == table:
        return [], []
    _refuse(before, table)
    there = {
        name.lower(): kind
        for name, kind in database.run(
            "SELECT column_name, data_type FROM duckdb_columns() WHERE schema_name = '_rows' AND table_name = ?",
            [table.name],
        )
    }
    added = [each for each in table.columns if each.name.lower() not in there]
    for each in table.columns:
        _refuse_type(table, each, there.get(each.name.lower()))
    shown = {each.name for each in before.columns}
    new = [each for each in table.columns if each.name not in shown]
    hidden = [each for each in before.columns if table.column(each.name) is None]
    said = [f"The table {table.name} has a new column {each.name} ({each.type})" for each in new]
    said += [f"The table {table.name} shows its column {each.name} no more" for each in hidden]
    if before.retention_ms != table.retention_ms:
        kept = f"{table.retention_ms / 1000:.0f} s" if table.retention_ms >= 0 else "forever"
        said.append(f"The table {table.name} keeps its rows {kept}")
    return (
        [
            *(f"ALTER TABLE {rows_of(table.name)} ADD COLUMN {quoted(each.name)} {type_of(each)}" for each in added),
            *([] if replaces else [view(table)]),
            stored(table),
        ],
        said,
    )


def stored(table: TableSpec) -> str:
    """The statement that writes a table's declaration."""
    return (
        f"UPDATE _riverrun.tables SET spec = {literal(json.dumps(table.as_dict()))} WHERE name = {literal(table.name)}"
    )


def removal(table: str) -> list[str]:
    """The statements that drop a table and everything known of it."""
    name = literal(table)
    return [
        f"DROP VIEW IF EXISTS main.{quoted(table)}",
        f"DROP TABLE IF EXISTS {rows_of(table)}",
        f"DROP TABLE IF EXISTS {seen_of(table)}",
        f"DELETE FROM _riverrun.tables WHERE name = {name}",
        f'DELETE FROM _riverrun.rejected WHERE "table" = {name}',
    ]


def view(table: TableSpec) -> str:
    """The statement by which readers see a table."""
    columns = ", ".join(quoted(each.name) for each in table.columns)
    return f"CREATE OR REPLACE VIEW main.{quoted(table.name)} AS SELECT {columns} FROM {rows_of(table.name)}"


def _refuse(before: TableSpec, table: TableSpec) -> None:
    """Raise for what cannot change under rows that are there."""
    was, now = before.as_dict(), table.as_dict()
    for name in sorted(was.keys() - _FREE):
        if was[name] != now[name]:
            raise StoreTableError(
                f"The table {table.name} cannot have another {'way to keep rows' if name == 'upserts' else name}",
                expected=_said(name, was[name]),
                found=_said(name, now[name]),
                hint=_way_out(table.name),
                table=table.name,
            )


def _said(name: str, value: object) -> str:
    if name == "upserts":
        return "rows that are updated by key" if value else "every record as a row"
    return (", ".join(value) or "none") if isinstance(value, Sequence) and not isinstance(value, str) else str(value)


def _refuse_type(table: TableSpec, column: Column, kind: str | None) -> None:
    wanted = "TIMESTAMP WITH TIME ZONE" if column.type == "timestamp" else type_of(column).replace(", ", ",")
    if kind is not None and kind != wanted:
        raise StoreTableError(
            f"The column {column.name} of the table {table.name} cannot change its type",
            expected=kind.lower(),
            found=f"{column.type} ({wanted.lower()})",
            hint=_way_out(table.name),
            table=table.name,
            column=column.name,
        )


def _way_out(table: str) -> str:
    return f"Give the table another name, or let it be made anew from its topic: riverrun tables remove {table}"


def _check_names(table: TableSpec) -> None:
    """What DuckDB's names cannot be, and a path that is a value and an object at once."""
    lower = [each.name.lower() for each in table.columns]
    twice = sorted({each.name for each in table.columns if lower.count(each.name.lower()) > 1})
    leaves = [each.path for each in table.columns if each.path]
    inside = [path for path in leaves if any(other != path and other[: len(path)] == path for other in leaves)]
    ours = [each.name for each in table.columns if each.name.startswith("~")]
    if not table.columns or twice or inside or ours or table.name.startswith("_"):
        raise StoreTableError(
            f"The table {table.name} cannot be kept",
            expected="a name that does not begin with _, and columns of which none is inside another, with names that "
            "differ by more than capitals and do not begin with ~",
            found=", ".join(twice or ours) or ", ".join(".".join(each) for each in inside) or table.name,
            table=table.name,
        )
