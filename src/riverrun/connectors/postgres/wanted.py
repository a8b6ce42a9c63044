"""What Kafka Connect is to run for the databases of an app: checked first, then told."""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from riverrun.config import Project
from riverrun.config.secret import Secret
from riverrun.config.spec import PostgresSettings
from riverrun.connectors.postgres.address import database_of
from riverrun.connectors.postgres.checks import Check, check_following, failures
from riverrun.connectors.postgres.columns import Memory, place_of, resolve
from riverrun.connectors.postgres.debezium import connector_config
from riverrun.connectors.postgres.following import Followed, Following, followed_by, grouped
from riverrun.connectors.postgres.groups import groups_of
from riverrun.errors import DatabaseNotReadyError, DatabaseUnreachableError

if TYPE_CHECKING:
    from riverrun.app import App

Configs = dict[str, dict[str, str | Secret]]


def followings_of(
    app: "App", settings: PostgresSettings, project: Project, notice: Callable[[str], None] = lambda _: None
) -> list[Following]:
    """The connectors of an app, with the columns and keys that its databases have now."""
    tables = followed_by(app)
    _check_twice(app)
    if not tables:
        return []
    keys = resolve(app, settings, project, fresh=True, notice=notice)
    return grouped(app.name, tables, keys, _groups(app.name, tables, keys, settings, project))


def _groups(
    app: str, tables: list[Followed], keys: dict[str, tuple[str, ...]], settings: PostgresSettings, project: Project
) -> dict[str, int]:
    """The group of each table; as it is remembered, where its database does not answer."""
    memory = Memory(project)
    known = memory.read()
    remembered = {each.name: known[place_of(each)].group for each in tables if place_of(each) in known}
    try:
        found = groups_of(app, tables, keys, settings, project.root, remembered=remembered)
    except DatabaseUnreachableError as error:
        new = [each.table for each in tables if not remembered.get(each.name)]
        if new and any(remembered.values()):
            raise DatabaseUnreachableError(
                f"Whether {', '.join(new)} is followed already is not known: {error.what[:1].lower()}{error.what[1:]}",
                found=error.found,
                hint="Start the database: a table that is new is told to Connect only when it answers",
            ) from error
        return {name: group or 1 for name, group in remembered.items()}
    by_place = {place_of(each): found[each.name] for each in tables}
    memory.add({place: replace(known[place], group=group) for place, group in by_place.items() if place in known})
    return found


def _check_twice(app: "App") -> None:
    """A change goes to one topic."""
    seen: dict[tuple[str, str], str] = {}
    problems = []
    for each in followed_by(app):
        place = (each.source.database, each.table)
        if place in seen:
            problems.append(
                f"{each.line}: {each.table} is followed already, at {seen[place]}: declare it once; a compacted topic can "
                "be both a stream's input and, by app.table(…, TOPIC), a table"
            )
        seen[place] = each.line
    if problems:
        raise DatabaseNotReadyError(problems)


def source_configs(
    followings: list[Following],
    settings: PostgresSettings,
    project: Project,
    *,
    notice: Callable[[str], None] = lambda _: None,
) -> Configs:
    """The Debezium connectors of an app, after everything they need was checked. DatabaseNotReadyError has all problems.

    A database that does not answer is no problem where its tables are known: Debezium waits for it.
    """
    checks = check_following(followings, settings, project.root, mend=True)
    if problems := [each for each in failures(checks) if not _is_away(each, checks)]:
        raise DatabaseNotReadyError(problems)
    for each in checks:
        if each.state != "ok":
            notice(each.words)
    known = Memory(project).read()
    configs: Configs = {}
    for following in followings:
        columns = {each.name: known[place_of(each)] for each in following.tables if place_of(each) in known}
        database = database_of(settings, following.database, project.root)
        configs[following.connector] = connector_config(following, database, settings, columns)
    return configs


def _is_away(words: str, checks: list[Check]) -> bool:
    return any(each.words == words and each.check == "login" and "does not answer" in each.found for each in checks)
