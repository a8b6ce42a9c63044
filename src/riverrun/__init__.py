"""riverrun: a real-time data platform in Python on real Apache Kafka, Spark and Druid.

The names a user types. They are looked up when they are used, so that `import riverrun` costs next to nothing and starts
nothing.
"""

from typing import TYPE_CHECKING, Any

from riverrun._version import __version__

if TYPE_CHECKING:
    from riverrun.app import App
    from riverrun.errors import RiverrunError
    from riverrun.kafka.aio_consumer import AsyncConsumer
    from riverrun.kafka.aio_producer import AsyncProducer
    from riverrun.kafka.connection import Connection, connect
    from riverrun.kafka.consumer import Consumer
    from riverrun.kafka.dead_letter import DeadLetter
    from riverrun.kafka.delivery import Delivery, Receipt, Undelivered
    from riverrun.kafka.producer import Producer
    from riverrun.kafka.record import Batch, Record
    from riverrun.kafka.retry import Retry
    from riverrun.model.event import Event, event_time, field, key
    from riverrun.model.state import Place
    from riverrun.model.topic import Topic

_PLACES = {
    "App": "riverrun.app",
    "AsyncConsumer": "riverrun.kafka.aio_consumer",
    "AsyncProducer": "riverrun.kafka.aio_producer",
    "Batch": "riverrun.kafka.record",
    "Connection": "riverrun.kafka.connection",
    "Consumer": "riverrun.kafka.consumer",
    "DeadLetter": "riverrun.kafka.dead_letter",
    "Delivery": "riverrun.kafka.delivery",
    "Event": "riverrun.model.event",
    "Place": "riverrun.model.state",
    "Producer": "riverrun.kafka.producer",
    "Receipt": "riverrun.kafka.delivery",
    "Record": "riverrun.kafka.record",
    "Retry": "riverrun.kafka.retry",
    "RiverrunError": "riverrun.errors",
    "Topic": "riverrun.model.topic",
    "Undelivered": "riverrun.kafka.delivery",
    "connect": "riverrun.kafka.connection",
    "event_time": "riverrun.model.event",
    "field": "riverrun.model.event",
    "key": "riverrun.model.event",
}

__all__ = [
    "App",
    "AsyncConsumer",
    "AsyncProducer",
    "Batch",
    "Connection",
    "Consumer",
    "DeadLetter",
    "Delivery",
    "Event",
    "Place",
    "Producer",
    "Receipt",
    "Record",
    "Retry",
    "RiverrunError",
    "Topic",
    "Undelivered",
    "__version__",
    "connect",
    "event_time",
    "field",
    "key",
]


def __getattr__(name: str) -> Any:
    if name in _PLACES:
        import importlib

        value = getattr(importlib.import_module(_PLACES[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'riverrun' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
