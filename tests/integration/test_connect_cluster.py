"""Kafka Connect by the runner and the command line: started, looked at, told, killed, brought back, stopped."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from riverrun.config import KafkaSettings
from riverrun.testing.pytest_plugin import KafkaUnderTest
from support.cluster import ProjectDriver, lives, wait_for
from support.connecting_kafka import FILE_SOURCE, file_sink, file_source
from support.producing import read, values

pytestmark = pytest.mark.timeout(600)
SOON = 180.0
SECRET = "hidden-5f1c0e9a"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProjectDriver]:
    """A project with Kafka and Kafka Connect in the background."""
    driver = ProjectDriver(tmp_path_factory.mktemp("project"), {"SHOP_TOKEN": SECRET})
    # Both share the machine with other tests.
    driver.configure("[connect]\nstart_timeout_seconds = 300\n")
    try:
        done = driver.run("up", "--connect", "--detach", timeout=400)
        assert done.code == 0, done.err
        assert "Kafka Connect answers on http://127.0.0.1:" in done.err
        assert "Kafka and Kafka Connect run in the background" in done.err
        yield driver
    finally:
        driver.clean_up()


def worker(project: ProjectDriver) -> dict[str, Any]:
    return next(each for each in project.status()["servers"] if each["name"] == "connect")


def topic_of(project: ProjectDriver, name: str) -> list[bytes | None]:
    address = project.status()["bootstrap_servers"]
    return values(read(KafkaUnderTest(address, KafkaSettings(bootstrap_servers=address)), name))


def told(config: dict[str, str]) -> list[str]:
    return [f"{key}={value}" for key, value in config.items()]


def test_status_logs_and_doctor_show_it(project: ProjectDriver) -> None:
    status, found = project.status(), worker(project)
    assert status["connect_url"] == f"http://{found['address']}"
    assert (found["kind"], found["state"], found["restarts"]) == ("connect", "ready", 0)
    assert 60 < found["memory_mb"] < 500
    shown = project.run("status")
    assert "Kafka with Connect is ready" in shown.err
    assert f"Kafka Connect is on {status['connect_url']}" in shown.err
    assert project.run("logs", "connect", "--lines", "3").code == 0
    doctor = project.run("doctor")
    assert f"{status['connect_url']} answers" in doctor.out
    assert "Kafka Connect 4.3.1" in doctor.out
    settings = project.run("config", "--json").out
    password = (project.home / "data" / "connect" / "password").read_text()
    assert password not in settings + project.run("status", "--json").out + shown.err


def test_a_second_up_finds_both(project: ProjectDriver) -> None:
    for more in (["--connect"], []):
        done = project.run("up", *more)
        assert (done.code, done.out.strip()) == (0, project.status()["bootstrap_servers"])
        assert project.status()["connect_url"] in done.err


def test_plugins_of_ours(project: ProjectDriver) -> None:
    rows = json.loads(project.run("connect", "plugins", "--json").out)
    assert {FILE_SOURCE, "io.debezium.connector.postgresql.PostgresConnector"} <= {row["plugin"] for row in rows}
    assert "JdbcSinkConnector" in project.run("connect", "plugins").out
    assert project.run("connect").code == 0


def test_a_wrong_configuration_is_refused_with_all_reasons(project: ProjectDriver) -> None:
    done = project.run("connect", "create", "wrong", f"connector.class={FILE_SOURCE}", "tasks.max=many", "file=/x")
    assert done.code == 2
    assert "CONNECT_REFUSED" in done.err
    assert "tasks.max" in done.err
    assert "topic" in done.err
    missing = project.run("connect", "status", "wrong")
    assert (missing.code, "CONNECTOR_NOT_FOUND" in missing.err) == (1, True)


def test_a_connectors_life_from_the_shell(project: ProjectDriver, tmp_path: Path) -> None:
    assert project.run("topics", "create", "lines").code == 0
    source = tmp_path / "in.txt"
    source.write_text("one\ntwo\n")
    mark = {
        "transforms": "mark",
        "transforms.mark.type": "org.apache.kafka.connect.transforms.InsertHeader",
        "transforms.mark.header": "mark",
        "transforms.mark.value.literal": "env:SHOP_TOKEN",
    }
    file = tmp_path / "log.json"
    file.write_text(json.dumps({"name": "log", "config": file_source(source, "lines", **mark)}))
    checked = project.run("connect", "create", "log", "--config", str(file), "--dry-run")
    assert (checked.code, "Nothing was done" in checked.err) == (0, True)
    made = project.run("connect", "create", "log", "--config", str(file))
    assert (made.code, made.err.strip()) == (0, "log runs.")
    wait_for(lambda: topic_of(project, "lines") == [b"one", b"two"], SOON, "the lines did not come")

    shown = project.run("connect", "status", "log", "--json").out
    assert json.loads(shown)["state"] == "running"
    assert json.loads(shown)["config"]["transforms.mark.value.literal"].startswith("${secrets:")
    assert SECRET not in shown
    listed = json.loads(project.run("connect", "list", "--json").out)
    assert [(row["connector"], row["kind"], row["running"]) for row in listed] == [("log", "source", 1)]
    wait_for(lambda: project.run("connect", "offsets", "log", "--json").out.strip() != "[]", SOON, "no offsets")

    for verb, state in (("pause", "paused"), ("resume", "running"), ("restart", "running"), ("stop", "stopped")):
        assert project.run("connect", verb, "log").code == 0
        assert json.loads(project.run("connect", "status", "log", "--json").out)["state"] == state
    assert project.run("connect", "offsets", "log", "--reset", "--yes").code == 0
    assert project.run("connect", "resume", "log").code == 0
    wait_for(lambda: topic_of(project, "lines") == [b"one", b"two"] * 2, SOON, "it did not begin anew")

    unasked = project.run("connect", "remove", "log")
    assert (unasked.code, "--yes" in unasked.err) == (2, True)
    assert project.run("connect", "remove", "log", "--yes").code == 0
    assert json.loads(project.run("connect", "list", "--json").out) == []
    assert list((project.home / "data" / "connect" / "secrets").iterdir()) == []
    for log in (project.home / "logs").iterdir():
        assert SECRET not in log.read_text(encoding="utf-8", errors="replace"), log


def test_why_one_failed_is_in_its_status(project: ProjectDriver, tmp_path: Path) -> None:
    gone = tmp_path / "no" / "folder" / "out.txt"
    project.run("topics", "create", "lines")
    made = project.run("connect", "create", "out", *told(file_sink(gone, "lines")))
    assert (made.code, str(gone) in made.err, "CONNECT_FAILED" in made.err) == (1, True, True)
    status = project.run("connect", "status", "out")
    assert (status.code, str(gone) in status.out, "\tat " in status.out) == (1, True, False)
    gone.parent.mkdir(parents=True)
    assert project.run("connect", "restart", "out").code == 0
    assert project.run("connect", "remove", "out", "--yes").code == 0


def test_a_killed_worker_comes_back_and_goes_on_with_each_line_once(project: ProjectDriver, tmp_path: Path) -> None:
    """Exactly once: a transaction that the dead one left open is not read, and its successor begins where the last ended."""
    project.run("topics", "create", "counted")
    source = tmp_path / "counted.txt"
    # Kafka's file source keeps what is beyond a batch until more is written: all of this is less than one.
    once = {"exactly.once.support": "required", "batch.size": "5000"}
    source.write_text("".join(f"{number}\n" for number in range(500)))
    assert project.run("connect", "create", "counted", *told(file_source(source, "counted", **once))).code == 0
    wait_for(lambda: topic_of(project, "counted"), SOON, "nothing came")
    before = worker(project)
    with source.open("a") as file:
        file.write("".join(f"{number}\n" for number in range(500, 3000)))
    os.kill(before["pid"], signal.SIGKILL)

    def back() -> bool:
        now = worker(project)
        return bool(now["state"] == "ready" and now["restarts"] == before["restarts"] + 1)

    wait_for(back, SOON, "it did not come back")
    assert worker(project)["address"] == before["address"]
    with source.open("a") as file:
        file.write("".join(f"{number}\n" for number in range(3000, 3500)))
    expected = [str(number).encode() for number in range(3500)]
    wait_for(lambda: len(topic_of(project, "counted")) >= len(expected), SOON, "not all lines came")
    assert topic_of(project, "counted") == expected
    assert json.loads(project.run("connect", "status", "counted", "--json").out)["state"] == "running"


def test_down_stops_all_and_leaves_nothing(project: ProjectDriver) -> None:
    pids = [server["pid"] for server in project.status()["servers"]]
    losses = project.run("down", "--delete-data", "--dry-run").out
    assert "all connectors in Kafka Connect" in losses
    done = project.run("down")
    assert (done.code, done.err.splitlines()[-1]) == (0, "Stopped.")
    assert project.java() == []
    assert not any(lives(pid) for pid in pids)
    refused = project.run("connect", "list")
    assert (refused.code, "riverrun up --connect" in refused.err) == (1, True)
