"""The table that a sink writes to: created if it does not exist, else compared with what is to be written."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from riverrun.connectors.postgres import catalog
from riverrun.connectors.postgres.address import Database
from riverrun.connectors.postgres.sql import quoted, quoted_table
from riverrun.model.connectors.jdbc import jdbc
from riverrun.model.connectors.postgres_types import base_type
from riverrun.model.table import Column, TableSpec

if TYPE_CHECKING:
    import psycopg

# A column's type in Postgres, and which other types an existing column may have.
_TYPES = {
    "text": "text",
    "boolean": "boolean",
    "bigint": "bigint",
    "double": "double precision",
    "timestamp": "timestamp with time zone",
    "date": "date",
}
_COMPATIBLE_TYPES = {
    "text": {"text", "character varying", "character", "citext", "uuid", "json", "jsonb", "inet", "bytea"},
    "bigint": {"bigint", "integer", "smallint", "numeric"},
    "double": {"double precision", "real", "numeric"},
    "timestamp": {"timestamp with time zone", "timestamp without time zone"},
    "decimal": {"numeric", "double precision"},
}


@dataclass(frozen=True)
class JdbcTarget:
    """One sink: what it writes, and where."""

    name: str
    line: str
    sink: jdbc
    table: TableSpec
    # Whether a decimal is text in the records, as an event's is, or a number, as a stream's is.
    decimals_are_text: bool

    @property
    def key(self) -> tuple[str, ...]:
        return tuple(self.sink.key) or self.table.key

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns that are written: not lists, maps and the like, and not the timestamp that only Kafka has."""
        return tuple(column for column in self.table.columns if column.path and column.type != "json")

    @property
    def deletes(self) -> bool:
        """Whether a tombstone deletes its row: its key must be that of the table, and a single column."""
        return len(self.key) == 1 and self.key == self.table.key


def sql_type(column: Column) -> str:
    if column.decimal is not None:
        return f"numeric({column.decimal[0]},{column.decimal[1]})"
    return _TYPES[column.type]


def create_sql(target: JdbcTarget) -> str:
    columns = [f"{quoted(column.name)} {sql_type(column)}" for column in target.columns]
    key = ", ".join(quoted(key_column) for key_column in target.key)
    return f"CREATE TABLE {quoted_table(target.sink.table)} ({', '.join(columns)}, PRIMARY KEY ({key}));"


def declaration_problems(target: JdbcTarget) -> list[str]:
    """Problems of the declaration, whatever the database says."""
    names = [column.name for column in target.columns]
    if not target.key:
        return [
            f"{target.line}: the rows of {target.table.name} have no key to be replaced by: say riverrun.jdbc(…, key=…)"
        ]
    if absent := [key_column for key_column in target.key if key_column not in names]:
        return [f"{target.line}: {target.table.name} has no column {absent[0]}; it has {', '.join(names)}"]
    return []


def create_or_check(target: JdbcTarget, database: Database) -> tuple[list[str], str]:
    """Problems, each with the SQL that fixes it, and what was done, if anything."""
    if problems := declaration_problems(target):
        return problems, ""
    with database.connect() as connection:
        facts = catalog.read_table(connection, target.sink.table)
        if facts is None:
            return _create(target, database, connection)
    return _differences(target, facts, database), ""


def _create(target: JdbcTarget, database: Database, connection: "psycopg.Connection[Any]") -> tuple[list[str], str]:
    import psycopg

    sql = create_sql(target)
    if not target.sink.create:
        return [f"{target.line}: there is no table {target.sink.table} in {database}. → {sql}"], ""
    try:
        connection.execute(sql)
    except (psycopg.errors.InsufficientPrivilege, psycopg.errors.InvalidSchemaName) as error:
        reason = str(error).splitlines()[0]
        return [f"{target.line}: {target.sink.table} cannot be created by {database.user} ({reason}). → {sql}"], ""
    return [], f"made the table {target.sink.table} in {database}"


def _differences(target: JdbcTarget, facts: catalog.TableFacts, database: Database) -> list[str]:
    table, name, problems = target.sink.table, quoted_table(target.sink.table), list[str]()
    if not facts.writable:
        grant = f"GRANT SELECT, INSERT, UPDATE, DELETE ON {name} TO {quoted(database.user)};"
        problems.append(f"{target.line}: {database.user} may not write {table}. → {grant}")
    for field in target.columns:
        column = facts.column(field.name)
        if column is None:
            add = f"ALTER TABLE {name} ADD COLUMN {quoted(field.name)} {sql_type(field)};"
            problems.append(f"{target.line}: {table} has no column {field.name}. → {add}")
        elif not _is_compatible(field, column.type):
            change = f"ALTER TABLE {name} ALTER COLUMN {quoted(field.name)} TYPE {sql_type(field)};"
            problems.append(
                f"{target.line}: {table}.{field.name} is {column.type}, and {sql_type(field)} is written. → {change}"
            )
    if set(facts.primary_key) != set(target.key):
        key = ", ".join(quoted(key_column) for key_column in target.key)
        change = f"ALTER TABLE {name} ADD PRIMARY KEY ({key});"
        key_text = f"keyed by {', '.join(facts.primary_key)}" if facts.primary_key else "without a primary key"
        problems.append(
            f"{target.line}: {table} is {key_text}, and rows are replaced by {', '.join(target.key)}. → {change}"
        )
    written = {field.name for field in target.columns}
    problems += [
        f"{target.line}: {table}.{column} must not be null, and nothing is written to it. → "
        f"ALTER TABLE {name} ALTER COLUMN {quoted(column)} DROP NOT NULL;"
        for column in sorted(facts.required - written - facts.defaulted)
    ]
    return problems


def _is_compatible(column: Column, existing_type: str) -> bool:
    kind = "decimal" if column.decimal is not None else column.type
    allowed = _COMPATIBLE_TYPES.get(kind, {_TYPES.get(kind, "")})
    return base_type(existing_type) in allowed and not existing_type.endswith("[]")
