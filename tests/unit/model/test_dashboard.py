"""Dashboards as a pipeline file declares them: what is remembered, and what is refused, with its place."""

import json
from typing import Any

import pytest

import riverrun as rr
from riverrun.errors import DeclarationError
from riverrun.model.dashboard import dashboard_from_dict


def board(*tiles: rr.Tile, **options: Any) -> rr.Dashboard:
    return rr.App("meters").dashboard(*tiles, **options)


def test_the_target_file() -> None:
    app = rr.App("meters")
    made = app.dashboard(
        rr.number("City load", "select sum(load_kw) from house_load where minute = latest", unit="kW"),
        rr.line("Load by street", "street_load", x="minute", y="load_kw", by="street"),
        rr.leaderboard("Highest houses", "house_load", by="house_id", y="load_kw"),
    )
    assert app.dashboards == {"main": made}
    assert made.title == "meters"
    assert [tile.name for tile in made.tiles] == ["city-load", "load-by-street", "highest-houses"]
    assert [tile.is_sql for tile in made.tiles] == [True, False, False]
    assert made.filters == {"street", "house_id"}
    assert str(made.tiles[1].line).startswith("test_dashboard.py:")


def test_a_stream_and_what_is_kept_of_it_are_sources() -> None:
    app = rr.App("meters")
    stream = app.sql("loads", "select 1 as one")
    kept = app.store(stream, name="newest", key="one")
    assert rr.rows("All", stream).source == "loads"
    assert rr.rows("All", kept).source == "newest"


def test_ranges_and_sizes_have_defaults() -> None:
    line, number = rr.line("Load", "loads"), rr.number("Load", "loads")
    assert (line.range_ms, line.width, line.height, line.limit) == (3_600_000, 8, 4, 24)
    assert (number.range_ms, number.compare_ms, number.width) == (-1, 3_600_000, 3)
    # SQL says itself which rows it wants.
    assert rr.line("Load", "select minute, load from loads").range_ms == -1
    assert rr.line("Load", "select minute, load from loads", range="5 min").range_ms == 300_000


def test_equal_titles_get_names_of_their_own() -> None:
    made = board(rr.number("Load", "loads"), rr.number("Load", "loads"), rr.text("words"))
    assert [tile.name for tile in made.tiles] == ["load", "load-2", "text"]


def test_a_dashboard_travels_as_json() -> None:
    made = board(
        rr.line("Load", "loads", y=["low", "high"], by="street", thresholds={"bad": 2}),
        rr.rows("Of {street}", "loads", columns=["at"], when="street", stale="5 s"),
        rr.text("words"),
    )
    assert dashboard_from_dict(json.loads(json.dumps(made.as_dict())) | {"newer": 1}) == made


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: rr.line("Load", "loads", byy="street"), "The tile 'Load' has no option 'byy'"),  # type: ignore[call-arg]
        (lambda: rr.line("Load", "loads", widht=3), "Did you mean 'width'?"),  # type: ignore[call-arg]
        (lambda: rr.rows("Load", "loads", closed=True), "has no option 'closed'"),
        (lambda: rr.number("Load", "loads", width=13), "width=13. Expected 1 to 12"),
        (lambda: rr.number("Load", "loads", height=0), "height=0"),
        (lambda: rr.leaderboard("Load", "loads", limit=0), "limit=0"),
        (lambda: rr.number("", "loads"), "A tile of the kind number has no title"),
        (lambda: rr.number("Load", ""), "has nothing to show"),
        (lambda: rr.number("Load", "delete from loads"), "cannot ask 'delete from loads'"),
        (lambda: rr.number("Load", 3), "has nothing to show"),  # type: ignore[arg-type]
        (lambda: rr.line("Load", "loads", range="a while"), "The tile 'Load': range cannot be understood"),
        (lambda: rr.line("Load", "loads", aggregate="summ"), "Did you mean 'sum'?"),  # type: ignore[arg-type]
        (lambda: rr.line("Load", "loads", fill="zero"), "fill='zero'"),  # type: ignore[arg-type]
        (lambda: rr.number("Load", "loads", fill=0), "no option 'fill'"),
        (lambda: rr.line("Load", "loads", step="fortnight"), "step='fortnight'"),  # type: ignore[arg-type]
        (lambda: rr.number("Load", "loads", thresholds={"worst": 1}), 'such as {"warn": 1.5, "bad": 2.0}'),
        (lambda: rr.number("Load", "loads", thresholds={"bad": "much"}), "thresholds="),  # type: ignore[dict-item]
        (lambda: rr.rows("Load", "loads", columns="minute"), 'such as columns=["minute"]'),
        (lambda: rr.rows("Load of {street}", "loads"), 'Add when="street"'),
        (lambda: rr.rows("Load of {street", "loads"), "its title cannot be understood"),
    ],
)
def test_what_cannot_be_is_refused(make: Any, said: str) -> None:
    with pytest.raises(DeclarationError) as caught:
        make()
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("tiles", "options", "said"),
    [
        ([], {}, "The dashboard main has no tiles"),
        (["loads"], {}, "has 'loads' as a tile"),
        ([rr.text("a")], {"name": "Not A Name"}, "'Not A Name' cannot be the name of a dashboard"),
        ([rr.rows("Load", "loads", when="street")], {}, "no tile of the dashboard main can set it"),
        (
            [rr.rows("Load", "loads", when="stret"), rr.leaderboard("Streets", "loads", by="street")],
            {},
            "Did you mean 'street'?",
        ),
    ],
)
def test_a_dashboard_that_cannot_be_is_refused(tiles: list[Any], options: dict[str, str], said: str) -> None:
    with pytest.raises(DeclarationError) as caught:
        board(*tiles, **options)
    assert said in str(caught.value)


def test_two_dashboards_of_one_name_are_refused() -> None:
    app = rr.App("meters")
    app.dashboard(rr.text("a"))
    app.dashboard(rr.text("a"), name="other")
    with pytest.raises(DeclarationError, match=r"main is declared twice .*test_dashboard\.py"):
        app.dashboard(rr.text("a"))
