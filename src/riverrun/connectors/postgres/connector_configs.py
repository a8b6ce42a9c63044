"""What Kafka Connect is to run for the databases of an app: checked first, then told."""

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
    """The connectors of an app, with the columns and keys that its databases have now."""
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
    """The group of each table; as it is remembered, where its database does not answer."""
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
    by_place = {cache_key(table): groups[table.name] for table in tables}
    cache.add({place: replace(cached[place], group=group) for place, group in by_place.items() if place in cached})
    return groups


def _check_duplicates(app: "App") -> None:
    """A change goes to one topic."""
    seen: dict[tuple[str, str], str] = {}
    problems = []
    for each in captured_tables(app):
        table_id = (each.source.database, each.table)
        if table_id in seen:
            problems.append(
                f"{each.line}: {each.table} is followed already, at {seen[table_id]}: declare it once; a compacted topic "
                "can be both a stream's input and, by app.table(…, TOPIC), a table"
            )
        seen[table_id] = each.line
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

    A database that does not answer is no problem where its tables are known: Debezium waits for it.
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


def _is_unreachable(words: str, checks: list[DatabaseCheck]) -> bool:
    return any(
        check.message == words and check.check == "login" and "does not answer" in check.found for check in checks
    )
