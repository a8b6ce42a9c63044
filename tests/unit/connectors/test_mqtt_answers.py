"""What a broker may answer, and what is made of it."""

from typing import Any

import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.reasoncodes import ReasonCode

from riverrun.connectors.mqtt.address import Address
from riverrun.connectors.mqtt.duplicates import DuplicateDetector
from riverrun.connectors.mqtt.message_queue import MessageQueue
from riverrun.connectors.mqtt.session import MqttSession, SessionOptions, _ConnectionLostError


@pytest.fixture
def session() -> Any:
    wanted = SessionOptions("bridge", ("doors/+", "meters/#"), 1, "first", 3600, 100, 30)
    made = MqttSession(Address("broker", 1883), wanted, MessageQueue(200), DuplicateDetector())
    yield made
    made.close()


def reasons(*codes: int) -> list[ReasonCode]:
    return [ReasonCode(PacketTypes.SUBACK, identifier=code) for code in codes]


def test_a_subscription_that_is_refused_names_its_filter(session: Any) -> None:
    with pytest.raises(_ConnectionLostError, match="refuses the subscription to meters/#: Not authorized"):
        session._on_subscribe(None, None, 1, reasons(1, 0x87), None)
    assert not session.is_connected


def test_a_lower_qos_is_said(session: Any, caplog: pytest.LogCaptureFixture) -> None:
    session._on_subscribe(None, None, 1, reasons(1, 0), None)
    assert session.is_connected
    assert "grants meters/# only QoS 0" in caplog.text
