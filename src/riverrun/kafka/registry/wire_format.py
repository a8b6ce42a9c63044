"""The wire formats of topics: the one module where an event becomes bytes and bytes become an event.

Everything else in riverrun handles a value as the JSON of its event. A `WireFormat` converts between that and the topic: it
writes the JSON itself, or the JSON behind a registry's header, or Avro behind one. So what is in a topic with a registry was
checked by the same type as everything else, and can be read by any client that knows Confluent's format.
"""

import io
import json
from collections.abc import Callable, Iterable
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Protocol
from uuid import UUID

import msgspec

from riverrun.config import RegistrySettings
from riverrun.errors import EventInvalidError, RecordUnreadableError, SchemaUnknownError
from riverrun.kafka.registry.client import SCHEMA_TYPES, Registry, registry_of
from riverrun.model.event import EventSchema
from riverrun.model.framing import decode_frame, frame_header
from riverrun.model.topic import Topic

_AVRO_NATIVE_TYPES = (datetime, date, Decimal, UUID, bytes)
_dump = msgspec.json.Encoder().encode


class WireFormat(Protocol):
    """The format of one topic. `encode` and `decode` are for events, `pack` and `unpack` for their JSON."""

    def prepare(self) -> None:
        """Ask the registry for what writing needs, so that `encode` and `pack` do not wait."""

    def encode(self, event: Any) -> bytes:
        """The bytes to send; EventInvalidError."""

    def pack(self, data: bytes) -> bytes:
        """The bytes to send, from an event's JSON; RecordUnreadableError when it does not match the type."""

    def decode(self, raw: bytes) -> Any:
        """The event in a record; RecordUnreadableError."""

    def unpack(self, raw: bytes) -> bytes:
        """The JSON of the event in a record; RecordUnreadableError."""


class PlainWireFormat:
    """Plain JSON."""

    def __init__(self, schema: EventSchema[Any]) -> None:
        self.encode = schema.encode
        self.decode = schema.decode

    def prepare(self) -> None:
        """Nothing to prepare."""

    def pack(self, data: bytes) -> bytes:
        return data

    def unpack(self, raw: bytes) -> bytes:
        return raw


class _RegistryWireFormat:
    """What the formats with a registry have in common."""

    def __init__(self, topic: Topic[Any], settings: RegistrySettings) -> None:
        assert topic.schema is not None  # noqa: S101  -- Topic ensures it
        self._topic = topic
        self._schema: EventSchema[Any] = topic.schema
        self._settings = settings
        self._header = b""
        self.text = topic.registry_schema

    @property
    def registry(self) -> Registry:
        return registry_of(self._settings)

    def prepare(self) -> None:
        if self._header:
            return
        topic = self._topic
        try:
            schema_id = self.registry.find_schema_id(topic.subject, SCHEMA_TYPES[topic.format], self.text)
        except SchemaUnknownError as error:
            raise SchemaUnknownError(
                f"The schema of {topic.name} is not registered as this type has it: nothing can be sent",
                expected=f"{self._schema.name} as a version of {topic.subject}",
                hint="`riverrun topics apply` or app.apply() registers it, after the registry has compared it",
                topic=topic.name,
                subject=topic.subject,
            ) from error
        self._header = frame_header(schema_id)

    @property
    def header(self) -> bytes:
        if not self._header:
            self.prepare()
        return self._header

    def decode(self, raw: bytes) -> Any:
        return self._schema.decode(self.unpack(raw))

    def unpack(self, raw: bytes) -> bytes:
        raise NotImplementedError


class JsonWireFormat(_RegistryWireFormat):
    """JSON behind a registry's header. The type validates it, so reading makes no request to the registry."""

    def encode(self, event: Any) -> bytes:
        return self.header + self._schema.encode(event)

    def pack(self, data: bytes) -> bytes:
        # Encoded again: the schema is closed, and others' JSON may have fields that the type does not know.
        return self.header + _dump(self._schema.decode(data))

    def unpack(self, raw: bytes) -> bytes:
        try:
            return decode_frame(raw)[1]
        except ValueError as error:
            raise _unreadable(self._schema.name, str(error)) from error


