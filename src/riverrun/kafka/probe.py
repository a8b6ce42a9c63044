"""Check whether a Kafka cluster answers, and which brokers it has. Used by readiness checks, `status` and `doctor`."""

import itertools
import logging
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from riverrun.errors import BrokerUnreachableError, KafkaError, RiverrunError

# A probe asks brokers that are not up yet: the client's log lines about that are noise.
_silent_log = logging.getLogger("riverrun.kafka.probe")
_silent_log.addHandler(logging.NullHandler())
_silent_log.propagate = False

# How long a cluster may take to answer one request when a program ends. One that is down refuses at once.
RESPONSE_TIMEOUT_SECONDS = 4.0
_API_VERSIONS = 18
_INCREMENTAL_ALTER_CONFIGS = 44
_BROKER_RESOURCE = 4
_MAX_RESPONSE_BYTES = 1 << 20
_correlation_ids = itertools.count(1)


@dataclass(frozen=True)
class BrokerMetadata:
    """A broker in the cluster's metadata."""

    id: int
    host: str
    port: int

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(frozen=True)
class ClusterMetadata:
    """A cluster as one of its brokers describes it: the brokers that are in it now."""

    id: str
    controller: int
    brokers: tuple[BrokerMetadata, ...]


def client_versions() -> tuple[str, str]:
    """Versions of the client library and of the C library below it."""
    import confluent_kafka

    return str(confluent_kafka.version()), str(confluent_kafka.libversion()[0])


def is_kafka_responding(host: str, port: int, timeout: float) -> bool:
    """Whether a broker or controller answers there, in Kafka's own protocol without TLS or login.

    A connection alone proves nothing: the kernel accepts for a broker that is not ready, and any server may listen there.
    """
    try:
        reply = _request(host, port, _API_VERSIONS, b"", timeout)
    except OSError:
        return False
    return reply[:2] == b"\x00\x00"


def is_connection_refused(bootstrap_servers: str, timeout: float = 1.0) -> bool:
    """Whether nothing listens at any of these addresses. False when that is not certain: some do not answer at all."""
    for address in bootstrap_servers.split(","):
        host, _, port = address.strip().rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout).close()
        except ConnectionRefusedError:
            continue
        except (OSError, ValueError):
            return False
        return False
    return True


def set_cluster_default(host: str, port: int, name: str, value: str, timeout: float) -> None:
    """Set a broker property for the whole cluster, which overrides the brokers' own files, without TLS or login.

    The client library cannot: it refuses a broker without a name, which means all of them.
    """
    entry = _encode_string(name) + b"\x00" + _encode_string(value)
    body = struct.pack(">ib", 1, _BROKER_RESOURCE) + _encode_string("") + struct.pack(">i", 1) + entry + b"\x00"
    try:
        reply = _request(host, port, _INCREMENTAL_ALTER_CONFIGS, body, timeout)
    except OSError as error:
        raise BrokerUnreachableError(f"{host}:{port} did not answer while setting {name}", found=str(error)) from error
    # Throttle time, number of results, then the first one's error.
    (code,) = struct.unpack_from(">h", reply, 8)
    if code:
        raise KafkaError(f"The cluster refused {name} = {value}", found=f"error {code}", setting=name, kafka_error=code)


def _encode_string(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode("ascii")


def _request(host: str, port: int, api: int, body: bytes, timeout: float) -> bytes:
    """Send one request of version 0 and return the body of its answer."""
    number = next(_correlation_ids) & 0x7FFFFFFF
    # Request header 1: api key, version, correlation id, client id.
    request = struct.pack(">hhih", api, 0, number, -1) + body
    with socket.create_connection((host, port), timeout=timeout) as connection:
        connection.sendall(struct.pack(">i", len(request)) + request)
        with connection.makefile("rb") as stream:
            head = stream.read(8)
            if len(head) < 8:
                raise ConnectionError("the connection was closed")
            length, echoed = struct.unpack(">ii", head)
            if echoed != number or not 4 <= length < _MAX_RESPONSE_BYTES:
                raise ConnectionError("this is not Kafka's protocol")
            return stream.read(length - 4)


class ClusterProbe:
    """Asks one cluster again and again over one client, quick to reconnect."""

    def __init__(self, properties: Mapping[str, Any]) -> None:
        from confluent_kafka.admin import AdminClient

        self._bootstrap = str(properties.get("bootstrap.servers", ""))
        self._client_errors: list[Any] = []
        settings = {
            "reconnect.backoff.ms": 20,
            "reconnect.backoff.max.ms": 100,
            "socket.connection.setup.timeout.ms": 5000,
            "log_level": 0,
            **properties,
            "error_cb": self._client_errors.append,
        }
        self._client = AdminClient(settings, logger=_silent_log)

    def fetch_metadata(self, timeout: float) -> ClusterMetadata:
        """The current metadata. Raises the cause of a failure: no answer, no login, no right."""
        from confluent_kafka import KafkaException

        self._client_errors.clear()
        try:
            # The library's own types say None where it returns text.
            metadata: Any = self._client.list_topics(timeout=timeout)
        except KafkaException as error:
            raise self._root_cause(error) from error
        brokers = tuple(BrokerMetadata(broker.id, broker.host, broker.port) for broker in metadata.brokers.values())
        return ClusterMetadata(
            str(metadata.cluster_id or ""),
            int(metadata.controller_id),
            tuple(sorted(brokers, key=lambda metadata_broker: metadata_broker.id)),
        )

    def _root_cause(self, error: Any) -> RiverrunError:
        """The cause: the client times out on everything, and reports why only to the error callback."""
        from riverrun.errors import AuthenticationError
        from riverrun.kafka.error_mapping import translate

        doing = "asking for the brokers of the cluster"
        causes = [translate(client_error, doing, bootstrap=self._bootstrap) for client_error in self._client_errors]
        for cause in causes:
            if isinstance(cause, AuthenticationError):
                return cause
        return translate(error, doing, bootstrap=self._bootstrap)


def is_cluster_reachable(properties: Mapping[str, Any], timeout: float) -> bool:
    """Whether a cluster answers one request within `timeout`. One that is down is known at once."""
    if is_connection_refused(str(properties.get("bootstrap.servers", ""))):
        return False
    try:
        ClusterProbe(properties).fetch_metadata(timeout)
    except RiverrunError:
        return False
    return True


def create_topic(
    properties: Mapping[str, Any], topic: str, *, partitions: int, config: Mapping[str, str], timeout: float = 30.0
) -> None:
    """Create a topic for a test. Users create topics with riverrun.kafka.admin.topics."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient, NewTopic

    from riverrun.kafka.error_mapping import translate

    client = AdminClient(dict(properties), logger=_silent_log)
    try:
        futures = client.create_topics([NewTopic(topic, partitions, config=dict(config))], operation_timeout=timeout)
        futures[topic].result(timeout)
    except KafkaException as error:
        raise translate(error, f"creating the topic {topic}", topic=topic) from error
