"""Schemas of event classes, the header on the wire, and what changed in words."""

import json
import uuid
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, Literal

import msgspec
import pytest

from riverrun.errors import DeclarationError
from riverrun.model.avro_schema import avro_schema
from riverrun.model.event import Event, event_time, field, key
from riverrun.model.framing import decode_frame, encode_frame, is_framed
from riverrun.model.json_schema import json_schema
from riverrun.model.schema_change import schema_changes
from riverrun.model.topic import Topic


class Word(Enum):
    PLAIN = "plain"


class Sentence(Enum):
    SPACED = "two words"


class Inner(Event):
    street: str


class Sample(Event):
    id: str = key()
    load: float = field(ge=0, default=1)
    at: datetime = event_time()
    day: date | None = None
    born: datetime = datetime(1970, 1, 2, tzinfo=UTC)
    price: Decimal = Decimal("0.5")
    ref: uuid.UUID = uuid.UUID(int=1)
    raw: bytes = b"\xff"
    word: Word = Word.PLAIN
    said: Sentence = Sentence.SPACED
    state: Literal["on", "off"] | None = "on"
    phase: Literal[1, 3] = 1
    tags: list[str | None] = field(default=[])
    hours: dict[str, float] = field(default={})
    inner: Inner
    others: list[Inner] = field(default=[])


def avro_of(event: type[Any]) -> dict[str, Any]:
    return {each["name"]: each for each in json.loads(avro_schema(event))["fields"]}


def test_avro_types_and_defaults() -> None:
    found = avro_of(Sample)
    assert {name: each["type"] for name, each in found.items()} == {
        "id": "string",
        "load": "double",
        "at": {"type": "long", "logicalType": "timestamp-micros"},
        "day": ["null", {"type": "int", "logicalType": "date"}],
        "born": {"type": "long", "logicalType": "timestamp-micros"},
        "price": {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 18},
        "ref": {"type": "string", "logicalType": "uuid"},
        "raw": "bytes",
        "word": {"type": "enum", "name": "Word", "symbols": ["plain"]},
        "said": "string",
        "state": [{"type": "enum", "name": "Sample_state", "symbols": ["off", "on"]}, "null"],
        "phase": "long",
        "tags": {"type": "array", "items": ["null", "string"]},
        "hours": {"type": "map", "values": "double"},
        "inner": {"type": "record", "name": "Inner", "fields": [{"name": "street", "type": "string"}]},
        "others": {"type": "array", "items": "Inner"},
    }
    defaults = {name: each["default"] for name, each in found.items() if "default" in each}
    assert defaults["born"] == 86_400_000_000
    assert int.from_bytes(defaults["price"].encode("latin-1"), "big") == 5 * 10**17
    assert (defaults["day"], defaults["raw"], defaults["state"], defaults["load"]) == (None, "ÿ", "on", 1.0)
    assert "id" not in defaults


class Timed(Event):
    took: timedelta


class Odd(Event):
    both: int | str


class Renamed(Event, rename={"name": "the name"}):
    name: str


class Bare(msgspec.Struct):
    at: datetime


class Naive(Event):
    inner: Bare


@pytest.mark.parametrize("event", [Timed, Odd, Renamed, Naive])
def test_what_avro_cannot_carry_is_refused_where_it_is_declared(event: type[Event]) -> None:
    with pytest.raises(DeclarationError, match=f"Avro cannot carry {event.__name__}"):
        Topic("t", event, format="avro")
    # Its JSON can be described all the same.
    assert Topic("t", event, format="json-schema").registry_schema


def test_json_schema_is_closed_and_has_the_constraints() -> None:
    found = json.loads(json_schema(Sample))
    assert found["$schema"] == "http://json-schema.org/draft-07/schema#"
    assert found["additionalProperties"] is False
    assert found["definitions"]["Inner"]["additionalProperties"] is False
    assert found["required"] == ["id", "at", "inner"]
    assert found["properties"]["load"] == {"type": "number", "minimum": 0, "default": 1}
    assert found["properties"]["inner"] == {"$ref": "#/definitions/Inner"}


def test_a_topic_has_a_known_format_and_a_type_for_it() -> None:
    assert Topic("t", Inner).registry_schema == ""
    assert not Topic("t").registered
    assert Topic("t", Inner, format="avro").subject == "t-value"
    with pytest.raises(DeclarationError, match="no event type"):
        Topic("t", format="avro")
    with pytest.raises(DeclarationError, match="format='xml'"):
        Topic("t", Inner, format="xml")  # type: ignore[arg-type]


def test_the_header() -> None:
    value = encode_frame(258, b"{}")
    assert value == b"\x00\x00\x00\x01\x02{}"
    assert decode_frame(value) == (258, b"{}")
    for bad in (b"", b'{"a":1}', b"\x00\x00\x00"):
        assert not is_framed(bad)
        with pytest.raises(ValueError, match="no header of a schema registry"):
            decode_frame(bad)
    assert not is_framed(None)


class Before(Event):
    house: str
    load: float
    inner: Inner
    note: str | None = None


def later() -> type[Event]:
    """`Before` as somebody has edited it."""

    class Inner(Event):
        street: int

    class Before(Event):
        load: str
        inner: Inner
        note: str | None
        phase: int
        more: int = 1

    return Before


def test_what_changed_in_words() -> None:
    assert schema_changes("AVRO", avro_schema(Before), avro_schema(Before)) == []
    assert schema_changes("AVRO", avro_schema(Before), avro_schema(later())) == [
        "house was removed",
        "load was double and is string",
        "inner.street was string and is long",
        "note could be left out and is required now",
        "phase is new and has no default: records from before do not have it",
    ]
    assert schema_changes("JSON", json_schema(Before), json_schema(later())) == [
        "house was removed",
        "load was number and is string",
        "inner.street was string and is integer",
        "note could be left out and is required now",
        "phase is new and has no default: records from before do not have it",
    ]
    assert schema_changes("AVRO", avro_schema(Inner), avro_schema(Renamed2)) == [
        "the type was called Inner and is called Renamed2: in Avro its name is part of it"
    ]
    assert schema_changes("AVRO", "not json", "{}") == []


class Renamed2(Event):
    street: str
