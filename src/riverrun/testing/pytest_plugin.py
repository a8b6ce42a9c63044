"""Fixtures for tests against a real Kafka. Installed with riverrun; loaded in every pytest run, so it imports nothing.

    def test_orders(kafka, kafka_topic):
        topic = kafka_topic(partitions=3)
        ...kafka.bootstrap_servers...

`kafka` is one local broker for the whole session, or the cluster that `pytest --bootstrap-servers HOST:PORT` names.
"""

import random
import re
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from riverrun.cluster.runner import LocalKafka
    from riverrun.config import KafkaSettings
    from riverrun.kafka.connection import Connection


@dataclass(frozen=True)
class KafkaUnderTest:
    """A cluster to test with. `local` is the one the session started; None when it was named from outside."""

    bootstrap_servers: str
    settings: "KafkaSettings"
    local: "LocalKafka | None" = None

    @property
    def connection(self) -> "Connection":
        from riverrun.kafka.connection import Connection

        return Connection(self.settings)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("riverrun")
    group.addoption(
        "--bootstrap-servers",
        default="",
        metavar="HOST:PORT",
        help="Use this Kafka cluster for the `kafka` fixture instead of starting a broker.",
    )


@pytest.fixture(scope="session")
def kafka(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaUnderTest]:
    """A real Kafka: one broker of this session, or the cluster `--bootstrap-servers` names."""
    from dataclasses import replace

    from riverrun.config import KafkaSettings

    named = str(request.config.getoption("--bootstrap-servers"))
    if named:
        yield KafkaUnderTest(named, KafkaSettings(bootstrap_servers=named))
        return
    with local_kafka(tmp_path_factory.mktemp("kafka"), KafkaSettings()) as running:
        address = running.bootstrap_servers
        yield KafkaUnderTest(address, replace(running.settings, bootstrap_servers=address), running)


@pytest.fixture
def kafka_topic(kafka: KafkaUnderTest, request: pytest.FixtureRequest) -> Callable[..., str]:
    """Make a topic with a name nobody else has: `kafka_topic(partitions=3, config={"retention.ms": "1000"})`."""
    from riverrun.kafka.admin.admin import Admin

    stem = re.sub(r"[^a-zA-Z0-9]+", "-", request.node.name).strip("-")[:60]

    def make(name: str = "", partitions: int = 1, config: dict[str, str] | None = None) -> str:
        topic = f"{name or stem}-{secrets.token_hex(4)}"
        Admin(kafka.connection).create_topic(topic, partitions=partitions, replicas=0, config=config or {})
        return topic

    return make


def local_kafka(root: Path, settings: "KafkaSettings") -> "LocalKafka":
    """A cluster under `root`, on ports where nobody else's tests look first. Use it in a `with`."""
    from riverrun.cluster.runner import LocalKafka

    return LocalKafka(root, settings, first_port=random.randrange(12000, 28000, 10))  # noqa: S311
