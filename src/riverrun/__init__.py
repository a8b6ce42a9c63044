"""riverrun: a real-time data platform in Python on real Apache Kafka, Spark and Druid.

The names a user types. They are looked up when they are used, so that `import riverrun` costs next to nothing and starts
nothing.
"""

from typing import TYPE_CHECKING, Any

from riverrun._version import __version__

if TYPE_CHECKING:
    from riverrun.app import App
    from riverrun.errors import RiverrunError
    from riverrun.kafka.aio_producer import AsyncProducer
    from riverrun.kafka.connection import Connection, connect
    from riverrun.kafka.delivery import Delivery, Receipt, Undelivered
    from riverrun.kafka.producer import Producer
    from riverrun.model.event import Event, event_time, field, key
    from riverrun.model.topic import Topic

_PLACES = {
    "App": "riverrun.app",
    "AsyncProducer": "riverrun.kafka.aio_producer",
    "Connection": "riverrun.kafka.connection",
    "Delivery": "riverrun.kafka.delivery",
    "Event": "riverrun.model.event",
    "Producer": "riverrun.kafka.producer",
    "Receipt": "riverrun.kafka.delivery",
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
    "AsyncProducer",
    "Connection",
    "Delivery",
    "Event",
    "Producer",
    "Receipt",
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
