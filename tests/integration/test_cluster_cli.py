"""up, status, down, logs and doctor as users run them, and what happens when processes are killed."""

import json
import os
import pty
import re
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from riverrun.kafka.admin.admin import Admin
from riverrun.kafka.connection import Connection, connect
from riverrun.kafka.probe import ClusterProbe
from riverrun.testing.pytest_plugin import KafkaUnderTest
from support.cluster import TAKE_TERMINAL, ProjectDriver, after, guard_of, lives, wait_for

# A broker's property that a user keeps from others.
SECRET = "hush-hush"


@pytest.fixture
def project(tmp_path: Path) -> Iterator[ProjectDriver]:
    driver = ProjectDriver(tmp_path)
    yield driver
    driver.clean_up()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProjectDriver]:
    """A project whose Kafka runs in the background; tests leave it running."""
    driver = ProjectDriver(tmp_path_factory.mktemp("running"))
    driver.configure(f'[kafka.broker]\n"listener.name.client.ssl.keystore.password" = "{SECRET}"\n')
    done = driver.run("up", "--detach")
    assert done.code == 0, done.err
    yield driver
    driver.clean_up()


def topics(project: ProjectDriver) -> set[str]:
    return set(Admin(connect(project=project.root)).topic_names())


def create_topic(project: ProjectDriver, name: str) -> None:
    Admin(connect(project=project.root)).create_topic(name, partitions=1, replicas=0, config={})


def broker(project: ProjectDriver) -> dict[str, object]:
    server: dict[str, object] = project.status()["servers"][0]
    return server


def test_up_prints_the_address_and_status_describes_the_broker(running: ProjectDriver) -> None:
    status = running.status()
    server = status["servers"][0]
    assert status["state"] == "ready"
    assert status["bootstrap_servers"] == server["address"]
    assert (server["name"], server["kind"], server["state"], server["restarts"]) == ("broker-1", "broker", "ready", 0)
    assert running.java() == [server["pid"]]
    assert 50 < server["memory_mb"] < 1000
    assert server["uptime_seconds"] > 0
    assert Path(server["log"]).is_file()
    assert len(ClusterProbe({"bootstrap.servers": status["bootstrap_servers"]}).fetch_metadata(10).brokers) == 1


def test_no_other_user_reads_what_is_written_for_servers(running: ProjectDriver) -> None:
    folder = running.home / "run"
    open_to_others = [path for path in (folder, *folder.rglob("*")) if path.stat().st_mode & 0o077]
    assert not open_to_others
    told = [path for path in running.home.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()]
    assert [path.name for path in told] == ["broker-1.properties"], "it is in no log and in no other file"
    assert SECRET not in " ".join(arg for pid in running.java() for arg in psutil.Process(pid).cmdline())


def test_all_ports_are_on_the_loopback_only(running: ProjectDriver) -> None:
    (pid,) = running.java()
    listening = [
        net_connection.laddr
        for net_connection in psutil.Process(pid).net_connections()
        if net_connection.status == psutil.CONN_LISTEN
    ]
    assert len(listening) == 2
    assert {address.ip.removeprefix("::ffff:") for address in listening} == {"127.0.0.1"}
    assert all(address.port < 32768 for address in listening)


def test_a_second_up_finds_the_first(running: ProjectDriver) -> None:
    again = running.run("up", "--detach")
    assert (again.code, again.out.strip()) == (0, running.status()["bootstrap_servers"])
    assert "runs already" in again.err
    foreground = running.run("up")
    assert (foreground.code, foreground.out.strip()) == (0, again.out.strip())


def test_a_second_up_that_wants_something_else_is_refused(running: ProjectDriver) -> None:
    done = running.run("up", "--brokers", "3")
    assert done.code == 1
    assert done.err.startswith("ALREADY_RUNNING")
    assert "Expected brokers 3" in done.err
    assert "found brokers 1" in done.err


def test_druid_for_a_runner_without_it_is_refused_with_the_way_to_it(running: ProjectDriver) -> None:
    done = running.run("up", "--druid")
    assert (done.code, done.err.split()[0]) == (1, "ALREADY_RUNNING")
    assert "Stop it with `riverrun down`, then start both with `riverrun up --druid`" in done.err


def test_status_for_people_and_logs(running: ProjectDriver) -> None:
    done = running.run("status")
    assert done.code == 0
    assert done.out.splitlines()[0].split()[:3] == ["SERVER", "STATE", "ADDRESS"]
    logs = running.run("logs", "--lines", "5")
    assert logs.code == 0
    assert len(logs.out.splitlines()) == 5
    wrong = running.run("logs", "broker-9")
    assert (wrong.code, wrong.err.split()[0]) == (2, "USAGE")


