"""The Debezium configuration for the tables that an app captures. Why these settings: docs/decisions/0015-postgres.md."""

import re
from collections.abc import Mapping
from datetime import date, datetime
from typing import Any

import msgspec

from riverrun.config.secret import Secret
from riverrun.config.spec import PostgresSettings
from riverrun.connectors.postgres.address import Database
from riverrun.connectors.postgres.capture import CapturedTable, CdcConnector
from riverrun.connectors.postgres.columns import CachedTable
from riverrun.model.connectors.postgres_types import PgColumn

HEARTBEAT = "riverrun.heartbeat"
# The connector's message when a long value cannot be read again because its row was deleted, and its position in the log.
ROW_GONE = "Failed to find row in table"
_FAILED_AT = re.compile(r"Error while processing event at offset \{[^}]*\blsn=(\d+)")
# What the connector does with a change that it cannot read: fail, or warn and skip it.
FAILED_CHANGES = "event.processing.failure.handling.mode"
_UNWRAP = "io.debezium.transforms.ExtractNewRecordState"
_KAFKA = "org.apache.kafka.connect.transforms"
_DAY, _DAY_UTC = "yyyy-MM-dd", "yyyy-MM-dd'Z'"
_MOMENT = "yyyy-MM-dd'T'HH:mm:ss.SSS'Z'"
_DECIMAL_TYPES = ("numeric", "decimal", "money")
# Nulls stay null, and are not replaced by a column's default.
_NULL = {"replace.null.with.default": "false"}


def connector_config(
    connector: CdcConnector, database: Database, settings: PostgresSettings, cached: Mapping[str, CachedTable]
) -> dict[str, str | Secret]:
    """The connector's configuration. `cached` has the columns of the tables, by `CapturedTable.name`, where known."""
    read_first = [re.escape(table.table) for table in connector.tables if table.source.snapshot]
    config: dict[str, str | Secret] = {
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "tasks.max": "1",
        # Each record is written once, whatever is killed: positions and records are one transaction.
        "exactly.once.support": "required",
        "database.hostname": database.host,
        "database.port": str(database.port),
        "database.user": database.user,
        "database.password": database.password,
        "database.dbname": database.dbname,
        **{
            f"{'database' if name.startswith('ssl') else 'driver'}.{name}": value
            for name, value in database.java_options.items()
        },
        "topic.prefix": connector.topic_prefix,
        "table.include.list": ",".join(re.escape(table.table) for table in connector.tables),
        "message.key.columns": ";".join(
            f"{re.escape(table.table)}:{','.join(connector.keys[table.name])}" for table in connector.tables
        ),
        "plugin.name": "pgoutput",
        "slot.name": connector.slot,
        "slot.drop.on.stop": "false",
        "publication.name": connector.slot,
        # Created by us before: what autocreate makes depends on rights, and its errors do not help.
        "publication.autocreate.mode": "disabled",
        "snapshot.mode": "initial" if read_first else "no_data",
        **({"snapshot.include.collection.list": ",".join(read_first)} if read_first else {}),
        # The database is not blocked while rows are read: changes made meanwhile come after them.
        "snapshot.isolation.mode": "repeatable_read",
        "decimal.handling.mode": "string",
        "time.precision.mode": "isostring",
        "interval.handling.mode": "string",
        "hstore.handling.mode": "json",
        "binary.handling.mode": "base64",
        # A long value (TOAST) that an update left unchanged is not in the log: it is read from the row. The checks refuse
        # types that cannot be read this way.
        "post.processors": "reselect",
        "reselect.type": "io.debezium.processors.reselect.ReselectColumnsPostProcessor",
        "reselect.reselect.unavailable.values": "true",
        "reselect.reselect.null.values": "false",
        # Postgres ends its clients before the readers of its log: continuing would put the placeholder into records at each
        # restart. If the row was deleted by now, `riverrun run` skips its update (cli/connect_reconciler.py).
        "reselect.reselect.error.handling.mode": "fail",
        FAILED_CHANGES: "fail",
        # The delete itself becomes the tombstone, or a record of its own.
        "tombstones.on.delete": "false",
        "skipped.operations": "t",
        "poll.interval.ms": str(settings.poll_ms),
        "max.batch.size": "4096",
        "max.queue.size": "16384",
        # Otherwise the slot would retain the whole log of a database in which only other tables change.
        "heartbeat.interval.ms": str(settings.heartbeat_seconds * 1000),
        "heartbeat.action.query": f"select pg_logical_emit_message(true, '{HEARTBEAT}', '')",
        "message.prefix.exclude.list": re.escape(HEARTBEAT),
        "topic.heartbeat.prefix": "riverrun.heartbeat",
        "topic.creation.default.partitions": "1",
        "topic.creation.default.replication.factor": "-1",
        "errors.max.retries": "-1",
        "retriable.restart.connector.wait.ms": "3000",
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
        "value.converter.schemas.enable": "false",
        **{f"value.converter.{name}": value for name, value in _NULL.items()},
        **_key_converter(composite=connector.composite),
        **_transforms(connector, cached),
    }
    return config


