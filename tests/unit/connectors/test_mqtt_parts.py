"""The queue, the memory and the address of an MQTT session."""

import threading
from pathlib import Path
from typing import Any

import pytest

import riverrun as rr
from riverrun.config import MqttSettings, Secret
from riverrun.connectors.mqtt.address import Address, broker_address, parse_url
from riverrun.connectors.mqtt.duplicates import MAX_CATCH_UP_SECONDS, DuplicateDetector, message_digest
from riverrun.connectors.mqtt.message_queue import MessageQueue, MqttMessage
from riverrun.errors import ConfigError


def message(number: int, *, connection: int = 1, qos: int = 1, size: int = 1) -> MqttMessage:
    return MqttMessage("a", b"x" * size, qos, False, "no", connection, number, 0, number)


def test_an_inbox_gives_in_order_and_in_bites() -> None:
    inbox = MessageQueue(10)
    for number in range(5):
        inbox.put(message(number))
    assert [each.mid for each in inbox.take(3, 100)] == [0, 1, 2]
    assert [each.mid for each in inbox.take(3, 1)] == [3]
    assert [each.mid for each in inbox.take(3, 100)] == [4]
    assert inbox.take(3, 100) == []


def test_an_inbox_is_full_by_number_or_by_size() -> None:
    inbox = MessageQueue(2, max_bytes=100)
    full = [inbox.is_full]
    for size in (99, 1):
        inbox.put(message(1, size=size))
        full.append(inbox.is_full)
    inbox.take(1, 1)
    full.append(inbox.is_full)
    inbox.put(message(3, size=200))
    assert [*full, inbox.is_full] == [False, False, True, False, True]


def test_a_lost_connections_messages_are_held_but_not_qos_0() -> None:
    inbox = MessageQueue(10, max_bytes=3)
    inbox.put(message(1))
    inbox.put(message(2, qos=0))
    inbox.put(message(3))
    inbox.hold()
    assert len(inbox) == 3
    assert not inbox.is_full, "the broker's answer decides about the held ones, and has to be read"
    assert [each.mid for each in inbox.take(9, 100)] == [2]
    assert inbox.forget_held() == 2
    assert len(inbox) == 0
    assert inbox.release_held() == 0


def test_held_messages_come_first_when_nobody_sends_them_again() -> None:
    inbox = MessageQueue(10, max_bytes=3)
    for number in (1, 2):
        inbox.put(message(number))
    inbox.hold()
    inbox.put(message(3, connection=2))
    assert inbox.release_held() == 2
    assert inbox.is_full
    assert [each.mid for each in inbox.take(9, 100)] == [1, 2, 3]
    assert not inbox.is_full


def test_whoever_waits_is_woken() -> None:
    inbox = MessageQueue(10)
    waiting = threading.Thread(target=inbox.wait, args=(60,))
    waiting.start()
    while waiting.is_alive():
        inbox.wake()
        waiting.join(0.01)
    inbox.put(message(1))
    inbox.wait(60)


def test_what_was_seen_is_found_once_and_only_after_a_reconnect() -> None:
    seen = DuplicateDetector()
    seen.add(1)
    seen.add(1)
    seen.add(2)
    assert not seen.is_duplicate(1)
    seen.on_reconnected()
    assert [seen.is_duplicate(each) for each in (1, 1, 1, 2, 2, 3)] == [True, True, False, True, False, False]


def test_it_is_over_when_the_broker_has_caught_up_or_too_much_time_is_gone() -> None:
    now = 100.0
    seen = DuplicateDetector(clock=lambda: now)
    seen.add(1)
    seen.add(2)
    seen.on_reconnected()
    seen.on_caught_up()
    assert not seen.is_duplicate(1)
    seen.on_reconnected()
    assert seen.is_duplicate(1)
    now += MAX_CATCH_UP_SECONDS
    assert not seen.is_duplicate(2)


