"""`riverrun serve` on a real broker: questions are answered, a second one is refused, and it ends in order."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from riverrun.cli.main import run
from riverrun.config.project import Project
from riverrun.config.serve_state import find_serving
from riverrun.store import opening
from riverrun.store.client import StoreClient
from riverrun.testing import KafkaUnderTest
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
    """The command as it is, but for the store, which is the test's own."""
    monkeypatch.delenv("RIVERRUN_PROJECT", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(opening, "open_store", lambda *_: store)
    project = Project(tmp_path)
    found: list[Any] = []

    def user() -> None:
        deadline = time.monotonic() + 60
        try:
            while find_serving(project) is None:
                assert time.monotonic() < deadline
                time.sleep(0.05)
            serving = find_serving(project)
            assert serving is not None
            with StoreClient(serving.address) as client:
                found.append(client.ask("select count(*) as n from houses").rows.to_pylist())
                found.append(run(["serve", "--name", app, "--bootstrap-servers", kafka.bootstrap_servers]))
        except BaseException as error:  # noqa: BLE001
            found.append(error)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=user)
    thread.start()
    code = run(["serve", "--name", app, "--bootstrap-servers", kafka.bootstrap_servers, "--port", "0"])
    thread.join(60)
    assert found == [[{"n": 3}], 1]
    assert code == 0
    assert find_serving(project) is None
    told = capsys.readouterr().err
    assert f"The tables of {app} are at http://127.0.0.1:" in told
    assert "is served already" in told
    assert told.rstrip().endswith("Stopped.")
