"""A Maven repository on loopback that misbehaves on request, and a user with a small made-up set to fetch from it."""

import contextlib
import hashlib
import ssl
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from riverrun.artifacts.lock import Artifact, LockFile
from riverrun.artifacts.sets import FetchResult, fetch_lock
from riverrun.artifacts.timing import DownloadTiming
from riverrun.config import ArtifactSettings

# A self-signed certificate for 127.0.0.1, and nothing else.
TLS = Path(__file__).parent / "tls"
CERTIFICATE = TLS / "certificate.pem"


@dataclass
class Fault:
    """How one answer goes wrong."""

    status: int = 0
    body: bytes | None = None
    # Send only so many bytes of what was announced, then hang up.
    cut_after: int | None = None
    # Announce no length, so that the end of the connection is the end of the file.
    no_length: bool = False
    ignore_range: bool = False
    headers: Mapping[str, str] = field(default_factory=dict)
    # Send this many bytes, say so by `reached`, and go on when `go_on` is set.
    hold_after: int | None = None
    reached: threading.Event = field(default_factory=threading.Event)
    go_on: threading.Event = field(default_factory=threading.Event)


@dataclass
class Request:
    """A request as the server saw it."""

    method: str
    target: str
    headers: Mapping[str, str]


class _QuietServer(ThreadingHTTPServer):
    """A client that hangs up is what these tests are about."""

    def handle_error(self, request: object, client_address: object) -> None:
        pass


