"""Which group of tables a table belongs to. Each group has a connector, a replication slot and a publication of its own.

Debezium reads the existing rows of tables when a connector starts, and never again: a table that joined a connector later
would lack the rows it had by then. So tables that are declared later become a group of their own, whose connector starts
with them. The database itself stores the groups: a publication lists its tables, and a slot exists once its connector has
started.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from riverrun.config.spec import PostgresSettings
from riverrun.connectors.postgres import catalog
from riverrun.connectors.postgres.address import database_of
from riverrun.connectors.postgres.capture import CapturedTable, connector_name, slot_name

if TYPE_CHECKING:
    import psycopg

_MAX_GROUPS = 100


@dataclass(frozen=True)
class TableGroup:
    """A group as the database has it."""

    number: int
    tables: frozenset[str]
    started: bool
    # Tables of a publication for all tables, or for a schema: it has them, whether they are captured or not.
    unnamed: frozenset[str] = frozenset()


def read_groups(
    app: str,
    tables: Sequence[CapturedTable],
    keys: Mapping[str, tuple[str, ...]],
    settings: PostgresSettings,
    root: Path,
    *,
    remembered: Mapping[str, int],
) -> dict[str, int]:
    """The group of each table, by `CapturedTable.name`, from its database; new ones share the first that has not started.
    `remembered` is the cached group, for publications that do not name their tables."""
    groups: dict[str, int] = {}
    for name in dict.fromkeys(table.source.database for table in tables):
        database = database_of(settings, name, root)
        with database.connect() as connection:
            for composite in (False, True):
                members = [
                    table
                    for table in tables
                    if table.source.database == name and (len(keys[table.name]) > 1) == composite
                ]
                if members:
                    stems = {
                        number: connector_name(app, name, composite=composite, group=number)
                        for number in range(1, _MAX_GROUPS)
                    }
                    existing = _groups(connection, database.dbname, stems)
                    groups |= assign_groups(members, existing, remembered)
    return groups


def _groups(connection: "psycopg.Connection[Any]", dbname: str, stems: Mapping[int, str]) -> list[TableGroup]:
    publications = catalog.read_publication_names(connection)
    slots = {slot.name for slot in catalog.read_slots(connection) if slot.database == dbname}
    groups = []
    for number, stem in stems.items():
        name = slot_name(stem)
        if name in publications or name in slots:
            publication = catalog.read_publication(connection, name)
            named = publication.named_tables if publication is not None else frozenset()
            unnamed = publication.tables - named if publication is not None else frozenset()
            groups.append(TableGroup(number, named, started=name in slots, unnamed=unnamed))
    return groups


def assign_groups(
    tables: Sequence[CapturedTable], existing: Sequence[TableGroup], remembered: Mapping[str, int]
) -> dict[str, int]:
    """A table stays in its group. New tables go to one whose connector has not started, else to a new one."""

    def has(group: TableGroup, table: CapturedTable) -> bool:
        stays = table.table in group.unnamed and remembered.get(table.name) == group.number
        return stays or table.table in group.tables

    taken = {group.number for group in existing}
    free = next(number for number in range(1, _MAX_GROUPS) if number not in taken)
    unstarted = next((group.number for group in existing if not group.started), free)
    return {table.name: next((group.number for group in existing if has(group, table)), unstarted) for table in tables}
