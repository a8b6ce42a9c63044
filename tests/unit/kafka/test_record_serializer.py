"""How a value becomes a record."""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from riverrun.errors import DeclarationError, EventInvalidError, UsageError
from riverrun.kafka.producer.record_serializer import Headers, RecordSerializer, milliseconds_of
from riverrun.model.event import Event, key
from riverrun.model.topic import Topic


class Order(Event, version=2):
    id: str = key()
    amount: float


ORDER = Order(id="o1", amount=2.0)
HEADER = ("riverrun.schema", b"Order/2")


def test_an_event_brings_its_key_and_its_schema() -> None:
    route = RecordSerializer(Topic("orders", Order))
    assert route.name == "orders"
    assert route.serialize(ORDER, None, None) == (b'{"id":"o1","amount":2.0}', "o1", [HEADER])


def test_a_topic_without_a_type_takes_events_too() -> None:
    topics: list[str | Topic[Any]] = ["orders", Topic("orders")]
    for topic in topics:
        assert RecordSerializer(topic).serialize(ORDER, None, None) == (b'{"id":"o1","amount":2.0}', "o1", [HEADER])


@pytest.mark.parametrize(
    ("value", "data"),
    [
        (b"\x00\xff", b"\x00\xff"), (bytearray(b"ab"), b"ab"), (memoryview(b"ab"), b"ab"), ("é", "é".encode()),
        ({"a": [1, None]}, b'{"a":[1,null]}'), (5, b"5"), (True, b"true"), ([], b"[]"),
        (datetime(2026, 1, 1, tzinfo=UTC), b'"2026-01-01T00:00:00Z"'),
    ],
)  # fmt: skip
def test_a_topic_without_a_type_takes_anything_json_can_carry(value: Any, data: bytes) -> None:
    assert RecordSerializer("t").serialize(value, None, None) == (data, None, None)


@pytest.mark.parametrize("value", [object(), {1j: 2}, "\ud800", {"a": {"b": object()}}])
def test_what_json_cannot_carry(value: Any) -> None:
    with pytest.raises(EventInvalidError, match="cannot be sent to t") as caught:
        RecordSerializer("t").serialize(value, None, None)
    assert caught.value.fields["topic"] == "t"


def test_a_typed_topic_takes_its_type_only() -> None:
    for value in ({"id": "o1", "amount": 2.0}, b"{}", "x", 5):
        with pytest.raises(EventInvalidError, match="Expected an instance of Order"):
            RecordSerializer(Topic("orders", Order)).serialize(value, None, None)


def test_none_removes_a_key_from_a_compacted_topic_only() -> None:
    assert RecordSerializer(Topic("orders", Order, compact=True)).serialize(None, "o1", None) == (None, b"o1", None)
    assert RecordSerializer("orders").serialize(None, b"o1", None) == (None, b"o1", None)
    for topic, name in ((Topic("orders", Order), "o1"), (Topic("orders", Order, compact=True), None), ("orders", None)):
        with pytest.raises(EventInvalidError, match="None cannot be sent to orders"):
            RecordSerializer(topic).serialize(None, name, None)


def test_the_key_can_be_another() -> None:
    assert RecordSerializer(Topic("orders", Order)).serialize(ORDER, b"mine", None)[1] == b"mine"


@pytest.mark.parametrize("name", [5, "\ud800", True, ("a",)])
def test_what_is_no_key(name: Any) -> None:
    for topic, value in ((Topic("orders", Order), ORDER), ("t", b"x"), ("t", None)):
        with pytest.raises(UsageError, match="record's key"):
            RecordSerializer(topic).serialize(value, name, None)


@pytest.mark.parametrize("headers", [{"a": "x", "b": b"y", "c": None}, [("a", "x"), ("b", b"y"), ("c", None)]])
def test_headers_follow_the_schemas(headers: Headers) -> None:
    given = [("a", b"x"), ("b", b"y"), ("c", None)]
    assert RecordSerializer(Topic("orders", Order)).serialize(ORDER, None, headers)[2] == [HEADER, *given]
    assert RecordSerializer("t").serialize(b"", None, headers)[2] == given


def test_a_header_may_come_twice() -> None:
    assert RecordSerializer("t").serialize(b"", None, [("a", "x"), ("a", "y")])[2] == [("a", b"x"), ("a", b"y")]


@pytest.mark.parametrize("headers", [{"a": 1}, {1: "a"}, [("a",)], ["ab"], [("a", "b", "c")], {"a": "\ud800"}])
def test_what_is_no_header(headers: Any) -> None:
    with pytest.raises(UsageError, match="header"):
        RecordSerializer("t").serialize(b"", None, headers)


def test_the_schemas_header_is_the_events_own() -> None:
    with pytest.raises(UsageError, match="is set by the event's class"):
        RecordSerializer(Topic("orders", Order)).serialize(ORDER, None, {"riverrun.schema": "Other/1"})
    assert RecordSerializer("t").serialize(b"", None, {"riverrun.schema": "Other/1"})[2] == [
        ("riverrun.schema", b"Other/1")
    ]


def test_a_route_needs_a_topic() -> None:
    with pytest.raises(UsageError, match="A record needs a topic"):
        RecordSerializer(5)  # type: ignore[arg-type]
    with pytest.raises(DeclarationError, match="cannot be the name of a topic"):
        RecordSerializer("a b")


def test_timestamps() -> None:
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    assert milliseconds_of(None) == 0
    assert milliseconds_of(1_500) == 1_500
    assert milliseconds_of(moment) == 1_767_225_600_000
    assert milliseconds_of(moment.astimezone(timezone(timedelta(hours=5)))) == 1_767_225_600_000
    assert milliseconds_of(moment + timedelta(microseconds=1_500)) == 1_767_225_600_002
    for wrong in (moment.replace(tzinfo=None), -5, 0, datetime(1960, 1, 1, tzinfo=UTC)):
        with pytest.raises(UsageError):
            milliseconds_of(wrong)
