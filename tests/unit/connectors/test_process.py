"""What the connector process tells: again what was not delivered, once what stays the same."""

import threading
from pathlib import Path
from typing import Any

import pytest

import riverrun as rr
from riverrun.config import KafkaSettings
from riverrun.connectors import process as running
from riverrun.connectors.contract import ConnectorContext
from riverrun.connectors.retry import NoticeThrottle
from riverrun.connectors.state_topic import ConnectorLease
from riverrun.connectors.status import ConnectorStatus
from riverrun.errors import AlreadyRunningError, DeliveryError, RiverrunError
from riverrun.kafka.connection import Connection

NOWHERE = Connection(KafkaSettings(bootstrap_servers="127.0.0.1:1"))


class Settled:
    def __init__(self, error: RiverrunError | None) -> None:
        self._error = error

    def exception(self, timeout: float | None = None) -> RiverrunError | None:  # noqa: ARG002
        return self._error


class FakeProducer:
    def __init__(self, *_: Any, **__: Any) -> None:
        self.sent: list[tuple[bytes, bytes | None, Any]] = []

    def send_soon(self, topic: str, value: bytes | None, *, key: bytes, on_delivery: Any) -> None:  # noqa: ARG002
        self.sent.append((key, value, on_delivery))

    def close(self, seconds: float) -> None:
        """Nothing waits."""


def test_a_status_that_was_not_delivered_is_told_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "Producer", FakeProducer)
    teller = running._StatusPublisher(NOWHERE, "app")
    producer: Any = teller._producer
    standing, life = ConnectorStatus("sink", "out", "all", "t"), ConnectorLease("1", 1, "here", 1, 1)
    teller.publish_changed([standing], life)
    teller.publish_changed([standing], life)
    told = [each for each in producer.sent if b"standing" in each[0]]
    assert len(told) == 1, "nothing has changed"
    told[0][2](Settled(DeliveryError("Not acknowledged in time")))
    teller.publish_changed([standing], life)
    told = [each for each in producer.sent if b"standing" in each[0]]
    assert len(told) == 2
    told[1][2](Settled(None))
    teller.publish_changed([standing], life)
    assert len([each for each in producer.sent if b"standing" in each[0]]) == 2


def test_a_service_that_another_process_has_says_so_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stop, tries, notices = threading.Event(), [0], list[str]()

    def fails(*_: Any) -> Any:
        tries[0] += 1
        if tries[0] == 5:
            stop.set()
        raise AlreadyRunningError("Records of a are taken by HTTP already, by the process 7", hint="Stop it: kill 7")

    monkeypatch.setattr(running, "create_service", fails)
    monkeypatch.setattr("riverrun.connectors.retry.Backoff.next_delay", lambda _: 0.01)
    app = rr.App("a")
    app.source(app.topic("t"), rr.http())
    feds = list(app.sources.values())
    standings = {fed.name: ConnectorStatus("source", fed.name, "all", "t") for fed in feds}
    around = ConnectorContext(app, NOWHERE, tmp_path, tmp_path, notices.append)
    running._ServiceRunner(feds, around, standings, stop).run()
    assert tries[0] == 5
    (notice,) = notices
    assert "by the process 7" in notice
    assert "tried again" in notice
    assert "Records of a are taken by HTTP already" in next(iter(standings.values())).error


def test_what_stays_the_same_is_said_now_and_then() -> None:
    reminder = NoticeThrottle(seconds=3600)
    assert [reminder.should_notify(each) for each in ("a", "a", "b", "a", "a")] == [True, False, True, True, False]
    reminder.reset()
    assert reminder.should_notify("a")
    assert [NoticeThrottle(seconds=0).should_notify("a") for _ in range(2)] == [True, True]
