"""HTTP ingest as a process of its own, to be killed: `python -m support.ingest_process SERVERS PROJECT TOPIC SETTINGS`."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from riverrun.app import App
from riverrun.config import KafkaSettings, Project
from riverrun.config.spec import IngestSettings
from riverrun.connectors.http.server import IngestServer
from riverrun.kafka.connection import Connection
from riverrun.model.connectors.http import http
from support.posting import Reading


def app_of(topic: str, untyped: str = "") -> App:
    app = App(f"ingest-{topic}")
    app.source(app.topic(topic, Reading), http())
    if untyped:
        app.source(app.topic(untyped), http())
    return app


def server_of(
    servers: str,
    root: Path,
    app: App,
    environ: dict[str, str] | None = None,
    notice: Any = lambda _: None,
    **settings: Any,
) -> IngestServer:
    connection = Connection(KafkaSettings(bootstrap_servers=servers))
    return IngestServer(
        app,
        list(app.sources.values()),
        connection,
        IngestSettings(**settings),
        Project(root),
        environ=environ,
        notice=notice,
    )


class IngestProcess:
    def __init__(self, servers: str, root: Path, topic: str, **settings: Any) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "support.ingest_process", servers, str(root), topic, json.dumps(settings)],
            cwd=Path(__file__).parents[1],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().strip()
        assert self.address, "it did not start"

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    def memory(self) -> int:
        return int(psutil.Process(self.process.pid).memory_info().rss)

    def kill(self) -> None:
        """As nobody wants it: without a word."""
        if self.process.poll() is None:
            os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait(30)
        assert self.process.stdout is not None
        self.process.stdout.close()


@contextmanager
def ingest_process(servers: str, root: Path, topic: str, **settings: Any) -> Iterator[IngestProcess]:
    running = IngestProcess(servers, root, topic, **settings)
    try:
        yield running
    finally:
        running.kill()


def main() -> None:
    servers, root, topic, settings = sys.argv[1:]
    server = server_of(servers, Path(root), app_of(topic), **json.loads(settings))
    print(server.start(), flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()
