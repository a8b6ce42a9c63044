"""A session with a real mosquitto: what is kept, what comes again, how it is marked, and that nothing grows without end."""

import contextlib
import gc
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from riverrun.config.secret import Secret
from riverrun.connectors.mqtt.address import Address
from riverrun.connectors.mqtt.duplicates import DuplicateDetector
from riverrun.connectors.mqtt.message_queue import MessageQueue, MqttMessage
from riverrun.connectors.mqtt.session import MqttSession, SessionOptions
from support.devices import device, publish_all
from support.mosquitto import PASSWORD, USER, Mosquitto

TOPIC = "meters/h1/load"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Mosquitto]:
    with Mosquitto(tmp_path / "mosquitto") as running:
        yield running


class Bridge:
    """A session and what it received."""

    def __init__(self, address: Address, seen: DuplicateDetector | None = None, **options: object) -> None:
        asked = {"client_id": "bridge", "filters": ("meters/+/load",), "qos": 1, "retained": "first", "expiry_seconds": 3600,
                 "in_flight": 1000, "keepalive_seconds": 30}  # fmt: skip
        wanted = SessionOptions(**(asked | options))  # type: ignore[arg-type]
        self.inbox = MessageQueue(2 * wanted.in_flight)
        self.session = MqttSession(address, wanted, self.inbox, seen or DuplicateDetector())
        self.session.start()

    def up(self) -> "Bridge":
        # A backlog may come before the broker's answer to our subscription.
        wait_for(lambda: self.session.is_connected or self.inbox.is_full, "connected")
        return self

    def take(self, count: int) -> list[MqttMessage]:
        found: list[MqttMessage] = []
        deadline = time.monotonic() + 60
        while len(found) < count:
            assert time.monotonic() < deadline, f"{len(found)} of {count} messages came"
            found += self.inbox.take(count - len(found), 1 << 30)
            self.inbox.wait(0.05)
        return found

    def acknowledge(self, messages: list[MqttMessage]) -> None:
        before = self.session.counts.acknowledged
        self.session.acknowledge(messages)
        wait_for(lambda: self.session.counts.acknowledged == before + len(messages), "told")


