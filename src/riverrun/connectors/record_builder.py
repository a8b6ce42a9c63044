"""Turn items into records: checked against the topic's event class, or a dead letter with the reason."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec

from riverrun.config import RegistrySettings
from riverrun.errors import EventInvalidError, RecordTooLargeError, RecordUnreadableError, RiverrunError
from riverrun.kafka.consumer.dead_letter import HEADER_PREFIX, RecordCopy, dead_letter_headers
from riverrun.kafka.producer.record_serializer import RecordSerializer, milliseconds_of
from riverrun.model.connector import Item
from riverrun.model.event import Event
from riverrun.model.topic import Topic
from riverrun.model.units import format_size

# How much of a value too large for any topic is kept in its dead letter, and of each header if those are too large.
DEAD_LETTER_VALUE_BYTES = 65_536
DEAD_LETTER_HEADER_BYTES = 1024
# The overhead of a record besides its key, value and headers, and of a header besides its name and value.
_OVERHEAD = 128
_HEADER_OVERHEAD = 10

_encode_json = msgspec.json.Encoder().encode
Headers = list[tuple[str, str | bytes | None]]


class SourceRecord(NamedTuple):
    """A record to send. `timestamp_ms` is Kafka's timestamp in milliseconds; None is now."""

    topic: str
    value: bytes | None
    key: bytes | str | None
    headers: Headers | None
    timestamp_ms: int | None

    @property
    def size(self) -> int:
        """The bytes that count toward the broker's limit."""
        size = len(self.value or b"") + byte_length(self.key) + _OVERHEAD
        for name, value in self.headers or ():
            size += byte_length(name) + byte_length(value) + _HEADER_OVERHEAD
        return size


def byte_length(text: str | bytes | None) -> int:
    """How many bytes a key or header has in a record."""
    if text is None:
        return 0
    return len(text) if isinstance(text, bytes) or text.isascii() else len(text.encode(errors="replace"))


