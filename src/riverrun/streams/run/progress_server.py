"""The HTTP server of a running pipeline: /metrics, /api/streams, /api/streams/NAME and /healthz, on 127.0.0.1.

It only reads, and no failure here reaches the pipeline: a request that fails is answered with its error. It answers only
requests for a local host name (against DNS rebinding), sends no CORS headers, and forbids caching.
"""

import json
import logging
import socket
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import unquote

from riverrun.cluster.loopback import is_allowed_host, listen_on_free_port
from riverrun.cluster.ports import HOST, PortClaims
from riverrun.model.progress import PipelineProgress

FIRST_PORT = 9404
JSON = "application/json"
# A client that is silent for so long is dropped, and there are never more clients than this.
CLIENT_SECONDS = 5.0
MAX_CLIENTS = 32
STOP_SECONDS = 5.0
_LOG = logging.getLogger(__name__)

Snapshot = Callable[[], PipelineProgress]


class ProgressServer:
    """Serves the result of `snapshot`, which the server's threads call for each request. `port` 0 takes a free one."""

    def __init__(self, snapshot: Snapshot, port: int = 0) -> None:
        self._snapshot = snapshot
        self._port = port
        self._claims = PortClaims()
        self._server: _ProgressHttpServer | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> str:
        """Listen; returns the address, such as `http://127.0.0.1:9404`."""
        if self._server is None:
            try:
                self._server = self._listen()
            except BaseException:
                self._claims.close()
                raise
            self._thread = threading.Thread(
                target=self._server.serve_forever, args=(0.2,), name="riverrun-progress", daemon=True
            )
            self._thread.start()
        return f"http://{HOST}:{self._server.server_port}"

    def _listen(self) -> "_ProgressHttpServer":
        return listen_on_free_port(
            lambda port: _ProgressHttpServer(port, self._snapshot),
            self._claims,
            self._port,
            first=FIRST_PORT,
            what="the streams' /metrics",
            setting="streams.port",
        )

    def close(self) -> None:
        """Stop listening and release the port. Does not wait for responses under way."""
        server, thread = self._server, self._thread
        self._server = self._thread = None
        if server is not None and thread is not None:
            server.shutdown()
            thread.join(STOP_SECONDS)
            server.server_close()
        self._claims.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _ProgressHttpServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, port: int, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self._free_clients = threading.BoundedSemaphore(MAX_CLIENTS)
        super().__init__((HOST, port), _ProgressHandler)

    def server_bind(self) -> None:
        # HTTPServer's own would look up this machine's name, which can take seconds if DNS does not answer.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = HOST, int(self.server_address[1])

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._free_clients.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free_clients.release()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        """Only log: the client went away or this server has a bug, and neither concerns the pipeline."""
        _LOG.debug("a request from %s failed", client_address, exc_info=True)


class _ProgressHandler(BaseHTTPRequestHandler):
    server: _ProgressHttpServer
    server_version = "riverrun"
    sys_version = ""
    timeout = CLIENT_SECONDS

    def do_GET(self) -> None:
        if not self._has_local_host():
            self._error(HTTPStatus.FORBIDDEN, "This server answers only to 127.0.0.1, localhost and [::1]")
            return
        try:
            status, body, kind = self._respond(self.path.partition("?")[0])
        except Exception as error:  # noqa: BLE001  -- any error is sent to the client, and the pipeline goes on
            _LOG.debug("%s failed", self.path, exc_info=True)
            self._error(HTTPStatus.INTERNAL_SERVER_ERROR, f"{type(error).__name__}: {error}")
        else:
            self._send(status, body, kind)

    def _has_local_host(self) -> bool:
        return is_allowed_host(self.headers.get_all("Host") or [])

    def _respond(self, path: str) -> tuple[HTTPStatus, bytes, str]:
        if path == "/metrics":
            from riverrun.streams.run.metrics import metrics_text

            body, kind = metrics_text(self.server.snapshot(), self.headers.get("Accept", ""))
            return HTTPStatus.OK, body, kind
        if path == "/healthz":
            failed = self.server.snapshot().failed
            status = HTTPStatus.SERVICE_UNAVAILABLE if failed else HTTPStatus.OK
            return status, _json({"healthy": not failed, "failed": failed}), JSON
        if path == "/api/streams":
            return HTTPStatus.OK, _json(self.server.snapshot().as_dict()), JSON
        if path.startswith("/api/streams/"):
            return self._stream(unquote(path.removeprefix("/api/streams/")))
        known = ["/metrics", "/healthz", "/api/streams", "/api/streams/NAME"]
        return HTTPStatus.NOT_FOUND, _json({"error": f"There is no {path}", "known": known}), JSON

    def _stream(self, name: str) -> tuple[HTTPStatus, bytes, str]:
        streams = self.server.snapshot().streams
        for stream in streams:
            if stream.name == name:
                return HTTPStatus.OK, _json(stream.as_dict()), JSON
        missing = {"error": f"There is no stream {name!r}", "known": [stream.name for stream in streams]}
        return HTTPStatus.NOT_FOUND, _json(missing), JSON

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:  # noqa: ARG002
        """Answer what http.server itself refuses: a request it cannot read, or any method but GET."""
        status = HTTPStatus(code)
        if status is HTTPStatus.NOT_IMPLEMENTED:
            self._error(HTTPStatus.METHOD_NOT_ALLOWED, "Only GET is answered here")
        else:
            self._error(status, message or status.phrase)

    def _error(self, status: HTTPStatus, message: str) -> None:
        self._send(status, _json({"error": message}), JSON)

    def _send(self, status: HTTPStatus, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        if status is HTTPStatus.METHOD_NOT_ALLOWED:
            self.send_header("Allow", "GET")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Log nothing: the live table uses stderr."""


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "backslashreplace")