class AvroDecoder:
    """Decodes Avro behind a registry's header. `name` is the expected type of its records, for messages. Needs no event
    class, so that Spark's workers need none."""

    def __init__(self, settings: RegistrySettings, name: str) -> None:
        self._settings = settings
        self._name = name
        # The decoder of each writer's schema, by its id.
        self._decoders: dict[int, Callable[[bytes], Any]] = {}

    def unpack(self, raw: bytes) -> bytes:
        """The JSON of a record's value; RecordUnreadableError."""
        try:
            schema_id, payload = decode_frame(raw)
        except ValueError as error:
            raise _unreadable(self._name, str(error)) from error
        decoder = self._decoders.get(schema_id)
        if decoder is None:
            decoder = self._decoders[schema_id] = self._create_decoder(schema_id)
        try:
            return _dump(decoder(payload))
        except Exception as error:  # it decodes anybody's bytes, and fails in many ways
            reason = f"its bytes are not Avro of the schema {schema_id}: {type(error).__name__} {error}".rstrip()
            raise _unreadable(self._name, reason) from error

    def _create_decoder(self, schema_id: int) -> Callable[[bytes], Any]:
        try:
            schema_type, text = registry_of(self._settings).schema(schema_id)
        except SchemaUnknownError as error:
            reason = f"its schema {schema_id} is not known to the registry at {self._settings.url}"
            raise _unreadable(self._name, reason) from error
        if schema_type != SCHEMA_TYPES["avro"]:
            raise _unreadable(self._name, f"its schema {schema_id} is of the kind {schema_type}, not AVRO")
        return avro_decoder(text)


class AvroWireFormat(_RegistryWireFormat):
    """Avro behind a registry's header, decoded by the schema in the header. Then the type validates it: a field that the
    record lacks gets the type's own default, as in JSON."""

    def __init__(self, topic: Topic[Any], settings: RegistrySettings) -> None:
        super().__init__(topic, settings)
        self._parsed: Any = None
        self._decoder = AvroDecoder(settings, self._schema.name)

    def encode(self, event: Any) -> bytes:
        self._schema.encode(event)
        return self._encode_avro(event)

    def pack(self, data: bytes) -> bytes:
        return self._encode_avro(self._schema.decode(data))

    def _encode_avro(self, event: Any) -> bytes:
        import fastavro

        out = io.BytesIO()
        out.write(self.header)
        try:
            fastavro.schemaless_writer(
                out, self._avro_schema, msgspec.to_builtins(event, builtin_types=_AVRO_NATIVE_TYPES)
            )
        except (ValueError, TypeError, OverflowError, ArithmeticError) as error:
            raise EventInvalidError(
                f"This {self._schema.name} cannot be sent as Avro",
                found=str(error) or type(error).__name__,
                hint=f"The event was {event!r}"[:400],
                event=self._schema.name,
                reason=str(error),
            ) from error
        return out.getvalue()

    @property
    def _avro_schema(self) -> Any:
        if self._parsed is None:
            import fastavro

            self._parsed = fastavro.parse_schema(json.loads(self.text))
        return self._parsed

    def unpack(self, raw: bytes) -> bytes:
        return self._decoder.unpack(raw)


def _unreadable(name: str, reason: str) -> RecordUnreadableError:
    return RecordUnreadableError(f"A record is not a {name}", found=reason, event=name, reason=reason)


def avro_decoder(writer: str) -> Callable[[bytes], Any]:
    """A decoder for what was written with a schema."""
    import fastavro

    writer_schema = fastavro.parse_schema(json.loads(writer))
    return lambda payload: fastavro.schemaless_reader(io.BytesIO(payload), writer_schema, None)


def wire_format_of(topic: Topic[Any], settings: RegistrySettings) -> WireFormat:
    """The format of a topic with an event class. Makes no request before it is needed."""
    assert topic.schema is not None  # noqa: S101  -- a topic without a type has no format
    if topic.format == "avro":
        return AvroWireFormat(topic, settings)
    return JsonWireFormat(topic, settings) if topic.format == "json-schema" else PlainWireFormat(topic.schema)


def wire_formats_of(topics: Any, settings: RegistrySettings) -> dict[str, WireFormat]:
    """The formats of those of these topics that are not plain JSON, by name. Names and patterns have none."""
    given_topics = topics if isinstance(topics, Iterable) and not isinstance(topics, str) else [topics]
    return {
        given_topic.name: wire_format_of(given_topic, settings)
        for given_topic in given_topics
        if isinstance(given_topic, Topic) and given_topic.registered
    }
