"""Dashboards held against the tables of the app: every problem with its tile, file and line."""

import pytest

import riverrun as rr
from riverrun.dashboard.tiles.checks import check_dashboards, tile_problems
from riverrun.errors import PipelineError
from support.city import HOUSE_LOAD, PRICES, STREET_LOAD, city_app

TABLES = {each.name: each for each in (HOUSE_LOAD, STREET_LOAD, PRICES)}


def test_a_right_dashboard_has_none() -> None:
    assert tile_problems(city_app().dashboards.values(), TABLES) == []


def test_all_problems_are_told_at_once() -> None:
    app = rr.App("meters")
    app.dashboard(
        rr.number("A", "select sum(load_kv) as load from house_load where minute = latest"),
        rr.line("B", "street_lod"),
        rr.leaderboard("C", "house_load", by="load_kw", y="house_id"),
        rr.number("D", "select sum(h.load_kw) as total from house_load as h having total > 1"),
        rr.line("E", "select street, load_kw from street_load"),
        rr.text("fine"),
    )
    found = [f"{line}: {error}" for line, error in tile_problems(app.dashboards.values(), TABLES)]
    assert len(found) == 4
    assert all(each.startswith("test_checks.py:") for each in found)
    assert "The tile 'A': There is no column load_kv in house_load (line 1, column 12)" in found[0]
    assert "Did you mean load_kw?" in found[0]
    assert "Did you mean 'street_load'?" in found[1]
    assert "y names house_id, which is text in house_load" in found[2]
    assert "goes along a time, and its SQL gives none" in found[3]
    with pytest.raises(PipelineError, match=r"4 problems in meters\.py"):
        check_dashboards(app.dashboards.values(), TABLES, "meters.py")
