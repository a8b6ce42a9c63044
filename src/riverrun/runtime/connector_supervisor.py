"""Connectors beside running streams: `riverrun run` starts `riverrun connectors run` as a process of its own."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from riverrun.app import declared_names as app_names
from riverrun.errors import RiverrunError
from riverrun.model.notices import phrase_of
from riverrun.runtime.supervised_process import SupervisedProcess

if TYPE_CHECKING:
    from riverrun.app import App
    from riverrun.config import LoadedSettings
    from riverrun.connectors.state_topic import ConnectorStateSnapshot
    from riverrun.kafka.connection import Connection

STOP_SECONDS = 20.0
# How long there may be no progress while sources catch up, or sinks write what is in their topics.
CATCH_UP_SECONDS = 60.0
POLL_SECONDS = 0.5


class ConnectorSupervisor:
    """The connector process, and its messages for people."""

    def __init__(
        self,
        app: "App",
        connection: "Connection",
        notice: Callable[[str], None],
        process: SupervisedProcess,
        since_ms: int,
    ) -> None:
        self._app = app
        self._connection = connection
        self._notice = notice
        self._process = process
        self._since_ms = since_ms

    def poll(self) -> None:
        """Called again and again: restart it when it died, and print its new messages."""
        self._process.poll()
        for line in self._process.new_lines():
            self._notice(phrase_of(line, app_names(self._app)))

    def limit_stop_time(self, seconds: float) -> None:
        """Kafka is down: do not wait longer than this for a clean exit."""
        self._process.limit_stop_time(seconds)

    def ask_to_stop(self) -> None:
        self._process.ask_to_stop()

    def wait_for_sources(self, stop: threading.Event) -> None:
        """Wait until sources have caught up, before streams are run to the end of their input."""
        self._wait(stop, "source", "sources are not done")

    def wait_until_caught_up(self, stop: threading.Event) -> None:
        """Wait until sinks have caught up."""
        self._wait(stop, "sink", "sinks are not done")

    def _wait(self, stop: threading.Event, kind: str, words: str) -> None:
        from riverrun.connectors.state_topic import read_connector_state

        deadline = time.monotonic() + CATCH_UP_SECONDS
        unfinished = "not started"
        while unfinished and time.monotonic() < deadline and not self._process.given_up:
            self.poll()
            before = unfinished
            try:
                unfinished = self._unfinished(
                    read_connector_state(self._connection, self._app.name, wait_for_transactions=False), kind
                )
            except RiverrunError as error:
                unfinished = str(error)
            if unfinished != before:
                deadline = time.monotonic() + CATCH_UP_SECONDS
            if unfinished and stop.wait(POLL_SECONDS):
                return
        if unfinished:
            self._notice(f"{words}: {unfinished}; the next run goes on from there")

    def _unfinished(self, state: "ConnectorStateSnapshot", kind: str) -> str:
        """What is not done, as a sentence; empty when all is. Only the state of the current process counts."""
        from riverrun.connectors.process import connector_names, sink_lag

        lease = state.lease
        if lease is None or lease.started_ms < self._since_ms:
            return "they have not started yet"
        statuses = [
            status
            for status in state.statuses.values()
            if status.kind == kind and status.state_since_ms >= lease.started_ms
        ]
        known = {status.name for status in statuses}
        if missing := sorted(set(connector_names(self._app, kind)) - known):
            return f"{', '.join(missing)} not started yet"
        running = [status for status in statuses if status.state not in ("failed", "finished")]
        if kind == "sink":
            # A sink's own report may be older than what was just written: the cluster knows.
            lags = {status.name: sink_lag(self._connection, self._app, status.name) for status in running}
            return ", ".join(f"{name} {count} offsets behind" for name, count in lags.items() if count)
        busy = [status for status in running if not status.is_idle or (status.lag or 0) > 0]
        return ", ".join(f"{status.label} {status.state}, {status.records} records" for status in busy)


@contextmanager
def supervise_connectors(
    settings: "LoadedSettings", app: "App", connection: "Connection", notice: Callable[[str], None]
) -> Iterator[ConnectorSupervisor | None]:
    """Run an app's own sources and sinks as long as the block lasts; None where it has none."""
    from riverrun.connectors.process import has_connectors

    if not has_connectors(app):
        yield None
        return
    command = [sys.executable, "-m", "riverrun", "--project", str(settings.project.root)]
    if settings.profile:
        command += ["--profile", settings.profile]
    command += ["connectors", "run", app.file, "--bootstrap-servers", connection.bootstrap_servers]
    process = SupervisedProcess(
        "the connector process", command, settings.project.logs / "connectors.log", notice=notice
    )
    since_ms = time.time_ns() // 1_000_000
    process.start()
    try:
        yield ConnectorSupervisor(app, connection, notice, process, since_ms)
    finally:
        process.stop(STOP_SECONDS)
