"""The configuration of Debezium's JDBC sink, and the schema that our JSON does not carry."""

import json
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import quote, urlencode

from riverrun.config import Project
from riverrun.config.secret import Secret
from riverrun.config.spec import PostgresSettings
from riverrun.connectors.jdbc.target import JdbcTarget, create_or_check
from riverrun.connectors.postgres.address import Database, database_of
from riverrun.errors import ConfigError, DatabaseError, DatabaseNotReadyError
from riverrun.model.table import Column

_KAFKA = "org.apache.kafka.connect.transforms"
_CONNECT_TYPES = {"boolean": "boolean", "bigint": "int64", "double": "double"}
# Separates the names in a nested path; none of our names contains it.
_PATH_SEPARATOR = "."


def sink_configs(
    app: str,
    targets: Sequence[JdbcTarget],
    settings: PostgresSettings,
    project: Project,
    *,
    replication_factor: int = -1,
    notice: Callable[[str], None] = lambda _: None,
) -> dict[str, dict[str, str | Secret]]:
    """The sinks' connectors, after their tables were created or compared. DatabaseNotReadyError has all problems."""
    problems: list[str] = []
    configs: dict[str, dict[str, str | Secret]] = {}
    for target in targets:
        try:
            database = database_of(settings, target.sink.database, project.root)
            table_problems, change = create_or_check(target, database)
        except ConfigError as error:
            problems += error.problems
            continue
        except DatabaseError as error:
            problems.append(f"{target.line}: {error}")
            continue
        problems += table_problems
        if change:
            notice(change)
        if left_out := [column.name for column in target.table.columns if column.type == "json"]:
            notice(f"{target.sink.table} does not get {', '.join(left_out)}: lists, maps and structs are left out")
        if not table_problems:
            configs[connector_name(app, target)] = connector_config(app, target, database, replication_factor)
    if problems:
        raise DatabaseNotReadyError(problems)
    return configs


def connector_name(app: str, target: JdbcTarget) -> str:
    return f"{app}.jdbc.{target.name}"


def connector_config(
    app: str, target: JdbcTarget, database: Database, replication_factor: int = -1
) -> dict[str, str | Secret]:
    # Numbers and times are sent as text: Postgres converts them to the column's type.
    options = {"stringtype": "unspecified", "ApplicationName": f"riverrun {app}", **database.java_options}
    url = f"jdbc:postgresql://{database.host}:{database.port}/{quote(database.dbname)}?{urlencode(options)}"
    name = connector_name(app, target)
    return {
        "connector.class": "io.debezium.connector.jdbc.JdbcSinkConnector",
        "tasks.max": str(target.sink.tasks),
        "topics": target.table.topic,
        "connection.url": url,
        "connection.username": database.user,
        "connection.password": database.password,
        "collection.name.format": target.sink.table,
        # Exactly as declared: HouseLoad is not houseload, and a column may be called order.
        "quote.identifiers": "true",
        "insert.mode": "upsert",
        "primary.key.mode": "record_key" if target.deletes else "record_value",
        "primary.key.fields": ",".join(target.key),
        "delete.enabled": "true" if target.deletes else "false",
        # We create the table, and its owner changes it.
        "schema.evolution": "none",
        "use.time.zone": "UTC",
        "batch.size": "500",
        "consumer.override.isolation.level": "read_committed",
        "consumer.override.auto.offset.reset": "earliest",
        "consumer.override.max.poll.records": "500",
        "errors.tolerance": "all",
        "errors.deadletterqueue.topic.name": f"{name}.dead-letters",
        "errors.deadletterqueue.topic.replication.factor": str(replication_factor),
        "errors.deadletterqueue.context.headers.enable": "true",
        "errors.log.enable": "true",
        "errors.log.include.messages": "false",
        "key.converter": "org.apache.kafka.connect.storage.StringConverter",
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
        "value.converter.schemas.enable": "true",
        "value.converter.schema.content": json.dumps(connect_schema(target), separators=(",", ":")),
        "value.converter.replace.null.with.default": "false",
        **_transforms(target),
    }


def connect_schema(target: JdbcTarget) -> dict[str, Any]:
    """The schema of a record's value, in the format of Connect's JSON converter."""
    fields: list[dict[str, Any]] = []
    inner: dict[str, list[dict[str, Any]]] = {}
    for column in target.columns:
        kind = _connect_type(column, text=target.decimals_are_text)
        if len(column.path) == 1:
            fields.append({"field": column.path[0], "optional": True, **kind})
            continue
        # A window is a struct of two times; nothing else is flattened.
        if column.path[0] not in inner:
            inner[column.path[0]] = []
            fields.append(
                {"field": column.path[0], "optional": True, "type": "struct", "fields": inner[column.path[0]]}
            )
        inner[column.path[0]].append({"field": column.path[1], "optional": True, **kind})
    return {"type": "struct", "optional": True, "fields": fields}


def _connect_type(column: Column, *, text: bool) -> dict[str, Any]:
    if column.decimal is not None and not text:
        scale = str(column.decimal[1])
        return {"type": "bytes", "name": "org.apache.kafka.connect.data.Decimal", "parameters": {"scale": scale}}
    return {"type": _CONNECT_TYPES.get(column.type, "string")}


def _transforms(target: JdbcTarget) -> dict[str, str]:
    chain: dict[str, dict[str, str]] = {}
    if target.deletes:
        # The sink looks for the key's column in a struct.
        chain["key"] = {"type": f"{_KAFKA}.HoistField$Key", "field": target.key[0]}
    renames = {
        _PATH_SEPARATOR.join(column.path): column.name
        for column in target.columns
        if _PATH_SEPARATOR.join(column.path) != column.name
    }
    if renames:
        listed = ",".join(f"{theirs}:{ours}" for theirs, ours in renames.items())
        chain["flat"] = {"type": f"{_KAFKA}.Flatten$Value", "delimiter": _PATH_SEPARATOR}
        chain["named"] = {
            "type": f"{_KAFKA}.ReplaceField$Value",
            "renames": listed,
            "replace.null.with.default": "false",
        }
    settings = {f"transforms.{name}.{key}": value for name, options in chain.items() for key, value in options.items()}
    return {"transforms": ",".join(chain), **settings} if chain else {}
