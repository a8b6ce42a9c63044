"""A schema registry by the runner and the command line: started, looked at, killed, brought back, stopped."""

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from support.cluster import ProjectDriver, lives, wait_for

pytestmark = pytest.mark.timeout(600)
SOON = 180.0
APP = """
import riverrun as rr

app = rr.App("meters")


class Reading(rr.Event):
    house: str = rr.key()
    load_kw: float


readings = app.topic("readings", Reading, format="json-schema")
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProjectDriver]:
    """A project with Kafka and a schema registry in the background."""
    driver = ProjectDriver(tmp_path_factory.mktemp("project"))
    # Both share the machine with other tests.
    driver.configure('[project]\napp = "app.py"\n[registry]\nstart_timeout_seconds = 300\n')
    (driver.root / "app.py").write_text(APP, encoding="utf-8")
    try:
        done = driver.run("up", "--registry", "--detach", timeout=400)
        assert done.code == 0, done.err
        assert "The schema registry answers on http://127.0.0.1:" in done.err
        assert "Kafka and a schema registry run in the background" in done.err
        yield driver
    finally:
        driver.clean_up()


def server(project: ProjectDriver) -> dict[str, Any]:
    return next(each for each in project.status()["servers"] if each["name"] == "registry")


def test_status_logs_and_doctor_show_it_and_clients_find_it(project: ProjectDriver) -> None:
    status, found = project.status(), server(project)
    assert status["registry_url"] == f"http://{found['address']}/apis/ccompat/v7"
    assert (found["kind"], found["state"], found["restarts"]) == ("registry", "ready", 0)
    shown = project.run("status")
    assert "Kafka with a schema registry is ready" in shown.err
    assert f"The schema registry is on {status['registry_url']}" in shown.err
    assert "powered by Quarkus" in project.run("logs", "registry", "--lines", "200").out
    assert f"{status['registry_url']} answers" in project.run("doctor").out
    applied = project.run("topics", "apply")
    assert applied.code == 0, applied.err
    listed = project.run("registry", "list")
    assert "readings-value" in listed.out
    assert "at the level BACKWARD" in listed.err


def test_its_password_is_for_this_user_only(project: ProjectDriver) -> None:
    for file in (project.home / "data/registry/password", project.home / "run/registry.properties"):
        assert file.stat().st_mode & 0o777 == 0o600


def test_killed_it_comes_back_with_its_schemas(project: ProjectDriver) -> None:
    before = server(project)["pid"]
    os.kill(before, signal.SIGKILL)

    def again() -> bool:
        found = server(project)
        return found["state"] == "ready" and found["pid"] not in (0, before)

    wait_for(again, SOON, "the registry did not come back")
    assert "readings-value" in project.run("registry", "list").out


def test_down_stops_it_and_its_data_goes_with_the_rest(project: ProjectDriver) -> None:
    pid = server(project)["pid"]
    assert project.run("down", timeout=120).code == 0
    wait_for(lambda: not lives(pid), 30, "the registry still runs")
    assert "all schemas in the registry" in project.run("down", "--delete-data", "--dry-run").out
