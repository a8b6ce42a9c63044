"""Stops what runs beside a pipeline: the store, alerts, Connect and connectors, each a process of its own."""

from collections.abc import Callable, Iterable
from typing import Any

# Without Kafka: how long they may take to exit cleanly.
STOP_SECONDS_WITHOUT_KAFKA = 3.0


def stop_supervisors(supervisors: Iterable[Any], kafka_gone: Callable[[], bool]) -> None:
    """Ask all of them to stop, at once: that takes as long as the slowest of them. Without Kafka none is waited for
    long."""
    asked_supervisors = list(supervisors)
    for supervisor in asked_supervisors:
        supervisor.ask_to_stop()
    if kafka_gone():
        for supervisor in asked_supervisors:
            supervisor.limit_stop_time(STOP_SECONDS_WITHOUT_KAFKA)
