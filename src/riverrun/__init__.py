"""riverrun: a real-time data platform in Python on real Apache Kafka, Spark and Druid.

The names a user types. They are looked up when they are used, so that `import riverrun` costs next to nothing and starts
nothing.
"""

from typing import TYPE_CHECKING, Any

from riverrun._version import __version__

if TYPE_CHECKING:
    from riverrun.app import App
    from riverrun.errors import ConnectorRefusedError, PositionUnknownError, RetryLaterError, RiverrunError
    from riverrun.kafka.connection import Connection, connect
    from riverrun.kafka.consumer.aio import AsyncConsumer
    from riverrun.kafka.consumer.consumer import Consumer
    from riverrun.kafka.consumer.dead_letter import DeadLetter
    from riverrun.kafka.consumer.record import Batch, Record
    from riverrun.kafka.consumer.retry import Retry
    from riverrun.kafka.producer.aio import AsyncProducer
    from riverrun.kafka.producer.delivery import Delivery, Receipt, Undelivered
    from riverrun.kafka.producer.producer import Producer
    from riverrun.model.alert import Alert, column_of, digest, escalate, quiet
    from riverrun.model.cluster_state import TopicPartition
    from riverrun.model.connector import FailedRecord, Item, Items, Reader, Sink, Source, option
    from riverrun.model.connectors.files import folder, tail
    from riverrun.model.connectors.http import http
    from riverrun.model.connectors.jdbc import jdbc
    from riverrun.model.connectors.mqtt import mqtt
    from riverrun.model.connectors.postgres import postgres
    from riverrun.model.connectors.webhook import webhook
    from riverrun.model.dashboard import (
        Dashboard,
        Tile,
        area,
        bar,
        candle,
        heat_map,
        leaderboard,
        line,
        number,
        rows,
        status,
        text,
    )
    from riverrun.model.event import Event, event_time, field, key
    from riverrun.model.pipeline import FileSource, Stream, Table, csv, json, parquet
    from riverrun.model.topic import Topic

_EXPORTS = {
    "Alert": "riverrun.model.alert",
    "App": "riverrun.app",
    "AsyncConsumer": "riverrun.kafka.consumer.aio",
    "AsyncProducer": "riverrun.kafka.producer.aio",
    "Batch": "riverrun.kafka.consumer.record",
    "Connection": "riverrun.kafka.connection",
    "ConnectorRefusedError": "riverrun.errors",
    "Consumer": "riverrun.kafka.consumer.consumer",
    "Dashboard": "riverrun.model.dashboard",
    "DeadLetter": "riverrun.kafka.consumer.dead_letter",
    "Delivery": "riverrun.kafka.producer.delivery",
    "Event": "riverrun.model.event",
    "FileSource": "riverrun.model.pipeline",
    "Item": "riverrun.model.connector",
    "Items": "riverrun.model.connector",
    "TopicPartition": "riverrun.model.cluster_state",
    "PositionUnknownError": "riverrun.errors",
    "Producer": "riverrun.kafka.producer.producer",
    "Reader": "riverrun.model.connector",
    "Receipt": "riverrun.kafka.producer.delivery",
    "Record": "riverrun.kafka.consumer.record",
    "Retry": "riverrun.kafka.consumer.retry",
    "RetryLaterError": "riverrun.errors",
    "RiverrunError": "riverrun.errors",
    "Sink": "riverrun.model.connector",
    "Source": "riverrun.model.connector",
    "Stream": "riverrun.model.pipeline",
    "Table": "riverrun.model.pipeline",
    "Tile": "riverrun.model.dashboard",
    "Topic": "riverrun.model.topic",
    "Undelivered": "riverrun.kafka.producer.delivery",
    "FailedRecord": "riverrun.model.connector",
    "area": "riverrun.model.dashboard",
    "bar": "riverrun.model.dashboard",
    "candle": "riverrun.model.dashboard",
    "column_of": "riverrun.model.alert",
    "connect": "riverrun.kafka.connection",
    "csv": "riverrun.model.pipeline",
    "digest": "riverrun.model.alert",
    "escalate": "riverrun.model.alert",
    "event_time": "riverrun.model.event",
    "field": "riverrun.model.event",
    "folder": "riverrun.model.connectors.files",
    "heat_map": "riverrun.model.dashboard",
    "http": "riverrun.model.connectors.http",
    "jdbc": "riverrun.model.connectors.jdbc",
    "json": "riverrun.model.pipeline",
    "key": "riverrun.model.event",
    "leaderboard": "riverrun.model.dashboard",
    "line": "riverrun.model.dashboard",
    "mqtt": "riverrun.model.connectors.mqtt",
    "number": "riverrun.model.dashboard",
    "option": "riverrun.model.connector",
    "parquet": "riverrun.model.pipeline",
    "postgres": "riverrun.model.connectors.postgres",
    "quiet": "riverrun.model.alert",
    "rows": "riverrun.model.dashboard",
    "status": "riverrun.model.dashboard",
    "tail": "riverrun.model.connectors.files",
    "text": "riverrun.model.dashboard",
    "webhook": "riverrun.model.connectors.webhook",
}

__all__ = [
    "Alert",
    "App",
    "AsyncConsumer",
    "AsyncProducer",
    "Batch",
    "Connection",
    "ConnectorRefusedError",
    "Consumer",
    "Dashboard",
    "DeadLetter",
    "Delivery",
    "Event",
    "FailedRecord",
    "FileSource",
    "Item",
    "Items",
    "PositionUnknownError",
    "Producer",
    "Reader",
    "Receipt",
    "Record",
    "Retry",
    "RetryLaterError",
    "RiverrunError",
    "Sink",
    "Source",
    "Stream",
    "Table",
    "Tile",
    "Topic",
    "TopicPartition",
    "Undelivered",
    "__version__",
    "area",
    "bar",
    "candle",
    "column_of",
    "connect",
    "csv",
    "digest",
    "escalate",
    "event_time",
    "field",
    "folder",
    "heat_map",
    "http",
    "jdbc",
    "json",
    "key",
    "leaderboard",
    "line",
    "mqtt",
    "number",
    "option",
    "parquet",
    "postgres",
    "quiet",
    "rows",
    "status",
    "tail",
    "text",
    "webhook",
]


def __getattr__(name: str) -> Any:
    if name in _EXPORTS:
        import importlib

        value = getattr(importlib.import_module(_EXPORTS[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'riverrun' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
