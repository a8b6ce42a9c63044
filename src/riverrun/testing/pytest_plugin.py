"""Fixtures for tests. Installed with riverrun; loaded in every pytest run, so it imports nothing.

    def test_orders(kafka, kafka_topic):
        topic = kafka_topic(partitions=3)
        ...kafka.bootstrap_servers...

    def test_average(stream_test):
        t = stream_test("meters.py")
        t.send("readings", ...)
        assert t.rows("house_load") == [...]

`kafka` is one local broker for the whole session, or the cluster that `pytest --bootstrap-servers HOST:PORT` names. `spark`
is one Spark session for the whole run; `stream_test` runs streams in it without a broker (testing/streams.py).
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
    from pyspark.sql import SparkSession

    from riverrun.app import App
    from riverrun.cluster.kafka.local import LocalKafka
    from riverrun.config import KafkaSettings
    from riverrun.kafka.connection import Connection
    from riverrun.testing.streams import StreamTest


@dataclass(frozen=True)
class KafkaUnderTest:
    """A cluster to test with. `local` is the one the session started; None when `--bootstrap-servers` named one."""

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
    """A real Kafka: one broker for this session, or the cluster that `--bootstrap-servers` names."""
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
    """Create a topic with a unique name: `kafka_topic(partitions=3, config={"retention.ms": "1000"})`."""
    from riverrun.kafka.admin.admin import Admin

    stem = re.sub(r"[^a-zA-Z0-9]+", "-", request.node.name).strip("-")[:60]

    def make(name: str = "", partitions: int = 1, config: dict[str, str] | None = None) -> str:
        topic = f"{name or stem}-{secrets.token_hex(4)}"
        # A test's records may have any timestamp: none is deleted for its age.
        topic_config = {"retention.ms": "-1"} | (config or {})
        Admin(kafka.connection).create_topic(topic, partitions=partitions, replicas=0, config=topic_config)
        return topic

    return make


def local_kafka(root: Path, settings: "KafkaSettings") -> "LocalKafka":
    """A cluster under `root`, on random ports, so that other tests rarely try the same. Use it in a `with`."""
    from riverrun.cluster.kafka.local import LocalKafka

    return LocalKafka(root, settings, first_port=random.randrange(12000, 28000, 10))  # noqa: S311


@pytest.fixture(scope="session")
def spark_slots() -> int:
    """How many tasks `spark` runs at once; 0 is one per core. Tests of real-time streams override it with more."""
    return 0


@pytest.fixture(scope="session")
def spark_brief() -> bool:
    """Whether Java compiles less for `spark`, where cores are few: right for tests of some thousand records, not of a
    million. Such tests override it."""
    return True


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory, spark_slots: int, spark_brief: bool) -> "Iterator[SparkSession]":
    """One Spark session for all tests of a run, configured as `riverrun run` does it, but with a small heap."""
    from riverrun.config import Settings, SparkSettings
    from riverrun.streams.run.session import start_session, stop_session

    settings = Settings(spark=SparkSettings(driver_memory_mb=1024))
    folder = tmp_path_factory.mktemp("spark")
    session = start_session(settings, folder, name="tests", slots=spark_slots, brief=spark_brief)
    yield session
    stop_session(session)


@pytest.fixture
def stream_test(spark: "SparkSession", tmp_path: Path) -> "Iterator[Callable[..., StreamTest]]":
    """Make a `riverrun.testing.StreamTest` of an app or of the path of a pipeline file; its streams stop with the test.
    `seconds=` is how long reading the rows of a stream may take."""
    from contextlib import ExitStack

    from riverrun.testing.streams import StreamTest

    def make(app: "App | str | Path", **options: float) -> StreamTest:
        return stack.enter_context(StreamTest(app, spark, tmp_path / secrets.token_hex(4), **options))

    with ExitStack() as stack:
        yield make
