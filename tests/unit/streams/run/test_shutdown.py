"""The end of a pipeline: patient while Kafka answers, short when it is gone."""

import socket
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from riverrun.config import KafkaSettings
from riverrun.errors import BrokerUnreachableError
from riverrun.kafka.connection import Connection
from riverrun.kafka.probe import ClusterProbe, is_connection_refused
from riverrun.streams.evolve.cutover import ReplayFolder
from riverrun.streams.evolve.replay import Replay
from riverrun.streams.pipeline import Pipeline
from riverrun.streams.run import shutdown
from riverrun.streams.run.shutdown import GracefulShutdown


class World:
    """What an ending does to the pipeline around it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, servers: str) -> None:
        self.stop, self.killed = threading.Event(), threading.Event()
        self.abandoned: list[str] = []
        self.said: list[str] = []
        monkeypatch.setattr(shutdown, "kill_spark", self.killed.set)
        monkeypatch.setattr(shutdown, "SPARK_SECONDS", 0.1)
        self.ending = GracefulShutdown(
            Connection(KafkaSettings(bootstrap_servers=servers)),
            self.stop,
            abandon=lambda: self.abandoned.append("abandoned"),
            notice=self.said.append,
        )
        self.ending.start()


@pytest.fixture
def nobody() -> str:
    """An address where nothing listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{taken.getsockname()[1]}"


def test_without_kafka_nothing_is_waited_for_and_spark_is_killed(monkeypatch: pytest.MonkeyPatch, nobody: str) -> None:
    """Also while the pipeline's own thread is stuck in a call, and has not begun to end."""
    world = World(monkeypatch, nobody)
    world.stop.set()
    assert world.killed.wait(30)
    assert world.abandoned == ["abandoned"]
    assert world.said[0].startswith("Kafka does not answer")
    assert not world.ending.begin()


def test_spark_is_left_alone_when_all_is_over_in_time(monkeypatch: pytest.MonkeyPatch, nobody: str) -> None:
    world = World(monkeypatch, nobody)
    monkeypatch.setattr(shutdown, "SPARK_SECONDS", 60.0)
    assert not world.ending.begin()
    world.ending.finish()
    world.ending._thread.join(30)
    assert not world.ending._thread.is_alive()
    assert not world.killed.is_set()


@pytest.mark.parametrize("answers", [True, False])
def test_one_that_listens_is_asked(monkeypatch: pytest.MonkeyPatch, answers: bool) -> None:
    def look(*_: Any) -> None:
        if not answers:
            raise BrokerUnreachableError("none")

    monkeypatch.setattr(ClusterProbe, "fetch_metadata", look)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        world = World(monkeypatch, f"127.0.0.1:{listener.getsockname()[1]}")
        assert world.ending.begin() == answers
        world.ending.finish()


def test_what_waits_for_a_kafka_that_is_gone_is_left_waiting(monkeypatch: pytest.MonkeyPatch, nobody: str) -> None:
    monkeypatch.setattr(shutdown, "SHORT_STOP_SECONDS", 0.1)
    world, never, stopped = World(monkeypatch, nobody), threading.Event(), list[str]()
    gave = list[bool]()
    stops: list[Any] = [lambda: never.wait(120), lambda: stopped.append("the other")]
    end = threading.Thread(target=lambda: gave.append(world.ending.stop(stops)), daemon=True)
    end.start()
    end.join(30)
    never.set()
    assert gave == [False]
    assert stopped == ["the other"]


def test_a_spark_without_kafka_is_killed_before_it_is_stopped(monkeypatch: pytest.MonkeyPatch, nobody: str) -> None:
    """`verify` at Ctrl-C: its tasks wait in Kafka's client."""
    done: list[str] = []
    monkeypatch.setattr(shutdown, "kill_spark", lambda: done.append("killed"))
    monkeypatch.setattr(shutdown, "stop_session", lambda _: done.append("stopped"))
    spark: Any = object()
    shutdown.stop_spark(spark, Connection(KafkaSettings(bootstrap_servers=nobody)))
    assert done == ["killed", "stopped"]
    done.clear()
    monkeypatch.setattr(shutdown, "is_cluster_reachable", lambda *_: True)
    shutdown.stop_spark(spark, Connection(KafkaSettings(bootstrap_servers=nobody)))
    assert done == ["stopped"]


class Stuck:
    """Waits for Kafka in whatever is asked of it."""

    name = "load"
    error = None

    def __init__(self) -> None:
        self.never = threading.Event()
        self.abandoned = False

    def stop(self) -> None:
        self.never.wait(120)

    close = stop

    def abandon(self) -> None:
        self.abandoned = True


def ended(what: Any) -> bool:
    """Whether it comes to an end by itself."""
    thread = threading.Thread(target=what, daemon=True)
    thread.start()
    thread.join(30)
    return not thread.is_alive()


def test_a_handover_that_waits_for_kafka_does_not_hold_up_the_end(monkeypatch: pytest.MonkeyPatch, nobody: str) -> None:
    monkeypatch.setattr(shutdown, "SHORT_STOP_SECONDS", 0.1)
    world, stuck = World(monkeypatch, nobody), Stuck()
    pipeline: Any = Pipeline.__new__(Pipeline)
    pipeline.streams, pipeline._cutovers = [stuck], {"load": stuck}
    pipeline._dead_letters = SimpleNamespace(close=lambda _: None)
    assert ended(lambda: pipeline._shut_down(world.ending))
    assert pipeline.kafka_gone
    stuck.never.set()


def test_a_replay_without_kafka_ends_when_it_is_asked_to(
    monkeypatch: pytest.MonkeyPatch, nobody: str, tmp_path: Path
) -> None:
    """Also when what it was doing fails of that."""
    monkeypatch.setattr(shutdown, "kill_spark", lambda: None)
    monkeypatch.setattr(shutdown, "SHORT_STOP_SECONDS", 0.1, raising=False)
    replay, stuck, stop = Replay.__new__(Replay), Stuck(), threading.Event()
    work: Any = replay
    work._folder, work._stream, work._live_stream, work._notice = ReplayFolder(tmp_path), stuck, None, print
    work._admin = SimpleNamespace(connection=Connection(KafkaSettings(bootstrap_servers=nobody)), cancel=lambda: None)

    def catch_up() -> bool:
        stop.set()
        raise BrokerUnreachableError("none")

    work._catch_up = catch_up
    found: list[Any] = []
    assert ended(lambda: found.append(replay.run(stop)))
    assert found == [None]
    assert stuck.abandoned
    stuck.never.set()


def test_a_connection_that_is_refused_everywhere_is_told_from_one_that_is_not(nobody: str) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        there = f"127.0.0.1:{listener.getsockname()[1]}"
        assert is_connection_refused(nobody)
        assert not is_connection_refused(f"{nobody},{there}")
    assert not is_connection_refused("no.such.host.invalid:9092")
