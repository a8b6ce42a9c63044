"""A table's declaration: it survives JSON, and refuses types that no store has."""

import json

import pytest

from riverrun.errors import DeclarationError
from riverrun.model.table import Column, TableSpec, table_from_dict

TABLE = TableSpec(
    "house_load",
    "house_load",
    (Column("minute", "timestamp", ("minute", "start")), Column("load", "decimal(12,3)", ("load",))),
    key=("minute",),
    upserts=True,
    time="minute",
    retention_ms=1000,
    rollup={"load": "sum"},
)


def test_it_survives_json() -> None:
    assert table_from_dict(json.loads(json.dumps(TABLE.as_dict()))) == TABLE


def test_what_a_newer_riverrun_added_is_left_out() -> None:
    assert table_from_dict({**TABLE.as_dict(), "colour": "red"}) == TABLE


def test_the_digits_of_a_decimal() -> None:
    assert TABLE.columns[1].decimal == (12, 3)
    assert TABLE.columns[0].decimal is None


def test_an_unknown_type_is_refused() -> None:
    with pytest.raises(DeclarationError, match="cannot have the type money"):
        Column("price", "money", ("price",))
