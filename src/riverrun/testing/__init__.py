"""Tools to test pipelines with: the fixtures of `pytest_plugin`, and the types of what they return."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from riverrun.testing.alerts import AlertNotification
    from riverrun.testing.crash import Crash, CrashRun, crashes
    from riverrun.testing.pytest_plugin import KafkaUnderTest
    from riverrun.testing.sources import SourceSuite
    from riverrun.testing.streams import DeadRow, StreamTest

__all__ = [
    "AlertNotification",
    "Crash",
    "CrashRun",
    "DeadRow",
    "KafkaUnderTest",
    "SourceSuite",
    "StreamTest",
    "crashes",
]

_PLACES = {
    "Crash": "riverrun.testing.crash",
    "CrashRun": "riverrun.testing.crash",
    "crashes": "riverrun.testing.crash",
    "DeadRow": "riverrun.testing.streams",
    "KafkaUnderTest": "riverrun.testing.pytest_plugin",
    "SourceSuite": "riverrun.testing.sources",
    "StreamTest": "riverrun.testing.streams",
    "AlertNotification": "riverrun.testing.alerts",
}


def __getattr__(name: str) -> Any:
    # Imported on first use: pytest and Spark are not dependencies of riverrun itself.
    if name in _PLACES:
        from importlib import import_module

        return getattr(import_module(_PLACES[name]), name)
    raise AttributeError(f"module 'riverrun.testing' has no attribute {name!r}")