def test_the_memory_has_an_end() -> None:
    seen = DuplicateDetector(max_digests=10)
    for number in range(100):
        seen.add(number)
    seen.on_reconnected()
    assert len(seen) == 10
    assert [number for number in range(100) if seen.is_duplicate(number)] == list(range(90, 100))


def test_digests_tell_topics_and_payloads_apart() -> None:
    assert (
        len({message_digest("a", b"b"), message_digest("ab", b""), message_digest("a", b""), message_digest("", b"ab")})
        == 4
    )


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("mqtt://broker", ("broker", 1883, False)),
        ("mqtts://broker.example/", ("broker.example", 8883, True)),
        ("mqtt://127.0.0.1:1884", ("127.0.0.1", 1884, False)),
        ("mqtts://[::1]:9", ("::1", 9, True)),
    ],
)
def test_addresses(url: str, found: tuple[str, int, bool]) -> None:
    assert parse_url(url, where="mqtt.url") == found


@pytest.mark.parametrize(
    "url", ["broker:1883", "http://broker", "mqtt://", "mqtt://b:port", "mqtt://b/x", "mqtt://u:pw@b"]
)
def test_addresses_that_are_none(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_url(url, where="mqtt.url")
    assert "mqtt.url" in str(caught.value)
    assert "pw" not in str(caught.value)


def found(declared: Any, settings: MqttSettings) -> Address:
    secrets = {"env:HERS": Secret("hers"), "": Secret()}
    return broker_address(declared, settings, Path("/project"), lambda reference, _what: secrets[reference], "readings")


SETTINGS = MqttSettings(
    url="mqtts://main:8883", username="bo", password=Secret("his"), ssl_ca_file="ca.pem", ssl_certificate_file="/c.pem"
)


def test_the_broker_of_the_settings() -> None:
    address = found(rr.mqtt("a"), SETTINGS)
    assert (str(address), address.username, address.password.reveal()) == ("mqtts://main:8883", "bo", "his")
    assert (address.ca_file, address.certificate_file) == ("/project/ca.pem", "/c.pem")
    assert "his" not in repr(address)


def test_a_broker_of_its_own_does_not_get_the_others_password() -> None:
    address = found(rr.mqtt("a", url="mqtts://other"), SETTINGS)
    assert (address.host, address.username, address.password.reveal()) == ("other", "", "")
    address = found(rr.mqtt("a", url="mqtts://other", username="ada", password="env:HERS"), SETTINGS)
    assert (address.username, address.password.reveal()) == ("ada", "hers")
    same = found(rr.mqtt("a", url="mqtts://main"), SETTINGS)
    assert same.password.reveal() == "his"


@pytest.mark.parametrize(
    "settings",
    [
        MqttSettings(url="mqtt://127.0.0.1", username="u", password=Secret("x")),
        MqttSettings(url="mqtt://localhost", username="u", password=Secret("x")),
        MqttSettings(url="mqtt://b", username="u", password=Secret("x"), insecure=True),
        MqttSettings(url="mqtt://b", username="u"),
    ],
    ids=["loopback", "localhost", "insecure", "no password"],
)
def test_a_password_without_tls_where_nobody_listens(settings: MqttSettings) -> None:
    assert found(rr.mqtt("a"), settings).username == "u"


@pytest.mark.parametrize(
    ("declared", "settings", "says"),
    [
        (rr.mqtt("a"), MqttSettings(), "mqtt.url is not set"),
        (rr.mqtt("a"), MqttSettings(url="mqtt://b", password=Secret("x")), "no username"),
        (rr.mqtt("a"), MqttSettings(url="mqtt://b", ssl_certificate_file="c.pem"), "mqtts://"),
        (rr.mqtt("a"), MqttSettings(url="mqtt://b", username="u", password=Secret("x")), "to b without TLS"),
        (rr.mqtt("a", url="mqtt://10.0.0.7", username="u", password="env:HERS"), SETTINGS, "to 10.0.0.7 without TLS"),
    ],
)
def test_what_does_not_go_together(declared: Any, settings: MqttSettings, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        found(declared, settings)
