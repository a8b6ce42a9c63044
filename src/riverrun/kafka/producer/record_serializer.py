"""Serialize records: the bytes of a value, its key, headers and timestamp, prepared once per topic where possible."""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from riverrun.config import RegistrySettings
from riverrun.errors import EventInvalidError, UsageError
from riverrun.kafka.registry.wire_format import WireFormat, wire_format_of
from riverrun.model.event import SCHEMA_HEADER, Event, schema_of
from riverrun.model.topic import Topic, check_topic_name

Headers = Mapping[str, str | bytes | None] | Sequence[tuple[str, str | bytes | None]]

_dump = msgspec.json.Encoder().encode

# What events of the topic's class need, without a look-up for each: topic, name, encode, key_of, headers.
FastPath = tuple[object, str, Callable[[Any], bytes], Callable[[Any], str | bytes | None], list[Any]]


class RecordSerializer:
    """Turns values into records of one topic. `headers` is None, or the list the client takes."""

    __slots__ = ("allows_tombstones", "encode", "fast_path", "headers", "key_of", "name", "topic", "wire_format")

    def __init__(self, topic: Topic[Any] | str, registry: RegistrySettings | None = None) -> None:
        self.topic = topic  # kept alive, because serializers are found by the topic's identity
        self.encode: Callable[[Any], bytes | None]
        self.key_of: Callable[[Any], str | bytes | None]
        if isinstance(topic, str):
            self.name, schema, self.allows_tombstones = check_topic_name(topic), None, True
        elif isinstance(topic, Topic):
            self.name, schema, self.allows_tombstones = topic.name, topic.schema, topic.compact or topic.event is None
        else:
            raise UsageError(
                "A record needs a topic", expected="a riverrun.Topic or a name", found=type(topic).__name__
            )
        self.headers: list[tuple[str, str | bytes | None]] | None = None
        self.fast_path: FastPath | None = None
        self.wire_format: WireFormat | None = None
        if schema is not None and isinstance(topic, Topic):
            self.wire_format = wire_format_of(topic, registry or RegistrySettings())
            self.encode, self.key_of, self.headers = self.wire_format.encode, schema.key_of, [schema.header]
            self.fast_path = (topic, self.name, self.wire_format.encode, schema.key_of, self.headers)
        else:
            self.encode, self.key_of = self._encode_any, _key_of_any

    def _encode_any(self, value: Any) -> bytes | None:
        if value is None or type(value) is bytes:
            return value
        if isinstance(value, Event):
            return schema_of(type(value)).encode(value)
        try:
            if isinstance(value, str):
                return value.encode()
            return bytes(value) if isinstance(value, bytearray | memoryview) else _dump(value)
        except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError) as error:
            raise EventInvalidError(
                f"This value cannot be sent to {self.name}",
                expected="an event, bytes, text, or something JSON can carry",
                found=str(error),
                topic=self.name,
            ) from error

    def serialize(
        self, value: Any, key: str | bytes | None, headers: Headers | None
    ) -> tuple[bytes | None, str | bytes | None, list[tuple[str, str | bytes | None]] | None]:
        """The value, key and headers to send: the general path, for everything but events of the topic's class."""
        if value is None:
            if not self.allows_tombstones or key is None:
                raise EventInvalidError(
                    f"None cannot be sent to {self.name}",
                    expected="an event; None removes a key from a compacted topic, and needs `key`",
                    topic=self.name,
                )
            return None, _to_bytes(key, "key"), _merge_headers(None, headers)
        data = self.encode(value)
        key = self.key_of(value) if key is None else _to_bytes(key, "key")
        own_headers = self.headers
        if own_headers is None and isinstance(value, Event):
            own_headers = [schema_of(type(value)).header]
        return data, key, _merge_headers(own_headers, headers)


def _to_bytes(value: Any, role: str) -> bytes:
    """Text or bytes as bytes: the client library's own error would say less."""
    try:
        if isinstance(value, str | bytes):
            return value.encode() if isinstance(value, str) else value
    except UnicodeEncodeError as error:
        raise UsageError(f"The text of a record's {role} cannot be written as UTF-8", found=repr(value)) from error
    raise UsageError(f"A record's {role} cannot be sent", expected="text or bytes", found=repr(value))


def _key_of_any(value: Any) -> str | bytes | None:
    return schema_of(type(value)).key_of(value) if isinstance(value, Event) else None


def _merge_headers(
    own_headers: list[tuple[str, str | bytes | None]] | None, headers: Headers | None
) -> list[tuple[str, str | bytes | None]] | None:
    if headers is None:
        return own_headers
    merged: list[tuple[str, str | bytes | None]] = list(own_headers or [])
    for header in headers.items() if isinstance(headers, Mapping) else headers:
        match header:
            case (str(name), _) if name == SCHEMA_HEADER and own_headers is not None:
                raise UsageError(f"The header {SCHEMA_HEADER} is set by the event's class", hint="Leave it out")
            case (str(name), value):
                merged.append((name, None if value is None else _to_bytes(value, f"header {name}")))
            case _:
                raise UsageError(
                    "A header cannot be sent", expected="a name and text, bytes or None", found=repr(header)
                )
    return merged


def milliseconds_of(timestamp: datetime | int | None) -> int:
    """Kafka's timestamp; 0 is now, which the client fills in."""
    if timestamp is None:
        return 0
    if isinstance(timestamp, int):
        if timestamp <= 0:
            raise UsageError("A record's timestamp must be after 1970", found=str(timestamp))
        return timestamp
    if timestamp.tzinfo is None:
        raise UsageError(
            "A record's timestamp has no time zone", found=timestamp.isoformat(), hint="Use datetime.now(UTC)"
        )
    return milliseconds_of(round(timestamp.astimezone(UTC).timestamp() * 1000))
