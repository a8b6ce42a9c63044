"""The columns of the tables that an app follows: from the database's catalog, remembered for when it is not there.

`.riverrun/postgres.json` is what was found last. Commands that only look at a pipeline file believe it, so that `validate`
needs no database; a run asks the database.
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
from riverrun.connectors.postgres.following import Followed, followed_by
from riverrun.errors import DatabaseError, DatabaseNotReadyError, DatabaseUnreachableError
from riverrun.model.connectors.postgres_types import PgColumn, topic_of
from riverrun.model.near import nearest

if TYPE_CHECKING:
    from riverrun.app import App

FILE = "postgres.json"


@dataclass(frozen=True)
class Known:
    """A table's columns and its primary key."""

    columns: tuple[PgColumn, ...]
    primary_key: tuple[str, ...]
    # The group it was in when the database was last asked (groups.py); 0: it was not followed yet.
    group: int = 0


class Memory:
    """What was found of tables, by database and name."""

    def __init__(self, project: Project) -> None:
        self._path = project.home / FILE

    def read(self) -> dict[str, Known]:
        """What is remembered. A file that makes no sense is forgotten: the database knows better."""
        try:
            content = json.loads(self._path.read_text(encoding="utf-8"))
            return {
                name: Known(
                    tuple(PgColumn(*pair) for pair in each["columns"]), tuple(each["key"]), int(each.get("group", 0))
                )
                for name, each in content.items()
            }
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return {}

    def add(self, found: Mapping[str, Known]) -> None:
        content = {
            name: {
                "columns": [[one.name, one.type] for one in each.columns],
                "key": list(each.primary_key),
                "group": each.group,
            }
            for name, each in {**self.read(), **found}.items()
        }
        # A disk that is full costs a question to the database, and nothing else.
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            temporary = self._path.with_suffix(f".{os.getpid()}")
            temporary.write_text(json.dumps(content, indent=1), encoding="utf-8")
            temporary.replace(self._path)


def place_of(each: Followed) -> str:
    return f"{each.source.database}|{each.table}"


def ask(tables: Sequence[Followed], settings: PostgresSettings, root: Path) -> dict[str, Known]:
    """What the databases say of these tables. DatabaseNotReadyError names all that are not there."""
    found: dict[str, Known] = {}
    problems: list[str] = []
    for name in dict.fromkeys(each.source.database for each in tables):
        with database_of(settings, name, root).connect() as connection:
            for each in (one for one in tables if one.source.database == name):
                facts = catalog.table(connection, each.table)
                if facts is None:
                    problems.append(no_table(each, connection))
                else:
                    found[place_of(each)] = Known(facts.columns, facts.primary_key)
    if problems:
        raise DatabaseNotReadyError(problems)
    return found


def no_table(each: Followed, connection: Any) -> str:
    near = nearest(each.table, catalog.table_names(connection))
    hint = f" Did you mean {near}?" if near else ""
    return f"{each.line}: There is no table {each.table}, or {connection.info.user} does not see it.{hint}"


def resolve(
    app: "App",
    settings: PostgresSettings,
    project: Project,
    *,
    fresh: bool = False,
    notice: Callable[[str], None] = lambda _: None,
) -> dict[str, tuple[str, ...]]:
    """Give each table of a database that the app joins its columns, and so its topic; gives the key's columns of all that
    are followed, by name. `fresh`: as the databases have them now, and as remembered only where one does not answer."""
    tables = followed_by(app)
    memory = Memory(project)
    known = memory.read()
    asked = [each for each in tables if fresh or (_needs_catalog(each) and place_of(each) not in known)]
    if asked:
        try:
            found = ask(asked, settings, project.root)
        except DatabaseUnreachableError as error:
            if any(_needs_catalog(each) and place_of(each) not in known for each in asked):
                raise _unknown(asked, error) from error
            notice(f"{error.what}: its tables are taken to be as they were")
        else:
            found = {
                place: replace(each, group=known[place].group if place in known else 0) for place, each in found.items()
            }
            memory.add(found)
            known |= found
    keys: dict[str, tuple[str, ...]] = {}
    problems: list[str] = []
    for each in tables:
        facts = known.get(place_of(each))
        keys[each.name] = each.declared_key or (facts.primary_key if facts is not None else ())
        if not keys[each.name]:
            problems.append(
                f'{each.line}: {each.table} has no primary key: say key="…", and see `riverrun connect check`'
            )
        elif _is_open(app, each) and facts is not None:
            problems += _give(app, each, facts, keys[each.name])
    if problems:
        raise DatabaseNotReadyError(problems)
    return keys


def recall_columns(app: "App") -> None:
    """Give tables the columns that the app's project remembers. A test asks no database: tables of which nothing is known
    stay as they are."""
    if not followed_by(app) or not app.file:
        return
    known = Memory(find_project(Path(app.file).resolve().parent)).read()
    for each in followed_by(app):
        facts = known.get(place_of(each))
        key = each.declared_key or (facts.primary_key if facts is not None else ())
        if facts is not None and key and _is_open(app, each):
            _give(app, each, facts, key)


def _needs_catalog(each: Followed) -> bool:
    """Whether the file alone does not tell enough of a table."""
    return not each.declared_key or (each.declared is None and not each.source.columns)


def _is_open(app: "App", each: Followed) -> bool:
    return each.declared is None and each.name in app.tables and not each.source.columns


def _give(app: "App", each: Followed, facts: Known, key: tuple[str, ...]) -> list[str]:
    usable = [column for column in facts.columns if column.annotation is not None]
    names = [column.name for column in usable]
    if absent := [name for name in key if name not in names]:
        return [f"{each.line}: {each.table} has no column {absent[0]} that could be its key; it has {', '.join(names)}"]
    topic = topic_of(each.topic, usable, key, each.source.partitions)
    app.topics[topic.name] = topic
    app.lines[topic.name] = app.lines[each.name]
    app.tables[each.name] = replace(app.tables[each.name], source=topic, key=key)
    return []


def _unknown(asked: Sequence[Followed], error: DatabaseError) -> DatabaseError:
    names = ", ".join(each.table for each in asked if _needs_catalog(each))
    return DatabaseUnreachableError(
        f"The columns of {names} are not known: {error.what[:1].lower()}{error.what[1:]}",
        found=error.found,
        hint='Start the database once: they are remembered. Or declare them: riverrun.postgres("…", columns="id int, …")',
    )