def failed_lsn(trace: str) -> int | None:
    """The LSN of the change that a task failed at, from its stack trace; None if it has none."""
    match = _FAILED_AT.search(trace)
    return int(match[1]) if match is not None else None


def _key_converter(*, composite: bool) -> dict[str, str]:
    if not composite:
        return {"key.converter": "org.apache.kafka.connect.storage.StringConverter"}
    return {"key.converter": "org.apache.kafka.connect.json.JsonConverter", "key.converter.schemas.enable": "false"}


class _TransformChain:
    """Transforms in their order, and the predicates that select their records."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._names: list[str] = []
        self._predicates: dict[str, str] = {}
        self._config: dict[str, str] = {}

    def add(self, kind: str, config: Mapping[str, str], only: str = "", negate: bool = False) -> None:
        name = f"t{len(self._names)}"
        self._names.append(name)
        settings = {"type": kind, **config}
        if only:
            settings |= {"predicate": only} | ({"negate": "true"} if negate else {})
        self._config |= {f"transforms.{name}.{key}": value for key, value in settings.items()}

    def predicate(self, name: str, tables: list[CapturedTable]) -> str:
        """Select records of these tables, by the topic name that Debezium gives them before they are routed."""
        listed = "|".join(re.escape(table.table) for table in tables)
        self._predicates |= {
            f"predicates.{name}.type": f"{_KAFKA}.predicates.TopicNameMatches",
            f"predicates.{name}.pattern": f"{re.escape(self._prefix)}\\.({listed})",
        }
        return name

    def config(self) -> dict[str, str]:
        names = dict.fromkeys(key.split(".")[1] for key in self._predicates)
        return {
            "transforms": ",".join(self._names),
            **({"predicates": ",".join(names)} if names else {}),
            **self._config,
            **self._predicates,
        }


def _transforms(connector: CdcConnector, cached: Mapping[str, CachedTable]) -> dict[str, str]:
    chain = _TransformChain(connector.topic_prefix)
    rows = [table for table in connector.tables if table.rows]
    changes = [table for table in connector.tables if not table.rows]
    if rows:
        which = chain.predicate("rows", rows)
        chain.add(_UNWRAP, {"delete.tombstone.handling.mode": "delete-to-tombstone", **_NULL}, which)
    if changes:
        which = chain.predicate("changes", changes)
        # `add.fields` with names of our own; the record of a delete has the row before it.
        added = "op:change,source.ts_ms:changed_at,source.lsn:lsn"
        chain.add(
            _UNWRAP,
            {"delete.tombstone.handling.mode": "rewrite", "add.fields": added, "add.fields.prefix": "", **_NULL},
            which,
        )
        chain.add(f"{_KAFKA}.ReplaceField$Value", {"exclude": "__deleted", **_NULL}, which)
        chain.add(
            f"{_KAFKA}.TimestampConverter$Value",
            {"field": "changed_at", "target.type": "string", "format": _MOMENT, **_NULL},
            which,
        )
    for number, captured in enumerate(connector.tables):
        _add_table_transforms(chain, captured, connector, cached.get(captured.name), f"table{number}")
    for captured in connector.tables:
        regex = f"{re.escape(connector.topic_prefix)}\\.{re.escape(captured.table)}"
        chain.add(f"{_KAFKA}.RegexRouter", {"regex": regex, "replacement": captured.topic})
    return chain.config()


def _add_table_transforms(
    chain: _TransformChain, table: CapturedTable, connector: CdcConnector, cached: CachedTable | None, name: str
) -> None:
    columns = {pg_column.name: pg_column for pg_column in (cached.columns if cached is not None else ())}
    dates = [
        pg_column.name for pg_column in columns.values() if pg_column.base_type == "date" and not pg_column.is_array
    ]
    casts = numeric_casts(table, columns)
    which = ""

    def only() -> str:
        nonlocal which
        which = which or chain.predicate(name, [table])
        return which

    if not connector.composite:
        chain.add(f"{_KAFKA}.ExtractField$Key", {"field": connector.keys[table.name][0], **_NULL}, only())
    for column in dates:
        # Debezium writes a day as 2026-01-31Z, which no date parser accepts.
        shared = {"field": column, **_NULL}
        convert = f"{_KAFKA}.TimestampConverter$Value"
        chain.add(convert, {**shared, "target.type": "Date", "format": _DAY_UTC}, only())
        chain.add(convert, {**shared, "target.type": "string", "format": _DAY}, only())
    if casts:
        spec = ",".join(f"{column}:{kind}" for column, kind in casts.items())
        chain.add(f"{_KAFKA}.Cast$Value", {"spec": spec, **_NULL}, only())


def numeric_casts(table: CapturedTable, columns: Mapping[str, PgColumn]) -> dict[str, str]:
    """Casts of exact numbers to float or int, where the topic's event type has such a field."""
    if table.declared_topic is None or table.declared_topic.event is None:
        return {}
    casts = {}
    for name, kind in field_types(table.declared_topic.event).items():
        column = columns.get(name)
        if column is not None and column.base_type in _DECIMAL_TYPES and not column.is_array and kind in (float, int):
            casts[name] = "float64" if kind is float else "int64"
    return casts


