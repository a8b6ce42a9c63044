"""HTTP ingest in the connector process (`riverrun connectors run`, and so `riverrun run`): one server for all topics that
say `riverrun.http()`. Its address is in `.riverrun/run/ingest.json` (config/ingest_state.py)."""

import threading
from collections.abc import Mapping, Sequence

from riverrun.config.ingest_state import IngestState
from riverrun.config.project import Project
from riverrun.connectors.contract import Around
from riverrun.connectors.http.server import IngestServer
from riverrun.connectors.standing import Standing, now_ms
from riverrun.model.connector import Fed

LOOK_SECONDS = 0.5


class HttpService:
    """Serves until it is told to stop. It needs no position: a record is in Kafka before its sender hears of it."""

    def __init__(self, feds: Sequence[Fed], around: Around) -> None:
        self._feds = feds
        self._around = around

    def run(self, stop: threading.Event, standings: Mapping[str, Standing]) -> None:
        around = self._around
        project = Project(around.root)
        server = IngestServer(
            around.app,
            self._feds,
            around.connection,
            around.settings.ingest,
            project,
            notice=around.notice,
            environ=around.environ,
        )
        with IngestState(project, around.app.name) as state, server:
            address = server.start(state.last_port)
            state.write(address, server.port)
            names = [fed.topic for fed in self._feds]
            where = names[0] if len(names) == 1 else f"NAME ({', '.join(names)})"
            key = "; senders need a key" if server.wants_key else ""
            around.notice(f"records are taken by HTTP at {address}/topics/{where}{key}")
            before = {each.name: each.records for each in standings.values()}
            while not stop.wait(LOOK_SECONDS):
                self._stand(server, standings, before)
            self._stand(server, standings, before)

    def _stand(self, server: IngestServer, standings: Mapping[str, Standing], before: Mapping[str, int]) -> None:
        for fed in self._feds:
            standing, counts = standings[fed.name], server.counts[fed.topic]
            records = before[fed.name] + counts.records
            # Whoever waits until all sources have brought what there is must not wait for senders.
            standing.become("running" if records != standing.records else "waiting")
            if records != standing.records:
                standing.records = records
                standing.committed_ms = now_ms()
