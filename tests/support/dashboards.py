"""The dashboards' server for tests: a real one on 127.0.0.1, in a thread, that can be stopped and started again."""

import asyncio
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Self

import uvicorn

import riverrun as rr
from riverrun.config.project import Project
from riverrun.dashboard.alerts.live import AlertsBroadcast
from riverrun.dashboard.live.hub import DashboardHub
from riverrun.dashboard.routes import dashboard_app
from riverrun.dashboard.topology.builder import build_topology
from riverrun.dashboard.topology.details import NodeDetails
from riverrun.dashboard.topology.live import TopologyBroadcast
from riverrun.dashboard.topology.reader import TopologyReader
from riverrun.store.contract import Store
from riverrun.streams.compile.graph import build_graph

READY_SECONDS = 30.0


class DashServer:
    """Serves the dashboards of `app` from `store` while it is entered."""

    def __init__(
        self,
        app: rr.App,
        store: Store,
        picture: Callable[[DashboardHub], TopologyBroadcast] | None = None,
        alerts: Callable[[], AlertsBroadcast] | None = None,
    ) -> None:
        """`picture` makes the pipeline picture; without it, it shows what the app declares, and no cluster. `alerts` makes
        the alerts; without it there are none."""
        self.app = app
        self.store = store
        self._picture = picture or self._resting
        self._alerts = alerts
        self.port = 0
        self.hub: DashboardHub | None = None
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._ready = threading.Event()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", self.port))
        self.port = listener.getsockname()[1]
        self._ready.clear()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve(listener)), name="dash-server")
        self._thread.start()
        assert self._ready.wait(READY_SECONDS)

    async def _serve(self, listener: socket.socket) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self.hub = DashboardHub(self.store, self.app.dashboards, self.app.name)
        picture = self._picture(self.hub)
        alerts = self._alerts() if self._alerts is not None else None
        config = uvicorn.Config(
            dashboard_app(self.hub, picture, alerts), log_level="error", lifespan="off", timeout_graceful_shutdown=2
        )
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve([listener]))
        while not server.started:  # noqa: ASYNC110  -- uvicorn has no event for it
            await asyncio.sleep(0.01)
        self._ready.set()
        await self._stop.wait()
        await self.hub.close()
        picture.close()
        if alerts is not None:
            alerts.close()
        server.should_exit = True
        await serving

    def _resting(self, hub: DashboardHub) -> TopologyBroadcast:
        details = NodeDetails(None, self.store)
        source = TopologyReader(Project(Path("/nowhere")), self.app.name, None, self.store)
        declared = build_topology(self.app, build_graph(self.app).inputs)
        return TopologyBroadcast(self.app.name, source, details, declared=declared, viewers=lambda: hub.viewers)

    def stop(self) -> None:
        if self._thread is not None and self._loop is not None and self._stop is not None:
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(READY_SECONDS)
            assert not self._thread.is_alive()
        self._thread = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
