"""Records as a consumer returns them: typed when asked, with the raw bytes and their position.

Nothing is decoded until it is asked for, so a handler that only uses keys does not pay for values, and a record that does
not match its topic's type raises where its value is used, with its position.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar, overload

import msgspec
from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Message

from riverrun.config import RegistrySettings
from riverrun.errors import RecordUnreadableError, RiverrunError
from riverrun.kafka.registry.json_view import value_to_json
from riverrun.kafka.registry.wire_format import WireFormat
from riverrun.model.cluster_state import TopicPartition
from riverrun.model.event import SCHEMA_HEADER, EventSchema, reason_of

V = TypeVar("V")
V_co = TypeVar("V_co", covariant=True)

_NOT_DECODED: Any = object()
_load_json: Callable[[bytes], Any] = msgspec.json.Decoder().decode


class RecordDecoder(Generic[V]):
    """Decodes the values of each topic: as its event type, or as any JSON if no type is declared."""

    def __init__(
        self,
        schemas: Mapping[str, EventSchema[Any] | None],
        wires: Mapping[str, WireFormat] | None = None,
        registry: RegistrySettings | None = None,
    ) -> None:
        """`wires` are the formats of topics that are not plain JSON; `registry` decodes values of topics without a type."""
        self._schemas = dict(schemas)
        self._registry = registry or RegistrySettings()
        any_json = self._load_registered if self._registry.url else _load_json
        loads = {topic: schema._load if schema else any_json for topic, schema in schemas.items()}
        loads |= {topic: wire.decode for topic, wire in (wires or {}).items()}
        self._default_load = any_json
        self._loads: dict[str, Callable[[bytes], V]] = loads
        # The one function for all values, if there is only one: this makes a batch fast.
        self.single_decode: Callable[[bytes], V] | None = (
            next(iter(loads.values())) if len(set(loads.values())) == 1 else None
        )

    def decode(self, record: "Record[V]") -> V:
        """The value of a record; RecordUnreadableError, with the position, when its bytes are invalid. An error of a
        registry that is needed for it is raised unchanged: it says nothing about the bytes."""
        topic, raw = record.topic, record.raw
        if raw is None:
            raise RecordUnreadableError(
                f"The record {record} has no value: it says that its key was deleted",
                hint="Look at `record.deleted` first",
                **_position_fields(record),
            )
        try:
            load: Callable[[bytes], V] = self._loads.get(topic, self._default_load)
            return load(raw)
        except Exception as error:
            if not _is_about_value(error):
                raise
            raise self._unreadable(record, error) from error

    def _load_registered(self, raw: bytes) -> Any:
        return _load_json(value_to_json(self._registry, raw))

    def _unreadable(self, record: "Record[V]", error: Exception) -> RecordUnreadableError:
        schema = self._schemas.get(record.topic)
        fields = _position_fields(record)
        if isinstance(error, RecordUnreadableError):
            reason = str(error.fields.get("reason", error.found))
        else:
            reason = reason_of(error)
        if schema is None:
            return RecordUnreadableError(
                f"The record {record} is not JSON",
                found=reason,
                hint="Its bytes are in `record.raw`",
                reason=reason,
                **fields,
            )
        written_schema = record.header(SCHEMA_HEADER)
        own_schema = schema.header[1]
        return RecordUnreadableError(
            f"The record {record} is not a {schema.name}",
            found=reason,
            hint=f"It was written as {written_schema.decode(errors='replace')}, and is read as {own_schema.decode()}"
            if written_schema not in (None, own_schema)
            else "Its bytes are in `record.raw`",
            event=schema.name,
            reason=reason,
            **fields,
        )  # fmt: skip


def _is_about_value(error: Exception) -> bool:
    """Whether an error while decoding is about the value's bytes, and not of the registry or this machine."""
    return isinstance(error, RecordUnreadableError) or not isinstance(error, RiverrunError | ImportError | MemoryError)


def _position_fields(record: "Record[Any]") -> dict[str, Any]:
    return {"topic": record.topic, "partition": record.partition, "offset": record.offset}


