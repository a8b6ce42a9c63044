"""The gateway as a server on 127.0.0.1: in the caller's process, or in one of its own (`riverrun phone`)."""

import contextlib
import secrets
from pathlib import Path
from typing import Self

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from riverrun.alerts.channels.limits import MessageRate
from riverrun.alerts.gateway.api import GatewayApi
from riverrun.alerts.gateway.delivery_worker import DeliveryWorker
from riverrun.alerts.gateway.faults import FaultInjector
from riverrun.alerts.gateway.message_store import MessageStore
from riverrun.alerts.gateway.phone_page import EventStream, PhonePage
from riverrun.alerts.gateway.statuses import error_body
from riverrun.cluster.loopback import listen_on_free_port, listening_socket
from riverrun.cluster.ports import HOST, PortClaims
from riverrun.config.private_files import write_private
from riverrun.config.secret import Secret
from riverrun.web.guard import RequestGuard
from riverrun.web.server import HttpEndpoint, HttpServer

FIRST_PORT = 8460


class Gateway:
    """The gateway. `path` is its database; `key` is the API key of callers; above `rate`, requests get 429; `minute_ms`
    shortens the waits between callbacks. Tests read `store` and inject `faults`."""

    def __init__(
        self,
        path: Path | str = ":memory:",
        *,
        key: Secret | None = None,
        port: int = 0,
        faults: FaultInjector | None = None,
        rate: MessageRate | None = None,
        delivery_ms: int = 400,
        minute_ms: int = 60_000,
    ) -> None:
        self.key = key or Secret(secrets.token_hex(16))
        self.faults = faults or FaultInjector()
        self.store = MessageStore(path)
        self._port = port
        self._event_stream = EventStream()
        self._worker = DeliveryWorker(
            self.store, delivery_ms=delivery_ms, minute_ms=minute_ms, on_change=self._event_stream.notify
        )
        self._api = GatewayApi(self.store, self.key, faults=self.faults, rate=rate, on_change=self._on_change)
        self._claims = PortClaims()
        self._listeners: HttpServer | None = None
        self.address = ""

    def _on_change(self) -> None:
        self._event_stream.notify()
        self._worker.wake()

    def application(self) -> Starlette:
        return Starlette(
            routes=[*self._api.routes(), *PhonePage(self.store, self._event_stream).routes()],
            middleware=[Middleware(RequestGuard)],
            exception_handlers={Exception: _failed},
        )

    def start(self) -> str:
        """Start the server; returns the address, such as `http://127.0.0.1:8460`."""
        with contextlib.ExitStack() as undo:
            undo.callback(self.store.close)
            undo.callback(self._claims.close)
            sock = listen_on_free_port(
                listening_socket, self._claims, self._port, first=FIRST_PORT, what="the SMS gateway", setting="--port"
            )  # fmt: skip
            undo.callback(sock.close)
            listeners = HttpServer([HttpEndpoint(self.application(), sock)])
            listeners.start()
            undo.pop_all()
        self._listeners = listeners
        self.address = f"http://{HOST}:{sock.getsockname()[1]}"
        self._worker.start()
        return self.address

    def close(self) -> None:
        self._event_stream.close()
        self._worker.close()
        listeners, self._listeners = self._listeners, None
        if listeners is not None:
            listeners.close()
        self._claims.close()
        self.store.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


async def _failed(request: Request, exception: Exception) -> Response:  # noqa: ARG001
    return JSONResponse(error_body(500, "Something went wrong on our side"), 500)


def load_or_create_key(folder: Path) -> Secret:
    """The API key in a folder, created when there is none. Other users cannot read the file."""
    path = folder / "key.txt"
    with contextlib.suppress(FileNotFoundError):
        if key := path.read_text(encoding="utf-8").strip():
            return Secret(key)
    folder.mkdir(parents=True, exist_ok=True)
    new_key = secrets.token_hex(16)
    write_private(path, new_key + "\n")
    return Secret(new_key)
