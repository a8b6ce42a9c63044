"""What MQTT messages become."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest

import riverrun as rr
from riverrun.connectors.mqtt.item import item_factory
from riverrun.connectors.mqtt.message_queue import MqttMessage
from riverrun.model.topic import Topic


class Reading(rr.Event):
    house_id: str = rr.key()
    load_kw: float = rr.field(ge=0)
    at: datetime = rr.event_time()
    floor: int = 0


TYPED: Topic[Any] = Topic("readings", Reading)
FREE: Topic[Any] = Topic("anything")


def message(payload: bytes, topic: str = "meters/h1/load", **more: Any) -> MqttMessage:
    values: dict[str, Any] = {
        "qos": 1,
        "retain": False,
        "repeat": "no",
        "connection": 1,
        "mid": 7,
        "received_ms": 1_700_000_000_000,
        "digest": 0,
    }
    return MqttMessage(topic=topic, payload=payload, **(values | more))


def test_a_payload_nothing_is_taken_from_stays_as_it_is() -> None:
    item = item_factory(rr.mqtt("meters/+/load"), FREE)(message(b"\x00\xffbinary", retain=True, repeat="redelivered"))
    assert (item.value, item.key, item.problem) == (b"\x00\xffbinary", None, "")
    assert item.headers == {
        "mqtt.topic": "meters/h1/load", "mqtt.qos": "1", "mqtt.retain": "true", "mqtt.repeat": "redelivered",
    }  # fmt: skip


def test_an_events_bytes_are_checked_by_the_runtime() -> None:
    item = item_factory(rr.mqtt("meters/+/load"), TYPED)(message(b'{"house_id": "h1"}'))
    assert (item.value, item.key, item.problem) == (b'{"house_id": "h1"}', None, "")


def test_levels_fill_fields_and_win_over_the_payload() -> None:
    make = item_factory(rr.mqtt("meters/+/+", fields={"house_id": 1, "floor": 2}), TYPED)
    item = make(message(b'{"house_id": "h9", "load_kw": 2.5}', "meters/h1/3"))
    assert item.value == {"house_id": "h1", "load_kw": 2.5, "floor": 3}
    assert "cannot be floor" in make(message(b"{}", "meters/h1/attic")).problem


def test_a_bare_number_and_the_time_of_arrival() -> None:
    make = item_factory(rr.mqtt("meters/+/load", fields={"house_id": 1}, value="load_kw", arrived="at"), TYPED)
    item = make(message(b"21.5"))
    assert item.value == {"house_id": "h1", "load_kw": 21.5, "at": datetime.fromtimestamp(1_700_000_000, UTC)}
    kept = make(message(b'{"load_kw": 1, "at": "2026-03-01T00:00:00Z"}'))
    assert kept.value["at"] == "2026-03-01T00:00:00Z"


@pytest.mark.parametrize(
    ("options", "payload", "topic", "key"),
    [
        ({"key": 1}, b"any", "meters/h1/load", "h1"),
        ({"key": "id"}, b'{"id": "d7"}', "meters/h1/load", "d7"),
        ({"key": "id"}, b'{"id": 7}', "meters/h1/load", "7"),
        ({"key": "house", "fields": {"house": 1}}, b"{}", "meters/h1/load", "h1"),
    ],
)
def test_keys_without_an_event_class(options: dict[str, Any], payload: bytes, topic: str, key: str) -> None:
    assert item_factory(rr.mqtt("meters/#", **options), FREE)(message(payload, topic)).key == key


@pytest.mark.parametrize(
    ("options", "payload", "topic", "problem"),
    [
        ({"value": "x"}, b"{nope", "a/b", "not JSON"),
        ({"value": "x"}, b"\xff\xfe", "a/b", "not JSON"),
        ({"arrived": "at"}, b"21.5", "a/b", "no JSON object, and no value="),
        ({"key": "id"}, b"{}", "a/b", "is None"),
        ({"key": "id"}, b'{"id": true}', "a/b", "is True"),
        ({"key": 3}, b"x", "a/b", "has no level 3, which is the key"),
        ({"fields": {"f": 2}}, b"{}", "a/b/", "has no level 2, which is the field f"),
        ({}, b"", "a/b", "empty"),
        ({"value": "x"}, b"[" * 100_000, "a/b", "not JSON"),
    ],
)
def test_what_cannot_be_a_record_says_why(options: dict[str, Any], payload: bytes, topic: str, problem: str) -> None:
    item = item_factory(rr.mqtt("a/#", **options), FREE)(message(payload, topic))
    assert problem in item.problem
    assert item.value == payload
    assert item.headers is not None


def test_an_empty_payload_deletes_its_key_in_a_compacted_topic() -> None:
    item = item_factory(rr.mqtt("doors/+", key=1), Topic("doors", compact=True))(message(b"", "doors/d1"))
    assert (item.value, item.key, item.problem) == (None, "d1", "")
    typed = item_factory(rr.mqtt("doors/+", fields={"house_id": 1}), Topic("doors", Reading, compact=True))
    assert typed(message(b"", "doors/d1")).key == "d1"


def test_values_can_be_carried_as_json() -> None:
    item = item_factory(rr.mqtt("a/#", value="x"), FREE)(message(json.dumps([1, {"a": None}]).encode(), "a"))
    assert item.value == {"x": [1, {"a": None}]}
