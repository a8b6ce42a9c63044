"""Commands that take their time say so, on a terminal and in a log: run with slow steps in place of Spark and Kafka."""

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from riverrun.cli import context, main, pipeline, progress, tables, up
from riverrun.cli.fetch import BarProgress
from riverrun.cli.output import say
from riverrun.cli.progress import StepProgress
from riverrun.config.run_state import RunState
from riverrun.errors import BrokerUnreachableError, SparkUnavailableError
from riverrun.store.client import StoreClient
from riverrun.streams import pipeline as streams_pipeline
from riverrun.streams.compile import compiler
from riverrun.streams.compile import tables as streams_tables
from riverrun.streams.run import session

SLOW = 0.5
APP = """import riverrun as rr

app = rr.App("meters")
app.topic("readings")
app.sql("all_of_it", "select * from readings")
"""


class Screen:
    """Stands for stderr in a `with`: a terminal, or a pipe. `written` afterwards."""

    def __init__(self, *, terminal: bool) -> None:
        self._leader, follower = os.openpty() if terminal else os.pipe()
        self._stream = os.fdopen(follower, "w", buffering=1)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self.terminal = terminal
        self.written = ""

    def _read(self) -> None:
        found = b""
        with contextlib.suppress(OSError):
            while piece := os.read(self._leader, 65536):
                found += piece
        self.written = found.decode().replace("\r\n", "\n")

    def __enter__(self) -> None:
        self._reader.start()
        # Here and not in a fixture: pytest puts its own stderr in place when a test begins.
        self._redirected = contextlib.redirect_stderr(self._stream)
        self._redirected.__enter__()

    def __exit__(self, *_: object) -> None:
        self._redirected.__exit__(None, None, None)
        self._stream.close()
        self._reader.join(10)
        os.close(self._leader)

    @property
    def lines(self) -> list[str]:
        """What was on a line of the screen at some time."""
        return [part for part in self.written.replace("\x1b[K", "").replace("\n", "\r").split("\r") if part]

    def told(self, step: str) -> bool:
        """Whether it was said that a step goes on, after it was named."""
        return f"{step} (" in self.written or f"{step}: " in self.written


@pytest.fixture(params=["terminal", "log"])
def screen(request: pytest.FixtureRequest) -> Screen:
    return Screen(terminal=request.param == "terminal")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / "riverrun.toml").write_text('[project]\napp = "app.py"\n')
    monkeypatch.chdir(tmp_path)
    # As if every step took minutes.
    monkeypatch.setattr(progress, "REDRAW_SECONDS", 0.02)
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.1)
    monkeypatch.setattr(streams_pipeline, "open_session", slow(SimpleNamespace()))
    monkeypatch.setattr(session, "stop_session", slow(None))
    return tmp_path


def slow(result: Any) -> Callable[..., Any]:
    def called(*_: Any, **__: Any) -> Any:
        time.sleep(SLOW)
        if isinstance(result, BaseException):
            raise result
        return result

    return called


def call(*arguments: str) -> None:
    main.cli.main([*arguments], standalone_mode=False)


@pytest.mark.parametrize("command", ["validate", "plan"])
def test_looking_at_a_file(command: str, project: Path, screen: Screen, monkeypatch: pytest.MonkeyPatch) -> None:
    done = SimpleNamespace(streams={}, graph=SimpleNamespace(app=SimpleNamespace(name="meters")))
    monkeypatch.setattr(
        compiler, "compile_app", slow(done if command == "validate" else SparkUnavailableError("ended"))
    )
    monkeypatch.setattr(streams_tables, "build_tables", lambda _: [])
    with screen, contextlib.suppress(SparkUnavailableError):
        call(command)
    for step in ("Starting Spark", "Compiling the streams", "Stopping Spark"):
        assert screen.told(step), (step, screen.written)
    if command == "validate":
        assert screen.lines[-1] == "meters: nothing wrong."


@contextlib.contextmanager
def slow_kafka(*_: Any) -> Iterator[Any]:
    say("Fetching Kafka.")
    time.sleep(SLOW)
    try:
        yield SimpleNamespace(bootstrap_servers="127.0.0.1:1")
    finally:
        time.sleep(SLOW)


def test_a_run(project: Path, screen: Screen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "_open_servers", slow_kafka)
    monkeypatch.setattr(streams_pipeline, "Pipeline", slow(SparkUnavailableError("Spark has ended")))
    with screen, pytest.raises(SparkUnavailableError):
        call("run")
    for step in ("Starting Spark and Kafka", "Preparing the streams", "Stopping Kafka", "Stopping Spark"):
        assert screen.told(step), (step, screen.written)
    # What others say has a line of its own.
    assert "Fetching Kafka." in screen.lines


def test_a_snapshot(project: Path, screen: Screen, monkeypatch: pytest.MonkeyPatch) -> None:
    class SlowClient(StoreClient):
        def __init__(self) -> None: ...

        @property
        def tables(self) -> dict[str, Any]:
            return {"house_load": None}

        def close(self) -> None: ...

        def snapshot(self, path: Path, progressed: Callable[[int, int], None] = lambda *_: None) -> None:
            progressed(500, 1000)
            time.sleep(SLOW)
            path.write_bytes(b"x")

    monkeypatch.setattr(tables, "store_of", lambda _: SlowClient())
    with screen:
        call("tables", "snapshot", str(project / "copy.duckdb"))
    assert screen.told("Copying the tables: 500 B of 1.0 kB"), screen.written
    assert "Open it with: duckdb" in screen.lines[-1]


def test_servers_in_the_background(project: Path, screen: Screen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(up, "start_in_background", slow(RunState(1, "ready", "1", bootstrap_servers="127.0.0.1:1")))
    with screen:
        call("up", "--detach")
    assert screen.told("Starting the servers")


def test_a_line_that_changes_makes_room_for_a_bar(screen: Screen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "REDRAW_SECONDS", 0.02)
    with screen, StepProgress() as line:
        line.step("starting Kafka")
        bar = BarProgress()
        bar.start("kafka", 1, 1000)
        line.step("starting Spark", announced=False)
        time.sleep(SLOW)
        bar.done()
        time.sleep(SLOW)
    if screen.terminal:
        # Not before the bar has gone.
        assert screen.written.index("Starting Spark") > screen.written.rindex("kafka: 1 file")


@pytest.mark.parametrize("command", ["topics", "groups"])
def test_a_cluster_that_does_not_answer(
    command: str, project: Path, screen: Screen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(context, "SILENT_SECONDS", 0.1)
    monkeypatch.setenv("RIVERRUN_KAFKA_REQUEST_TIMEOUT_SECONDS", "1")
    with screen, contextlib.suppress(BrokerUnreachableError):
        call(command, "--bootstrap-servers", "127.0.0.1:1")
    assert "Waiting for Kafka at 127.0.0.1:1, for at most 1 s." in screen.lines
