"""The connectors that Kafka Connect runs for the databases of an app: checked first, then configured."""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from riverrun.config import Project
from riverrun.config.secret import Secret
from riverrun.config.spec import PostgresSettings
from riverrun.connectors.postgres.address import database_of
from riverrun.connectors.postgres.capture import CapturedTable, CdcConnector, captured_tables, group_tables
from riverrun.connectors.postgres.checks import DatabaseCheck, check_databases, failures
from riverrun.connectors.postgres.columns import CatalogCache, cache_key, resolve_columns
from riverrun.connectors.postgres.debezium import connector_config
from riverrun.connectors.postgres.groups import read_groups
from riverrun.errors import DatabaseNotReadyError, DatabaseUnreachableError

if TYPE_CHECKING:
    from riverrun.app import App

ConnectorConfigs = dict[str, dict[str, str | Secret]]


def cdc_connectors(
    app: "App", settings: PostgresSettings, project: Project, notice: Callable[[str], None] = lambda _: None
) -> list[CdcConnector]:
    """The connectors of an app, with the current columns and keys of its databases."""
    tables = captured_tables(app)
    _check_duplicates(app)
    if not tables:
        return []
    keys = resolve_columns(app, settings, project, fresh=True, notice=notice)
    return group_tables(app.name, tables, keys, _table_groups(app.name, tables, keys, settings, project))


def _table_groups(
    app: str,
    tables: list[CapturedTable],
    keys: dict[str, tuple[str, ...]],
    settings: PostgresSettings,
    project: Project,
) -> dict[str, int]:
    """The group of each table; from the cache, if its database does not answer."""
    cache = CatalogCache(project)
    cached = cache.read()
    remembered = {table.name: cached[cache_key(table)].group for table in tables if cache_key(table) in cached}
    try:
        groups = read_groups(app, tables, keys, settings, project.root, remembered=remembered)
    except DatabaseUnreachableError as error:
        new = [table.table for table in tables if not remembered.get(table.name)]
        if new and any(remembered.values()):
            raise DatabaseUnreachableError(
                f"Whether {', '.join(new)} is followed already is not known: {error.what[:1].lower()}{error.what[1:]}",
                found=error.found,
                hint="Start the database: a table that is new is told to Connect only when it answers",
            ) from error
        return {name: group or 1 for name, group in remembered.items()}
    groups_by_key = {cache_key(table): groups[table.name] for table in tables}
    cache.add(
        {
            cached_key: replace(cached[cached_key], group=group)
            for cached_key, group in groups_by_key.items()
            if cached_key in cached
        }
    )
    return groups


def _check_duplicates(app: "App") -> None:
    """Raise if a table is declared twice: a change goes to one topic."""
    seen: dict[tuple[str, str], str] = {}
    problems = []
    for table in captured_tables(app):
        table_id = (table.source.database, table.table)
        if table_id in seen:
            problems.append(
                f"{table.line}: {table.table} is followed already, at {seen[table_id]}: declare it once; a compacted topic "
                "can be both a stream's input and, by app.table(…, TOPIC), a table"
            )
        seen[table_id] = table.line
    if problems:
        raise DatabaseNotReadyError(problems)


def source_configs(
    connectors: list[CdcConnector],
    settings: PostgresSettings,
    project: Project,
    *,
    notice: Callable[[str], None] = lambda _: None,
) -> ConnectorConfigs:
    """The Debezium connectors of an app, after everything they need was checked. DatabaseNotReadyError has all problems.

    A database that does not answer is no problem if its tables are known: Debezium waits for it.
    """
    checks = check_databases(connectors, settings, project.root, fix=True)
    if problems := [failure for failure in failures(checks) if not _is_unreachable(failure, checks)]:
        raise DatabaseNotReadyError(problems)
    for check in checks:
        if check.state != "ok":
            notice(check.message)
    cached = CatalogCache(project).read()
    configs: ConnectorConfigs = {}
    for connector in connectors:
        columns = {table.name: cached[cache_key(table)] for table in connector.tables if cache_key(table) in cached}
        database = database_of(settings, connector.database, project.root)
        configs[connector.connector] = connector_config(connector, database, settings, columns)
    return configs


def _is_unreachable(message: str, checks: list[DatabaseCheck]) -> bool:
    return any(
        check.message == message and check.check == "login" and "does not answer" in check.found for check in checks
    )
