"""Which event classes and columns streams carry, and as what; no Spark session is needed to say."""

from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
import pytest
from pyspark.sql.types import (
    DayTimeIntervalType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    VariantType,
)

import riverrun as rr
from riverrun.errors import DeclarationError
from riverrun.model.event import EventMeta
from riverrun.streams.compile.record_schema import RecordSchema


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Point(msgspec.Struct):
    x: int
    name: str | None = None


class Everything(rr.Event, rename="camel"):
    house_id: str = rr.key()
    count: int
    load: float
    on: bool
    at: datetime
    day: date
    raw: bytes
    ident: UUID
    price: Decimal
    colour: Colour
    level: Literal[1, 2]
    maybe: int | None
    tags: list[str]
    limits: dict[str, float]
    point: Point
    points: list[Point | None] = rr.field(default=[])


def test_the_columns_of_an_event() -> None:
    shape = RecordSchema.from_event(Everything)
    assert shape.columns.simpleString() == (
        "struct<house_id:string,count:bigint,load:double,on:boolean,at:timestamp,day:date,raw:binary,ident:string,"
        "price:decimal(38,18),colour:string,level:bigint,maybe:bigint,tags:array<string>,limits:map<string,double>,"
        "point:struct<x:bigint,name:string>,points:array<struct<x:bigint,name:string>>>"
    )
    assert [field.name for field in shape.columns.fields if field.nullable] == ["maybe"]


class Tree(msgspec.Struct):
    children: "list[Tree]"


class Flat(msgspec.Struct, array_like=True):
    x: int


class Strict(msgspec.Struct, forbid_unknown_fields=True):
    x: int


Refused = [
    (set[int], "set"),
    (tuple[int, str], "tuple"),
    (timedelta, "timedelta"),
    (Any, "any"),
    (int | str, "int | str"),
    (int | str | None, "int | str | none"),
    (dict[int, str], "dict"),
    (Literal[1, "a"], "a choice of 1, 'a'"),
    (list[set[int]], "set"),
    (Tree, "Tree inside itself"),
    (Flat, "a class with array_like, tag or, inside another, forbid_unknown_fields"),
    (Strict, "a class with array_like, tag or, inside another, forbid_unknown_fields"),
    (Annotated[datetime, msgspec.Meta(tz=False)], "datetime without a zone"),
    (Annotated[str, msgspec.Meta(pattern=r"(?P<a>.)(?P=a)")], "'(?P=', which Java's regular expressions do not have"),
]


@pytest.mark.parametrize(("kind", "found"), Refused, ids=[found for _, found in Refused])
def test_a_type_that_streams_cannot_carry_is_refused_by_name(kind: Any, found: str) -> None:
    event: Any = EventMeta("Odd", (rr.Event,), {"__annotations__": {"odd": kind}, "__module__": __name__})
    with pytest.raises(DeclarationError) as caught:
        RecordSchema.from_event(event)
    assert caught.value.fields["event"] == "Odd"
    assert str(caught.value.fields["field"]).startswith("odd")
    assert caught.value.found == found


def test_names_that_differ_only_in_capitals_are_refused() -> None:
    class Twice(rr.Event):
        load: int
        Load: int

    with pytest.raises(DeclarationError, match="Load and load"):
        RecordSchema.from_event(Twice)


def test_a_default_made_anew_for_each_event_is_refused() -> None:
    class Stamped(rr.Event):
        at: datetime = msgspec.field(default_factory=datetime.now)

    with pytest.raises(DeclarationError) as caught:
        RecordSchema.from_event(Stamped)
    assert caught.value.fields["field"] == "at"


@pytest.mark.parametrize(
    "kind",
    [
        DayTimeIntervalType(),
        VariantType(),
        MapType(IntegerType(), StringType()),
        StructType([StructField("v", VariantType())]),
    ],
    ids=str,
)
def test_a_column_that_a_topic_cannot_carry_is_refused_by_name(kind: Any) -> None:
    columns = StructType([StructField("good", LongType()), StructField("odd", kind)])
    with pytest.raises(DeclarationError) as caught:
        RecordSchema.from_columns(columns)
    assert str(caught.value.fields["column"]).startswith("odd")
