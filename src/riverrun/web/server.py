"""The HTTP server of the store's API: one socket on 127.0.0.1, and a public one where the settings say so.

Both are served in one thread and one event loop, since the dashboards' hub runs in one.
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
# How long a client may take to send the head of a request.
HEAD_SECONDS = 10.0
# Concurrent public connections, including open dashboards; and the share of this process's open files they may use.
MAX_CONNECTIONS = 1000
OPEN_FILES_SHARE = 0.6
# Set in the scope of a request from the public socket.
PUBLIC_REQUEST = "riverrun.outside"
# And why it is rejected, where a proxy's headers are ambiguous.
FORWARDED_ERROR = "riverrun.ambiguous"


@dataclass(frozen=True)
class PublicListener:
    """The public socket: its host and port, its names (the first is shown), TLS, login and proxies.

    `guard` wraps the application, for both sockets: it requires the login. `proxies` are the networks whose X-Forwarded
    headers are trusted; `https_only` rejects a browser that used http, to us or to a proxy.
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
        """The address for browsers. A proxy's port is not known: its scheme's default is assumed."""
        if self.proxies and self.certificate_file is None:
            return f"{'https' if self.https_only else 'http'}://{self.names[0]}"
        return f"{'https' if self.certificate_file is not None else 'http'}://{self.names[0]}:{port}"

    def tls(self) -> ssl.SSLContext | None:
        return server_tls_context("serve", self.certificate_file, self.key_file, self.key_password)


def server_tls_context(
    section: str, certificate: Path | None, key: Path | None, password: Secret
) -> ssl.SSLContext | None:
    """The TLS context of a server; None without a certificate. `section` is the settings section that names the files."""
    if certificate is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        # A function, so that a key with a password never prompts on the terminal.
        context.load_cert_chain(certificate, key, password.reveal)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise ConfigError(
            [f"{section}.ssl_certificate_file {certificate} and {section}.ssl_key_file {key} cannot be used: {reason}"]
        ) from error
    return context


class PublicRequestMiddleware:
    """Marks every request as public, and applies the forwarded headers of trusted proxies."""

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
    """HTTP/1.1 that closes connections which take too long to send the head of a request."""

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
        # From here on the keep-alive timeout applies.
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
    """How many public connections are allowed: the store and its Kafka client need open files too."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return MAX_CONNECTIONS if files == resource.RLIM_INFINITY else min(MAX_CONNECTIONS, int(files * OPEN_FILES_SHARE))


def _uvicorn_config(endpoint: HttpEndpoint) -> uvicorn.Config:
    tls = endpoint.tls
    return uvicorn.Config(
        endpoint.app,
        log_config=None,
        # Malformed requests are not worth a log line each.
        log_level="error",
        access_log=False,
        lifespan="off",
        ws="none",
        http=ReadTimeoutProtocol,
        loop="asyncio",
        server_header=False,
        # Any client can send X-Forwarded-For; web/forwarded_headers.py reads it from trusted proxies alone.
        proxy_headers=False,
        # Above this uvicorn answers 503; we close the connection before that, without an answer.
        limit_concurrency=endpoint.max_connections + 1 if endpoint.max_connections is not None else None,
        timeout_keep_alive=5,
        timeout_graceful_shutdown=2,
        ssl_context_factory=(lambda *_: tls) if tls is not None else None,
    )
