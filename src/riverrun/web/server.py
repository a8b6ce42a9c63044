"""The sockets of the store's HTTP API: one on 127.0.0.1, and one for others where the settings say so.

Both are served in one thread and one event loop, since the dashboards' hub lives in one.
"""

import asyncio
import resource
import socket
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from riverrun.config.networks import Network
from riverrun.config.secret import Secret
from riverrun.errors import ConfigError
from riverrun.web.forwarded_headers import ForwardedError, apply_forwarded

FIRST_PUBLIC_PORT = 8440
START_SECONDS = 10.0
STOP_SECONDS = 10.0
# How long a client may take to say what it wants.
HEAD_SECONDS = 10.0
# Connections of others at the same time, pages that look on and all; and the share of this process's files they may take.
MAX_CONNECTIONS = 1000
OPEN_FILES_SHARE = 0.6
# What a request has in its scope when it came from outside.
PUBLIC_REQUEST = "riverrun.outside"
# And why it cannot be answered, where a proxy's headers contradict each other.
FORWARDED_ERROR = "riverrun.ambiguous"


@dataclass(frozen=True)
class PublicListener:
    """Where others are served, by which names (the first is told), and what stands between them and the figures.

    `guard` is put around the application, for both sockets: it asks for the login. `proxies` are the networks whose
    X-Forwarded headers are believed; `https_only` refuses a browser that came by http, to us or to a proxy.
    """

    host: str
    port: int
    names: Sequence[str]
    guard: Callable[[ASGIApp], ASGIApp]
    certificate_file: Path | None = None
    key_file: Path | None = None
    key_password: Secret = field(default=Secret())
    proxies: Sequence[Network] = ()
    https_only: bool = False

    def address(self, port: int) -> str:
        """What browsers call it. A proxy has a port of its own, which we do not know: that of its scheme."""
        if self.proxies and self.certificate_file is None:
            return f"{'https' if self.https_only else 'http'}://{self.names[0]}"
        return f"{'https' if self.certificate_file is not None else 'http'}://{self.names[0]}:{port}"

    def tls(self) -> ssl.SSLContext | None:
        return server_tls_context("serve", self.certificate_file, self.key_file, self.key_password)


def server_tls_context(
    section: str, certificate: Path | None, key: Path | None, password: Secret
) -> ssl.SSLContext | None:
    """What a server shows of itself; None without a certificate. `section` is that of the settings that name the files."""
    if certificate is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        # A function, so that a key that wants a password never asks the terminal for it.
        context.load_cert_chain(certificate, key, password.reveal)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise ConfigError(
            [f"{section}.ssl_certificate_file {certificate} and {section}.ssl_key_file {key} cannot be used: {reason}"]
        ) from error
    return context


class PublicRequestMiddleware:
    """Says of every request that it came from outside, and takes a trusted proxy's word of who sent it."""

    def __init__(self, app: ASGIApp, proxies: Sequence[Network] = ()) -> None:
        self._app = app
        self._proxies = proxies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope[PUBLIC_REQUEST] = True
        if self._proxies and scope["type"] == "http":
            try:
                apply_forwarded(scope, self._proxies)
            except ForwardedError as error:
                scope[FORWARDED_ERROR] = str(error)
        await self._app(scope, receive, send)


class ReadTimeoutProtocol(H11Protocol):
    """HTTP/1.1 with an end to waiting: who takes too long over the head of a request is let go."""

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self.limit_concurrency is not None and len(self.connections) >= self.limit_concurrency:
            transport.abort()
        else:
            self._start_timer()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._responding:
            self._cancel_timer()
        else:
            self._start_timer()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        # From here on it is the time between two requests that counts.
        self._cancel_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_timer()
        super().connection_lost(exc)

    @property
    def _responding(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete  # type: ignore[redundant-expr]

    def _start_timer(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(HEAD_SECONDS, self._close_if_waiting)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _close_if_waiting(self) -> None:
        self._timer = None
        if not self._responding:
            self.transport.close()


@dataclass(frozen=True)
class HttpEndpoint:
    app: ASGIApp
    socket: socket.socket
    tls: ssl.SSLContext | None = None
    max_connections: int | None = None


class HttpServer:
    """Serves applications on sockets until it is closed."""

    def __init__(self, endpoints: Sequence[HttpEndpoint], *, name: str = "riverrun-store-api") -> None:
        self._endpoints = endpoints
        self._servers = [uvicorn.Server(_uvicorn_config(endpoint)) for endpoint in endpoints]
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()
        deadline = time.monotonic() + START_SECONDS
        while not self._all_started() and self._thread.is_alive() and time.monotonic() < deadline:
            time.sleep(0.01)

    def _all_started(self) -> bool:
        return all(server.started for server in self._servers)

    async def _serve(self) -> None:
        await asyncio.gather(
            *(server.serve([endpoint.socket]) for server, endpoint in zip(self._servers, self._endpoints, strict=True))
        )

    def close(self) -> None:
        for server in self._servers:
            server.should_exit = True
        self._thread.join(STOP_SECONDS)
        for endpoint in self._endpoints:
            endpoint.socket.close()


def max_connections() -> int:
    """How many connections of others there may be: the store and its Kafka client need files too."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return MAX_CONNECTIONS if files == resource.RLIM_INFINITY else min(MAX_CONNECTIONS, int(files * OPEN_FILES_SHARE))


def _uvicorn_config(endpoint: HttpEndpoint) -> uvicorn.Config:
    tls = endpoint.tls
    return uvicorn.Config(
        endpoint.app,
        log_config=None,
        # Malformed requests are worth no line each.
        log_level="error",
        access_log=False,
        lifespan="off",
        ws="none",
        http=ReadTimeoutProtocol,
        loop="asyncio",
        server_header=False,
        # X-Forwarded-For is whatever the client says it is; web/forwarded_headers.py reads it from trusted proxies alone.
        proxy_headers=False,
        # From there on uvicorn answers 503; we let go before that, and without an answer.
        limit_concurrency=endpoint.max_connections + 1 if endpoint.max_connections is not None else None,
        timeout_keep_alive=5,
        timeout_graceful_shutdown=2,
        ssl_context_factory=(lambda *_: tls) if tls is not None else None,
    )