def field_types(event: type[Any]) -> dict[str, type | None]:
    """The plain Python type of each field of an event by its name in records, without constraints; None: another."""
    types: dict[str, type | None] = {}
    info = msgspec.inspect.type_info(event)
    assert isinstance(info, msgspec.inspect.StructType)  # noqa: S101  -- an event class is a struct
    for field in info.fields:
        types[field.encode_name] = _python_type(field.type)
    return types


def _python_type(info: msgspec.inspect.Type) -> type | None:
    from decimal import Decimal
    from uuid import UUID

    if isinstance(info, msgspec.inspect.Metadata):
        return _python_type(info.type)
    if isinstance(info, msgspec.inspect.UnionType):
        members = [member for member in info.types if not isinstance(member, msgspec.inspect.NoneType)]
        return _python_type(members[0]) if len(members) == 1 else None
    kinds: dict[type, type] = {
        msgspec.inspect.FloatType: float,
        msgspec.inspect.IntType: int,
        msgspec.inspect.StrType: str,
        msgspec.inspect.BoolType: bool,
        msgspec.inspect.BytesType: bytes,
        msgspec.inspect.DecimalType: Decimal,
        msgspec.inspect.DateTimeType: datetime,
        msgspec.inspect.DateType: date,
        msgspec.inspect.UUIDType: UUID,
        msgspec.inspect.ListType: list,
        msgspec.inspect.DictType: dict,
    }
    return kinds.get(type(info))