class RecordBuilder:
    """Makes records of one topic. `max_bytes` is how large one may be, `max_dead_letter_bytes` how large a dead letter;
    `group` is who writes its dead letters."""

    def __init__(
        self,
        topic: Topic[Any],
        dead_topic: str,
        *,
        group: str,
        max_bytes: int,
        max_dead_letter_bytes: int = 0,
        registry: RegistrySettings | None = None,
    ) -> None:
        self._topic = topic
        self._dead_topic = dead_topic
        self._group = group
        self._max_bytes = max_bytes
        self._max_dead_letter_bytes = max_dead_letter_bytes or max_bytes
        self._schema = topic.schema
        self._route = RecordSerializer(topic, registry)
        if self._route.wire_format is not None:
            # Now: a registry that is unreachable later must not make dead letters of good records.
            self._route.wire_format.prepare()
        # The list the client library takes, created once: most items have no headers of their own.
        self._schema_headers: Headers | None = [self._schema.header] if self._schema is not None else None

    def build(self, item: Any) -> tuple[SourceRecord, bool]:
        """The record of an item, and whether it is a dead letter."""
        if type(item) is not Item:
            item = Item(item)
        try:
            if item.problem:
                raise RecordUnreadableError(item.problem)
            record = self._build_record(item)
            if record.size > self._max_bytes:
                raise RecordTooLargeError(
                    f"A record for {self._topic.name} is too large",
                    expected=f"at most {format_size(self._max_bytes)}",
                    found=format_size(record.size),
                    hint="Raise max.message.bytes of the topic",
                )
        except RiverrunError as error:
            return self._build_dead_letter(item, error), True
        return record, False

    def _build_record(self, item: Item) -> SourceRecord:
        data, key = self._content(item)
        headers = self._schema_headers
        if item.headers:
            headers = [*(headers or ()), *item.headers.items()]
        timestamp_ms = None if item.time is None else milliseconds_of(item.time)
        return SourceRecord(self._topic.name, data, key, headers, timestamp_ms)

    def _content(self, item: Item) -> tuple[bytes | None, bytes | str | None]:
        value, schema, wire = item.value, self._schema, self._route.wire_format
        if schema is None or wire is None or value is None:
            data, key, _ = self._route.serialize(value, item.key, None)
            return data, key
        if isinstance(value, schema.event):
            event, data = value, wire.encode(value)
        elif isinstance(value, Event):
            raise EventInvalidError(
                f"A {type(value).__name__} does not belong in {self._topic.name}", expected=schema.name
            )
        elif item.loose and isinstance(value, Mapping):
            event = _convert_text_fields(value, schema.event, schema.name)
            data = wire.encode(event)
        else:
            payload = _to_bytes(value)
            event, data = schema.decode(payload), wire.pack(payload)
        return data, schema.key_of(event) if item.key is None else item.key

    def _build_dead_letter(self, item: Item, error: RiverrunError) -> SourceRecord:
        try:
            raw = None if item.value is None else _to_bytes(item.value)
        except RiverrunError:
            raw = repr(item.value).encode(errors="replace")
        headers: Headers = [(name, _encode_text(value)) for name, value in (item.headers or {}).items()]
        key = _encode_text(item.key) if isinstance(item.key, str | bytes) else None
        dead_letter = self._dead_letter(raw, key, headers, item.location, error)
        if dead_letter.size <= self._max_dead_letter_bytes:
            return dead_letter
        # Never larger than its topic allows: the broker would refuse it, and the source would retry for ever.
        size = len(raw or b"")
        dead_letter = self._dead_letter(
            (raw or b"")[:DEAD_LETTER_VALUE_BYTES], key, headers, item.location, error, original_bytes=size
        )
        if dead_letter.size <= self._max_dead_letter_bytes:
            return dead_letter
        headers = [
            (name[:DEAD_LETTER_HEADER_BYTES], (value or b"")[:DEAD_LETTER_HEADER_BYTES]) for name, value in headers[:20]
        ]
        room = max(
            0,
            self._max_dead_letter_bytes
            - self._dead_letter(b"", None, headers, item.location, error, original_bytes=size).size,
        )
        return self._dead_letter(
            (raw or b"")[: min(DEAD_LETTER_VALUE_BYTES, room)], None, headers, item.location, error, original_bytes=size
        )

    def _dead_letter(
        self,
        raw: bytes | None,
        key: bytes | None,
        headers: Any,
        location: str,
        error: RiverrunError,
        *,
        original_bytes: int = 0,
    ) -> SourceRecord:
        """The dead letter of these bytes. `original_bytes` is how many there were before they were cut."""
        extra_headers = (
            [(f"{HEADER_PREFIX}source", location.encode(errors="replace")[:DEAD_LETTER_HEADER_BYTES])]
            if location
            else []
        )
        if original_bytes:
            extra_headers.append((f"{HEADER_PREFIX}cut", str(original_bytes).encode()))
        copy = RecordCopy(self._topic.name, -1, -1, None, key, raw, headers)
        return SourceRecord(
            self._dead_topic,
            raw,
            key,
            dead_letter_headers(copy, error, 1, self._group, datetime.now(UTC)) + extra_headers,
            None,
        )


def _convert_text_fields(value: Mapping[str, Any], event: type[Any], name: str) -> Any:
    """An event from text fields. An empty text means a missing value, unless the field is text itself."""
    try:
        return msgspec.convert(dict(value), event, strict=False)
    except msgspec.ValidationError:
        present = {field_name: text for field_name, text in value.items() if text != ""}
        try:
            return msgspec.convert(present, event, strict=False)
        except msgspec.ValidationError as problem:
            raise RecordUnreadableError(f"A record is not a {name}", found=str(problem)) from problem


def _to_bytes(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    try:
        return value.encode() if isinstance(value, str) else _encode_json(value)
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise EventInvalidError("This value cannot be carried as JSON", found=str(error)) from error


def _encode_text(value: str | bytes | None) -> bytes | None:
    return value.encode(errors="replace") if isinstance(value, str) else value