class MavenServer:
    """Serves `files` by path. `faults[path]` are used up one per request, then it behaves."""

    def __init__(self, *, tls: bool = False) -> None:
        self.files: dict[str, bytes] = {}
        self.faults: dict[str, list[Fault]] = {}
        # What a CONNECT is answered with, when this server is used as a proxy.
        self.connect_status = 502
        self.requests: list[Request] = []
        self.sent: dict[str, int] = {}
        self._lock = threading.Lock()
        self._held: list[Fault] = []
        self._server = _QuietServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        if tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(CERTIFICATE, TLS / "key.pem")
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.port: int = self._server.server_address[1]
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self.port}/maven2"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        for fault in self._held:
            fault.go_on.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)

    def add_fault(self, artifact: Artifact, fault: Fault) -> None:
        self.faults.setdefault(artifact.path, []).append(fault)
        self._held.append(fault)

    def asked(self, artifact: Artifact) -> list[Request]:
        return [request for request in self.requests if request.target.endswith(artifact.path)]

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        path = urlsplit(handler.path).path.removeprefix("/maven2/")
        with self._lock:
            self.requests.append(Request("GET", handler.path, dict(handler.headers)))
            queue = self.faults.get(path, [])
            fault = queue.pop(0) if queue else Fault()
        content = fault.body if fault.body is not None else self.files.get(path)
        status, start = 200, 0
        if fault.status:
            status, content = fault.status, content if fault.body is not None else b"no"
        elif content is None:
            status, content = 404, b"no such file"
        elif (wanted := handler.headers.get("Range")) and not fault.ignore_range:
            status, start = 206, int(wanted.removeprefix("bytes=").rstrip("-"))
        assert content is not None
        body = content[start:]
        headers = {"Content-Type": "application/java-archive", **fault.headers}
        if not fault.no_length:
            headers.setdefault("Content-Length", str(len(body)))
        if status == 206:
            headers.setdefault("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.end_headers()
        self._send(handler, path, body, fault)

    def _send(self, handler: BaseHTTPRequestHandler, path: str, body: bytes, fault: Fault) -> None:
        if fault.hold_after is not None:
            self._write(handler, path, body[: fault.hold_after])
            body = body[fault.hold_after :]
            fault.reached.set()
            fault.go_on.wait(60)
        if fault.cut_after is not None:
            body = body[: fault.cut_after]
            handler.close_connection = True
        if fault.no_length:
            handler.close_connection = True
        self._write(handler, path, body)

    def _write(self, handler: BaseHTTPRequestHandler, path: str, body: bytes) -> None:
        with contextlib.suppress(OSError):
            handler.wfile.write(body)
            handler.wfile.flush()
        with self._lock:
            self.sent[path] = self.sent.get(path, 0) + len(body)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                server.answer(self)

            def do_CONNECT(self) -> None:
                server.requests.append(Request("CONNECT", self.path, dict(self.headers)))
                self.send_response(server.connect_status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                pass

        return Handler


def made_artifact(name: str, content: bytes) -> Artifact:
    return Artifact("org.example.made", name, "1.0", len(content), hashlib.sha256(content).hexdigest())


class RecordedProgress:
    """Remembers what a fetch said."""

    def __init__(self) -> None:
        self.started: list[tuple[str, int, int]] = []
        self.here = 0
        self.notes: list[str] = []
        self.ended = 0
        self._lock = threading.Lock()

    def start(self, name: str, files: int, size: int) -> None:
        self.started.append((name, files, size))

    def advance(self, size: int) -> None:
        with self._lock:
            self.here += size

    def note(self, message: str) -> None:
        self.notes.append(message)

    def done(self) -> None:
        self.ended += 1


class Bench:
    """One user on one machine: a home, a cache, a repository with a set of three files."""

    def __init__(self, folder: Path, server: MavenServer) -> None:
        self.server = server
        self.home = folder / "home"
        self.home.mkdir()
        self.cache_dir = folder / "cache"
        self.environ: dict[str, str] = {"HOME": str(self.home)}
        if server.url.startswith("http:"):
            # Reading the system's list takes longer than the rest of most tests.
            self.environ["SSL_CERT_FILE"] = str(CERTIFICATE)
        contents = {"small": b"s" * 10, "middle": bytes(range(256)) * 400, "large": b"large! " * 150_000}
        self.artifacts = {name: made_artifact(name, content) for name, content in contents.items()}
        for name, artifact in self.artifacts.items():
            server.files[artifact.path] = contents[name]
        self.lock = LockFile("made", tuple(self.artifacts.values()))
        self.progress = RecordedProgress()
        self.timing = DownloadTiming(
            connect=5, read=10, max_attempts=4, max_unreachable_attempts=2, backoff=0.001, max_backoff=0.01
        )

    def settings(self, **changes: Any) -> ArtifactSettings:
        values: dict[str, Any] = {"maven_url": self.server.url, "cache_dir": str(self.cache_dir), **changes}
        return ArtifactSettings(**values)

    def fetch(self, *, repair: bool = False, only: str = "", **changes: Any) -> FetchResult:
        lock = LockFile("made", (self.artifacts[only],)) if only else self.lock
        return fetch_lock(
            lock,
            self.settings(**changes),
            progress=self.progress,
            repair=repair,
            environ=self.environ,
            timing=self.timing,
        )

    def fails(self, name: str, *, times: int = 1, **fault: Any) -> Fault:
        """The next answer for this file goes wrong so; the fault, for its events."""
        faults = [Fault(**fault) for _ in range(times)]
        for each in faults:
            self.server.add_fault(self.artifacts[name], each)
        return faults[-1]

    def cached(self, name: str) -> Path:
        return self.cache_dir / "maven" / self.artifacts[name].path

    def parts(self) -> list[Path]:
        return sorted(self.cache_dir.rglob("*.part"))

    def content(self, name: str) -> bytes:
        return self.server.files[self.artifacts[name].path]

    def put(self, repository: Path, name: str, content: bytes | None = None) -> Path:
        """Place a file into another Maven repository on this machine."""
        path = repository / self.artifacts[name].path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(self.content(name) if content is None else content)
        return path

    def write_settings(self, content: str) -> Path:
        path = self.home / ".m2" / "settings.xml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"<settings>{content}</settings>", encoding="utf-8")
        return path
