"""Clusters of several nodes, storage that Kafka's own tool accepts, and clusters that grow."""

import random
import shutil
import struct
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from riverrun.cluster.jvm import JavaRuntime
from riverrun.cluster.kafka import storage
from riverrun.cluster.kafka.local import LocalKafka
from riverrun.config import KafkaSettings, Settings
from riverrun.errors import DataDirectoryError
from riverrun.kafka.admin.admin import Admin
from riverrun.kafka.connection import Connection
from riverrun.kafka.probe import ClusterProbe, is_kafka_responding
from riverrun.model.cluster_state import TopicPartition
from support.cluster import lives, wait_for


def local(root: Path, **settings: object) -> LocalKafka:
    chosen = KafkaSettings(**settings)  # type: ignore[arg-type]
    return LocalKafka(root, chosen, first_port=random.randrange(12000, 28000, 20))


def admin_of(kafka: LocalKafka) -> Admin:
    return Admin(Connection(KafkaSettings(bootstrap_servers=kafka.bootstrap_servers)))


def effective(kafka: LocalKafka, topic: str, name: str) -> str | None:
    """A topic's setting as the cluster applies it."""
    return admin_of(kafka).topic(topic).config[name].value


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalKafka]:
    with local(tmp_path_factory.mktemp("three"), brokers=3) as kafka:
        yield kafka


def test_three_brokers_keep_three_copies(three: LocalKafka) -> None:
    assert len(three.nodes) == 3
    assert all(node.node.roles == "broker,controller" for node in three.nodes)
    admin_of(three).create_topic("copies", partitions=2, replicas=0, config={})
    topic = admin_of(three).topic("copies")
    assert all(set(partition.replicas) == {1, 2, 3} for partition in topic.partitions)
    assert topic.config["min.insync.replicas"].value == "2"


def test_a_broker_of_three_can_be_killed_and_comes_back(three: LocalKafka) -> None:
    broker = three.brokers[1]
    old = broker.pid
    broker.kill()
    assert not lives(old)
    assert broker.pid == 0
    wait_for(lambda: ids(three) == {1, 3}, 20, "the cluster did not notice")
    broker.restart()
    assert broker.pid not in (0, old)
    wait_for(lambda: ids(three) == {1, 2, 3}, 20, "it did not join again")


def ids(kafka: LocalKafka) -> set[int]:
    return {
        broker.id for broker in ClusterProbe({"bootstrap.servers": kafka.bootstrap_servers}).fetch_metadata(10).brokers
    }


def test_three_combined_nodes_stop_together_before_their_time_is_up_and_lose_nothing(tmp_path: Path) -> None:
    kafka = local(tmp_path, brokers=3)
    with kafka:
        admin_of(kafka).create_topic("some", partitions=6, replicas=0, config={})
        producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "acks": "all"})
        for number in range(600):
            producer.produce("some", str(number), partition=number % 6)
        assert producer.flush(30) == 0
        pids = [node.pid for node in kafka.nodes]
        begun = time.monotonic()
    seconds = time.monotonic() - begun
    assert not any(lives(pid) for pid in pids)
    # Kafka by itself takes minutes for a broker that nobody lets go; ours is killed when the others cannot any more. Its
    # logs are open then: it happens when the others have left before it was allowed to.
    assert seconds < KafkaSettings().stop_timeout_seconds
    assert sum(node.is_cleanly_shut_down for node in kafka.nodes) >= 2
    with local(tmp_path, brokers=3) as again:
        admin = admin_of(again)
        ends = admin.offsets([TopicPartition("some", part) for part in range(6)], "latest")
        assert set(ends.values()) == {100}


def test_a_controller_of_its_own(tmp_path: Path) -> None:
    with local(tmp_path, controllers=1) as kafka:
        assert [(node.name, node.node.roles) for node in kafka.nodes] == [
            ("controller-1", "controller"),
            ("broker-1", "broker"),
        ]
        assert kafka.bootstrap_servers == kafka.brokers[0].address
        (controller,) = kafka.controllers
        assert is_kafka_responding("127.0.0.1", controller.port, 5)
        controller.kill()
        controller.restart()
        admin_of(kafka).create_topic("after", partitions=1, replicas=0, config={})