def test_logs_follow_what_is_added(running: ProjectDriver) -> None:
    follower = running.start("logs", "broker-1", "--follow", "--lines", "0")
    try:
        assert follower.stdout is not None
        log = Path(str(broker(running)["log"]))
        wait_for(lambda: follower.poll() is None and _has_open(follower.pid, log), 10, "it did not open the log")
        with log.open("a") as file:
            file.write("a line for the follower\n")
        assert "a line for the follower" in follower.stdout.readline()
    finally:
        follower.kill()
        follower.communicate()


def _has_open(pid: int, path: Path) -> bool:
    return any(open_file.path == str(path) for open_file in psutil.Process(pid).open_files())


def test_doctor_finds_nothing_wrong(running: ProjectDriver) -> None:
    done = running.run("doctor", "--json")
    findings = {load["check"]: load for load in json.loads(done.out)}
    assert done.code == 0, done.out
    assert not [finding for finding in findings.values() if finding["state"] == "fail"]
    assert "1 broker" in findings["cluster"]["found"]
    assert findings["kafka jars"]["state"] == "ok"


def test_several_ups_at_the_same_moment_start_one_cluster(project: ProjectDriver) -> None:
    runners = [project.start("up", "--detach") for _ in range(3)]
    said = [runner.communicate(timeout=90) for runner in runners]
    assert [runner.returncode for runner in runners] == [0, 0, 0], said
    assert len({out for out, _ in said}) == 1
    assert len(project.java()) == 1


def test_data_and_address_survive_down_and_up(project: ProjectDriver) -> None:
    first = project.run("up", "--detach")
    assert first.code == 0, first.err
    create_topic(project, "kept")
    down = project.run("down")
    assert (down.code, down.err.strip()) == (0, "Stopped.")
    assert project.java() == []
    assert project.run("status").code == 1
    again = project.run("up", "--detach")
    assert again.out == first.out
    assert "kept" in topics(project)
    assert "ended without cleaning up" not in (project.home / "logs/runner.log").read_text()


def test_down_when_nothing_runs(project: ProjectDriver) -> None:
    done = project.run("down")
    assert done.code == 0
    assert "Nothing runs" in done.err


def test_down_can_delete_the_data_and_names_it(project: ProjectDriver) -> None:
    assert project.run("up", "--detach").code == 0
    create_topic(project, "orders")
    dry = project.run("down", "--delete-data", "--dry-run")
    assert "topic orders" in dry.out
    unasked = project.run("down", "--delete-data")
    assert (unasked.code, unasked.err.split()[0]) == (2, "USAGE")
    assert project.status()["state"] == "ready"
    done = project.run("down", "--delete-data", "--yes")
    assert done.code == 0
    assert not (project.home / "data").exists()


def test_a_killed_broker_comes_back_with_its_data(project: ProjectDriver) -> None:
    assert project.run("up", "--detach").code == 0
    create_topic(project, "kept")
    before = broker(project)
    os.kill(int(str(before["pid"])), signal.SIGKILL)
    wait_for(lambda: broker(project)["restarts"] == 1 and project.status()["state"] == "ready", 40, "not back")
    after = broker(project)
    assert after["pid"] != before["pid"]
    assert after["address"] == before["address"]
    assert "kept" in topics(project)
    assert "was ended by signal 9" in (project.home / "logs/runner.log").read_text()


def test_a_server_dies_with_its_guard_and_comes_back(project: ProjectDriver) -> None:
    project.run("up", "--detach")
    pid = int(str(broker(project)["pid"]))
    os.kill(guard_of(pid), signal.SIGKILL)
    wait_for(lambda: not lives(pid), 5, "the broker outlived its guard")
    wait_for(lambda: broker(project)["restarts"] == 1 and project.status()["state"] == "ready", 40, "not back")


def test_no_java_outlives_a_killed_runner(project: ProjectDriver) -> None:
    project.run("up", "--detach", "--controllers", "1")
    status = project.status()
    pids = [server["pid"] for server in status["servers"]]
    assert len(pids) == 2
    assert all(lives(pid) for pid in pids)
    os.kill(status["pid"], signal.SIGKILL)
    wait_for(lambda: not any(lives(pid) for pid in pids), 15, "servers outlived their runner")
    stale = project.status()
    assert stale["state"] == "stopped"
    assert "ended without cleaning up" in stale["detail"]
    # Cleanly: the broker was asked, and closed its logs.
    assert (project.home / "data/kafka/broker-1/.kafka_cleanshutdown").exists()


def test_up_right_after_a_killed_runner_waits_for_its_servers(project: ProjectDriver) -> None:
    first = project.run("up", "--detach")
    old = broker(project)["pid"]
    os.kill(project.status()["pid"], signal.SIGKILL)
    again = project.run("up", "--detach")
    assert again.code == 0, again.err
    assert again.out == first.out
    assert broker(project)["pid"] != old
    assert "The last runner (pid " in (project.home / "logs/runner.log").read_text()


