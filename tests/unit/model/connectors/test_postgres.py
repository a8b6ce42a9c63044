"""`riverrun.postgres` and `riverrun.jdbc` in a pipeline file: what they become, and what is refused."""

from datetime import UTC, date, datetime
from decimal import Decimal
from uuid import UUID

import pytest

import riverrun
from riverrun.errors import DeclarationError
from riverrun.model.connectors.postgres_types import PgColumn, event_class_for, parse_columns
from riverrun.model.topic import Topic


def test_a_table_with_columns_has_a_compacted_topic_of_its_own() -> None:
    app = riverrun.App("meters")
    columns = "house_id text, limit_kw numeric(8,3), tags text[], since date"
    table = app.table("houses", riverrun.postgres("houses", columns=columns, partitions=3), key="house_id")
    assert isinstance(table.source, Topic)
    assert (table.source.name, table.source.partitions, table.key) == ("meters.houses", 3, ("house_id",))
    assert table.source.full_config()["cleanup.policy"] == "compact"
    assert app.topics["meters.houses"] is table.source
    fed = app.sources["houses"]
    assert (fed.topic, fed.source.table) == ("meters.houses", "public.houses")  # type: ignore[attr-defined]
    assert table.source.schema is not None
    row = table.source.schema.decode(
        b'{"house_id": "h1", "limit_kw": "2.500", "tags": ["a", null], "since": "2026-01-31"}'
    )
    assert (row.limit_kw, row.tags, row.since) == (Decimal("2.500"), ["a", None], date(2026, 1, 31))


def test_a_column_that_is_added_or_dropped_makes_no_record_a_bad_one() -> None:
    event = event_class_for("houses", parse_columns("id int, street text", "houses"), ("id",))
    schema = riverrun.Topic("t", event).schema
    assert schema is not None
    assert schema.decode(b'{"id": 1, "new": true}').street is None  # type: ignore[attr-defined]


def test_a_table_without_columns_waits_for_its_database() -> None:
    app = riverrun.App("meters")
    table = app.table("houses", riverrun.postgres("public.houses"))
    assert table.source == riverrun.postgres("public.houses")
    assert "meters.houses" not in app.topics


def test_a_key_of_several_columns_is_compacted_too() -> None:
    app = riverrun.App("meters")
    app.table("prices", riverrun.postgres("prices", columns="day date, area text, price numeric"), key=("day", "area"))
    topic = app.topics["meters.prices"]
    assert topic.full_config()["cleanup.policy"] == "compact"
    assert topic.schema is not None
    assert topic.schema.key_field is None


@pytest.mark.parametrize(
    ("kind", "json", "value"),
    [
        ("smallint", b"3", 3),
        ("bigint", b"9007199254740993", 9007199254740993),
        ("double precision", b"1.5", 1.5),
        ("numeric(12,3)", b'"1234.500"', Decimal("1234.500")),
        ("money", b'"12.50"', Decimal("12.50")),
        ("boolean", b"true", True),
        ("character varying(20)", b'"x"', "x"),
        ("uuid", b'"6f9619ff-8b86-d011-b42d-00cf4fc964ff"', UUID("6f9619ff-8b86-d011-b42d-00cf4fc964ff")),
        ("date", b'"2026-01-31"', date(2026, 1, 31)),
        ("time without time zone", b'"12:30:05.5Z"', "12:30:05.5Z"),
        ("timestamp with time zone", b'"2026-01-31T10:30:05.123456Z"', datetime(2026, 1, 31, 10, 30, 5, 123456, UTC)),
        ("timestamp(3) without time zone", b'"2026-01-31T10:30:05.5Z"', datetime(2026, 1, 31, 10, 30, 5, 500000, UTC)),
        ("jsonb", b'"{\\"a\\": 1}"', '{"a": 1}'),
        ("bytea", b'"AP8Q"', b"\x00\xff\x10"),
        ("numeric(5,2)[]", b'["1.10", null]', [Decimal("1.10"), None]),
        ("timestamptz[]", b'["2026-01-31T10:30:05Z"]', [datetime(2026, 1, 31, 10, 30, 5, tzinfo=UTC)]),
        ("date[]", b'["2026-01-31Z"]', ["2026-01-31Z"]),
    ],
)
def test_a_type_reads_what_debezium_writes(kind: str, json: bytes, value: object) -> None:
    event = event_class_for("t", [PgColumn("id", "text"), PgColumn("v", kind)], ("id",))
    schema = riverrun.Topic("t", event).schema
    assert schema is not None
    assert schema.decode(b'{"id": "1", "v": ' + json + b"}").v == value  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", ["point", "tsvector", "geometry(Point,4326)", "interval[]", "bit(3)"])
def test_a_type_that_does_not_come_through_has_no_field(kind: str) -> None:
    assert PgColumn("v", kind).annotation is None


@pytest.mark.parametrize(
    ("declared", "said"),
    [
        (lambda: riverrun.postgres("a.b.c"), "names no table"),
        (lambda: riverrun.postgres('public."x y"'), "names no table"),
        (lambda: riverrun.postgres("t", partitions=0), "at least 1 partition"),
        (lambda: riverrun.jdbc("a b"), "names no table"),
        (lambda: riverrun.App("a").table("t", riverrun.postgres("t", columns="id int")), "has no key"),
        (lambda: riverrun.App("a").table("t", riverrun.postgres("t", columns="id int"), key="x"), "names the key x"),
        (lambda: riverrun.App("a").table("t", riverrun.postgres("t", columns="id intt"), key="id"), "the type intt"),
        (lambda: riverrun.App("a").table("t", riverrun.postgres("t", columns="id"), key="id"), "cannot be understood"),
        (lambda: riverrun.App("a").table("t", riverrun.postgres("t", columns="id int, id int"), key="id"), "id twice"),
    ],
)
def test_what_is_declared_wrongly_is_said(declared: object, said: str) -> None:
    with pytest.raises(DeclarationError, match=said):
        declared()  # type: ignore[operator]
