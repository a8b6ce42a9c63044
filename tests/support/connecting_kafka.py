"""A real Kafka Connect for tests, and the cheapest connectors there are: Kafka's own for files."""

import random
from pathlib import Path

from riverrun.cluster.connect import ConnectRuntime, LocalConnect
from riverrun.config import ConnectSettings

FILE_SOURCE = "org.apache.kafka.connect.file.FileStreamSourceConnector"
FILE_SINK = "org.apache.kafka.connect.file.FileStreamSinkConnector"
STRINGS = {
    "key.converter": "org.apache.kafka.connect.storage.StringConverter",
    "value.converter": "org.apache.kafka.connect.storage.StringConverter",
}


def local_connect(
    root: Path,
    bootstrap_servers: str,
    settings: ConnectSettings | None = None,
    *,
    runtime: ConnectRuntime | None = None,
) -> LocalConnect:
    """A Connect under `root`, on a port where nobody else's tests look first. Use it in a `with`."""
    port = random.randrange(12000, 28000, 10)
    return LocalConnect(root, bootstrap_servers, settings, runtime=runtime, first_port=port)


def file_source(file: Path, topic: str, **more: str) -> dict[str, str]:
    """Each line of a file becomes a record."""
    return {"connector.class": FILE_SOURCE, "tasks.max": "1", "file": str(file), "topic": topic, **STRINGS, **more}


def file_sink(file: Path, topic: str, **more: str) -> dict[str, str]:
    """Each record becomes a line of a file."""
    return {"connector.class": FILE_SINK, "tasks.max": "1", "file": str(file), "topics": topic, **STRINGS, **more}
