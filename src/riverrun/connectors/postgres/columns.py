"""The columns of the tables that an app captures: from the database's catalog, cached for when it is unreachable.

`.riverrun/postgres.json` has the last result. Commands that only read a pipeline file use it, so that `validate` needs no
database; a run asks the database.
"""

import contextlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from riverrun.config import Project, find_project
from riverrun.config.spec import PostgresSettings
from riverrun.connectors.postgres import catalog
from riverrun.connectors.postgres.address import database_of
from riverrun.connectors.postgres.capture import CapturedTable, captured_tables
from riverrun.errors import DatabaseError, DatabaseNotReadyError, DatabaseUnreachableError
from riverrun.model.connectors.postgres_types import PgColumn, compacted_topic_for
from riverrun.model.suggest import nearest

if TYPE_CHECKING:
    from riverrun.app import App

CACHE_FILE = "postgres.json"


@dataclass(frozen=True)
class CachedTable:
    """A table's columns and its primary key."""

    columns: tuple[PgColumn, ...]
    primary_key: tuple[str, ...]
    # Its connector group when the database was last asked (groups.py); 0: it was not captured yet.
    group: int = 0


class CatalogCache:
    """The cached catalog entries, by database and table name."""

    def __init__(self, project: Project) -> None:
        self._path = project.home / CACHE_FILE

    def read(self) -> dict[str, CachedTable]:
        """The cached tables. An invalid file counts as empty: the database has the truth."""
        try:
            content = json.loads(self._path.read_text(encoding="utf-8"))
            return {
                name: CachedTable(
                    tuple(PgColumn(*pair) for pair in cached_table["columns"]),
                    tuple(cached_table["key"]),
                    int(cached_table.get("group", 0)),
                )
                for name, cached_table in content.items()
            }
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return {}

    def add(self, tables: Mapping[str, CachedTable]) -> None:
        content = {
            name: {
                "columns": [[column.name, column.type] for column in table.columns],
                "key": list(table.primary_key),
                "group": table.group,
            }
            for name, table in {**self.read(), **tables}.items()
        }
        # If the disk is full, the only cost is another query of the database.
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            temporary = self._path.with_suffix(f".{os.getpid()}")
            temporary.write_text(json.dumps(content, indent=1), encoding="utf-8")
            temporary.replace(self._path)


def cache_key(table: CapturedTable) -> str:
    return f"{table.source.database}|{table.table}"


def read_columns(tables: Sequence[CapturedTable], settings: PostgresSettings, root: Path) -> dict[str, CachedTable]:
    """Read these tables from their databases. DatabaseNotReadyError names all that do not exist."""
    columns: dict[str, CachedTable] = {}
    problems: list[str] = []
    for name in dict.fromkeys(table.source.database for table in tables):
        with database_of(settings, name, root).connect() as connection:
            for captured in (candidate for candidate in tables if candidate.source.database == name):
                facts = catalog.read_table(connection, captured.table)
                if facts is None:
                    problems.append(missing_table_problem(captured, connection))
                else:
                    columns[cache_key(captured)] = CachedTable(facts.columns, facts.primary_key)
    if problems:
        raise DatabaseNotReadyError(problems)
    return columns


def missing_table_problem(table: CapturedTable, connection: Any) -> str:
    near = nearest(table.table, catalog.read_table_names(connection))
    hint = f" Did you mean {near}?" if near else ""
    return f"{table.line}: There is no table {table.table}, or {connection.info.user} does not see it.{hint}"


def resolve_columns(
    app: "App",
    settings: PostgresSettings,
    project: Project,
    *,
    fresh: bool = False,
    notice: Callable[[str], None] = lambda _: None,
) -> dict[str, tuple[str, ...]]:
    """Set the columns, and so the topic, of each database table that the app joins; returns the key columns of all
    captured tables, by name. `fresh`: read from the databases now, and from the cache only if one does not answer."""
    tables = captured_tables(app)
    cache = CatalogCache(project)
    cached = cache.read()
    to_read = [table for table in tables if fresh or (_needs_catalog(table) and cache_key(table) not in cached)]
    if to_read:
        try:
            from_catalog = read_columns(to_read, settings, project.root)
        except DatabaseUnreachableError as error:
            if any(_needs_catalog(table) and cache_key(table) not in cached for table in to_read):
                raise _columns_unknown_error(to_read, error) from error
            notice(f"{error.what}: its tables are taken to be as they were")
        else:
            from_catalog = {
                cached_key: replace(table, group=cached[cached_key].group if cached_key in cached else 0)
                for cached_key, table in from_catalog.items()
            }
            cache.add(from_catalog)
            cached |= from_catalog
    keys: dict[str, tuple[str, ...]] = {}
    problems: list[str] = []
    for table in tables:
        facts = cached.get(cache_key(table))
        keys[table.name] = table.declared_key or (facts.primary_key if facts is not None else ())
        if not keys[table.name]:
            problems.append(
                f'{table.line}: {table.table} has no primary key: say key="…", and see `riverrun connect check`'
            )
        elif _needs_columns(app, table) and facts is not None:
            problems += _declare_topic(app, table, facts, keys[table.name])
    if problems:
        raise DatabaseNotReadyError(problems)
    return keys


def apply_cached_columns(app: "App") -> None:
    """Set the columns of tables from the project's cache. A test asks no database: tables that are not cached stay as they
    are."""
    if not captured_tables(app) or not app.file:
        return
    cached = CatalogCache(find_project(Path(app.file).resolve().parent)).read()
    for table in captured_tables(app):
        facts = cached.get(cache_key(table))
        key = table.declared_key or (facts.primary_key if facts is not None else ())
        if facts is not None and key and _needs_columns(app, table):
            _declare_topic(app, table, facts, key)


def _needs_catalog(table: CapturedTable) -> bool:
    """Whether the pipeline file alone does not say enough about a table."""
    return not table.declared_key or (table.declared_topic is None and not table.source.columns)


def _needs_columns(app: "App", table: CapturedTable) -> bool:
    return table.declared_topic is None and table.name in app.tables and not table.source.columns


def _declare_topic(app: "App", table: CapturedTable, facts: CachedTable, key: tuple[str, ...]) -> list[str]:
    usable = [column for column in facts.columns if column.annotation is not None]
    names = [column.name for column in usable]
    if absent := [name for name in key if name not in names]:
        return [
            f"{table.line}: {table.table} has no column {absent[0]} that could be its key; it has {', '.join(names)}"
        ]
    topic = compacted_topic_for(table.topic, usable, key, table.source.partitions)
    app.topics[topic.name] = topic
    app.declared_at[topic.name] = app.declared_at[table.name]
    app.tables[table.name] = replace(app.tables[table.name], source=topic, key=key)
    return []


def _columns_unknown_error(tables: Sequence[CapturedTable], error: DatabaseError) -> DatabaseError:
    names = ", ".join(table.table for table in tables if _needs_catalog(table))
    return DatabaseUnreachableError(
        f"The columns of {names} are not known: {error.what[:1].lower()}{error.what[1:]}",
        found=error.found,
        hint='Start the database once: they are remembered. Or declare them: riverrun.postgres("…", columns="id int, …")',
    )
