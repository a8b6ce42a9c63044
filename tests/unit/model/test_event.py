"""Event classes: what may be declared, what may be sent, and what may be read."""

import uuid
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import msgspec
import pytest

from riverrun.errors import DeclarationError, EventInvalidError, RecordUnreadableError
from riverrun.model.event import Event, event_time, field, key, schema_of

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


class Reading(Event):
    house_id: str = key()
    load_kw: float = field(ge=0)
    at: datetime = event_time(late="2 minutes")


class Wide(Event, version=3):
    number: int = key()
    name: str = field(min_length=1, max_length=5)
    code: str = field(default="ab", pattern="^[a-z]+$")
    share: float | None = field(default=None, ge=0, le=1)
    seen: datetime | None = None
    tags: list[str] = field(default=[], max_length=2)


def reading(**changes: Any) -> Reading:
    return Reading(**{"house_id": "h1", "load_kw": 1.5, "at": NOON, **changes})


def test_the_schema_says_what_was_declared() -> None:
    schema = schema_of(Reading)
    assert (schema.name, schema.version, schema.key_field, schema.time_field) == ("Reading", 1, "house_id", "at")
    assert schema.late_ms == 120_000
    assert schema.header == ("riverrun.schema", b"Reading/1")
    assert schema_of(Wide).header == ("riverrun.schema", b"Wide/3")
    assert schema_of(Reading) is schema, "worked out once"


def test_an_event_goes_to_json_and_back() -> None:
    schema = schema_of(Reading)
    value = schema.encode(reading())
    assert value == b'{"house_id":"h1","load_kw":1.5,"at":"2026-01-01T12:00:00Z"}'
    assert schema.decode(value) == reading()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"load_kw": -0.1}, "$.load_kw: expected `float` >= 0.0"),
        ({"load_kw": "1.5"}, "$.load_kw: expected `float`, got `str`"),
        ({"load_kw": float("nan")}, "$.load_kw: expected `float`, got `null`"),
        ({"load_kw": float("inf")}, "$.load_kw: expected `float`, got `null`"),
        ({"house_id": 7}, "$.house_id: expected `str`, got `int`"),
        ({"house_id": None}, "$.house_id: expected `str`, got `null`"),
        ({"at": NOON.replace(tzinfo=None)}, "$.at: expected `datetime` with a timezone component"),
        ({"at": "2026"}, "$.at: invalid RFC3339 encoded datetime"),
    ],
)
def test_an_event_that_no_consumer_could_read_is_not_encoded(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(EventInvalidError) as caught:
        schema_of(Reading).encode(reading(**changes))
    assert caught.value.fields == {"event": "Reading", "reason": reason}
    assert repr(reading(**changes)) in str(caught.value)


@pytest.mark.parametrize(
    "changes",
    [{"name": ""}, {"name": "abcdef"}, {"code": "A1"}, {"share": 1.1}, {"share": -1.0}, {"tags": ["a", "b", "c"]},
     {"seen": NOON.replace(tzinfo=None)}, {"number": 1.5}, {"number": True}, {"name": "\ud800"}],
)  # fmt: skip
def test_each_constraint_is_held(changes: dict[str, Any]) -> None:
    with pytest.raises(EventInvalidError):
        schema_of(Wide).encode(Wide(**{"number": 1, "name": "abc", **changes}))


def test_optional_fields_may_be_left_out_and_are_checked_when_given() -> None:
    schema = schema_of(Wide)
    for event in (Wide(number=1, name="abc"), Wide(number=1, name="abc", share=0.5, seen=NOON, tags=["x"])):
        assert schema.decode(schema.encode(event)) == event


def test_something_else_is_not_encoded() -> None:
    for other in (None, {"house_id": "h1"}, Wide(number=1, name="a"), Reading):
        with pytest.raises(EventInvalidError, match="Expected an instance of Reading"):
            schema_of(Reading).encode(other)


def test_an_event_of_a_subclass_can_be_read_as_its_base() -> None:
    class Precise(Reading):
        error: float = 0.1

    event = Precise(house_id="h", load_kw=1.0, at=NOON)
    assert schema_of(Reading).decode(schema_of(Reading).encode(event)) == reading(house_id="h", load_kw=1.0)
    assert schema_of(Precise).key_field == "house_id", "marks are inherited"


def test_times_keep_their_zone() -> None:
    india = datetime(2026, 1, 1, 17, 30, tzinfo=timezone(timedelta(hours=5, minutes=30)))
    schema = schema_of(Reading)
    assert b'"2026-01-01T17:30:00+05:30"' in schema.encode(reading(at=india))
    assert schema.decode(schema.encode(reading(at=india))).at == NOON


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"", "input data was truncated"),
        (b"{", "input data was truncated"),
        (b"\xff", "JSON is malformed: invalid character (byte 0)"),
        (b'{"house_id":"h1","load_kw":1.5}', "object missing required field `at`"),
        (b'{"house_id":"h1","load_kw":-1,"at":"2026-01-01T12:00:00Z"}', "$.load_kw: expected `float` >= 0.0"),
    ],
)
def test_bytes_that_are_no_such_event(value: bytes, reason: str) -> None:
    with pytest.raises(RecordUnreadableError) as caught:
        schema_of(Reading).decode(value)
    assert caught.value.fields["event"] == "Reading"
    assert caught.value.fields["reason"].lower() == reason.lower()


