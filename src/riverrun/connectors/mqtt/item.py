"""Turn an MQTT message into an item: the value, key and headers of a record, or the reason why it is none."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from riverrun.connectors.mqtt.message_queue import MqttMessage
from riverrun.model.connector import Item
from riverrun.model.connectors.mqtt import mqtt
from riverrun.model.topic import Topic

TOPIC_HEADER = "mqtt.topic"
QOS_HEADER = "mqtt.qos"
RETAIN_HEADER = "mqtt.retain"
REPEAT_HEADER = "mqtt.repeat"

_load = msgspec.json.decode
_SHOWN_BYTES = 80


class _InvalidMessageError(Exception):
    """Why a message cannot become a record."""


def item_factory(declared: mqtt, topic: Topic[Any]) -> Callable[[MqttMessage], Item]:
    """Returns the function that turns messages into items of this topic."""
    level_types = _level_types(declared, topic)
    schema = topic.schema
    key_field = schema.key_field if schema else declared.key if isinstance(declared.key, str) else None
    key_level = declared.key if isinstance(declared.key, int) else declared.field_levels.get(key_field or "")
    # Payloads that nothing is taken from or put into are not even parsed here: the topic's events are checked later.
    plain = not (declared.field_levels or declared.value or declared.arrived or isinstance(declared.key, str))

    def make(message: MqttMessage) -> Item:
        levels = message.topic.split("/")
        headers = {
            TOPIC_HEADER: message.topic,
            QOS_HEADER: str(message.qos),
            RETAIN_HEADER: "true" if message.retain else "false",
            REPEAT_HEADER: message.repeat,
        }
        value: Any = message.payload
        key: str | bytes | None = None
        try:
            if isinstance(key_level, int):
                key = _level(levels, key_level, "the key")
            if not message.payload:
                if not (topic.compact and key is not None):
                    raise _InvalidMessageError("the payload is empty")
                return Item(None, key, headers, location=message.topic)
            if not plain:
                value = fill_fields(declared, level_types, levels, message)
                if schema is None and key_field is not None:
                    key = _key(value, key_field)
        except _InvalidMessageError as problem:
            return Item(message.payload, key, headers, problem=str(problem), location=message.topic)
        # An event has its own key.
        return Item(value, None if schema else key, headers, location=message.topic)

    return make


def fill_fields(
    declared: mqtt, level_types: Mapping[str, Any], levels: list[str], message: MqttMessage
) -> dict[str, Any]:
    """The payload as an object, with the fields from the topic, the options and the clock."""
    try:
        value = _load(message.payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _InvalidMessageError(f"the payload is not JSON: {error}") from error
    if not isinstance(value, dict):
        if not declared.value:
            shown = message.payload[:_SHOWN_BYTES].decode(errors="replace")
            raise _InvalidMessageError(f"the payload is no JSON object, and no value= names a field for it: {shown}")
        value = {declared.value: value}
    for name, level in declared.field_levels.items():
        text = _level(levels, level, f"the field {name}")
        try:
            value[name] = msgspec.convert(text, level_types[name], strict=False) if name in level_types else text
        except msgspec.ValidationError as error:
            raise _InvalidMessageError(f"level {level} of {message.topic} cannot be {name}: {error}") from error
    if declared.arrived and value.get(declared.arrived) is None:
        value[declared.arrived] = datetime.fromtimestamp(message.received_ms / 1000, UTC)
    return value


def _level(levels: list[str], level: int, what: str) -> str:
    if level >= len(levels) or not levels[level]:
        raise _InvalidMessageError(f"{'/'.join(levels)} has no level {level}, which is {what}")
    return levels[level]


def _key(value: Mapping[str, Any], name: str) -> str:
    key = value.get(name)
    if isinstance(key, bool) or not isinstance(key, str | int):
        raise _InvalidMessageError(
            f"the payload's field {name}, which is the key, is {key!r}: text or a whole number is needed"
        )
    return str(key)


def _level_types(declared: mqtt, topic: Topic[Any]) -> dict[str, Any]:
    """The types of the fields that are filled from levels."""
    if topic.event is None:
        return {}
    return {
        field.name: field.type for field in msgspec.structs.fields(topic.event) if field.name in declared.field_levels
    }
