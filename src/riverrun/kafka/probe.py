"""Is a Kafka there, and which brokers has it? What readiness, `status` and `doctor` ask."""

import contextlib
import itertools
import logging
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from riverrun.errors import RiverrunError

# A probe asks brokers that are not there yet: the client's complaints about that are nobody's news.
_silent = logging.getLogger("riverrun.kafka.probe")
_silent.addHandler(logging.NullHandler())
_silent.propagate = False

_API_VERSIONS = 18
_correlation = itertools.count(1)


@dataclass(frozen=True)
class BrokerSeen:
    """A broker as the cluster's metadata names it."""

    id: int
    host: str
    port: int

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(frozen=True)
class ClusterSeen:
    """A cluster as one of its brokers describes it: the brokers that take part now."""

    id: str
    controller: int
    brokers: tuple[BrokerSeen, ...]


def client_versions() -> tuple[str, str]:
    """Versions of the client library and of the C library below it."""
    import confluent_kafka

    return str(confluent_kafka.version()), str(confluent_kafka.libversion()[0])


def answers(host: str, port: int, timeout: float) -> bool:
    """Whether a broker or controller answers there, in Kafka's own protocol without TLS or login.

    A connection alone proves nothing: the kernel accepts for a broker that is not ready, and any server may listen there.
    """
    number = next(_correlation) & 0x7FFFFFFF
    # Request header 1: api key, version, correlation id, client id. ApiVersions 0 has no body.
    request = struct.pack(">hhih", _API_VERSIONS, 0, number, -1)
    with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=timeout) as connection:
        connection.sendall(struct.pack(">i", len(request)) + request)
        reply = b""
        while len(reply) < 10:
            part = connection.recv(10 - len(reply))
            if not part:
                return False
            reply += part
        _, echoed, error = struct.unpack(">iih", reply)
        return bool(echoed == number and error == 0)
    return False


class Probe:
    """Asks one cluster again and again over one client, quick to reconnect."""

    def __init__(self, properties: Mapping[str, Any]) -> None:
        from confluent_kafka.admin import AdminClient

        self._bootstrap = str(properties.get("bootstrap.servers", ""))
        self._told: list[Any] = []
        settings = {
            "reconnect.backoff.ms": 20,
            "reconnect.backoff.max.ms": 100,
            "socket.connection.setup.timeout.ms": 5000,
            "log_level": 0,
            **properties,
            "error_cb": self._told.append,
        }
        self._client = AdminClient(settings, logger=_silent)

    def look(self, timeout: float) -> ClusterSeen:
        """The cluster as it is now. Raises what stands in the way: no answer, no login, no right."""
        from confluent_kafka import KafkaException

        self._told.clear()
        try:
            # The library's own types say None where it gives text.
            found: Any = self._client.list_topics(timeout=timeout)
        except KafkaException as error:
            raise self._explained(error) from error
        brokers = tuple(BrokerSeen(each.id, each.host, each.port) for each in found.brokers.values())
        return ClusterSeen(
            str(found.cluster_id or ""), int(found.controller_id), tuple(sorted(brokers, key=lambda each: each.id))
        )

    def _explained(self, error: Any) -> RiverrunError:
        """The cause: the client times out on everything, and says why only on the side."""
        from riverrun.errors import AuthenticationError
        from riverrun.kafka.border import translate

        doing = "asking for the brokers of the cluster"
        causes = [translate(each, doing, bootstrap=self._bootstrap) for each in self._told]
        for cause in causes:
            if isinstance(cause, AuthenticationError):
                return cause
        return translate(error, doing, bootstrap=self._bootstrap)


def create_topic(
    properties: Mapping[str, Any], topic: str, *, partitions: int, config: Mapping[str, str], timeout: float = 30.0
) -> None:
    """Create a topic for a test. What users create topics with is riverrun.kafka.topics."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient, NewTopic

    from riverrun.kafka.border import translate

    client = AdminClient(dict(properties), logger=_silent)
    try:
        made = client.create_topics([NewTopic(topic, partitions, config=dict(config))], operation_timeout=timeout)
        made[topic].result(timeout)
    except KafkaException as error:
        raise translate(error, f"creating the topic {topic}", topic=topic) from error
