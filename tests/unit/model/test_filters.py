"""Conditions on a field of a JSON value."""

from typing import Any

import pytest

from riverrun.errors import UsageError
from riverrun.model.filters import is_missing, look_up, parse_filter

RECORD: dict[str, Any] = {
    "house": {"id": "12", "street": "Main = Road"},
    "load_kw": 2.5,
    "count": 3,
    "on": True,
    "note": None,
    "tags": ["a", {"deep": "yes"}],
}


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ("load_kw>2", True),
        ("load_kw>2.5", False),
        ("load_kw >= 2.5", True),
        ("load_kw<10", True),
        ("load_kw<=2", False),
        ("count=3", True),
        ("count=3.0", True),
        ("count=4", False),
        ("count!=4", True),
        ("house.id=12", True),
        ('house.id="12"', True),
        ("house.id=13", False),
        ("house.id>11", True),
        ("house.street=Main = Road", True),
        ("house.street~Road", True),
        ("house.street~road", False),
        ("on=true", True),
        ("on=1", False),
        ("on>0", False),
        ("note=null", True),
        ("note!=null", False),
        ("note>1", False),
        ("tags.0=a", True),
        ("tags.1.deep=yes", True),
        ("tags~deep", True),
        ("nothing=1", False),
        ("nothing!=1", True),
        ("nothing>1", False),
        ("nothing~x", False),
        ("load_kw>abc", False),
        ('tags=["a",{"deep":"yes"}]', True),
    ],
)
def test_a_condition_holds_or_not(condition: str, holds: bool) -> None:
    assert parse_filter(condition).matches(RECORD) is holds


@pytest.mark.parametrize("record", [1, "text", None, [1, 2]])
def test_a_record_that_is_no_object_has_no_fields(record: Any) -> None:
    assert not parse_filter("load_kw>2").matches(record)


@pytest.mark.parametrize("text", ["", "load_kw", "=2", "> 3", "a b=3"])
def test_what_is_no_condition_is_refused(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_filter(text)
    assert caught.value.found == repr(text)
    assert "quotes" in caught.value.hint


def test_a_path_that_leads_nowhere_is_missing() -> None:
    assert is_missing(look_up(RECORD, ("tags", "9")))
    assert not is_missing(look_up(RECORD, ("note",)))
