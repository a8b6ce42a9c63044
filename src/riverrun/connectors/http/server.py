"""The server of HTTP ingest: start, address, stop. One for all topics of an app with `riverrun.http()`."""

import contextlib
import socket
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Self

from riverrun.cluster.loopback import listen_on_free_port, listening_socket
from riverrun.cluster.ports import PortClaims
from riverrun.config.project import Project
from riverrun.config.spec import IngestSettings, is_wildcard_host
from riverrun.connectors.http.api_keys import load_api_keys
from riverrun.connectors.http.application import IngestApplication
from riverrun.connectors.http.idempotency import IdempotentWriter
from riverrun.connectors.http.record_parser import TopicRecordParser
from riverrun.connectors.http.request_body import MemoryBudget
from riverrun.errors import ConfigError, PortTakenError, RiverrunError
from riverrun.kafka.admin.admin import Admin
from riverrun.kafka.connection import Connection
from riverrun.kafka.producer.request_producer import RequestProducer
from riverrun.model.connector import SourceBinding
from riverrun.model.connectors.http import http
from riverrun.model.units import parse_duration_ms
from riverrun.web.server import HttpEndpoint, HttpServer, max_connections, server_tls_context

if TYPE_CHECKING:
    from riverrun.app import App
    from riverrun.connectors.http.metrics import IngestCounts

FIRST_PORT = 8470
# The client library's own maximum, even if the topic takes more.
CLIENT_BYTES = 1_000_000
# Senders wait, so a record lingers only as long as its request is being enqueued. Sent at once (by flushing) records left
# one by one, and a post of 500 took up to a second.
LINGER_MS = 1.0
QUEUE_RECORDS = 100_000
CLOSE_SECONDS = 10.0
_MIB = 2**20


class IngestServer:
    """Takes records for the topics of `bindings` until it is closed. `notice` hears of a key that is made."""

    def __init__(
        self,
        app: "App",
        bindings: Sequence[SourceBinding],
        connection: Connection,
        settings: IngestSettings,
        project: Project,
        *,
        notice: Callable[[str], None] = lambda _: None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self._app = app
        self._bindings = bindings
        self._connection = connection
        self._settings = settings
        self._project = project
        self._notice = notice
        self._environ = environ
        self._closing = contextlib.ExitStack()
        self.address = ""
        self.port = 0
        self.counts: Mapping[str, IngestCounts] = {}
        # Whether senders need a key.
        self.requires_key = False

    def start(self, last_port: int = 0) -> str:
        """Listen; returns the address. ConfigError, PortTakenError, TopicNotFoundError and errors of Kafka."""
        settings = self._settings
        sources = {binding.topic: binding.source for binding in self._bindings if isinstance(binding.source, http)}
        keys, created_path = load_api_keys(
            settings, self._project.home, self._project.root, frozenset(sources), environ=self._environ
        )
        self.requires_key = keys.required
        if created_path is not None:
            self._notice(f"a key for posting records is made, in {created_path}")
        tls = server_tls_context(
            "ingest",
            self._file(settings.ssl_certificate_file),
            self._file(settings.ssl_key_file),
            settings.ssl_key_password,
        )
        parsers = self._parsers(sources)
        limits = [parser.max_message_bytes for parser in parsers.values()]
        max_message_bytes = max(CLIENT_BYTES, *limits)
        with contextlib.ExitStack() as cleanup:
            poster = RequestProducer(
                self._connection,
                queue_records=max(QUEUE_RECORDS, 2 * settings.max_records),
                # Waiting requests hold their share of the memory, so this limit is never reached first.
                queue_mb=settings.memory_mb + settings.max_body_mb,
                queue_timeout_seconds=0,
                delivery_timeout_seconds=settings.timeout_seconds,
                linger_ms=LINGER_MS,
                # A broker refuses a whole batch that is larger than a record of the topic may be.
                properties={
                    "message.max.bytes": max_message_bytes,
                    "batch.size": min(CLIENT_BYTES, min(limits) * 3 // 4),
                },
            )
            cleanup.callback(_close, poster, self._notice)
            writer = IdempotentWriter(
                self._connection,
                self._app.name,
                window_ms=parse_duration_ms(settings.idempotency_window, what="ingest.idempotency_window"),
                max_keys=settings.idempotency_keys,
                timeout_seconds=settings.timeout_seconds,
                max_message_bytes=max_message_bytes,
            )
            cleanup.callback(writer.close)
            ingest = IngestApplication(
                parsers,
                poster,
                writer,
                keys=keys,
                budget=MemoryBudget(max(settings.memory_mb, settings.max_body_mb) * _MIB),
                max_body=settings.max_body_mb * _MIB,
                max_records=settings.max_records,
                timeout_seconds=settings.timeout_seconds,
                local=not settings.beyond,
            )
            claims = PortClaims()
            cleanup.callback(claims.close)
            listening_socket = self._listen(claims, last_port)
            cleanup.callback(listening_socket.close)
            listeners = HttpServer(
                [HttpEndpoint(ingest.application(), listening_socket, tls, max_connections())], name="riverrun-ingest"
            )
            cleanup.callback(listeners.close)
            listeners.start()
            self._closing = cleanup.pop_all()
        self.counts = ingest.counts
        self.port = listening_socket.getsockname()[1]
        name = socket.gethostname() if is_wildcard_host(settings.host) else settings.host
        name = f"[{name}]" if ":" in name and not name.startswith("[") else name
        self.address = f"{'https' if tls else 'http'}://{name}:{self.port}"
        return self.address

    def close(self) -> None:
        """Stop listening, answer what was accepted, free the port."""
        self._closing.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _parsers(self, sources: Mapping[str, http]) -> dict[str, TopicRecordParser]:
        """A parser for each topic: how large its records may be is a setting of the topic."""
        admin = Admin(self._connection)
        return {
            name: TopicRecordParser(
                self._app.topics[name],
                source,
                int(admin.topic(name).config["max.message.bytes"].value),
                self._connection.registry,
            )
            for name, source in sources.items()
        }

    def _listen(self, claims: PortClaims, last_port: int) -> socket.socket:
        """Senders know a port: that it is another one now is said, with the program that has theirs."""
        listening = self._bind(claims, last_port)
        expected, port = last_port or FIRST_PORT, listening.getsockname()[1]
        if not self._settings.port and port != expected:
            self._notice(
                f"port {expected} is taken by {claims.holder(expected) or 'another process'}; HTTP ingest is at port {port} "
                "instead; set ingest.port in riverrun.toml to choose one that does not move"
            )
        return listening

    def _bind(self, claims: PortClaims, last_port: int) -> socket.socket:
        settings = self._settings
        make = partial(listening_socket, host=settings.host.strip("[]"))
        if last_port and not settings.port:
            # The port that senders know. Another process may have it by now.
            with contextlib.suppress(PortTakenError, OSError):
                return listen_on_free_port(make, claims, last_port, first=0, what="HTTP ingest", setting="ingest.port")
        try:
            return listen_on_free_port(
                make, claims, settings.port, first=FIRST_PORT, what="HTTP ingest", setting="ingest.port"
            )
        except OSError as error:
            raise ConfigError(
                [f"ingest.host {settings.host} is no address of this machine: {error.strerror or error}"]
            ) from error

    def _file(self, name: str) -> Path | None:
        return self._project.root / Path(name).expanduser() if name else None


def _close(poster: RequestProducer, notice: Callable[[str], None]) -> None:
    try:
        poster.close(CLOSE_SECONDS)
    except RiverrunError as error:
        # These were not acknowledged to anybody.
        notice(f"while HTTP ingest was stopped: {error}")
