"""Which tables of which databases an app captures, and their names: one connector, slot and publication per database.

Tables whose key has several columns have a connector of their own: the key of their records is a JSON object, that of the
others is plain text, like a producer's, and Connect writes all keys of a connector the same way. Tables that were declared
after a connector had started are captured by another one, in a group of their own (groups.py).
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from riverrun.model.connector import SourceBinding
from riverrun.model.connectors.postgres import postgres
from riverrun.model.topic import Topic

if TYPE_CHECKING:
    from riverrun.app import App

# Postgres truncates longer names.
_MAX_NAME_LENGTH = 63
# The fields that a stream of changes has besides the row's columns.
CHANGE_FIELDS = ("change", "changed_at", "lsn")


@dataclass(frozen=True)
class CapturedTable:
    """One table and the topic that its changes go to. `rows`: the newest row of each key counts, a delete removes it; else
    each change is a record of its own, a delete too."""

    name: str
    source: postgres
    topic: str
    rows: bool
    line: str
    # The topic's declaration with its event type, if the pipeline file has one.
    declared_topic: Topic[Any] | None = None

    @property
    def table(self) -> str:
        return self.source.table

    @property
    def declared_key(self) -> tuple[str, ...]:
        """The key, if the pipeline file declares it."""
        if self.source.keys:
            return self.source.keys
        schema = self.declared_topic.schema if self.declared_topic is not None else None
        return (schema.key_field,) if schema is not None and schema.key_field is not None else ()


@dataclass(frozen=True)
class CdcConnector:
    """One Debezium connector: the tables of a database, and the key columns of each."""

    app: str
    database: str
    tables: tuple[CapturedTable, ...]
    keys: Mapping[str, tuple[str, ...]]
    composite: bool = False
    group: int = 1

    @property
    def _name(self) -> str:
        return connector_name(self.app, self.database, composite=self.composite, group=self.group)

    @property
    def connector(self) -> str:
        """Its name in Connect."""
        return self._name

    @property
    def slot(self) -> str:
        """The name of the replication slot and the publication: lower case, digits and underscores."""
        return slot_name(self._name)

    @property
    def topic_prefix(self) -> str:
        """Debezium's name of the database; its topics begin with it, until they are routed to ours."""
        return f"riverrun.{self._name}"


def connector_name(app: str, database: str, *, composite: bool = False, group: int = 1) -> str:
    """The name of a connector; its slot and publication are named after it."""
    parts = [app, "postgres", database, "composite" if composite else "", f"group{group}" if group > 1 else ""]
    return ".".join(part for part in parts if part)


def slot_name(stem: str) -> str:
    """A name that Postgres accepts without quotes, different for different stems."""
    plain = re.sub(r"[^a-z0-9]+", "_", f"riverrun_{stem}".lower())
    if plain == f"riverrun_{stem}".replace(".", "_") and len(plain) <= _MAX_NAME_LENGTH:
        return plain
    digest = hashlib.sha256(stem.encode()).hexdigest()[:8]
    return f"{plain[: _MAX_NAME_LENGTH - 9]}_{digest}"


def captured_tables(app: "App") -> list[CapturedTable]:
    """All database tables that an app captures, in the order of the file."""
    tables = []
    for binding in app.sources.values():
        if isinstance(binding.source, postgres):
            own = is_own_table(app, binding)
            topic = app.topics.get(binding.topic)
            rows = own or (topic is not None and topic.compact)
            tables.append(
                CapturedTable(
                    binding.name, binding.source, binding.topic, rows, str(binding.line), None if own else topic
                )
            )
    return tables


def is_own_table(app: "App", binding: SourceBinding) -> bool:
    """Whether a source was declared by `app.table`, which makes the topic."""
    return binding.name in app.tables and binding.topic == f"{app.name}.{binding.name}"


def group_tables(
    app: str,
    tables: Sequence[CapturedTable],
    keys: Mapping[str, tuple[str, ...]],
    groups: Mapping[str, int] | None = None,
) -> list[CdcConnector]:
    """The connectors. `keys` has the key columns of every table, `groups` its group, by `CapturedTable.name`."""
    members_by_connector: dict[tuple[str, bool, int], list[CapturedTable]] = {}
    for table in tables:
        group = (groups or {}).get(table.name, 1)
        members_by_connector.setdefault((table.source.database, len(keys[table.name]) > 1, group), []).append(table)
    return [
        CdcConnector(
            app, database, tuple(members), {member.name: keys[member.name] for member in members}, composite, group
        )
        for (database, composite, group), members in members_by_connector.items()
    ]
