"""Items become records: checked against the topic's event class, or a dead letter with the reason."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec

from riverrun.config import RegistrySettings
from riverrun.errors import EventInvalidError, RecordTooLargeError, RecordUnreadableError, RiverrunError
from riverrun.kafka.consumer.dead_letter import PREFIX, Copy, headers_for
from riverrun.kafka.producer.outgoing import Route, milliseconds_of
from riverrun.model.connector import Item
from riverrun.model.event import Event
from riverrun.model.quantity import size_text
from riverrun.model.topic import Topic

# What of a value that is too large for any topic is kept with its dead letter, and of each header where those are.
KEPT_BYTES = 65_536
KEPT_HEADER_BYTES = 1024
# A record is a little more than its key, value and headers, and a header a little more than its name and value.
_OVERHEAD = 128
_HEADER_OVERHEAD = 10

_dump = msgspec.json.Encoder().encode
Headers = list[tuple[str, str | bytes | None]]


class Shaped(NamedTuple):
    """A record to send. `time` is Kafka's timestamp in milliseconds; None is now."""

    topic: str
    data: bytes | None
    key: bytes | str | None
    headers: Headers | None
    time: int | None

    @property
    def size(self) -> int:
        """The bytes that count toward the broker's limit."""
        size = len(self.data or b"") + byte_length(self.key) + _OVERHEAD
        for name, value in self.headers or ():
            size += byte_length(name) + byte_length(value) + _HEADER_OVERHEAD
        return size


def byte_length(text: str | bytes | None) -> int:
    """How many bytes a key or header has in a record."""
    if text is None:
        return 0
    return len(text) if isinstance(text, bytes) or text.isascii() else len(text.encode(errors="replace"))


class Shaper:
    """Makes records of one topic. `limit` is how large one may be, `dead_limit` how large a dead letter; `group` is who
    writes its dead letters."""

    def __init__(
        self,
        topic: Topic[Any],
        dead_topic: str,
        *,
        group: str,
        limit: int,
        dead_limit: int = 0,
        registry: RegistrySettings | None = None,
    ) -> None:
        self._topic = topic
        self._dead_topic = dead_topic
        self._group = group
        self._limit = limit
        self._dead_limit = dead_limit or limit
        self._schema = topic.schema
        self._route = Route(topic, registry)
        if self._route.wire is not None:
            # Now: a registry that is away later must not make dead letters of good records.
            self._route.wire.prepare()
        # The list the client library takes, made once: most items have no headers of their own.
        self._fixed: Headers | None = [self._schema.header] if self._schema is not None else None

    def shape(self, item: Any) -> tuple[Shaped, bool]:
        """The record of an item, and whether it is a dead letter."""
        if type(item) is not Item:
            item = Item(item)
        try:
            if item.problem:
                raise RecordUnreadableError(item.problem)
            shaped = self._shaped(item)
            if shaped.size > self._limit:
                raise RecordTooLargeError(
                    f"A record for {self._topic.name} is too large",
                    expected=f"at most {size_text(self._limit)}",
                    found=size_text(shaped.size),
                    hint="Raise max.message.bytes of the topic",
                )
        except RiverrunError as error:
            return self._dead(item, error), True
        return shaped, False

    def _shaped(self, item: Item) -> Shaped:
        data, key = self._content(item)
        headers = self._fixed
        if item.headers:
            headers = [*(headers or ()), *item.headers.items()]
        when = None if item.time is None else milliseconds_of(item.time)
        return Shaped(self._topic.name, data, key, headers, when)

    def _content(self, item: Item) -> tuple[bytes | None, bytes | str | None]:
        value, schema, wire = item.value, self._schema, self._route.wire
        if schema is None or wire is None or value is None:
            data, key, _ = self._route.record(value, item.key, None)
            return data, key
        if isinstance(value, schema.event):
            event, data = value, wire.encode(value)
        elif isinstance(value, Event):
            raise EventInvalidError(
                f"A {type(value).__name__} does not belong in {self._topic.name}", expected=schema.name
            )
        elif item.loose and isinstance(value, Mapping):
            event = _converted(value, schema.event, schema.name)
            data = wire.encode(event)
        else:
            given = _bytes_of(value)
            event, data = schema.decode(given), wire.pack(given)
        return data, schema.key_of(event) if item.key is None else item.key

    def _dead(self, item: Item, error: RiverrunError) -> Shaped:
        try:
            raw = None if item.value is None else _bytes_of(item.value)
        except RiverrunError:
            raw = repr(item.value).encode(errors="replace")
        headers: Headers = [(name, _as_bytes(value)) for name, value in (item.headers or {}).items()]
        key = _as_bytes(item.key) if isinstance(item.key, str | bytes) else None
        letter = self._letter(raw, key, headers, item.place, error)
        if letter.size <= self._dead_limit:
            return letter
        # Never larger than its topic takes: the broker would refuse it, and the source would try for ever.
        size = len(raw or b"")
        letter = self._letter((raw or b"")[:KEPT_BYTES], key, headers, item.place, error, cut=size)
        if letter.size <= self._dead_limit:
            return letter
        headers = [(name[:KEPT_HEADER_BYTES], (value or b"")[:KEPT_HEADER_BYTES]) for name, value in headers[:20]]
        room = max(0, self._dead_limit - self._letter(b"", None, headers, item.place, error, cut=size).size)
        return self._letter((raw or b"")[: min(KEPT_BYTES, room)], None, headers, item.place, error, cut=size)

    def _letter(
        self, raw: bytes | None, key: bytes | None, headers: Any, place: str, error: RiverrunError, *, cut: int = 0
    ) -> Shaped:
        """The dead letter of these bytes. `cut` is how many there were before they were cut."""
        told = [(f"{PREFIX}source", place.encode(errors="replace")[:KEPT_HEADER_BYTES])] if place else []
        if cut:
            told.append((f"{PREFIX}cut", str(cut).encode()))
        copy = Copy(self._topic.name, -1, -1, None, key, raw, headers)
        return Shaped(
            self._dead_topic, raw, key, headers_for(copy, error, 1, self._group, datetime.now(UTC)) + told, None
        )


def _converted(value: Mapping[str, Any], event: type[Any], name: str) -> Any:
    """An event of texts. An empty one stands for nothing, where the field is not text itself."""
    try:
        return msgspec.convert(dict(value), event, strict=False)
    except msgspec.ValidationError:
        present = {each: text for each, text in value.items() if text != ""}
        try:
            return msgspec.convert(present, event, strict=False)
        except msgspec.ValidationError as problem:
            raise RecordUnreadableError(f"A record is not a {name}", found=str(problem)) from problem


def _bytes_of(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    try:
        return value.encode() if isinstance(value, str) else _dump(value)
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise EventInvalidError("This value cannot be carried as JSON", found=str(error)) from error


def _as_bytes(value: str | bytes | None) -> bytes | None:
    return value.encode(errors="replace") if isinstance(value, str) else value
