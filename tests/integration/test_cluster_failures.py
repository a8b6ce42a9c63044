"""What keeps a cluster from starting, each with its own message: ports, folders, disks, settings, Java."""

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from riverrun.artifacts import find_java
from riverrun.cluster.jvm import JavaRuntime
from riverrun.cluster.kafka.local import LocalKafka
from riverrun.cluster.server import Deadline
from riverrun.config import JavaSettings, KafkaSettings, Settings
from riverrun.errors import (
    ClusterError,
    DataDirectoryError,
    DiskFullError,
    PortTakenError,
    RiverrunError,
    ServerDiedError,
    ServerNotReadyError,
)
from riverrun.kafka.admin.admin import Admin
from riverrun.kafka.connection import Connection
from support.cluster import ProjectDriver, wait_for


@pytest.fixture
def project(tmp_path: Path) -> Iterator[ProjectDriver]:
    driver = ProjectDriver(tmp_path)
    yield driver
    driver.clean_up()


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """Somebody else's server, on a port of 127.0.0.1."""
    with socket.socket() as taken:
        while True:
            try:
                taken.bind(("127.0.0.1", random.randrange(12000, 28000)))
                break
            except OSError:
                continue
        taken.listen()
        yield taken


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 96 MiB of its own. Making one takes the right to mount, which root has."""
    folder = tmp_path / "small"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=96m", "tmpfs", str(folder)], check=True, capture_output=True)
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def local(root: Path, *, archive: bool = True, **settings: object) -> LocalKafka:
    chosen = KafkaSettings(**settings)  # type: ignore[arg-type]
    return LocalKafka(root, chosen, first_port=random.randrange(12000, 28000, 10), archive=archive)


# --- ports ---


def test_a_port_that_was_asked_for_and_is_taken(project: ProjectDriver, listener: socket.socket) -> None:
    port = listener.getsockname()[1]
    for more in ([], ["--detach"]):
        done = project.run("up", "--port", str(port), *more)
        assert done.code == 1
        assert done.err.splitlines()[-1].startswith(f"PORT_TAKEN  Port {port} for broker-1 is taken by ")
        assert f"(pid {os.getpid()})" in done.err
    assert project.status()["state"] == "failed"


def test_a_port_that_is_taken_while_the_broker_starts(tmp_path: Path, listener: socket.socket) -> None:
    port = listener.getsockname()[1]
    listener.close()
    kafka = local(tmp_path, port=port)
    try:
        kafka.start()
        with socket.create_server(("127.0.0.1", port)), pytest.raises(PortTakenError) as caught:
            kafka.ready(Deadline(60))
    finally:
        kafka.stop()
    assert caught.value.fields["port"] == port
    assert caught.value.fields["pid"] == os.getpid()
    assert "exited with code 1" in caught.value.what


def test_a_port_of_our_choice_that_is_lost_is_chosen_anew(tmp_path: Path) -> None:
    notices: list[str] = []
    kafka = LocalKafka(tmp_path, KafkaSettings(), first_port=random.randrange(12000, 28000, 10), notice=notices.append)
    try:
        kafka.start()
        lost = kafka.brokers[0].port
        with socket.create_server(("127.0.0.1", lost)):
            kafka.ready(Deadline(90))
            assert kafka.brokers[0].port != lost
    finally:
        kafka.stop()
    assert any("choosing others" in notice for notice in notices)


# --- folders ---


def test_a_folder_that_may_not_be_written(project: ProjectDriver) -> None:
    project.root.chmod(0o555)
    try:
        done = project.run("up", like_a_user=True)
    finally:
        project.root.chmod(0o755)
    assert done.code == 1
    assert done.err.startswith(
        f"DATA_DIRECTORY  The folder {project.home} cannot be used: this user may not write there."
    )


def test_data_that_may_not_be_written(project: ProjectDriver) -> None:
    assert project.run("up", "--detach").code == 0
    project.run("down")
    data = project.home / "data/kafka/broker-1"
    data.chmod(0o555)
    try:
        done = project.run("up", like_a_user=True)
    finally:
        data.chmod(0o755)
    assert done.code == 1
    assert done.err.splitlines()[-1].startswith(f"DATA_DIRECTORY  The folder {data} cannot be used")


def test_a_file_where_a_folder_should_be(project: ProjectDriver) -> None:
    project.home.write_text("not a folder")
    done = project.run("up")
    assert done.code == 1
    assert done.err.startswith("DATA_DIRECTORY")
    assert "a file with that name is in the way" in done.err


def test_data_of_another_cluster(tmp_path: Path) -> None:
    with local(tmp_path):
        pass
    meta = tmp_path / "data/kafka/broker-1/meta.properties"
    meta.write_text(meta.read_text().replace("cluster.id=", "cluster.id=X"))
    with pytest.raises(DataDirectoryError, match="belongs to another cluster"), local(tmp_path):
        pass


def test_data_of_a_newer_kafka(tmp_path: Path) -> None:
    with local(tmp_path):
        pass
    record = tmp_path / "data/kafka/cluster.json"
    record.write_text(record.read_text().replace('"4.', '"99.'))
    with pytest.raises(DataDirectoryError, match="written by a newer Kafka"), local(tmp_path):
        pass


def test_data_that_is_damaged_is_named_with_the_end_of_the_log(tmp_path: Path) -> None:
    with local(tmp_path) as kafka:
        Admin(Connection(KafkaSettings(bootstrap_servers=kafka.bootstrap_servers))).create_topic(
            "orders", partitions=1, replicas=0, config={}
        )
    log = tmp_path / "data/kafka/broker-1/__cluster_metadata-0/00000000000000000000.log"
    content = bytearray(log.read_bytes())
    content[len(content) // 2 : len(content) // 2 + 64] = b"\x55" * 64
    log.write_bytes(content)
    (log.parent / "quorum-state").write_text("{ not json")
    with pytest.raises(ClusterError) as caught, local(tmp_path):
        pass
    assert caught.value.fields["exit_code"] == 1
    assert any("broker-1.log ends with" in line for line in caught.value.lines)


# --- disks ---


def test_a_disk_with_too_little_room(small_disk: Path) -> None:
    project = ProjectDriver(small_disk)
    (small_disk / "filler").write_bytes(b"x" * (60 << 20))
    done = project.run("up")
    assert done.code == 1
    assert done.err.startswith("DISK_FULL")
    assert "at least 64 MiB free" in done.err


def test_a_disk_without_any_room(small_disk: Path) -> None:
    project = ProjectDriver(small_disk)
    fill(small_disk)
    done = project.run("up")
    assert done.code == 1
    assert done.err.startswith(f"DISK_FULL  The disk of {small_disk}")


def test_a_disk_that_fills_up_while_the_broker_runs(small_disk: Path) -> None:
    with local(small_disk) as kafka:
        fill(small_disk)
        admin = Admin(Connection(KafkaSettings(bootstrap_servers=kafka.bootstrap_servers, request_timeout_seconds=5)))
        for number in range(50):
            # Whatever the client makes of a broker that dies.
            with contextlib.suppress(RiverrunError):
                admin.create_topic(f"topic-{number}", partitions=20, replicas=0, config={})
            if not kafka.brokers[0].alive:
                break
        wait_for(lambda: not kafka.brokers[0].alive, 30, "the broker lives on a full disk")
        with pytest.raises(DiskFullError) as caught:
            kafka.brokers[0].check()
    assert caught.value.fields["server"] == "broker-1"


def test_a_full_disk_is_told_by_status_and_by_produce_and_waited_for(small_disk: Path) -> None:
    """`status` said «ready, restarts 0» while the broker was tried twice a second: its state could not be written."""
    project = ProjectDriver(small_disk)
    with contextlib.ExitStack() as stack:
        stack.callback(project.clean_up)
        stack.callback((small_disk / "filler").unlink, missing_ok=True)
        assert project.run("up", "--detach").code == 0
        assert project.run("topics", "create", "readings").code == 0
        producing = project.start("produce", "readings", "--text", "--timeout", "240", stdin=subprocess.PIPE)
        stack.callback(producing.communicate)
        stack.callback(producing.kill)
        assert producing.stdin is not None
        assert producing.stderr is not None
        # It asks for the topic before it reads: once this is there, it does not ask any more.
        producing.stdin.write("zero\n")
        producing.stdin.flush()
        wait_for(lambda: "zero" in project.run("consume", "readings", "--limit", "1").out, 60, "nothing was sent")
        fill(small_disk)
        os.kill(project.status()["servers"][0]["pid"], signal.SIGKILL)
        producing.stdin.write("one\n")
        producing.stdin.flush()
        wait_for(lambda: project.status()["servers"][0]["restarts"] > 2, 60, "the restarts are not told")
        status = project.status()
        broker = status["servers"][0]
        assert (status["state"], broker["state"], broker["pid"]) == ("degraded", "restarting", None)
        assert broker["detail"].startswith(f"The disk of {small_disk}")
        assert f"broker-1: The disk of {small_disk}" in project.run("status").err
        told = producing.stderr.readline()
        assert "Kafka has acknowledged nothing for" in told
        assert "broker-1 is " in told
        (small_disk / "filler").unlink()
        wait_for(lambda: project.status()["state"] == "ready", 120, "it does not come back when there is room")
        assert "broker-1 was started again" in project.run("status").err
        assert "2 records acknowledged" in producing.communicate(timeout=120)[1]
        assert producing.returncode == 0


def fill(disk: Path) -> None:
    """Leave no room at all."""
    with (disk / "filler").open("ab", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * (1 << 20))
        except OSError:
            pass
        try:
            while True:
                file.write(b"x")
        except OSError:
            pass


# --- a broker that dies at start ---


def test_a_setting_kafka_refuses(project: ProjectDriver) -> None:
    project.configure('[kafka.broker]\n"num.io.threads" = "many"\n')
    done = project.run("up", "--detach")
    assert done.code == 1
    first, *log = done.err.splitlines()
    assert first.startswith("SERVER_DIED  broker-1 exited with code 1 after ")
    assert "Invalid value many for configuration num.io.threads" in first
    assert "Check [kafka.broker]" in first
    assert log[0].strip() == f"{project.home / 'logs/broker-1.log'} ends with:"
    assert any("num.io.threads" in line for line in log[1:])
    assert project.run("status").code == 1
    assert project.status()["state"] == "failed"


def test_a_setting_that_is_ours(project: ProjectDriver) -> None:
    project.configure('[kafka.broker]\n"listeners" = "PLAINTEXT://0.0.0.0:9092"\n')
    done = project.run("up")
    assert done.code == 2
    assert "kafka.broker sets listeners, which riverrun sets itself" in done.err


def test_an_option_java_refuses(tmp_path: Path) -> None:
    with pytest.raises(ServerDiedError) as caught, local(tmp_path, jvm_options="-XX:NoSuchOption=1"):
        pass
    assert "Java refuses an option" in caught.value.what
    assert "NoSuchOption" in caught.value.found
    assert any(".out ends with" in line for line in caught.value.lines)


def test_a_heap_that_is_too_small(tmp_path: Path) -> None:
    with pytest.raises(ServerDiedError) as caught, local(tmp_path, jvm_options="-Xms8m -Xmx8m"):
        pass
    assert "is too small" in caught.value.what
    assert "kafka.heap_mb" in caught.value.hint


def test_a_heap_no_machine_has(tmp_path: Path) -> None:
    with pytest.raises(ServerDiedError) as caught, local(tmp_path, heap_mb=1 << 30):
        pass
    assert "kafka.heap_mb" in caught.value.hint


def test_another_collector_of_the_users_choice(tmp_path: Path) -> None:
    with local(tmp_path, jvm_options="-XX:+UseG1GC") as kafka:
        assert kafka.brokers[0].alive


def test_a_broken_class_archive_never_stops_a_start(tmp_path: Path) -> None:
    found = JavaRuntime.prepare(Settings())
    runtime = JavaRuntime(found.java, found.class_path, tmp_path / "cache")
    with LocalKafka(tmp_path / "one", runtime=runtime, first_port=random.randrange(12000, 28000, 10)) as kafka:
        assert kafka._archive is not None
        assert kafka._archive.wait(60), (tmp_path / "one/logs/class-archive.out").read_text()
        path = kafka._archive.path
    whole = path.read_bytes()
    for damage in (whole[: len(whole) // 2], whole[:8192] + b"\xff" * (len(whole) - 8192)):
        path.write_bytes(damage)
        shutil.rmtree(tmp_path / "two", ignore_errors=True)
        with LocalKafka(tmp_path / "two", runtime=runtime, first_port=random.randrange(12000, 28000, 10)) as kafka:
            assert kafka.brokers[0].alive


def test_a_java_that_cannot_be_run(tmp_path: Path) -> None:
    found = JavaRuntime.prepare(Settings())
    broken = tmp_path / "java"
    broken.write_text("#!/nowhere\n")
    broken.chmod(0o755)
    java = find_java(JavaSettings())
    runtime = JavaRuntime(type(java)(java.home, broken, 17, "17", "test"), found.class_path, tmp_path / "cache")
    with pytest.raises(ServerDiedError) as caught, LocalKafka(tmp_path / "one", runtime=runtime):
        pass
    assert caught.value.fields["exit_code"] == 127
    assert any("cannot run" in line for line in caught.value.lines)


def test_a_broker_that_is_not_ready_in_time(tmp_path: Path) -> None:
    kafka = local(tmp_path, start_timeout_seconds=2)
    try:
        kafka.start()
        os.kill(kafka.brokers[0].pid, signal.SIGSTOP)
        with pytest.raises(ServerNotReadyError) as caught:
            kafka.ready(Deadline(2))
    finally:
        kafka.kill()
    assert "runs and was not ready after 2 s" in caught.value.what
    assert caught.value.retryable


def test_a_broker_that_dies_again_and_again_is_given_up(project: ProjectDriver) -> None:
    assert project.run("up", "--detach").code == 0
    meta = project.home / "data/kafka/broker-1/meta.properties"
    meta.write_text(meta.read_text().replace("cluster.id=", "cluster.id=X"))
    os.kill(project.status()["servers"][0]["pid"], signal.SIGKILL)
    wait_for(lambda: project.run("status", "--json").code == 1, 60, "the runner tries for ever")
    state = project.status()
    assert state["state"] == "failed"
    assert "belongs to another cluster" in state["detail"]
    log = (project.home / "logs/runner.log").read_text()
    assert log.count("starting it again") == 4
    assert "giving up" in log
