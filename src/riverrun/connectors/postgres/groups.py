"""Which group of tables a table belongs to. Each group has a connector, a replication slot and a publication of its own.

Debezium reads the rows that tables have when a connector begins, and never again: a table that joined a connector later
would be without the rows it had by then. So tables that are declared later become a group of their own, whose connector
begins with them. The database itself remembers the groups: a publication lists its tables, and a slot is there once its
connector has begun.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from riverrun.config.spec import PostgresSettings
from riverrun.connectors.postgres import catalog
from riverrun.connectors.postgres.address import database_of
from riverrun.connectors.postgres.following import Followed, database_name, stem_of

if TYPE_CHECKING:
    import psycopg

_MOST = 100


@dataclass(frozen=True)
class Group:
    """A group as the database has it."""

    number: int
    tables: frozenset[str]
    begun: bool
    # Tables of a publication for all tables, or for a schema: it has them, whether they are followed or not.
    unnamed: frozenset[str] = frozenset()


def groups_of(
    app: str,
    tables: Sequence[Followed],
    keys: Mapping[str, tuple[str, ...]],
    settings: PostgresSettings,
    root: Path,
    *,
    remembered: Mapping[str, int],
) -> dict[str, int]:
    """The group of each table, by `Followed.name`, as its database has it; new ones share the first that has not begun.
    `remembered` is what it was before, for publications that do not tell."""
    found: dict[str, int] = {}
    for name in dict.fromkeys(each.source.database for each in tables):
        database = database_of(settings, name, root)
        with database.connect() as connection:
            for composite in (False, True):
                members = [
                    each for each in tables if each.source.database == name and (len(keys[each.name]) > 1) == composite
                ]
                if members:
                    stems = {
                        number: stem_of(app, name, composite=composite, group=number) for number in range(1, _MOST)
                    }
                    there = _groups(connection, database.dbname, stems)
                    found |= assign(members, there, remembered)
    return found


def _groups(connection: "psycopg.Connection[Any]", dbname: str, stems: Mapping[int, str]) -> list[Group]:
    publications = catalog.publication_names(connection)
    slots = {each.name for each in catalog.slots(connection) if each.database == dbname}
    found = []
    for number, stem in stems.items():
        name = database_name(stem)
        if name in publications or name in slots:
            publication = catalog.publication(connection, name)
            named = publication.named if publication is not None else frozenset()
            unnamed = publication.tables - named if publication is not None else frozenset()
            found.append(Group(number, named, begun=name in slots, unnamed=unnamed))
    return found


def assign(tables: Sequence[Followed], there: Sequence[Group], remembered: Mapping[str, int]) -> dict[str, int]:
    """A table stays in the group that has it. New tables go to one whose connector has not begun, else to a new one."""

    def has(group: Group, table: Followed) -> bool:
        stays = table.table in group.unnamed and remembered.get(table.name) == group.number
        return stays or table.table in group.tables

    taken = {group.number for group in there}
    free = next(number for number in range(1, _MOST) if number not in taken)
    waiting = next((group.number for group in there if not group.begun), free)
    return {table.name: next((group.number for group in there if has(group, table)), waiting) for table in tables}
