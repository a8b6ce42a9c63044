"""A real Druid: started, looked at, killed in parts, brought back, stopped."""

import os
import random
import signal
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from riverrun.cluster.druid import LocalDruid
from riverrun.cluster.druid.probe import answers_sql, is_leader, request_json
from riverrun.cluster.server import Deadline
from riverrun.config import DruidSettings
from riverrun.errors import ClusterError, PortTakenError
from support.cluster import ProjectDriver, lives, wait_for

ROLES = ["druid-coordinator", "druid-broker", "druid-historical", "druid-indexer", "druid-router"]


def question(port: int, sql: str) -> Any:
    return request_json(port, "/druid/v2/sql", 20, {"query": sql, "resultFormat": "array"})


# --- one that runs ---


def test_sql_through_the_router_knows_all_servers(druid: LocalDruid) -> None:
    assert druid.url == f"http://{druid.router.address}"
    assert druid.is_working()
    kinds = {"coordinator", "overlord", "broker", "historical", "indexer", "router"}

    def seen() -> bool:
        status, rows = question(druid.router.port, "SELECT server_type FROM sys.servers")
        return status == 200 and {row[0] for row in rows} == kinds

    wait_for(seen, 30, "not all servers are known")


def test_its_extensions_are_loaded(druid: LocalDruid) -> None:
    for node in druid.nodes:
        if node.name in ROLES:
            _, status = request_json(node.port, "/status", 20)
            assert status["version"] == "33.0.0"
            assert {"druid-kafka-indexing-service", "druid-datasketches"} <= {
                module["artifact"] for module in status["modules"]
            }


def test_all_ports_are_on_the_loopback_only(druid: LocalDruid) -> None:
    found: dict[str, set[int]] = {}
    for node in druid.nodes:
        listening = [
            net_connection.laddr
            for net_connection in psutil.Process(node.pid).net_connections(kind="tcp")
            if net_connection.status == psutil.CONN_LISTEN
        ]
        assert {address.ip.removeprefix("::ffff:") for address in listening} == {"127.0.0.1"}, node.name
        found[node.name] = {address.port for address in listening}
        assert all(port < 32768 for port in found[node.name])
    assert found == {node.name: set(node.own_ports) for node in druid.nodes}


def test_properties_are_in_files_of_the_user_alone(druid: LocalDruid) -> None:
    for node in druid.nodes:
        command = psutil.Process(node.pid).cmdline()
        assert not any("druid.host" in word or "jdbc" in word for word in command)
        assert stat.S_IMODE((druid.home.run / f"{node.name}.properties").stat().st_mode) == 0o600


def test_each_server_has_a_log_of_its_own(druid: LocalDruid) -> None:
    for node in druid.nodes:
        assert "INFO" in node.log.read_text(encoding="utf-8"), node.name
        # Of its database, which needs no login; said once its writer has gathered eight kilobytes of that.
        known = ("WARNING", "DBCP DataSource configured without a")
        assert not [line for line in node.output.read_text().splitlines() if not any(map(line.count, known))], node.name


def test_its_files_are_in_its_own_folders(druid: LocalDruid) -> None:
    folder = druid.home.data / "druid"
    assert {each.name for each in druid.home.data.iterdir()} == {"druid"}
    assert (folder / "metadata.db").is_dir()
    assert (folder / "zookeeper").is_dir()


@pytest.mark.parametrize("name", ["druid-indexer"])
def test_a_killed_role_is_started_again_by_hand(druid: LocalDruid, name: str) -> None:
    node = next(each for each in druid.nodes if each.name == name)
    before = node.pid
    node.kill()
    assert not node.alive
    assert "was ended by signal 9" in node.exit_error().what
    node.restart()
    assert node.pid not in (0, before)
    wait_for(druid.is_working, 60, "Druid did not answer again")


# --- one that does not start ---


def test_a_port_of_a_role_that_is_taken_while_it_starts(tmp_path: Path) -> None:
    """One role is enough to see: the others are not started."""
    druid = LocalDruid(tmp_path, DruidSettings(), first_port=random.randrange(12000, 28000, 10))
    try:
        druid.start()
        for node in druid.nodes:
            if node is not druid.zookeeper:
                node.kill()
        druid.zookeeper.stop()
        with socket.create_server(("127.0.0.1", druid.zookeeper.port)):
            druid.zookeeper.start()
            with pytest.raises(PortTakenError) as caught:
                druid.zookeeper.ready(Deadline(60))
    finally:
        druid.stop()
    assert caught.value.fields["pid"] == os.getpid()