class Record(Generic[V_co]):
    """One record. `str(record)` is its position: `readings[3]@41`."""

    __slots__ = ("_decoder", "_message", "_value")

    def __init__(self, message: Message, decoder: RecordDecoder[Any]) -> None:
        self._message = message
        self._decoder = decoder
        self._value: Any = _NOT_DECODED

    @property
    def value(self) -> V_co:
        """The event; for a topic without a type, its JSON value. RecordUnreadableError when the bytes are neither."""
        value = self._value
        if value is _NOT_DECODED:
            value = self._value = self._decoder.decode(self)
        return value  # type: ignore[no-any-return]

    @property
    def raw(self) -> bytes | None:
        """The bytes of the value as they are in the topic. None: a deletion."""
        return self._message.value()

    @property
    def deleted(self) -> bool:
        """Whether this record is a tombstone: in a compacted topic, its key is deleted."""
        return self._message.value() is None

    @property
    def key(self) -> bytes | None:
        return self._message.key()

    @property
    def headers(self) -> list[tuple[str, bytes | None]]:
        """All headers in their order; a name may occur more than once."""
        return self._message.headers() or []  # type: ignore[return-value]

    def header(self, name: str) -> bytes | None:
        """The last header of this name; None when there is none."""
        for header_name, value in reversed(self.headers):
            if header_name == name:
                return value
        return None

    @property
    def topic(self) -> str:
        return self._message.topic()  # type: ignore[return-value]

    @property
    def partition(self) -> int:
        return self._message.partition()  # type: ignore[return-value]

    @property
    def offset(self) -> int:
        return self._message.offset()  # type: ignore[return-value]

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition it is in."""
        return TopicPartition(self.topic, self.partition)

    @property
    def timestamp_ms(self) -> int | None:
        """Kafka's own timestamp, in milliseconds since 1970: when it was sent, unless the topic says otherwise."""
        kind, stamp = self._message.timestamp()
        return None if kind == TIMESTAMP_NOT_AVAILABLE else stamp

    @property
    def timestamp(self) -> datetime | None:
        """Kafka's own timestamp, in UTC."""
        stamp = self.timestamp_ms
        return None if stamp is None else datetime.fromtimestamp(stamp / 1000, UTC)

    @property
    def size(self) -> int:
        """Bytes of key and value."""
        message = self._message
        return len(message.value() or b"") + len(message.key() or b"")

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}]@{self.offset}"

    def __repr__(self) -> str:
        return f"<Record {self}>"


class Batch(Sequence[Record[V_co]]):
    """Records that were fetched together; within a partition they are in order. Never empty."""

    __slots__ = ("_decoder", "_messages")

    def __init__(self, messages: list[Message], decoder: RecordDecoder[Any]) -> None:
        self._messages = messages
        self._decoder = decoder

    def values(self, on_unreadable: Callable[[Record[V_co], RecordUnreadableError], Any] | None = None) -> list[V_co]:
        """All values, the fast way.

        A record that cannot be decoded raises RecordUnreadableError, or is passed to `on_unreadable` and left out.
        """
        load = self._decoder.single_decode
        if load is not None:
            try:
                return [load(message.value()) for message in self._messages]  # type: ignore[arg-type]
            except Exception as error:
                # One of them is invalid or a deletion: decode them one by one to find out which.
                if not _is_about_value(error):
                    raise
        decoded = []
        for record in self:
            try:
                decoded.append(record.value)
            except RecordUnreadableError as error:
                if on_unreadable is None:
                    raise
                on_unreadable(record, error)
        return decoded

    def __len__(self) -> int:
        return len(self._messages)

    def __iter__(self) -> Iterator[Record[V_co]]:
        decoder = self._decoder
        return (Record(message, decoder) for message in self._messages)

    @overload
    def __getitem__(self, index: int) -> Record[V_co]: ...
    @overload
    def __getitem__(self, index: slice) -> "Batch[V_co]": ...
    def __getitem__(self, index: int | slice) -> "Record[V_co] | Batch[V_co]":
        if isinstance(index, slice):
            return Batch(self._messages[index], self._decoder)
        return Record(self._messages[index], self._decoder)

    def __repr__(self) -> str:
        return f"<Batch of {len(self)} records>"
