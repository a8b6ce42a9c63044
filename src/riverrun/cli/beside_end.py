"""The end of what runs beside a pipeline: the store, alerts, Connect and connectors, each a process of its own."""

from collections.abc import Callable, Iterable
from typing import Any

# Without Kafka: how long they may take to end in order.
BESIDE_SECONDS = 3.0


def stop_beside(beside: Iterable[Any], kafka_gone: Callable[[], bool]) -> None:
    """Ask all of them to end, at once: that takes as long as the slowest of them. Without Kafka none is waited for long."""
    asked = list(beside)
    for each in asked:
        each.ask_to_stop()
    if kafka_gone():
        for each in asked:
            each.hurry(BESIDE_SECONDS)
