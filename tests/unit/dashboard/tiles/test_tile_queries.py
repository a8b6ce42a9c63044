"""Tiles as questions: each kind, filters, ranges, «as of», and `latest`; the answers are a real DuckDB's."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import riverrun as rr
from riverrun.dashboard.tiles.data import tile_data_of
from riverrun.dashboard.tiles.queries import Filters, QueryTime, filter_applies, has_history, tile_query
from riverrun.errors import QueryError
from riverrun.model.table import TableSpec
from riverrun.store.sql import prepare
from support.memory_store import MemoryStore, columns

NOON = datetime(2026, 11, 1, 12, tzinfo=UTC)
LOADS = TableSpec(
    "loads",
    "loads",
    columns(minute="timestamp", house="text", street="text", load="double", n="bigint"),
    ("minute", "house"),
    upserts=True,
    time="minute",
)
EVENTS = TableSpec("events", "events", columns(at="timestamp", house="text", load="double", ok="boolean"), time="at")
NEWEST = TableSpec(
    "newest", "newest", columns(at="timestamp", house="text", load="double"), ("house",), upserts=True, time="at"
)
TABLES = {each.name: each for each in (LOADS, EVENTS, NEWEST)}
NOW = QueryTime()


def at(minute: float) -> datetime:
    return NOON + timedelta(minutes=minute)


@pytest.fixture(scope="module")
def store() -> MemoryStore:
    made = MemoryStore(LOADS, EVENTS, NEWEST)
    houses = [("h1", "Elm"), ("h2", "Elm"), ("h3", "O'Hara"), ("h4", None)]
    made.put("loads", [
        {"minute": at(minute), "house": house, "street": street, "load": float(minute + place), "n": 1}
        for minute in range(5) for place, (house, street) in enumerate(houses)
    ])  # fmt: skip
    made.put("events", [
        {"at": at(second / 60), "house": f"h{second % 3}", "load": float(second), "ok": second % 2 == 0}
        for second in range(180)
    ])  # fmt: skip
    made.put("newest", [{"at": at(place), "house": f"h{place}", "load": 1.0} for place in range(3)])
    return made


def rows(
    store: MemoryStore, tile: rr.Tile, filters: Filters | None = None, moment: QueryTime = NOW
) -> list[tuple[Any, ...]]:
    asked = tile_query(tile, TABLES, filters or {}, moment)
    return list(tile_data_of(tile, store.query(asked.sql).rows).rows)


def ms(minute: float) -> int:
    return round(at(minute).timestamp() * 1000)


def test_a_number_of_windows_is_of_the_newest_one(store: MemoryStore) -> None:
    assert rows(store, rr.number("Load", "loads", y="load")) == [(4 + 5 + 6 + 7,)]
    assert rows(store, rr.number("Load", "loads", y="load", aggregate="max")) == [(7,)]
    assert rows(store, rr.number("Load", "loads", aggregate="count")) == [(4,)]


def test_the_window_that_still_fills_can_be_left_out(store: MemoryStore) -> None:
    assert rows(store, rr.number("Load", "loads", y="load", closed=True)) == [(3 + 4 + 5 + 6,)]
    assert rows(store, rr.number("Load", "loads", y="load", closed=True), {"street": "Elm"}) == [(3 + 4,)]


def test_a_number_of_events_is_of_all_and_of_keys_of_each(store: MemoryStore) -> None:
    assert rows(store, rr.number("Events", "events", aggregate="count")) == [(180,)]
    assert rows(
        store, rr.number("Events", "events", aggregate="count", range="1 min"), moment=QueryTime(newest=at(179 / 60))
    ) == [(60,)]
    assert rows(store, rr.number("Load", "newest")) == [(3.0,)]


def test_the_users_own_latest(store: MemoryStore) -> None:
    tile = rr.number("Load", "select sum(load) as load from loads where minute = latest")
    assert rows(store, tile) == [(22,)]
    assert rows(store, tile, moment=QueryTime(at=at(2.5))) == [(2 + 3 + 4 + 5,)]
    assert rows(store, tile, {"street": "Elm"}) == [(4 + 5,)]
    assert rows(store, tile, {"street": None}) == [(7,)]


@pytest.mark.parametrize(
    "sql",
    [
        "select sum(l.load) as load from loads as l where l.minute = latest",
        "select sum(load) as load from loads where latest = minute",
        "with l as (select * from loads) select sum(load) as load from l where minute = latest",
        "select sum(load) as load from (select * from loads where minute = latest) as l",
        "with loads as (select * from loads) select sum(load) as load from loads where minute = latest",
        "select sum(l.load) as load from loads l join (select distinct house from events) e on true"
        " where l.minute = latest and e.house = 'h0'",
        "select sum(load) as load from loads where minute in (select max(minute) from loads)",
    ],
)
def test_latest_and_the_past_wherever_a_table_is_read(store: MemoryStore, sql: str) -> None:
    tile = rr.number("Load", sql)
    assert rows(store, tile) == [(22,)]
    assert rows(store, tile, moment=QueryTime(at=at(1))) == [(1 + 2 + 3 + 4,)]


def test_the_right_side_of_an_outer_join_is_narrowed_before_it_is_joined(store: MemoryStore) -> None:
    sql = "select count(*) as n, count(e.load) as found from loads l left join events e on e.at = l.minute"
    assert rows(store, rr.rows("Rows", sql)) == [(20, 12)]
    assert rows(store, rr.rows("Rows", sql), moment=QueryTime(at=at(1))) == [(8, 8)]
    turned = "select count(*) as n, count(e.load) as found from events e right join loads l on e.at = l.minute"
    assert rows(store, rr.rows("Rows", turned), moment=QueryTime(at=at(1))) == [(8, 8)]


def test_lines_along_time_and_by_group(store: MemoryStore) -> None:
    tile = rr.line("Load", "loads", y="load", by="street")
    found = rows(store, tile)
    assert [row[:2] for row in found[:2]] == [(ms(0), "Elm"), (ms(0), "O'Hara")]
    assert found[0] == (ms(0), "Elm", 1.0)
    assert len(found) == 10
    # A tile by streets keeps them all when one is chosen; one by houses does not.
    assert len(rows(store, tile, {"street": "Elm"})) == 10
    assert len(rows(store, rr.line("Load", "loads", y="load", by="house"), {"street": "Elm"})) == 10


def test_only_the_largest_groups_have_a_line(store: MemoryStore) -> None:
    found = rows(store, rr.line("Load", "loads", y="load", by="house", limit=2))
    assert {row[1] for row in found} == {"h3", "h4"}


def test_a_range_counts_back_from_the_newest_row(store: MemoryStore) -> None:
    found = rows(store, rr.line("Load", "loads", y=["load", "n"], range="2 min"), moment=QueryTime(newest=at(4)))
    assert [row[0] for row in found] == [ms(3), ms(4)]
    assert found[1] == (ms(4), 22.0, 4)
    found = rows(store, rr.line("Load", "loads", y="load", range="2 min"), moment=QueryTime(at=at(2), newest=at(4)))
    assert [row[0] for row in found] == [ms(1), ms(2)]


def test_times_can_be_rounded(store: MemoryStore) -> None:
    found = rows(store, rr.bar("Events", "events", x="at", aggregate="count", step="minute"))
    assert found == [(ms(0), 60), (ms(1), 60), (ms(2), 60)]


def test_bars_and_leaderboards_are_ranked(store: MemoryStore) -> None:
    assert rows(store, rr.leaderboard("Houses", "loads", y="load", limit=2)) == [("h4", 7.0), ("h3", 6.0)]
    assert rows(store, rr.bar("Streets", "loads", by="street", y="load"))[0] == ("Elm", 9.0)
    low_is_bad = rr.status("Houses", "loads", y="load", thresholds={"warn": 6, "bad": 5})
    assert [row[0] for row in rows(store, low_is_bad)] == ["h1", "h2", "h3", "h4"]


def test_a_leaderboard_of_sql_ranks_by_its_figure_unless_the_sql_has_an_order(store: MemoryStore) -> None:
    unordered = "select house, load from loads where minute = latest and house in ('h1', 'h4', 'h2')"
    assert rows(store, rr.leaderboard("Houses", unordered)) == [("h4", 7.0), ("h2", 5.0), ("h1", 4.0)]
    inner = f"select house, -load as low, load from ({unordered} order by load desc) as t"  # noqa: S608
    assert [row[0] for row in rows(store, rr.leaderboard("Houses", inner, y="low"))] == ["h1", "h2", "h4"]
    own = f"{unordered} order by load"
    assert [row[0] for row in rows(store, rr.leaderboard("Houses", own))] == ["h1", "h2", "h4"]
    equal = "select house, n, case when house <> 'h3' then n end as some from loads where minute = latest"
    assert [row[0] for row in rows(store, rr.leaderboard("Houses", equal, y="n"))] == ["h1", "h2", "h3", "h4"]
    # What has no figure is last.
    assert [row[0] for row in rows(store, rr.leaderboard("Houses", equal, y="some"))] == ["h1", "h2", "h4", "h3"]


def test_the_groups_that_a_chart_could_draw_are_counted_as_it_is_narrowed(store: MemoryStore) -> None:
    def count(tile: rr.Tile, filters: Filters) -> int:
        asked = tile_query(tile, TABLES, filters, QueryTime(newest=at(4)))
        return int(store.query(asked.group_count_sql).rows.column(0)[0].as_py())

    line = rr.line("Houses", "loads", by="house", y="load", limit=2)
    assert count(line, {}) == 4
    assert count(line, {"street": "Elm"}) == 2
    # The other store can be asked for it too.
    assert (
        "COUNT(*)" in prepare(tile_query(line, TABLES, {"street": "Elm"}).group_count_sql, TABLES, "druid").sql.upper()
    )
    for uncounted in (rr.line("All", "loads", y="load"), rr.line("Own", "select minute, load from loads")):
        assert tile_query(uncounted, TABLES, {}).group_count_sql == ""


def test_rows_are_newest_first(store: MemoryStore) -> None:
    found = rows(store, rr.rows("Rows", "loads", columns=["minute", "house"], limit=3))
    assert [row[0] for row in found] == [ms(4)] * 3


def test_rows_and_ranks_show_the_chosen_one_alone(store: MemoryStore) -> None:
    """It may be beyond their limit, where it could not even be marked."""
    chosen = {"house": "h1"}
    assert {row[1] for row in rows(store, rr.rows("Rows", "loads", by="house", limit=3), chosen)} == {"h1"}
    assert rows(store, rr.leaderboard("Houses", "loads", y="load", by="house", limit=2), chosen) == [("h1", 4.0)]
    sql = "select house, max(load) as load from loads group by 1 order by 2 desc limit 2"
    assert rows(store, rr.leaderboard("Houses", sql, by="house"), chosen) == [("h1", 4.0)]
    assert len(rows(store, rr.bar("Houses", "loads", y="load", by="house"), chosen)) == 4
    assert filter_applies(rr.rows("Rows", "loads", by="house"), LOADS, "house")
    assert not filter_applies(rr.line("Load", "loads", by="house"), LOADS, "house")


@pytest.mark.parametrize(
    ("filters", "count"),
    [({"house": "h1"}, 5), ({"street": "O'Hara"}, 5), ({"street": "' or 1=1 --"}, 0), ({"n": "1"}, 20), ({"load": "4.0"}, 4),
     ({"minute": str(ms(1))}, 4), ({"minute": "2026-11-01T12:01:00Z"}, 4), ({"other": "x"}, 20)],
)  # fmt: skip
def test_filters_are_values_of_their_columns(store: MemoryStore, filters: Filters, count: int) -> None:
    assert rows(store, rr.rows("Rows", "select count(*) as n from loads"), filters) == [(count,)]


def test_a_truth_is_a_filter_too(store: MemoryStore) -> None:
    assert rows(store, rr.number("Rows", "select count(*) as n from events"), {"ok": "true"}) == [(90,)]


@pytest.mark.parametrize("filters", [{"n": "one"}, {"load": "1; drop table loads"}, {"minute": "soon"}])
def test_a_value_of_another_type_is_refused(filters: Filters) -> None:
    with pytest.raises(QueryError, match="The filter"):
        tile_query(rr.number("Rows", "select count(*) from loads"), TABLES, filters)


@pytest.mark.parametrize(
    ("tile", "said"),
    [
        (rr.number("Load", "lods"), "The tile 'Load' reads lods, which is not a table of the store. Expected events"),
        (rr.number("Load", "lods"), "Did you mean 'loads'?"),
        (rr.line("Load", "loads", y="lod"), "y names lod, which loads does not have"),
        (rr.line("Load", "loads", y="load", by="stret"), "Did you mean 'street'?"),
        (rr.line("Load", "loads"), "does not say which column it shows. Expected y=, one of load, n"),
        (rr.line("Load", "loads", y="street"), "y names street, which is text in loads"),
        (rr.leaderboard("Load", "newest", by="load"), 'by="house", y="load"'),
        (rr.bar("Load", "events", y="load"), "does not say which column tells its bars apart"),
        (rr.number("Load", "select sum(load from loads"), "its SQL cannot be understood"),
        (rr.number("Load", "select 1; select 2"), "its SQL is not one question"),
    ],
)
def test_what_cannot_be_asked_is_said(tile: rr.Tile, said: str) -> None:
    with pytest.raises(QueryError) as caught:
        tile_query(tile, TABLES, {})
    assert said in str(caught.value)


def test_latest_wants_a_column_beside_it() -> None:
    with pytest.raises(QueryError, match="latest stands alone"):
        tile_query(rr.number("Load", "select latest from loads"), TABLES, {"street": "Elm"})


def test_the_newest_of_whole_tables_is_left_to_the_store() -> None:
    tile = rr.number("Load", "select sum(load) as load from loads where minute = latest")
    assert tile_query(tile, TABLES, {"other": "x"}).sql.endswith("WHERE minute = latest")


def test_the_tables_that_are_read_are_known() -> None:
    sql = "with l as (select * from LOADS) select count(*) as n from l join events e on e.house = l.house"
    assert tile_query(rr.number("N", sql), TABLES, {}).tables == {"loads", "events"}


def test_which_tables_have_a_past() -> None:
    assert [has_history(each) for each in (LOADS, EVENTS, NEWEST)] == [True, True, False]
