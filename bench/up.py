"""From nothing to the first acknowledged record: `riverrun up` beside the same broker started by hand.

    python bench/up.py [repeats]

By hand is what a patient engineer types: Kafka's StorageTool, then kafka.Kafka, with the JVM
flags of Kafka's own start script.
Both are timed from a fresh folder, and from one that holds data already (where by hand needs no StorageTool).
"""

import json
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from measure import alternate, report
from riverrun.artifacts import fetch
from riverrun.artifacts.java import find_java
from riverrun.config import ArtifactSettings, JavaSettings

# kafka-server-start.sh and kafka-run-class.sh, less the GC log.
FLAGS = (
    "-Xmx1G",
    "-Xms1G",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
)
PROPERTIES = """process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{broker},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{broker}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={folder}/data
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
"""
CLUSTER_ID = "4L6g3nShT-eMCtK--X86sw"
DEADLINE = 120


def main() -> None:
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    with tempfile.TemporaryDirectory() as folder:
        used_ours, used_by_hand = Path(folder, "ours"), Path(folder, "hand")
        for path in (used_ours, used_by_hand):
            path.mkdir()
        ours(used_ours)
        by_hand(used_by_hand)
        contenders: dict[str, Callable[[], float]] = {
            "by hand, fresh": lambda: fresh(by_hand),
            "riverrun up, fresh": lambda: fresh(ours),
            "by hand, again": lambda: by_hand(used_by_hand),
            "riverrun up, again": lambda: ours(used_ours),
        }
        figures = alternate(contenders, repeats)
    for kind in ("fresh", "again"):
        part = {name: values for name, values in figures.items() if name.endswith(kind)}
        report(f"Start to first acknowledged record, {kind}", part, "seconds", against=f"by hand, {kind}")


def fresh(start: Callable[[Path], float]) -> float:
    with tempfile.TemporaryDirectory() as folder:
        return start(Path(folder))


def ours(folder: Path) -> float:
    riverrun = [str(Path(sys.executable).with_name("riverrun")), "--project", str(folder)]
    begun = time.perf_counter()
    try:
        subprocess.run([*riverrun, "up", "--detach"], check=True, capture_output=True)
        shown = subprocess.run([*riverrun, "status", "--json"], check=True, capture_output=True, text=True)
        acknowledged(json.loads(shown.stdout)["bootstrap_servers"])
        return time.perf_counter() - begun
    finally:
        subprocess.run([*riverrun, "down"], check=True, capture_output=True)


def by_hand(folder: Path) -> float:
    java = str(find_java(JavaSettings()).executable)
    jars = ":".join(map(str, fetch("kafka", ArtifactSettings())))
    broker = free_port(20_000)
    controller = free_port(broker + 1)
    properties = folder / "server.properties"
    properties.write_text(PROPERTIES.format(broker=broker, controller=controller, folder=folder))
    begun = time.perf_counter()
    if not (folder / "data").exists():
        storage = [java, "-cp", jars, "kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(properties)]
        subprocess.run(storage, check=True, capture_output=True)
    with Path(folder, "out").open("w") as out:
        process = subprocess.Popen([java, *FLAGS, "-cp", jars, "kafka.Kafka", str(properties)], stdout=out, stderr=out)
    try:
        acknowledged(f"127.0.0.1:{broker}")
        return time.perf_counter() - begun
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def acknowledged(servers: str) -> None:
    """Return when a record of ours is acknowledged."""
    quiet = {"bootstrap.servers": servers, "log_level": 0, "reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 100}
    admin = AdminClient(quiet)
    deadline = time.monotonic() + DEADLINE
    while time.monotonic() < deadline:
        try:
            if "first" not in admin.list_topics(timeout=1).topics:
                admin.create_topics([NewTopic("first", 1)])["first"].result(5)
            break
        except KafkaException:
            continue
    producer = Producer(quiet | {"acks": "all", "linger.ms": 0})
    done: list[object] = []
    producer.produce("first", b"1", on_delivery=lambda error, _: done.append(error))
    producer.flush(DEADLINE)
    assert done == [None], done


def free_port(start: int) -> int:
    for port in range(start, 32_000):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise SystemExit("no free port")


if __name__ == "__main__":
    main()
