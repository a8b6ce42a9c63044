"""Answers as a page gets them, and the change from one to the next."""

import random
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

import riverrun as rr
from riverrun.dashboard.tiles.data import RowDiff, diff_rows, tile_data_of
from riverrun.errors import QueryError


def test_values_are_those_of_json_and_exact() -> None:
    table = pa.table({
        "at": pa.array([datetime(2026, 11, 1, 12, 0, 0, 250_000, UTC), None], pa.timestamp("us", "UTC")),
        "big": pa.array([2**63 - 1, 7], pa.int64()),
        "load": pa.array([float("nan"), 1.5]),
        "price": pa.array([Decimal("1.10"), Decimal(4)]),
        "long": pa.array([Decimal("12345678901234567.25"), None]),
        "day": pa.array([date(2026, 11, 1), None]),
        "ok": pa.array([True, None]),
        "name": pa.array(["<b>", None]),
    })  # fmt: skip
    found = tile_data_of(rr.rows("Rows", "loads"), table)
    assert [kind for _, kind in found.columns] == [
        "time",
        "number",
        "number",
        "number",
        "number",
        "date",
        "boolean",
        "text",
    ]
    assert found.rows[0] == (
        1793534400250,
        "9223372036854775807",
        "nan",
        1.1,
        "12345678901234567.25",
        "2026-11-01",
        True,
        "<b>",
    )
    assert found.rows[1] == (None, 7, 1.5, 4, None, None, None, None)


def test_columns_of_sql_are_told_apart_by_their_types() -> None:
    table = pa.table(
        {"street": ["Elm"], "minute": pa.array([datetime(2026, 11, 1, tzinfo=UTC)]), "load": [1.0], "n": [2]}
    )
    sql = "select 1"
    line = tile_data_of(rr.line("Load", sql), table)
    assert (line.x, line.y, line.by) == (1, (2, 3), 0)
    assert tile_data_of(rr.leaderboard("Load", sql), table).y == (2,)
    named = tile_data_of(rr.line("Load", sql, x="minute", y="n"), table)
    assert (named.x, named.y, named.by) == (1, (3,), -1)


@pytest.mark.parametrize(
    ("tile", "columns", "said"),
    [
        (rr.number("Load", "select 1"), {"load": [1, 2]}, "is one number, and its SQL gave 2 rows"),
        (rr.line("Load", "select 1"), {"load": [1, 2]}, "goes along a time, and its SQL gives none"),
        (rr.line("Load", "select 1", x="name"), {"name": ["a"], "n": [1]}, "goes along name, which is text"),
        (rr.bar("Load", "select 1"), {"name": ["a"]}, "its SQL gives no column of numbers"),
        (rr.bar("Load", "select 1", by="nam"), {"name": ["a"], "n": [1]}, "by names nam, which its SQL does not give"),
    ],
)
def test_an_answer_of_another_shape_is_refused(tile: rr.Tile, columns: dict[str, list[Any]], said: str) -> None:
    with pytest.raises(QueryError) as caught:
        tile_data_of(tile, pa.table(columns))
    assert said in str(caught.value)


def test_bars_along_names_are_bars_of_names() -> None:
    table = pa.table({"name": ["a"], "n": [1]})
    bars = tile_data_of(rr.bar("Load", "select 1", x="name"), table)
    assert (bars.x, bars.y, bars.by) == (-1, (1,), 0)


def applied(old: list[tuple[Any, ...]], by: RowDiff) -> list[tuple[Any, ...]]:
    """As the page does it (state.js)."""
    rows = list(old)
    for first, count in reversed(by.removed):
        del rows[first : first + count]
    for at, row in by.inserted:
        rows.insert(at, row)
    return rows


def test_a_window_that_slides_sends_its_ends() -> None:
    old = [(minute, 1.0) for minute in range(60)]
    assert diff_rows(old, old) == RowDiff()
    assert diff_rows(old, [*old[1:], (60, 2.0)]) == RowDiff([(0, 1)], [(59, (60, 2.0))])
    assert diff_rows(old, [*old[:-1], (59, 3.0)]) == RowDiff([(59, 1)], [(59, (59, 3.0))])


def test_what_differs_altogether_is_sent_whole() -> None:
    assert diff_rows([(1,), (2,)], [(3,), (4,)]) is None
    assert diff_rows([], [(1,)]) is None
    assert diff_rows([(1,)], []) == RowDiff([(0, 1)], [])


def test_every_change_gives_the_new_rows() -> None:
    chance = random.Random(7)
    for _ in range(500):
        old = [(chance.randint(0, 9),) for _ in range(chance.randint(0, 25))]
        new = [each for each in old if chance.random() < 0.85]
        if chance.random() < 0.3:
            chance.shuffle(new)
        for _ in range(chance.randint(0, 4)):
            new.insert(chance.randint(0, len(new)), (chance.randint(0, 40),))
        found = diff_rows(old, new)
        if found is not None:
            assert applied(old, found) == new
