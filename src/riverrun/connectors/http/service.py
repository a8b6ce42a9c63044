"""HTTP ingest in the connector process (`riverrun connectors run`, and so `riverrun run`): one server for all topics with
`riverrun.http()`. Its address is in `.riverrun/run/ingest.json` (config/ingest_state.py)."""

import threading
from collections.abc import Mapping, Sequence

from riverrun.config.ingest_state import IngestState
from riverrun.config.project import Project
from riverrun.connectors.contract import ConnectorContext
from riverrun.connectors.http.server import IngestServer
from riverrun.connectors.status import ConnectorStatus, now_ms
from riverrun.model.connector import SourceBinding

STATUS_SECONDS = 0.5


class HttpService:
    """Serves until it is stopped. It needs no position: a record is in Kafka before its sender gets the response."""

    def __init__(self, bindings: Sequence[SourceBinding], context: ConnectorContext) -> None:
        self._bindings = bindings
        self._context = context

    def run(self, stop: threading.Event, statuses: Mapping[str, ConnectorStatus]) -> None:
        context = self._context
        project = Project(context.project_root)
        server = IngestServer(
            context.app,
            self._bindings,
            context.connection,
            context.settings.ingest,
            project,
            notice=context.notice,
            environ=context.environ,
        )
        with IngestState(project, context.app.name) as state, server:
            address = server.start(state.last_port)
            state.write(address, server.port)
            names = [binding.topic for binding in self._bindings]
            where = names[0] if len(names) == 1 else f"NAME ({', '.join(names)})"
            key = "; senders need a key" if server.requires_key else ""
            context.notice(f"records are taken by HTTP at {address}/topics/{where}{key}")
            before = {status.name: status.records for status in statuses.values()}
            while not stop.wait(STATUS_SECONDS):
                self._update_statuses(server, statuses, before)
            self._update_statuses(server, statuses, before)

    def _update_statuses(
        self, server: IngestServer, statuses: Mapping[str, ConnectorStatus], before: Mapping[str, int]
    ) -> None:
        for binding in self._bindings:
            status, counts = statuses[binding.name], server.counts[binding.topic]
            records = before[binding.name] + counts.records
            # "waiting" without new records: waiting until all sources are read must not mean waiting for senders.
            status.set_state("running" if records != status.records else "waiting")
            if records != status.records:
                status.records = records
                status.committed_ms = now_ms()
