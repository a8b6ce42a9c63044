"""An MQTT broker that is away, or comes back without our session: what had come by then goes on into Kafka."""

import socket
import threading
import time
from typing import Any

import pytest

from riverrun.connectors.mqtt.address import Address
from riverrun.connectors.mqtt.duplicates import DuplicateDetector
from riverrun.connectors.mqtt.message_queue import MessageQueue, MqttMessage
from riverrun.connectors.mqtt.session import MqttSession, SessionOptions
from riverrun.connectors.mqtt.source import MAX_DISCONNECTED_SECONDS, MqttReader
from riverrun.connectors.record_builder import RecordBuilder
from riverrun.connectors.source_runner import SourceJob, SourceRunner
from riverrun.connectors.status import ConnectorStatus
from riverrun.errors import ConnectorFailedError
from riverrun.model.connector import Item, Items, Source
from riverrun.model.topic import Topic

WANTED = SessionOptions("us", ("a",), 1, "first", 60, 10, 30)


def message(number: int) -> MqttMessage:
    return MqttMessage("a", b"x", 1, False, "no", 1, number, 0, number)


class Down(MqttSession):
    """A session whose broker does not come back."""

    def start(self) -> None:
        pass


def away(inbox: MessageQueue) -> MqttReader:
    """A reader whose broker has been away for longer than anybody waits."""
    session = Down(Address("127.0.0.1", 1), WANTED, inbox, DuplicateDetector())
    session.problem = "Connection refused"
    session.down_since = time.monotonic() - MAX_DISCONNECTED_SECONDS - 1
    return MqttReader(session, inbox, lambda each: Item(each.payload, location=str(each.mid)), WANTED.filters)


def runner(reader: MqttReader) -> tuple[SourceRunner, RecordBuilder]:
    topic: Topic[Any] = Topic("t")
    standing = ConnectorStatus("source", "in", "a", "t")
    made = SourceRunner(None, SourceJob("app", "in", topic, Source()), "a", standing, threading.Event())  # type: ignore[arg-type]
    return made, RecordBuilder(topic, "t.dead", group="app.in", max_bytes=10_000, max_dead_letter_bytes=10_000)


def test_held_messages_reach_kafka_before_the_part_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    inbox = MessageQueue(100)
    for number in range(5):
        inbox.put(message(number))
    inbox.hold()
    reader = away(inbox)
    making, shaper = runner(reader)
    committed: list[Any] = []
    monkeypatch.setattr(making, "_commit", lambda _, gathered: committed.extend(gathered.records))
    with pytest.raises(ConnectorFailedError, match="no connection to the MQTT broker"):
        making._pump(None, reader, shaper, None)  # type: ignore[arg-type]
    assert len(committed) == 5
    assert len(reader.session._to_acknowledge) == 5, "and are acknowledged, in case the broker comes back after all"
    reader.close()


def test_a_reader_does_not_fail_while_what_it_gave_is_not_in_kafka() -> None:
    inbox = MessageQueue(100)
    inbox.put(message(1))
    reader = away(inbox)
    given = reader.read()
    assert given is not None
    assert reader.read() is None
    reader.acknowledged(given.position)
    with pytest.raises(ConnectorFailedError):
        reader.read()
    reader.close()


def test_what_a_reader_gave_before_it_failed_is_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever reader it is: what it gave is good, and may be nowhere else."""

    class Failing(MqttReader):
        def __init__(self) -> None:
            self.told: list[Any] = []
            self.left = [Items([Item(b"1")], 1)]

        def read(self) -> Items | None:
            if not self.left:
                raise OSError("the line is dead")
            return self.left.pop()

        def lag(self) -> int | None:
            return None

        def acknowledged(self, position: Any) -> None:
            self.told.append(position)

    reader = Failing()
    making, shaper = runner(reader)
    committed: list[Any] = []
    monkeypatch.setattr(making, "_commit", lambda _, gathered: committed.extend(gathered.records))
    with pytest.raises(OSError, match="the line is dead"):
        making._pump(None, reader, shaper, None)  # type: ignore[arg-type]
    assert (len(committed), reader.told) == (1, [1])


@pytest.mark.parametrize("kept", [False, True])
def test_an_inbox_full_of_held_messages_hears_what_became_of_the_session(kept: bool) -> None:
    inbox = MessageQueue(3)
    for number in range(3):
        inbox.put(message(number))
    inbox.hold()
    greeted, over = threading.Event(), threading.Event()

    def broker() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(4096)
            connection.sendall(bytes((0x20, 3, int(kept), 0, 0)))  # CONNACK: session present or not, success
            greeted.set()
            over.wait(60)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=broker, daemon=True).start()
        session = MqttSession(Address("127.0.0.1", listener.getsockname()[1]), WANTED, inbox, DuplicateDetector())
        session.start()
        assert greeted.wait(30)
        deadline = time.monotonic() + 30
        while not session.counts.connections and time.monotonic() < deadline:
            time.sleep(0.01)
        assert session.counts.connections == 1, "the CONNACK was not read"
        over.set()
        session.close()
    assert [each.mid for each in inbox.take(9, 100)] == ([] if kept else [0, 1, 2])
