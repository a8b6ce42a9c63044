"""What may change of a table in Druid, and how an edited spec is noticed."""

import json
from dataclasses import replace

import pytest

from riverrun.model.table import Column, TableGeneration, TableSpec, table_from_dict
from riverrun.store.druid.table_diff import compare_tables, first_difference, retired_columns

AT = Column("at", "timestamp", ("at",))
HOUSE = Column("house", "text", ("house",))
LOAD = Column("load", "double", ("load",))
OLD = TableSpec("loads", "meters.loads", (AT, HOUSE, LOAD), ("house",), True, "at")


def test_nothing_changed_is_no_change() -> None:
    assert compare_tables(OLD, OLD, {}) == compare_tables(None, OLD, {})
    assert not compare_tables(OLD, OLD, {}).sentences


def test_a_new_column_is_a_change() -> None:
    found = compare_tables(OLD, replace(OLD, columns=(*OLD.columns, Column("street", "text", ("street",)))), {})
    assert found.sentences == ["new column street"]
    assert not found.problems


@pytest.mark.parametrize(
    ("new", "problem"),
    [
        (replace(OLD, columns=(AT, HOUSE, Column("load", "text", ("load",)))), "loads.load: its type was double"),
        (replace(OLD, key=("house", "at")), "its key was house and is to be house, at"),
        (replace(OLD, time="seen"), "its time was at and is to be seen"),
        (replace(OLD, topic="other"), "its topic was meters.loads"),
        (replace(OLD, upserts=False), "it replaces the first and is to be it is another row"),
        (replace(OLD, rollup={"load": "sum"}), "its roll-up was none and is to be sum of load"),
    ],
)
def test_what_rows_mean_cannot_change(new: TableSpec, problem: str) -> None:
    assert any(problem in each for each in compare_tables(OLD, new, {}).problems)


def test_a_column_that_comes_back_has_its_old_type() -> None:
    without = replace(OLD, columns=(AT, HOUSE))
    retired = retired_columns(OLD, without, {})
    assert retired == {"load": "double"}
    back = replace(OLD, columns=(AT, HOUSE, Column("load", "bigint", ("load",))))
    assert compare_tables(without, back, retired).problems == ["loads.load: its type was double and is to be bigint"]
    assert not compare_tables(without, OLD, retired).problems
    assert retired_columns(without, OLD, retired) == {}


def test_retention_can_change() -> None:
    found = compare_tables(OLD, replace(OLD, retention_ms=7 * 86_400_000), {})
    assert found.sentences == ["rows are kept for 7 days now"]


def test_defaults_that_druid_adds_are_no_difference() -> None:
    ours = {"a": {"segmentGranularity": "HOUR", "list": [{"x": 1}]}, "empty": []}
    theirs = {"a": {"segmentGranularity": {"type": "period", "period": "PT1H"}, "list": [{"x": 1, "y": None}], "z": 0}}
    assert first_difference(ours, theirs) == ""
    assert first_difference({"timeout": "PT30M", "offset": "P1D"}, {"timeout": "PT1800S", "offset": "PT86400S"}) == ""


@pytest.mark.parametrize(
    ("theirs", "place"),
    [
        ({"a": {"x": 2}, "b": ["p"]}, "a.x"),
        ({"a": {"x": 1}, "b": ["q"]}, "b[0]"),
        ({"a": {"x": 1}, "b": ["p", "q"]}, "b"),
        ({"b": ["p"]}, "a"),
    ],
)
def test_an_edited_value_is_named(theirs: dict[str, object], place: str) -> None:
    assert first_difference({"a": {"x": 1}, "b": ["p"]}, theirs) == place


def test_a_replay_is_told_and_changes_no_rows() -> None:
    made = TableGeneration(2, "out.2", {0: 7})
    new = replace(OLD, generations=(made,))
    change = compare_tables(OLD, new, {})
    assert change.problems == []
    (sentence,) = change.sentences
    assert "out.2" in sentence
    assert "keeps those from before the cutover" in sentence
    # As Druid gives it back it is the same: else its supervisor would be made anew again and again.
    assert table_from_dict(json.loads(json.dumps(new.as_dict()))) == new
