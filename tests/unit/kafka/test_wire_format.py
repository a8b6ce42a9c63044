"""Formats of topics without a registry: a stand-in answers what one would."""

import json
from collections.abc import Iterator

import fastavro
import pytest

from riverrun.config import RegistrySettings
from riverrun.errors import (
    RecordUnreadableError,
    RegistryUnavailableError,
    SchemaIncompatibleError,
    SchemaUnknownError,
)
from riverrun.kafka.registry import client, compatibility, json_view, wire_format
from riverrun.kafka.registry.client import RegisteredSchema, registry_of
from riverrun.kafka.registry.json_view import records_to_json, value_to_json
from riverrun.kafka.registry.wire_format import AvroWireFormat, JsonWireFormat, PlainWireFormat, wire_format_of
from riverrun.model.event import Event, key
from riverrun.model.framing import encode_frame
from riverrun.model.topic import Topic

SETTINGS = RegistrySettings(url="http://127.0.0.1:9")


class Reading(Event):
    house: str = key()
    load: float


READING = Reading(house="h", load=1.5)
AVRO = Topic("t", Reading, format="avro")
JSON = Topic("t", Reading, format="json-schema")


class StandIn:
    """Keeps schemas as a registry does; takes every change but those to be `refused`."""

    url = SETTINGS.url

    def __init__(self) -> None:
        self.kept: list[RegisteredSchema] = []
        self.asked: list[int] = []
        self.refused: list[str] | None = None

    def schema(self, schema_id: int) -> tuple[str, str]:
        self.asked.append(schema_id)
        found = next((each for each in self.kept if each.id == schema_id), None)
        if found is None:
            raise SchemaUnknownError(f"no {schema_id}")
        return found.schema_type, found.text

    def find_schema_id(self, subject: str, kind: str, text: str) -> int:
        for each in self.kept:
            if (each.subject, each.schema_type, each.text) == (subject, kind, text):
                return each.id
        raise SchemaUnknownError("not there")

    def latest(self, subject: str) -> RegisteredSchema | None:
        return next((each for each in reversed(self.kept) if each.subject == subject), None)

    def incompatibilities(self, *_: str) -> list[str] | None:
        return self.refused

    def compatibility_level(self) -> str:
        return "BACKWARD"

    def register(self, subject: str, kind: str, text: str) -> int:
        number = len(self.kept) + 1
        self.kept.append(RegisteredSchema(subject, number, number, kind, text))
        return number


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    stand_in = StandIn()
    for module in (wire_format, compatibility, json_view):
        monkeypatch.setattr(module, "registry_of", lambda _: stand_in)
    yield stand_in
    json_view._payload_decoder.cache_clear()


def test_plain_json_is_as_it_is() -> None:
    plain = wire_format_of(Topic("t", Reading), SETTINGS)
    assert isinstance(plain, PlainWireFormat)
    assert plain.encode(READING) == b'{"house":"h","load":1.5}'
    assert plain.pack(b"x") == plain.unpack(b"x") == b"x"


def test_nothing_is_sent_before_the_schema_is_registered(registry: StandIn) -> None:
    for topic in (AVRO, JSON):
        with pytest.raises(SchemaUnknownError, match="nothing can be sent") as raised:
            wire_format_of(topic, SETTINGS).encode(READING)
        assert "riverrun topics apply" in raised.value.hint


def test_json_behind_a_header(registry: StandIn) -> None:
    compatibility.register_schemas(SETTINGS, [JSON])
    made = wire_format_of(JSON, SETTINGS)
    assert isinstance(made, JsonWireFormat)
    assert made.encode(READING) == encode_frame(1, b'{"house":"h","load":1.5}')
    assert made.pack(b'{"load":2,"house":"h","more":1}') == encode_frame(1, b'{"house":"h","load":2.0}')
    # Any id will do: the type judges.
    assert made.decode(encode_frame(99, b'{"house":"h","load":1.5}')) == READING
    for bad in (b"", b'{"house":"h","load":1}', encode_frame(1, b"{}")):
        with pytest.raises(RecordUnreadableError):
            made.decode(bad)
    assert registry.asked == []


def test_avro_behind_a_header_is_read_by_its_own_schema_which_is_asked_for_once(registry: StandIn) -> None:
    compatibility.register_schemas(SETTINGS, [AVRO])
    made = wire_format_of(AVRO, SETTINGS)
    assert isinstance(made, AvroWireFormat)
    value = made.encode(READING)
    assert value == made.pack(b'{"house":"h","load":1.5}')
    assert value[:5] == b"\x00\x00\x00\x00\x01"
    assert [made.decode(value), made.decode(value)] == [READING, READING]
    assert registry.asked == [1]
    assert fastavro.parse_schema(json.loads(AVRO.registry_schema))


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"{}", "no header"),
        (encode_frame(7, b""), "schema 7 is not known to the registry"),
        (encode_frame(2, b"{}"), "of the kind JSON, not AVRO"),
        (encode_frame(1, b"\x02"), "not Avro of the schema 1"),
    ],
)
def test_what_is_no_avro_has_a_reason(registry: StandIn, value: bytes, reason: str) -> None:
    compatibility.register_schemas(SETTINGS, [AVRO, Topic("u", Reading, format="json-schema")])
    with pytest.raises(RecordUnreadableError) as raised:
        wire_format_of(AVRO, SETTINGS).decode(value)
    assert reason in str(raised.value.fields["reason"])


def test_a_change_is_compared_before_it_is_registered(registry: StandIn) -> None:
    assert [each.state for each in compatibility.check_schemas(SETTINGS, [AVRO, Topic("plain", Reading)])] == ["new"]
    compatibility.register_schemas(SETTINGS, [AVRO])
    assert [each.state for each in compatibility.check_schemas(SETTINGS, [AVRO])] == ["same"]

    class Other(Event):
        house: str = key()
        load: str

    changed = Topic("t", Other, format="avro")
    assert [each.state for each in compatibility.check_schemas(SETTINGS, [changed])] == ["compatible"]
    registry.refused = []
    with pytest.raises(SchemaIncompatibleError) as raised:
        compatibility.check_schemas(SETTINGS, [changed])
    assert "  load was double and is string" in raised.value.lines
    with pytest.raises(SchemaIncompatibleError, match="were avro and would be json-schema"):
        compatibility.check_schemas(SETTINGS, [JSON])


def test_people_see_json(registry: StandIn) -> None:
    compatibility.register_schemas(SETTINGS, [AVRO])
    value = wire_format_of(AVRO, SETTINGS).encode(READING)
    assert value_to_json(SETTINGS, value) == b'{"house":"h","load":1.5}'
    assert value_to_json(RegistrySettings(), value) == value
    for other in (b"", b"{}", encode_frame(9, b"x"), encode_frame(1, b"")):
        assert value_to_json(SETTINGS, other) == other
    assert records_to_json(SETTINGS, []) == []


def test_no_registry_is_said_so() -> None:
    with pytest.raises(RegistryUnavailableError, match="No schema registry is known"):
        registry_of(RegistrySettings())
    with client.Registry(SETTINGS) as real, pytest.raises(RegistryUnavailableError, match="did not answer"):
        real.subjects()