def test_a_property_that_druid_does_not_take(tmp_path: Path) -> None:
    settings = DruidSettings(config={"druid.processing.numThreads": "many"})
    druid = LocalDruid(tmp_path, settings, first_port=random.randrange(12000, 28000, 10))
    with pytest.raises(ClusterError) as caught, druid:
        pass
    assert "Druid refuses its configuration" in caught.value.what
    assert caught.value.lines
    assert not any(node.alive for node in druid.nodes)


# --- by the runner ---


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProjectDriver]:
    """A project with Kafka and Druid in the background."""
    driver = ProjectDriver(tmp_path_factory.mktemp("project"))
    try:
        done = driver.run("up", "--druid", "--detach", timeout=300)
        assert done.code == 0, done.err
        assert "Druid answers on http://127.0.0.1:" in done.err
        yield driver
    finally:
        driver.clean_up()


def servers(project: ProjectDriver) -> dict[str, dict[str, Any]]:
    return {server["name"]: server for server in project.status()["servers"]}


def router_port(project: ProjectDriver) -> int:
    return int(project.status()["druid_url"].rpartition(":")[2])


@pytest.mark.timeout(400)
def test_status_shows_kafka_and_every_role(project: ProjectDriver) -> None:
    status = project.status()
    found = servers(project)
    assert list(found) == ["broker-1", "zookeeper", *ROLES]
    assert status["druid_url"] == f"http://{found['druid-router']['address']}"
    for server in found.values():
        assert (server["state"], server["restarts"]) == ("ready", 0)
        assert 20 < server["memory_mb"] < 800
        assert Path(server["log"]).is_file()
    shown = project.run("status")
    assert "Kafka with Druid is ready" in shown.err
    assert status["druid_url"] in shown.err
    assert project.run("logs", "druid-broker", "--lines", "3").code == 0
    doctor = project.run("doctor")
    assert f"{status['druid_url']} answers SQL" in doctor.out


@pytest.mark.timeout(400)
def test_a_second_up_finds_both(project: ProjectDriver) -> None:
    for more in (["--druid"], []):
        done = project.run("up", *more)
        assert (done.code, done.out.strip()) == (0, project.status()["bootstrap_servers"])
        assert project.status()["druid_url"] in done.err


@pytest.mark.timeout(400)
@pytest.mark.parametrize("killed", [["zookeeper"], ROLES], ids=["zookeeper", "roles"])
def test_killed_servers_come_back(project: ProjectDriver, killed: list[str]) -> None:
    before = servers(project)
    for name in killed:
        os.kill(before[name]["pid"], signal.SIGKILL)

    def back() -> bool:
        now = servers(project)
        new = all(now[name]["restarts"] > before[name]["restarts"] for name in killed)
        return new and all(server["state"] == "ready" for server in now.values())

    wait_for(back, 120, f"{killed} did not come back")
    port = router_port(project)
    wait_for(lambda: is_leader(port, 5) and answers_sql(port, 5), 60, "Druid does not answer")
    after = servers(project)
    assert {name: after[name]["address"] for name in killed} == {name: before[name]["address"] for name in killed}
    untouched = set(before) - set(killed)
    assert {name: after[name]["pid"] for name in untouched} == {name: before[name]["pid"] for name in untouched}


@pytest.mark.timeout(400)
def test_down_stops_all_in_order_and_leaves_nothing(project: ProjectDriver) -> None:
    pids = [server["pid"] for server in servers(project).values()]
    assert all(lives(pid) for pid in pids)
    done = project.run("down", "--delete-data", "--dry-run")
    assert "all tables in Druid" in done.out
    done = project.run("down")
    assert (done.code, done.err.splitlines()[-1]) == (0, "Stopped.")
    assert project.java() == []
    assert not any(lives(pid) for pid in pids)
    assert project.status()["state"] == "stopped"