def test_a_cluster_grows_and_does_not_shrink(tmp_path: Path) -> None:
    with local(tmp_path) as kafka:
        admin_of(kafka).create_topic("old", partitions=1, replicas=0, config={})
        assert effective(kafka, "old", "min.insync.replicas") == "1"
    notices: list[str] = []
    grown = LocalKafka(
        tmp_path, KafkaSettings(brokers=3), first_port=random.randrange(12000, 28000, 20), notice=notices.append
    )
    with grown as kafka:
        assert [node.node.roles for node in kafka.nodes] == ["broker,controller", "broker", "broker"]
        assert any("adding brokers 2, 3" in notice for notice in notices)
        admin_of(kafka).create_topic("new", partitions=1, replicas=0, config={})
        assert len(admin_of(kafka).topic("new").partitions[0].replicas) == 3
        assert effective(kafka, "new", "min.insync.replicas") == "2"
        assert len(admin_of(kafka).topic("old").partitions[0].replicas) == 1
        # More than it has copies, and yet it can be written to.
        assert effective(kafka, "old", "min.insync.replicas") == "2"
        producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "acks": "all", "message.timeout.ms": 10000})
        outcomes: list[object] = []
        producer.produce("old", b"still", on_delivery=lambda error, _: outcomes.append(error))
        assert producer.flush(15) == 0
        assert outcomes == [None]
    with pytest.raises(DataDirectoryError, match="spread over 3 brokers"), local(tmp_path, brokers=1):
        pass
    with pytest.raises(DataDirectoryError, match="other controllers"), local(tmp_path, brokers=3, controllers=1):
        pass


def test_a_project_folder_with_a_difficult_name(tmp_path: Path) -> None:
    root = tmp_path / "a, b: c=d #1 é ☕"
    with local(root) as kafka:
        admin_of(kafka).create_topic("some", partitions=1, replicas=0, config={})
    assert (root / "logs/broker-1.log").stat().st_size > 0
    assert (root / "data/kafka/broker-1/some-0").is_dir()


def test_java_never_gets_a_console_or_our_lock(tmp_path: Path) -> None:
    with local(tmp_path) as kafka:
        links = [link.resolve().name for link in Path(f"/proc/{kafka.brokers[0].pid}/fd").iterdir() if link.exists()]
        assert "broker-1.lock" in links
        assert "null" in links


# --- storage ---


@pytest.fixture(scope="module")
def runtime() -> JavaRuntime:
    return JavaRuntime.prepare(Settings())


def tool(runtime: JavaRuntime, *arguments: str) -> str:
    done = subprocess.run(
        runtime.command("kafka.tools.StorageTool", arguments), capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_features_are_the_latest_production_ones(runtime: JavaRuntime) -> None:
    mapping = dict(line.split("=", 1) for line in tool(runtime, "version-mapping").splitlines() if "=" in line)
    wanted = {name: int(value.split()[0]) for name, value in mapping.items()}
    # The quorum's own version is 0 for a static quorum, and is not written by a format.
    del wanted["kraft.version"]
    minor = ".".join(runtime.kafka_version.split(".")[:2])
    assert storage.FEATURES[minor] == wanted


def test_our_format_is_the_tools_format(runtime: JavaRuntime, tmp_path: Path) -> None:
    properties = tmp_path / "server.properties"
    properties.write_text(
        "process.roles=broker,controller\nnode.id=1\ncontroller.quorum.voters=1@127.0.0.1:9093\n"
        "listeners=PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093\ncontroller.listener.names=CONTROLLER\n"
        f"log.dirs={tmp_path / 'theirs'}\n"
    )
    (tmp_path / "theirs").mkdir()
    cluster_id = storage.new_id()
    tool(runtime, "format", "-t", cluster_id, "-c", str(properties))
    storage.format_storage(tmp_path / "ours", cluster_id, 1, storage.FEATURES["4.3"])
    theirs = (tmp_path / "theirs/bootstrap.checkpoint").read_bytes()
    # Each of their three batches has its own time; so must ours, to be compared byte by byte.
    assert without_times(theirs) == without_times((tmp_path / "ours/bootstrap.checkpoint").read_bytes())
    properties.write_text(properties.read_text().replace("theirs", "ours"))
    said = tool(runtime, "info", "-c", str(properties))
    assert "Found problem" not in said
    assert cluster_id in said


def without_times(content: bytes) -> list[bytes]:
    """A checkpoint's batches with checksum (checked here) and times taken out."""
    batches = []
    while content:
        (length,) = struct.unpack_from(">i", content, 8)
        batch, content = content[: 12 + length], content[12 + length :]
        (checksum,) = struct.unpack_from(">I", batch, 17)
        assert checksum == storage.crc32c(batch[21:])
        batches.append(batch[:17] + batch[21:27] + batch[43:])
    return batches


def test_a_kafka_version_we_do_not_know_is_formatted_by_its_tool(
    runtime: JavaRuntime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "FEATURES", {})
    with LocalKafka(tmp_path, runtime=runtime, first_port=random.randrange(12000, 28000, 20)) as kafka:
        assert ids(kafka) == {1}
    assert storage.is_formatted(tmp_path / "data/kafka/broker-1")


def test_storage_that_was_half_formatted_is_formatted_again(tmp_path: Path) -> None:
    with local(tmp_path):
        pass
    folder = tmp_path / "data/kafka/broker-1"
    for path in folder.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    (folder / "bootstrap.checkpoint.tmp").write_bytes(b"half")
    with local(tmp_path) as kafka:
        assert ids(kafka) == {1}
