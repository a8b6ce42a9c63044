"""What Debezium is told of the tables that an app follows. Why these settings: docs/decisions/0015-postgres.md."""

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
# What the connector says where a long value cannot be read again because its row is gone, and of where that was.
ROW_GONE = "Failed to find row in table"
_FAILED_AT = re.compile(r"Error while processing event at offset \{[^}]*\blsn=(\d+)")
# What the connector does with a change that it cannot read: fail, or warn and leave it out.
FAILED_CHANGES = "event.processing.failure.handling.mode"
_UNWRAP = "io.debezium.transforms.ExtractNewRecordState"
_KAFKA = "org.apache.kafka.connect.transforms"
_DAY, _DAY_UTC = "yyyy-MM-dd", "yyyy-MM-dd'Z'"
_MOMENT = "yyyy-MM-dd'T'HH:mm:ss.SSS'Z'"
_DECIMAL_TYPES = ("numeric", "decimal", "money")
# What a whole number of an event type may be read from besides.
_NULL = {"replace.null.with.default": "false"}


def connector_config(
    connector: CdcConnector, database: Database, settings: PostgresSettings, cached: Mapping[str, CachedTable]
) -> dict[str, str | Secret]:
    """The connector's configuration. `cached` has the columns of the tables, by `CapturedTable.name`, where known."""
    read_first = [re.escape(table.table) for table in connector.tables if table.source.snapshot]
    config: dict[str, str | Secret] = {
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "tasks.max": "1",
        # A record is there once, whatever is killed: positions and records are one transaction.
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
        # Made by us before: what autocreate makes depends on rights, and its errors help nobody.
        "publication.autocreate.mode": "disabled",
        "snapshot.mode": "initial" if read_first else "no_data",
        **({"snapshot.include.collection.list": ",".join(read_first)} if read_first else {}),
        # The database is not held up while rows are read: changes made meanwhile come after them.
        "snapshot.isolation.mode": "repeatable_read",
        "decimal.handling.mode": "string",
        "time.precision.mode": "isostring",
        "interval.handling.mode": "string",
        "hstore.handling.mode": "json",
        "binary.handling.mode": "base64",
        # A long value (TOAST) that an update has left alone is not in the log: it is read from the row. The checks refuse
        # what cannot be read so.
        "post.processors": "reselect",
        "reselect.type": "io.debezium.processors.reselect.ReselectColumnsPostProcessor",
        "reselect.reselect.unavailable.values": "true",
        "reselect.reselect.null.values": "false",
        # Postgres ends who asks before who reads its log: to go on would put the placeholder into records at each restart of
        # it. Where the row is gone by now, `riverrun run` leaves its update out (cli/connect_reconciler.py).
        "reselect.reselect.error.handling.mode": "fail",
        FAILED_CHANGES: "fail",
        # The delete itself becomes the tombstone, or a record of its own.
        "tombstones.on.delete": "false",
        "skipped.operations": "t",
        "poll.interval.ms": str(settings.poll_ms),
        "max.batch.size": "4096",
        "max.queue.size": "16384",
        # The slot would hold all of the log of a database where only other tables change.
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
    """Of a task's stack trace: the place in the database's log of the change that it failed at; None where it has none."""
    match = _FAILED_AT.search(trace)
    return int(match[1]) if match is not None else None


def _key_converter(*, composite: bool) -> dict[str, str]:
    if not composite:
        return {"key.converter": "org.apache.kafka.connect.storage.StringConverter"}
    return {"key.converter": "org.apache.kafka.connect.json.JsonConverter", "key.converter.schemas.enable": "false"}


class _TransformChain:
    """Transforms in their order, and the predicates that choose their records."""

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
        """Records of these tables, by the topic that Debezium calls them before they are routed."""
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
        # `add.fields` with names of our own; a record of a delete has the row as it was.
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
    for number, each in enumerate(connector.tables):
        _add_table_transforms(chain, each, connector, cached.get(each.name), f"table{number}")
    for each in connector.tables:
        regex = f"{re.escape(connector.topic_prefix)}\\.{re.escape(each.table)}"
        chain.add(f"{_KAFKA}.RegexRouter", {"regex": regex, "replacement": each.topic})
    return chain.config()


def _add_table_transforms(
    chain: _TransformChain, table: CapturedTable, connector: CdcConnector, cached: CachedTable | None, name: str
) -> None:
    columns = {one.name: one for one in (cached.columns if cached is not None else ())}
    dates = [one.name for one in columns.values() if one.base_type == "date" and not one.is_array]
    casts = numeric_casts(table, columns)
    which = ""

    def only() -> str:
        nonlocal which
        which = which or chain.predicate(name, [table])
        return which

    if not connector.composite:
        chain.add(f"{_KAFKA}.ExtractField$Key", {"field": connector.keys[table.name][0], **_NULL}, only())
    for column in dates:
        # Debezium writes a day as 2026-01-31Z, which no reader of dates takes.
        shared = {"field": column, **_NULL}
        convert = f"{_KAFKA}.TimestampConverter$Value"
        chain.add(convert, {**shared, "target.type": "Date", "format": _DAY_UTC}, only())
        chain.add(convert, {**shared, "target.type": "string", "format": _DAY}, only())
    if casts:
        spec = ",".join(f"{column}:{kind}" for column, kind in casts.items())
        chain.add(f"{_KAFKA}.Cast$Value", {"spec": spec, **_NULL}, only())


def numeric_casts(table: CapturedTable, columns: Mapping[str, PgColumn]) -> dict[str, str]:
    """Exact numbers that the topic's event type has as float or int: numbers on the way, too."""
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
        members = [one for one in info.types if not isinstance(one, msgspec.inspect.NoneType)]
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