def test_down_kills_a_runner_that_does_not_react(project: ProjectDriver) -> None:
    project.run("up", "--detach")
    runner = project.status()["pid"]
    os.kill(runner, signal.SIGSTOP)
    done = project.run("down", "--timeout", "1")
    assert (done.code, done.err.splitlines()[-1]) == (0, "Killed.")
    assert "did not stop in 1 s" in done.err
    assert project.java() == []
    assert not lives(runner)


def read_address(runner: "subprocess.Popen[str]") -> str:
    assert runner.stdout is not None
    return runner.stdout.readline().strip()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_foreground_runner_stops_in_order(project: ProjectDriver, number: signal.Signals) -> None:
    runner = project.start("up")
    assert read_address(runner).startswith("127.0.0.1:")
    runner.send_signal(number)
    _, said = runner.communicate(timeout=30)
    assert runner.returncode == 0, said
    assert said.splitlines()[-1] == "Stopped."
    assert "Stopping" in said
    assert project.java() == []
    assert project.status()["detail"] == ""


def test_a_stop_while_it_starts(project: ProjectDriver) -> None:
    runner = project.start("up")
    wait_for(project.java, 20, "no broker was started")
    runner.send_signal(signal.SIGTERM)
    _, said = runner.communicate(timeout=30)
    assert runner.returncode == 0, said
    wait_for(lambda: not project.java(), 10, "a broker is left")


def test_a_second_interrupt_kills(project: ProjectDriver) -> None:
    runner = project.start("up")
    read_address(runner)
    (pid,) = project.java()
    # A broker that cannot react.
    os.kill(pid, signal.SIGSTOP)
    runner.send_signal(signal.SIGINT)
    assert runner.stderr is not None
    lines = iter(runner.stderr.readline, "")
    assert any("Ctrl-C again" in line for line in lines)
    runner.send_signal(signal.SIGINT)
    runner.communicate(timeout=20)
    assert not lives(pid)


def test_two_projects_at_once_take_different_ports(running: ProjectDriver, project: ProjectDriver) -> None:
    done = project.run("up", "--detach")
    assert done.code == 0, done.err
    assert done.out.strip() != running.status()["bootstrap_servers"]


def test_attached_up_starts_nothing(project: ProjectDriver, kafka: KafkaUnderTest) -> None:
    project.environ["RIVERRUN_KAFKA_BOOTSTRAP_SERVERS"] = kafka.bootstrap_servers
    done = project.run("up")
    assert (done.code, done.out.strip()) == (0, kafka.bootstrap_servers)
    assert "nothing to start" in done.err
    assert not project.home.exists()
    status = project.status()
    assert status["state"] == "ready"
    assert {server["address"] for server in status["servers"]} == {
        each.address for each in ClusterProbe(Connection(kafka.settings).properties()).fetch_metadata(10).brokers
    }


def test_attached_to_nothing(project: ProjectDriver) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{closed.getsockname()[1]}"
        project.configure(f'[kafka]\nbootstrap_servers = "{address}"\nrequest_timeout_seconds = 2\n')
        up = project.run("up")
        assert (up.code, up.err.split()[0]) == (1, "KAFKA_UNREACHABLE")
        status = project.run("status", "--json")
        assert status.code == 1
        assert json.loads(status.out)["state"] == "unreachable"
        doctor = project.run("doctor")
        assert doctor.code == 1
        assert "fail  cluster" in doctor.out


def test_a_terminal_shows_a_live_table_and_ctrl_c_stops(project: ProjectDriver) -> None:
    leader, follower = pty.openpty()
    try:
        runner = subprocess.Popen(
            after(TAKE_TERMINAL, [sys.executable, "-m", "riverrun", "up"]),
            cwd=project.root,
            stdin=follower,
            stdout=follower,
            stderr=follower,
            # Ctrl-C reaches the whole foreground group of the session.
            start_new_session=True,
        )
        screen = Screen(leader)
        screen.wait_for("Kafka is ready on 127.0.0.1:", 60)
        assert len(project.java()) == 1
        os.write(leader, b"\x03")
        screen.wait_for("Stopping", 10)
        screen.wait_for("Stopped.", 30)
        assert runner.wait(10) == 0
        assert project.java() == []
    finally:
        os.close(leader)
        os.close(follower)


class Screen:
    """What a terminal has shown, without its control sequences."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.text = ""

    def wait_for(self, words: str, seconds: float) -> None:
        def shown() -> bool:
            while select.select([self._descriptor], [], [], 0.05)[0]:
                raw = os.read(self._descriptor, 65536).decode(errors="replace")
                self.text += re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", raw)
            return words in self.text

        wait_for(shown, seconds, f"the terminal did not show {words!r} but {self.text!r}")
