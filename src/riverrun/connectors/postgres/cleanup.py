"""Clean up what a removed connector leaves in the database: a replication slot that would retain the log until the disk is
full, and a publication. Both are dropped, or the message says how."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from riverrun.config.secret import Secret
from riverrun.config.spec import PostgresSettings
from riverrun.connectors.postgres import catalog
from riverrun.connectors.postgres.address import OPTIONS, Database, database_of
from riverrun.connectors.postgres.sql import quoted, sql_literal
from riverrun.errors import ConfigError, DatabaseError

if TYPE_CHECKING:
    import psycopg

# A slot stays in use for a moment after its connector was stopped.
IN_USE_SECONDS = 15.0
POLL_SECONDS = 0.2


def drop_slot(config: Mapping[str, str], password: Secret | None, settings: PostgresSettings, root: Path) -> str:
    """Drop the slot and the publication of a removed Debezium connector. Returns what was done, or is left to do, as text;
    empty for a connector that has none."""
    slot = config.get("slot.name", "")
    if not slot:
        return ""
    database = _connector_database(config, password, settings, root)
    where = f"{config.get('database.dbname')} at {config.get('database.hostname')}:{config.get('database.port')}"
    sql = f"SELECT pg_drop_replication_slot({sql_literal(slot)}); DROP PUBLICATION IF EXISTS {quoted(slot)};"
    if database is None:
        return f"the slot {slot} of {where} still makes it keep its log, and no password for it is known here. → {sql}"
    try:
        with database.connect() as connection:
            if not _drop(connection, slot):
                return f"the slot {slot} of {where} is in use, and makes it keep its log. → {sql}"
    except DatabaseError as error:
        return f"the slot {slot} of {where} may still make it keep its log: {error}. → {sql}"
    return f"dropped the slot {slot} of {where}: it keeps no log for us any more"


def _drop(connection: "psycopg.Connection[Any]", slot: str) -> bool:
    import psycopg

    deadline = time.monotonic() + IN_USE_SECONDS
    while any(existing_slot.name == slot for existing_slot in catalog.read_slots(connection)):
        try:
            connection.execute("select pg_drop_replication_slot(%s)", (slot,))
        except psycopg.errors.ObjectInUse:
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_SECONDS)
        except psycopg.errors.UndefinedObject:
            break
    existing = catalog.read_publication(connection, slot)
    if existing is not None and existing.owned:
        connection.execute(f"drop publication if exists {quoted(slot)}")
    return True


def _connector_database(
    config: Mapping[str, str], password: Secret | None, settings: PostgresSettings, root: Path
) -> Database | None:
    """The database of a connector, with the password that it had; else that of the settings."""
    host, port, dbname, user = (
        config.get(f"database.{setting}", "") for setting in ("hostname", "port", "dbname", "user")
    )
    if password is not None:
        driver_options = {
            name: config.get(f"database.{java}", config.get(f"driver.{java}")) for name, java in OPTIONS.items()
        }
        options = {name: value for name, value in driver_options.items() if value is not None}
        return Database("", host, int(port or 0), dbname, user, password, options, settings.timeout_seconds)
    for name in ("", *settings.databases):
        try:
            candidate = database_of(settings, name, root)
        except ConfigError:
            continue
        if (candidate.host, str(candidate.port), candidate.dbname) == (host, port, dbname):
            return candidate
    return None
