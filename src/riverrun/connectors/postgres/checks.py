"""What must hold before a database can be captured: all problems at once, each with the SQL that fixes it.

A problem ("fail") would end in no rows, wrong rows, or a source application whose updates Postgres refuses. With a warning
the pipeline runs.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from uuid import UUID

import msgspec

from riverrun.config.spec import PostgresSettings
from riverrun.connectors.postgres import catalog
from riverrun.connectors.postgres.address import Database, database_of
from riverrun.connectors.postgres.capture import CHANGE_FIELDS, CapturedTable, CdcConnector
from riverrun.connectors.postgres.columns import missing_table_problem
from riverrun.connectors.postgres.debezium import field_types
from riverrun.connectors.postgres.sql import quoted, quoted_table, sql_literal
from riverrun.errors import ConfigError, DatabaseError
from riverrun.model.connectors.postgres_types import PgColumn

if TYPE_CHECKING:
    import psycopg

MIN_VERSION = 130000
# From here on, the WAL that a slot retains is worth a warning.
WAL_WARNING_BYTES = 1 << 30
# The types that Debezium was seen to read again when an update left a long value unchanged, and the same for arrays.
_LONG_VALUES = ("text", "character varying", "character", "json", "jsonb", "xml", "citext", "hstore")
_LONG_LISTS = ("text", "character varying", "integer", "bigint")
CheckState = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class DatabaseCheck:
    """One check and its result. `sql` fixes it; it is for a user with the rights, often not the one who logs in here."""

    database: str
    check: str
    state: CheckState
    found: str
    sql: str = ""

    @property
    def message(self) -> str:
        return f"{self.database}: {self.found}." + (f" → {self.sql}" if self.sql else "")


class CheckResults:
    """The check results of one database."""

    def __init__(self, database: str) -> None:
        self._database = database
        self.all: list[DatabaseCheck] = []

    def ok(self, check: str, found: str) -> None:
        self.all.append(DatabaseCheck(self._database, check, "ok", found))

    def warn(self, check: str, found: str, sql: str = "") -> None:
        self.all.append(DatabaseCheck(self._database, check, "warn", found, sql))

    def fail(self, check: str, found: str, sql: str = "") -> None:
        self.all.append(DatabaseCheck(self._database, check, "fail", found, sql))


def failures(found: Iterable[DatabaseCheck]) -> list[str]:
    return [check.message for check in found if check.state == "fail"]


def check_databases(
    connectors: Sequence[CdcConnector], settings: PostgresSettings, root: Path, *, fix: bool = False
) -> list[DatabaseCheck]:
    """Check all databases. `fix`: make the publication, or add tables to it, where our login may and nothing is wrong."""
    results: list[DatabaseCheck] = []
    for name in dict.fromkeys(connector.database for connector in connectors):
        database_connectors = [connector for connector in connectors if connector.database == name]
        try:
            database = database_of(settings, name, root)
        except ConfigError as error:
            results += [DatabaseCheck(name or "postgres", "settings", "fail", problem) for problem in error.problems]
            continue
        checks = CheckResults(database.dbname)
        try:
            with database.connect() as connection:
                _check_database(checks, connection, database, database_connectors, fix=fix)
        except DatabaseError as error:
            checks.fail("login", f"{error.what}: {error.found}" if error.found else error.what)
        results += checks.all
    return results


def _check_database(
    checks: CheckResults,
    connection: "psycopg.Connection[Any]",
    database: Database,
    connectors: Sequence[CdcConnector],
    *,
    fix: bool,
) -> None:
    server = catalog.read_server(connection)
    checks.ok("login", f"{database.user} is logged in at {database}, Postgres {server.version_text}")
    _check_server(checks, server, database)
    slots = catalog.read_slots(connection)
    ours = {cdc_connector.slot for cdc_connector in connectors}
    _check_slots(checks, server, slots, database, ours)
    for connector in connectors:
        usable = [_check_table(checks, connection, database, table, connector) for table in connector.tables]
        _check_publication(checks, connection, connector, fix=fix and all(usable) and not failures(checks.all))


def _check_server(checks: CheckResults, server: catalog.ServerFacts, database: Database) -> None:
    if server.version < MIN_VERSION:
        checks.fail("version", f"Postgres {server.version_text} is too old: 13 is the oldest that can be followed")
    if server.standby:
        checks.fail("server", "It is a standby, which cannot be followed: name the primary")
    if server.wal_level != "logical":
        checks.fail(
            "wal_level",
            f"wal_level is {server.wal_level}, and its log has no rows",
            "ALTER SYSTEM SET wal_level = logical; -- and restart Postgres",
        )
    else:
        checks.ok("wal_level", "wal_level is logical")
    if server.may_replicate:
        checks.ok("rights", f"{database.user} may replicate")
    else:
        checks.fail(
            "rights", f"{database.user} may not replicate", f"ALTER ROLE {quoted(database.user)} WITH REPLICATION;"
        )


def _check_slots(
    checks: CheckResults,
    server: catalog.ServerFacts,
    slots: Sequence[catalog.ReplicationSlot],
    database: Database,
    ours: set[str],
) -> None:
    existing = {replication_slot.name for replication_slot in slots}
    missing = len(ours - existing)
    if server.slots + missing > server.max_slots:
        checks.fail(
            "slots",
            f"All {server.max_slots} replication slots are taken ({', '.join(sorted(existing))}), and {missing} more needed",
            f"ALTER SYSTEM SET max_replication_slots = {server.slots + missing + 5}; -- and restart Postgres",
        )
    held = sum(1 for replication_slot in slots if replication_slot.active and replication_slot.name in ours)
    if server.senders + len(ours) - held > server.max_senders:
        checks.fail(
            "senders",
            f"All {server.max_senders} of max_wal_senders are taken",
            f"ALTER SYSTEM SET max_wal_senders = {server.senders + len(ours) + 5}; -- and restart Postgres",
        )
    for slot in slots:
        drop = f"SELECT pg_drop_replication_slot({sql_literal(slot.name)});"
        size = size_words(slot.retained_bytes)
        if slot.name in ours:
            _check_own_slot(checks, slot, database, drop, size)
        elif slot.kind == "logical" and not slot.active:
            left = (
                f"The slot {slot.name} of {slot.database} was left behind: nobody reads it, and it holds {size} of log"
            )
            if slot.wal_status in ("lost", "unreserved"):
                left += f" ({slot.wal_status})"
            checks.warn("slots", left, f"{drop} -- if nobody needs it any more")


def _check_own_slot(
    checks: CheckResults, slot: catalog.ReplicationSlot, database: Database, drop: str, size: str
) -> None:
    if slot.database != database.dbname or slot.plugin != "pgoutput":
        checks.fail("slot", f"The slot {slot.name} is {slot.plugin}'s of the database {slot.database}, not ours", drop)
    elif slot.wal_status == "lost":
        checks.fail(
            "slot",
            f"The log that the slot {slot.name} stood at is gone (max_slot_wal_keep_size): changes were lost to it",
            f"{drop} -- then `riverrun connect remove` the connector: the next run reads all rows anew",
        )
    elif slot.active and slot.application and not _is_debezium(slot):
        reader = " ".join(
            part
            for part in (slot.application, slot.user and f"as {slot.user}", slot.client and f"from {slot.client}")
            if part
        )
        checks.fail("slot", f"The slot {slot.name} is read by {reader}", f"SELECT pg_terminate_backend({slot.pid});")
    elif not slot.active and slot.retained_bytes > WAL_WARNING_BYTES:
        checks.warn("slot", f"The slot {slot.name} holds {size} of log, which is read now")
    else:
        checks.ok("slot", f"The slot {slot.name} is there and holds {size} of log")


def _is_debezium(slot: catalog.ReplicationSlot) -> bool:
    return "debezium" in slot.application.lower()


def _check_table(
    checks: CheckResults,
    connection: "psycopg.Connection[Any]",
    database: Database,
    table: CapturedTable,
    connector: CdcConnector,
) -> bool:
    """Whether a table can be published without doing harm: Postgres refuses updates of one without a replica identity."""
    facts = catalog.read_table(connection, table.table)
    if facts is None:
        checks.fail("table", missing_table_problem(table, connection).rstrip("."))
        return False
    if facts.kind not in ("r", "p"):
        kind = {"v": "a view", "m": "a materialized view", "f": "a foreign table"}.get(facts.kind, "no table")
        checks.fail("table", f"{table.table} is {kind}: only tables can be followed")
        return False
    before = len(failures(checks.all))
    user = quoted(database.user)
    if not facts.schema_usable:
        schema = table.table.partition(".")[0]
        checks.fail(
            "rights",
            f"{database.user} may not use the schema {schema}",
            f"GRANT USAGE ON SCHEMA {quoted(schema)} TO {user};",
        )
    if not facts.readable:
        checks.fail(
            "rights",
            f"{database.user} may not read {table.table}",
            f"GRANT SELECT ON {quoted_table(table.table)} TO {user};",
        )
    _check_key(checks, table, facts, connector.keys[table.name])
    _check_identity(checks, table, facts)
    _check_types(checks, table, facts)
    if len(failures(checks.all)) == before:
        left_out = [column.name for column in facts.columns if column.annotation is None]
        also = f"; left out: {', '.join(left_out)}" if left_out else ""
        checks.ok("table", f"{table.table} can be followed ({len(facts.columns)} columns{also})")
        return True
    return False


def _check_key(checks: CheckResults, table: CapturedTable, facts: catalog.TableFacts, key: tuple[str, ...]) -> None:
    names = [column.name for column in facts.columns]
    if absent := [column for column in key if column not in names]:
        checks.fail(
            "key",
            f"{table.line}: {table.table} has no column {absent[0]}, which is to be its key; it has {', '.join(names)}",
        )
        return
    unseen = [column for column in key if column not in facts.identity_columns]
    if unseen and facts.identity != "n" and facts.identity_columns:
        checks.fail(
            "key",
            f"{table.table} is keyed by {', '.join(key)} here, "
            f"and its deletes only tell {', '.join(facts.identity_columns)}",
            _full_identity_sql(table),
        )


def _check_identity(checks: CheckResults, table: CapturedTable, facts: catalog.TableFacts) -> None:
    if not facts.identity_columns:
        why = "its replica identity is NOTHING" if facts.identity == "n" else "it has no primary key"
        fix_sql = (
            f"ALTER TABLE {quoted_table(table.table)} REPLICA IDENTITY DEFAULT;"
            if facts.identity == "n" and facts.primary_key
            else _full_identity_sql(table)
        )
        checks.fail(
            "identity",
            f"{table.table} does not tell which row changed: {why}. "
            "Once it is published, Postgres refuses its updates and deletes",
            fix_sql,
        )
    elif facts.identity != "f" and (long := _unlogged_columns(table, facts)):
        checks.fail(
            "identity",
            f"{table.table} can have long values ({', '.join(long)}), which are not in the log of an update that leaves "
            "them as they are",
            _full_identity_sql(table),
        )
    elif facts.identity != "f" and not table.rows and _required_fields(table) - set(facts.identity_columns):
        missing = ", ".join(sorted(_required_fields(table) - set(facts.identity_columns)))
        checks.fail(
            "identity",
            f"A delete of {table.table} only tells {', '.join(facts.identity_columns)}, "
            f"and the topic {table.topic} needs {missing}",
            _full_identity_sql(table),
        )


def _full_identity_sql(table: CapturedTable) -> str:
    return f"ALTER TABLE {quoted_table(table.table)} REPLICA IDENTITY FULL;"


def _unlogged_columns(table: CapturedTable, facts: catalog.TableFacts) -> list[str]:
    """Columns of long values that only a full replica identity puts into the log.

    For a table of rows Debezium reads such a value from the row, where it can see that one is missing. In a stream of
    changes that would be the current value, not that of the change.
    """
    if table.rows and facts.primary_key:
        return [
            column.name for column in facts.toast_columns if column.annotation is not None and not _can_reselect(column)
        ]
    fields = (
        None
        if table.declared_topic is None or table.declared_topic.event is None
        else field_types(table.declared_topic.event)
    )
    return [
        column.name
        for column in facts.toast_columns
        if column.annotation is not None and (fields is None or column.name in fields)
    ]


def _can_reselect(column: PgColumn) -> bool:
    """Whether Debezium can tell that a value of this type was not in the log. (A bytea is null then.)"""
    return column.base_type in (_LONG_LISTS if column.is_array else _LONG_VALUES)


def _required_fields(table: CapturedTable) -> set[str]:
    """Fields that a record of the topic must have, and not as null."""
    if table.declared_topic is None or table.declared_topic.event is None:
        return set()
    info = msgspec.inspect.type_info(table.declared_topic.event)
    assert isinstance(info, msgspec.inspect.StructType)  # noqa: S101
    return {
        field.encode_name
        for field in info.fields
        if field.encode_name not in CHANGE_FIELDS and not _takes_null(field.type)
    }


def _takes_null(info: msgspec.inspect.Type) -> bool:
    if isinstance(info, msgspec.inspect.Metadata):
        return _takes_null(info.type)
    return isinstance(info, msgspec.inspect.UnionType) and info.includes_none


# Which Python types a field may have to read a column of this type.
_READ_AS: Mapping[Any, tuple[type, ...]] = {
    int: (int, float, Decimal),
    float: (float, Decimal),
    Decimal: (Decimal, float, int, str),
    bool: (bool,),
    str: (str,),
    datetime: (datetime, str),
    date: (date, str),
    UUID: (UUID, str),
    bytes: (bytes, str),
}


def _check_types(checks: CheckResults, table: CapturedTable, facts: catalog.TableFacts) -> None:
    """Check that the topic's event type can read what the table's columns become."""
    if not table.rows and (taken := [name for name in CHANGE_FIELDS if facts.column(name) is not None]):
        checks.fail("types", f"{table.table} has a column {taken[0]}, which is what a record of a change says besides")
    if table.declared_topic is None or table.declared_topic.event is None:
        return
    required = _required_fields(table)
    for name, kind in field_types(table.declared_topic.event).items():
        if name in CHANGE_FIELDS and not table.rows:
            continue
        column = facts.column(name)
        where = f"{table.line}: {table.declared_topic.event.__name__}.{name}"
        if column is None:
            if name in required and name not in _defaults(table.declared_topic.event):
                checks.fail("types", f"{where} has no column in {table.table}")
        elif (wrong := _suggested_type(column, kind)) is not None:
            checks.fail("types", f"{where} cannot be read from {column.type}: declare it as {wrong}")
        elif name in required and name not in facts.required:
            checks.warn("types", f"{where} must not be null, and {table.table}.{name} may be: such rows become dead letters",
                        f"ALTER TABLE {quoted_table(table.table)} ALTER COLUMN {quoted(name)} SET NOT NULL;")  # fmt: skip


def _defaults(event: type[Any]) -> set[str]:
    return {field.encode_name for field in msgspec.structs.fields(event) if not field.required}


def _suggested_type(column: PgColumn, kind: type | None) -> str | None:
    """The type a field should be declared as; None when it is fine, or cannot be checked."""
    annotation = column.annotation
    if annotation is None:
        return "nothing: this type does not come through"
    if kind is None:
        return None
    if column.is_array:
        return None if kind is list else "list"
    if kind in _READ_AS[annotation]:
        return None
    return str(annotation.__name__)


def _check_publication(
    checks: CheckResults, connection: "psycopg.Connection[Any]", connector: CdcConnector, *, fix: bool
) -> None:
    name = connector.slot
    declared_tables = [table.table for table in connector.tables]
    existing = catalog.read_publication(connection, name)
    if existing is None:
        listed = ", ".join(quoted_table(table_name) for table_name in declared_tables)
        sql = f"CREATE PUBLICATION {name} FOR TABLE {listed} WITH (publish_via_partition_root = true);"
        _fix_publication(checks, connection, f"There is no publication {name}", sql, fix=fix)
        return
    if not existing.publishes_all:
        sql = f"ALTER PUBLICATION {name} SET (publish = 'insert, update, delete, truncate');"
        _fix_publication(
            checks, connection, f"The publication {name} leaves out inserts, updates or deletes", sql, fix=fix
        )
    if missing := [
        table_name for table_name in declared_tables if table_name not in existing.tables and not existing.all_tables
    ]:
        sql = f"ALTER PUBLICATION {name} ADD TABLE {', '.join(quoted_table(table_name) for table_name in missing)};"
        _fix_publication(checks, connection, f"The publication {name} does not have {', '.join(missing)}", sql, fix=fix)
    elif existing.publishes_all:
        checks.ok("publication", f"The publication {name} has all {len(declared_tables)} tables")
    if left := sorted(existing.named_tables - set(declared_tables)):
        # If it is declared again, it is to be a new table, whose rows are read: from here on its changes are not captured.
        sql = f"ALTER PUBLICATION {name} DROP TABLE {', '.join(quoted_table(table_name) for table_name in left)};"
        problem = f"The publication {name} still has {', '.join(left)}, which the pipeline file does not name any more"
        _fix_publication(checks, connection, problem, sql, fix=fix, needed=False)


def _fix_publication(
    checks: CheckResults,
    connection: "psycopg.Connection[Any]",
    problem: str,
    sql: str,
    *,
    fix: bool,
    needed: bool = True,
) -> None:
    import psycopg

    if not fix:
        # If nothing else is wrong, a run creates it.
        if failures(checks.all):
            checks.warn("publication", problem, sql)
        else:
            checks.ok("publication", f"{problem}: `riverrun run` makes it where it may")
        return
    try:
        connection.execute(sql)
    except psycopg.errors.InsufficientPrivilege as error:
        report = checks.fail if needed else checks.warn
        report("publication", f"{problem}, and our login may not change that ({str(error).splitlines()[0]})", sql)
    else:
        checks.ok("publication", f"{problem}: made now")


def size_words(size: int) -> str:
    """A byte count as text for people."""
    for unit, factor in (("GB", 1 << 30), ("MB", 1 << 20), ("kB", 1 << 10)):
        if size >= factor:
            return f"{size / factor:.1f} {unit}"
    return f"{size} bytes"