def test_fields_from_a_newer_version_are_ignored() -> None:
    newer = b'{"house_id":"h1","load_kw":1.5,"at":"2026-01-01T12:00:00Z","city":"Cork"}'
    assert schema_of(Reading).decode(newer) == reading()


def test_the_key_is_what_java_would_send() -> None:
    class ByText(Event):
        id: str = key()

    class ByNumber(Event):
        id: int = key()

    class ByBytes(Event):
        id: bytes = key()

    class ByUuid(Event):
        id: uuid.UUID = key()

    class ByNothing(Event):
        id: str

    one = uuid.UUID(int=1)
    assert schema_of(ByText).key_of(ByText(id="é")) == "é"
    assert schema_of(ByNumber).key_of(ByNumber(id=-7)) == b"-7"
    assert schema_of(ByBytes).key_of(ByBytes(id=b"\x00")) == b"\x00"
    assert schema_of(ByUuid).key_of(ByUuid(id=one)) == b"00000000-0000-0000-0000-000000000001"
    assert schema_of(ByNothing).key_of(ByNothing(id="x")) is None


def test_events_are_frozen_and_take_their_fields_by_name() -> None:
    with pytest.raises(AttributeError):
        reading().load_kw = 2.0  # type: ignore[misc]
    with pytest.raises(TypeError):
        Reading("h1", 1.0, NOON)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="Missing required argument"):
        Reading(house_id="h1")  # type: ignore[call-arg]


def test_what_cannot_be_declared() -> None:
    with pytest.raises(DeclarationError, match=r"Twice has more than one key\(\)"):

        class Twice(Event):
            a: str = key()
            b: str = key()

    with pytest.raises(DeclarationError, match=r"Untyped\.a has no type"):

        class Untyped(Event):
            a = field(ge=0)

    with pytest.raises(DeclarationError, match="would keep every window open"):
        event_time(late="forever")
    with pytest.raises(DeclarationError, match="cannot be understood"):
        event_time(late="two minutes")


def test_what_cannot_be_sent_is_said_when_it_is_declared_for_a_topic() -> None:
    class Keyed(Event):
        place: tuple[float, float] = key()

    class Odd(Event):
        thing: object = field(ge=0)

    with pytest.raises(DeclarationError, match=r"Keyed\.place cannot be a key"):
        schema_of(Keyed)
    with pytest.raises(DeclarationError, match="Odd cannot be carried as JSON"):
        schema_of(Odd)
    with pytest.raises(DeclarationError, match="is not an event class"):
        schema_of(msgspec.Struct)


def test_annotations_may_be_text() -> None:
    source = (
        "from __future__ import annotations\n"
        "from datetime import datetime\n"
        "from riverrun.model.event import Event, key, event_time\n"
        "class Late(Event):\n"
        "    id: str = key()\n"
        "    at: datetime | None = None\n"
    )
    import sys
    import types

    module = types.ModuleType("late_annotations")
    sys.modules["late_annotations"] = module
    try:
        exec(source, vars(module))  # noqa: S102
    finally:
        del sys.modules["late_annotations"]
    late: Any = vars(module)["Late"]
    assert schema_of(late).key_field == "id"
    with pytest.raises(EventInvalidError):
        schema_of(late).encode(late(id="a", at=NOON.replace(tzinfo=None)))


def test_a_type_that_is_not_known_is_named() -> None:
    with pytest.raises(DeclarationError, match=r"The type of Lost\.a is not known") as caught:

        class Lost(Event):
            a: "Nowhere"  # type: ignore[name-defined]  # noqa: F821

    assert caught.value.found == "Nowhere"
