"""`riverrun serve` on a real broker: questions are answered, a second one is refused, and it ends in order."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from riverrun.alerts.kafka_log import publish_changes
from riverrun.alerts.state_topic import alerts_topic_name, encode_upsert
from riverrun.cli.main import run
from riverrun.config.project import Project
from riverrun.config.serve_state import find_store_endpoint
from riverrun.kafka.admin.admin import Admin
from riverrun.kafka.compacted_topic import ensure_compacted_topic
from riverrun.store import factory
from riverrun.store.client import StoreClient
from riverrun.testing import KafkaUnderTest
from support.alerted import quiet
from support.duck_store import DuckStore

pytestmark = pytest.mark.kafka


@pytest.fixture
def app(kafka_topic: Callable[..., str]) -> str:
    """A name of its own for each test."""
    return kafka_topic().replace("-", "_")


@pytest.fixture
def store() -> Iterator[DuckStore]:
    with DuckStore() as opened:
        yield opened


def test_serve_answers_and_ends_in_order(
    kafka: KafkaUnderTest,
    app: str,
    store: DuckStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The command as it is, but for the store, which is the test's own. The app has had alerts."""
    ensure_compacted_topic(Admin(kafka.connection), alerts_topic_name(app))
    publish_changes(kafka.connection, app, [encode_upsert(quiet("s1", why="painters"))])
    monkeypatch.delenv("RIVERRUN_PROJECT", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(factory, "create_store", lambda *_: store)
    project = Project(tmp_path)
    found: list[Any] = []

    def user() -> None:
        deadline = time.monotonic() + 60
        try:
            while find_store_endpoint(project) is None:
                assert time.monotonic() < deadline
                time.sleep(0.05)
            serving = find_store_endpoint(project)
            assert serving is not None
            with StoreClient(serving.address) as client:
                found.append(client.query("select count(*) as n from houses").rows.to_pylist())
                alerts = httpx.get(f"{serving.address}/api/alerts", trust_env=False).json()
                found.append([each["why"] for each in alerts["silences"]])
                found.append(run(["serve", "--name", app, "--bootstrap-servers", kafka.bootstrap_servers]))
        except BaseException as error:  # noqa: BLE001
            found.append(error)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=user)
    thread.start()
    code = run(["serve", "--name", app, "--bootstrap-servers", kafka.bootstrap_servers, "--port", "0"])
    thread.join(60)
    assert found == [[{"n": 3}], ["painters"], 1]
    assert code == 0
    assert find_store_endpoint(project) is None
    told = capsys.readouterr().err
    assert f"The tables of {app} are at http://127.0.0.1:" in told
    assert f"The alerts of {app} are at http://127.0.0.1:" in told
    assert "is served already" in told
    assert told.rstrip().endswith("Stopped.")


def test_others_log_in_and_nothing_secret_is_told(
    kafka: KafkaUnderTest, app: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command as a process of its own, for others too: its password is in its file and nowhere else."""
    project = Project(tmp_path)
    command = [sys.executable, "-m", "riverrun", "--project", str(tmp_path), "serve", "--name", app]
    command += ["--bootstrap-servers", kafka.bootstrap_servers, "--host", "0.0.0.0", "--insecure"]  # noqa: S104
    environ = {name: value for name, value in os.environ.items() if not name.startswith("RIVERRUN_")}
    environ["RIVERRUN_SERVE_NAMES"] = "127.0.0.1"
    with (tmp_path / "told").open("w+") as told:
        running = subprocess.Popen(command, stdout=told, stderr=told, env=environ, cwd=tmp_path)
        try:
            deadline = time.monotonic() + 60
            while (serving := find_store_endpoint(project)) is None:
                assert running.poll() is None, (tmp_path / "told").read_text()
                assert time.monotonic() < deadline
                time.sleep(0.05)
            password = (project.home / "login-password.txt").read_text().strip()
            for path in (project.home / "login-password.txt", project.home / "login.json", project.run / "serve.json"):
                assert path.stat().st_mode & 0o777 == 0o600, path
            # The user's own commands ask for nothing.
            monkeypatch.delenv("RIVERRUN_PROJECT", raising=False)
            monkeypatch.chdir(tmp_path)
            assert run(["query", "select 1 as one", "--format", "csv"]) == 0
            assert run(["tables"]) == 0
            assert capsys.readouterr().out.startswith("one\n1\n")
            with httpx.Client(base_url=serving.public_address, trust_env=False, timeout=30) as client:
                assert client.get("/api/tables").status_code == 401
                assert client.post("/login", json={"password": password}).status_code == 200
                assert client.get("/api/tables").status_code == 200
                assert client.get("/metrics").status_code == 404
                number = client.cookies["riverrun"]
            process = Path(f"/proc/{running.pid}")
            seen = (process / "cmdline").read_text() + (process / "environ").read_text()
        finally:
            running.terminate()
            assert running.wait(60) == 0
        told.seek(0)
        text = told.read()
    assert f"A password for the dashboards is made, in {project.home / 'login-password.txt'}." in text
    assert "without TLS" in text
    logs = "".join(path.read_text() for path in project.logs.rglob("*") if path.is_file())
    for secret in (password, serving.token, number):
        assert len(secret) > 20
        assert secret not in text + seen + logs
        assert secret not in repr(serving)
