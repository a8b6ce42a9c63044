"""Spark starts in a thread of its own while Kafka does; who leaves meanwhile is not kept waiting."""

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark import SparkContext

from riverrun.cli import pipeline
from riverrun.cli.pipeline import _SparkStart
from riverrun.config import Settings
from riverrun.streams.run import session


class LeftError(Exception):
    """Nobody wants the session any more."""


def test_a_start_that_does_not_end_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A download over a slow line, or a master that cannot be reached: Ctrl-C is not held up by it."""
    killed, never = threading.Event(), threading.Event()
    monkeypatch.setattr(session, "kill_spark", killed.set)
    monkeypatch.setattr(pipeline, "LEFTOVER_SECONDS", 0.05, raising=False)
    starting, found = _SparkStart(lambda *_: never.wait(120)), list[Any]()
    leaving = threading.Thread(target=lambda: found.append(starting.leftover()), daemon=True)
    leaving.start()
    leaving.join(20)
    never.set()
    assert found == [None]
    assert killed.is_set()


def test_a_session_that_is_there_in_time_is_given_to_be_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "kill_spark", lambda: pytest.fail("it has started"))
    assert _SparkStart(lambda *_: "session").leftover() == "session"


def test_after_the_download_nothing_is_started_for_who_has_left(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fetching, fetched, launched = threading.Event(), threading.Event(), list[str]()

    def fetch(*_: object) -> list[Path]:
        fetching.set()
        assert fetched.wait(60)
        return []

    _without_java(monkeypatch)
    monkeypatch.setattr(session, "fetch", fetch)
    monkeypatch.setattr(session, "_start", lambda *_: launched.append("Spark"))
    monkeypatch.setattr(session, "kill_spark", lambda: None)
    monkeypatch.setattr(pipeline, "LEFTOVER_SECONDS", 0.05, raising=False)
    starting = _SparkStart(
        lambda wanted: session.start_session(Settings(), tmp_path, name="meters", check_wanted=wanted)
    )
    assert fetching.wait(60)
    assert starting.leftover() is None
    fetched.set()
    starting._thread.join(60)
    assert not launched


def test_a_start_that_was_killed_is_not_tried_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tries: list[str] = []

    def wanted() -> None:
        if tries:
            raise LeftError

    def start(*_: object) -> None:
        tries.append("killed")
        raise RuntimeError("Java gateway process exited before sending its port number")

    _without_java(monkeypatch)
    monkeypatch.setattr(session, "fetch", lambda *_: [])
    monkeypatch.setattr(session, "_start", start)
    monkeypatch.setattr(session, "drop_archive", lambda: True)
    with pytest.raises(LeftError):
        session.start_session(Settings(), tmp_path, name="meters", check_wanted=wanted)
    assert tries == ["killed"]


def _without_java(monkeypatch: pytest.MonkeyPatch) -> None:
    # Tests before these, in the same process, may have left their session open for those after them.
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    monkeypatch.setattr(session, "find_java", lambda _: SimpleNamespace())
    monkeypatch.setattr(session, "spark_java_home", lambda *_: Path("/java"))
    monkeypatch.setattr(session, "archive_options", lambda *_: [])
