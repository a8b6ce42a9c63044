"""Postgres's types as the fields of an event: how a column's values appear in a topic, and which Python type reads
them.

Numbers with a point are exact, as text; times are ISO 8601 in UTC; JSON is its text; bytes are base64. docs/postgres.md
has the table. A type that is not here has no column in the topic.
"""

import keyword
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

from riverrun.errors import DeclarationError
from riverrun.model.event import Event, EventMeta, key
from riverrun.model.suggest import nearest
from riverrun.model.topic import Topic

_INTEGERS = (
    "smallint",
    "integer",
    "bigint",
    "int",
    "int2",
    "int4",
    "int8",
    "smallserial",
    "serial",
    "bigserial",
    "oid",
)
_TEXTS = (
    "text", "character varying", "varchar", "character", "char", "bpchar", "citext", "name", "xml",
    "json", "jsonb", "hstore", "ltree", "interval", "time", "time without time zone", "time with time zone", "timetz",
    "inet", "cidr", "macaddr", "macaddr8", "int4range", "int8range", "numrange", "tsrange", "tstzrange", "daterange",
)  # fmt: skip
PYTHON_TYPES: dict[str, Any] = {
    **dict.fromkeys(_INTEGERS, int),
    **dict.fromkeys(("real", "double precision", "float4", "float8", "float"), float),
    **dict.fromkeys(("numeric", "decimal", "money"), Decimal),
    **dict.fromkeys(("boolean", "bool"), bool),
    **dict.fromkeys(_TEXTS, str),
    **dict.fromkeys(("timestamp", "timestamp without time zone", "timestamptz", "timestamp with time zone"), datetime),
    "date": date,
    "uuid": UUID,
    "bytea": bytes,
}
# In an array these are encoded otherwise than alone, or not at all.
_IN_ARRAYS = {"date": str}
_NOT_IN_ARRAYS = frozenset({"money", "name", "interval", "xml"})
_COLUMN = re.compile(r"\s*\"?([A-Za-z_][A-Za-z0-9_$]*)\"?\s+(.+?)\s*", re.DOTALL)
# Small segments, or compaction would not touch what streams read again with every batch.
COMPACTION_CONFIG = {"segment.bytes": "16777216", "segment.ms": "600000", "min.cleanable.dirty.ratio": "0.2"}
_KEY_TYPES = (str, int, bytes, UUID)


@dataclass(frozen=True)
class PgColumn:
    """A column as in Postgres's catalog: its type in Postgres's words, `numeric(8,3)` or `text[]`."""

    name: str
    type: str

    @property
    def base_type(self) -> str:
        """The type's name without precision and brackets."""
        return base_type(self.type)

    @property
    def is_array(self) -> bool:
        return self.type.rstrip().endswith("[]")

    @property
    def annotation(self) -> Any | None:
        """The Python type that reads it from a topic; None when the column is not in the topic."""
        if not self.name.isidentifier() or keyword.iskeyword(self.name):
            return None
        if not self.is_array:
            return PYTHON_TYPES.get(self.base_type)
        if self.base_type in _NOT_IN_ARRAYS:
            return None
        item = _IN_ARRAYS.get(self.base_type, PYTHON_TYPES.get(self.base_type))
        return None if item is None else list[item | None]  # type: ignore[valid-type]


def base_type(kind: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"\([^)]*\)|\[\]", "", kind)).strip().lower()


def parse_columns(text: str, table: str) -> tuple[PgColumn, ...]:
    """The columns in a declaration's `columns`. DeclarationError for what it does not understand."""
    columns = []
    for part in re.split(r",(?![^(]*\))", text):
        match = _COLUMN.fullmatch(part)
        if match is None:
            raise DeclarationError(
                f"The columns of {table} cannot be understood at {part.strip()!r}",
                expected='a list such as "house_id text, limit_kw numeric(8,3)"',
                table=table,
            )
        column = PgColumn(match[1], match[2])
        if column.annotation is None:
            near = nearest(column.base_type, PYTHON_TYPES)
            raise DeclarationError(
                f"The column {column.name} of {table} cannot have the type {column.type}",
                expected="a type of Postgres that comes through (docs/postgres.md has them)",
                hint=f"Did you mean {near}?" if near else "",
                table=table,
            )
        columns.append(column)
    if twice := sorted(
        {candidate.name for candidate in columns if [column.name for column in columns].count(candidate.name) > 1}
    ):
        raise DeclarationError(f"The columns of {table} name {twice[0]} twice", table=table)
    return tuple(columns)


def event_class_for(name: str, columns: Iterable[PgColumn], keys: Sequence[str]) -> type[Event]:
    """An event class of a table's rows. All but the key may be null or missing: a column that is added or dropped later
    makes no record invalid."""
    title = "".join(part.capitalize() for part in re.split(r"[^A-Za-z0-9]+", name)) or "Row"
    annotations: dict[str, Any] = {}
    body: dict[str, Any] = {"__module__": __name__, "__qualname__": title, "__annotations__": annotations}
    for column in columns:
        kind = column.annotation
        if kind is None:
            continue
        if column.name in keys:
            annotations[column.name] = kind
            if len(keys) == 1 and kind in _KEY_TYPES:
                body[column.name] = key()
        else:
            annotations[column.name] = kind | None
            body[column.name] = None
    event_class: type[Event] = EventMeta(title, (Event,), body)  # type: ignore[assignment]
    return event_class


def compacted_topic_for(name: str, columns: Sequence[PgColumn], keys: Sequence[str], partitions: int) -> Topic[Event]:
    """The compacted topic of a table's rows."""
    event = event_class_for(name.rpartition(".")[2], columns, keys)
    # A key of several columns is not a field of the event, and so not a key as `Topic` means it.
    single = len(keys) == 1 and any(column.name == keys[0] and column.annotation in _KEY_TYPES for column in columns)
    config = COMPACTION_CONFIG if single else {"cleanup.policy": "compact", **COMPACTION_CONFIG}
    return Topic(name, event, partitions, compact=single, config=config)