def wait_for(condition: Callable[[], object], what: str, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not {what}"
        time.sleep(0.01)


@contextlib.contextmanager
def bridge(broker: Mosquitto, seen: DuplicateDetector | None = None, **options: object) -> Iterator[Bridge]:
    found = Bridge(Address("127.0.0.1", broker.port), seen, **options)
    try:
        yield found.up()
    finally:
        found.session.close()
        assert not found.session.is_alive()


def numbers(first: int, count: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


def payloads(messages: list[MqttMessage]) -> list[bytes]:
    return [message.payload for message in messages]


def test_what_is_acknowledged_does_not_come_again_and_what_is_not_does_marked(broker: Mosquitto) -> None:
    with bridge(broker) as first:
        publish_all(broker.port, TOPIC, numbers(0, 100))
        came = first.take(100)
        assert payloads(came) == numbers(0, 100)
        assert {(each.topic, each.qos, each.retain, each.repeat) for each in came} == {(TOPIC, 1, False, "no")}
        first.acknowledge(came[:60])
    publish_all(broker.port, TOPIC, numbers(100, 50))
    with bridge(broker) as second:
        came = second.take(90)
        assert payloads(came) == numbers(60, 90)
        assert Counter(each.repeat for each in came) == {"redelivered": 40, "no": 50}
        second.acknowledge(came)
    with bridge(broker) as third:
        publish_all(broker.port, TOPIC, [b"end"])
        assert payloads(third.take(1)) == [b"end"]


def test_a_broker_that_went_back_to_its_last_save_sends_again_and_that_is_marked(broker: Mosquitto) -> None:
    """It had saved 60 messages, 20 of them as sent. Then it sent, and we acknowledged, 30 more; then it was killed."""
    with bridge(broker, in_flight=20) as bridged:
        publish_all(broker.port, TOPIC, numbers(0, 60))
        first = bridged.take(20)
        broker.save()
        bridged.acknowledge(first)
        second = bridged.take(20)
        bridged.acknowledge(second)
        broker.kill()
        wait_for(lambda: not bridged.session.is_connected, "lost")
        broker.start()
        bridged.up()
        again: list[MqttMessage] = []
        while len(again) < 60:
            came = bridged.take(1)
            again += came
            bridged.acknowledge(came)
        assert sorted(map(int, payloads(again))) == list(range(60))
        marks = {int(each.payload): each.repeat for each in again}
        assert Counter(marks[number] for number in range(20)) == {"redelivered": 20}
        assert Counter(marks[number] for number in range(20, 40)) == {"seen": 20}
        assert Counter(marks[number] for number in range(40, 60)) == {"no": 20}
        assert bridged.session.counts.duplicates == 20
        # When all is quiet, equal payloads are new messages.
        wait_for(lambda: not bridged.session._duplicates._until, "caught up")
        publish_all(broker.port, TOPIC, numbers(0, 10))
        assert {each.repeat for each in bridged.take(10)} == {"no"}


def test_an_acknowledgement_of_an_earlier_connection_is_not_sent(broker: Mosquitto) -> None:
    """The broker lost its sessions: the same packet ids now mean other messages."""
    with bridge(broker) as bridged:
        publish_all(broker.port, TOPIC, numbers(0, 10))
        old = bridged.take(10)
        broker.kill()
        broker.saved.unlink(missing_ok=True)
        wait_for(lambda: not bridged.session.is_connected, "lost")
        broker.start()
        bridged.up()
        publish_all(broker.port, TOPIC, numbers(10, 10))
        new = bridged.take(10)
        assert {each.mid for each in old} & {each.mid for each in new}
        bridged.session.acknowledge(old)
        wait_for(lambda: bridged.session.counts.late_acknowledgements == 10, "noticed")
        assert bridged.session.counts.acknowledged == 0
    with bridge(broker) as later:
        assert payloads(later.take(10)) == numbers(10, 10)


def test_what_nobody_took_yet_is_not_lost_with_a_session_that_the_broker_forgot(broker: Mosquitto) -> None:
    with bridge(broker) as bridged:
        publish_all(broker.port, TOPIC, numbers(0, 10))
        wait_for(lambda: len(bridged.inbox) == 10, "received")
        broker.kill()
        broker.saved.unlink(missing_ok=True)
        wait_for(lambda: not bridged.session.is_connected, "lost")
        broker.start()
        bridged.up()
        assert payloads(bridged.take(10)) == numbers(0, 10)


def test_what_nobody_took_yet_comes_once_where_the_broker_kept_the_session(broker: Mosquitto) -> None:
    with bridge(broker) as bridged:
        publish_all(broker.port, TOPIC, numbers(0, 10))
        wait_for(lambda: len(bridged.inbox) == 10, "received")
        broker.save()
        broker.kill()
        wait_for(lambda: not bridged.session.is_connected, "lost")
        broker.start()
        bridged.up()
        assert payloads(bridged.take(10)) == numbers(0, 10)
        publish_all(broker.port, TOPIC, [b"end"])
        assert payloads(bridged.take(1)) == [b"end"]


def test_a_session_that_the_broker_forgot_is_said(broker: Mosquitto, caplog: pytest.LogCaptureFixture) -> None:
    with bridge(broker) as bridged, caplog.at_level(logging.WARNING):
        broker.kill()
        wait_for(lambda: not bridged.session.is_connected, "lost")
        broker.start()
        bridged.up()
    assert "has forgotten the session bridge" in caplog.text
    assert caplog.text.count("There is no connection to the MQTT broker") == 1


def test_what_waits_unacknowledged_has_an_end(broker: Mosquitto) -> None:
    with bridge(broker, in_flight=50) as bridged:
        publish_all(broker.port, TOPIC, numbers(0, 500))
        wait_for(lambda: len(bridged.inbox) == 50, "full")
        came: list[MqttMessage] = []
        while len(came) < 500:
            bite = bridged.take(25)
            assert len(bridged.inbox) <= 100
            came += bite
            bridged.acknowledge(bite)
        assert payloads(came) == numbers(0, 500)
        assert {each.repeat for each in came} == {"no"}


def test_a_backlog_that_is_sent_all_at_once_is_not_read_all_at_once(broker: Mosquitto) -> None:
    """mosquitto 2.0.11 forgets our receive maximum when a part of its backlog was acknowledged before we came again."""
    with bridge(broker, in_flight=50):
        pass
    publish_all(broker.port, TOPIC, numbers(0, 1000))
    came: set[bytes] = set()
    for _ in range(2):
        with bridge(broker, in_flight=50) as bridged:
            for _ in range(10):
                bite = bridged.take(25)
                assert len(bridged.inbox) <= 100
                came |= set(payloads(bite))
                bridged.acknowledge(bite)
    with bridge(broker, in_flight=50) as bridged:
        while len(came) < 1000:
            bite = bridged.take(1)
            assert len(bridged.inbox) <= 100
            came |= set(payloads(bite))
            bridged.session.acknowledge(bite)
    assert came == set(numbers(0, 1000))


def test_a_flood_of_qos_0_is_not_read_into_a_full_inbox(broker: Mosquitto) -> None:
    with bridge(broker, in_flight=50) as bridged, device(broker.port) as flooding:
        for _ in range(2000):
            flooding.publish_qos_0(TOPIC, b"x" * 1000)
        wait_for(lambda: bridged.inbox.is_full, "full")
        assert len(bridged.inbox) <= 100
        assert {each.qos for each in bridged.take(2000)} == {0}
        publish_all(broker.port, TOPIC, [b"still there"], name="another")
        assert bridged.take(1)[0].payload == b"still there"


@pytest.mark.parametrize(("retained", "times"), [("first", 1), ("always", 2), ("never", 0)])
def test_retained_messages(broker: Mosquitto, retained: str, times: int) -> None:
    with device(broker.port) as publishing:
        publishing.publish(TOPIC, b"kept", retain=True)
        publishing.settle()
    came: list[MqttMessage] = []
    for number in range(2):
        with bridge(broker, retained=retained) as bridged:
            publish_all(broker.port, TOPIC, [b"end%d" % number])
            while not came or came[-1].payload != b"end%d" % number:
                came += bridged.take(1)
            bridged.acknowledge([each for each in came if each.connection == bridged.session._connection_number][-2:])
    assert [(each.payload, each.retain) for each in came if each.payload == b"kept"] == [(b"kept", True)] * times


def test_bridges_can_share(broker: Mosquitto) -> None:
    filters = ("$share/bridges/meters/+/load",)
    with bridge(broker, client_id="a", filters=filters) as one, bridge(broker, client_id="b", filters=filters) as other:
        publish_all(broker.port, TOPIC, numbers(0, 100))
        wait_for(lambda: len(one.inbox) + len(other.inbox) == 100, "all there")
        assert len(one.inbox) > 10
        assert len(other.inbox) > 10
        assert sorted(map(int, payloads(one.take(len(one.inbox)) + other.take(len(other.inbox))))) == list(range(100))


def test_a_login(tmp_path: Path) -> None:
    with Mosquitto(tmp_path, login=True) as broker:
        good = Bridge(Address("127.0.0.1", broker.port, username=USER, password=Secret(PASSWORD)))
        good.up().session.close()
        bad = Bridge(Address("127.0.0.1", broker.port, username=USER, password=Secret("guess")))
        wait_for(lambda: bad.session.problem, "refused")
        assert "the broker refuses us: Not authorized" in bad.session.problem
        assert not bad.session.is_connected
        bad.session.close()


# The client library does not close the socket of a handshake that failed; Python does, and says so.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_tls_and_certificates_of_clients(tmp_path: Path) -> None:
    with Mosquitto(tmp_path, tls=True, client_certificates=True) as broker:
        folder, ca = broker.folder, str(broker.ca_file)
        certificate, key = str(folder / "client.pem"), str(folder / "client.key")
        good = Bridge(Address("127.0.0.1", broker.port, True, ca_file=ca, certificate_file=certificate, key_file=key))
        good.up().session.close()
        problems = {
            "a stranger's": Address("127.0.0.1", broker.port, True, certificate_file=certificate, key_file=key),
            "none of ours": Address("127.0.0.1", broker.port, True, ca_file=ca),
            "no TLS": Address("127.0.0.1", broker.port),
            "no file": Address("127.0.0.1", broker.port, True, ca_file=str(folder / "nowhere.pem")),
        }
        found = {}
        for name, address in problems.items():
            bad = Bridge(address)
            wait_for(lambda bad=bad: bad.session.problem, f"refused: {name}")  # type: ignore[misc]
            found[name] = bad.session.problem
            assert not bad.session.is_connected
            bad.session.close()
        gc.collect()
        assert "TLS: " in found["a stranger's"]
        assert "certificates cannot be used" in found["no file"]


def test_it_waits_for_a_broker_that_is_not_there_yet(tmp_path: Path) -> None:
    broker = Mosquitto(tmp_path)
    early = Bridge(Address("127.0.0.1", broker.port))
    wait_for(lambda: early.session.problem, "refused")
    assert early.session.problem == "Connection refused"
    with broker:
        early.up()
        assert early.session.problem == ""
        early.session.close()
