"""The use cases without a broker and without Spark: their sources, and what their pages ask for."""

from collections.abc import Iterator
from itertools import pairwise

import pytest

from riverrun.dashboard.tiles.checks import tile_problems
from riverrun.dashboard.tiles.data import tile_data_of
from riverrun.dashboard.tiles.queries import QueryTime, tile_query
from riverrun.errors import QueryError, RecordUnreadableError
from riverrun.store.sql import prepare
from support.checked_cases import USE_CASES, UseCase
from support.usecase_stores import STORES
from support.usecases import EXAMPLES, Modules, modules_of

EVENTS = 20_000
# A value to click on, for the tiles that show only then.
CHOSEN = {
    "cricket": ("match_id", "match-00002"),
    "hashtags": ("tag", "rivernow"),
    "gaming": ("player", ""),
    "mall": ("zone", "food"),
    "bank": ("account_id", "acc-000642"),
}


@pytest.fixture(scope="module", params=USE_CASES, ids=lambda case: case.name)
def case(request: pytest.FixtureRequest) -> UseCase:
    found: UseCase = request.param
    return found


@pytest.fixture(scope="module")
def modules(case: UseCase) -> Iterator[Modules]:
    with modules_of(case.name) as found:
        yield found


def test_the_same_seed_gives_the_same_records(case: UseCase, modules: Modules) -> None:
    records = case.records(modules, 3000)
    assert case.records(modules, 3000) == records
    others = modules.source.events(seed=5)
    assert [next(others) for _ in range(100)] != records[:100]


def test_records_come_late_twice_and_broken(case: UseCase, modules: Modules) -> None:
    records = case.records(modules, EVENTS)
    good = case.good(modules, records)
    schema = modules.app.app.topics[case.topic].schema
    broken = [record for record in records if isinstance(record, bytes)]
    assert EVENTS / 5000 < len(broken) == EVENTS - len(good) < EVENTS / 500
    for each in broken:
        with pytest.raises(RecordUnreadableError):
            schema.decode(each)
    for each in good[:500]:
        assert schema.decode(schema.encode(each)) == each
    twice = len(good) - len({schema.encode(each) for each in good})
    assert EVENTS / 500 < twice < EVENTS / 50
    late = sum(later.at < before.at for before, later in pairwise(good))
    assert EVENTS / 500 < late < EVENTS / 5


def test_every_tile_shows_something(case: UseCase, modules: Modules) -> None:
    good = case.good(modules, case.records(modules, EVENTS))
    store = STORES[case.name](modules, good)
    app = modules.app.app
    assert list(tile_problems(app.dashboards.values(), store.tables)) == []
    newest = max(each.at for each in good)
    column, value = CHOSEN[case.name]
    for tile in app.dashboards["main"].tiles:
        filters = {column: value or good[-1].player} if tile.when else {}
        asked = tile_query(tile, store.tables, filters, QueryTime(newest=newest))
        assert tile_data_of(tile, store.query(asked.sql).rows).rows, tile.title


def test_every_tile_can_be_asked_of_druid(case: UseCase, modules: Modules) -> None:
    good = case.good(modules, case.records(modules, 500))
    tables = STORES[case.name](modules, good).tables
    column, value = CHOSEN[case.name]
    refused = []
    for tile in modules.app.app.dashboards["main"].tiles:
        asked = tile_query(
            tile, tables, {column: value or good[-1].player} if tile.when else {}, QueryTime(newest=good[-1].at)
        )
        try:
            prepare(asked.sql, tables, "druid")
        except QueryError as error:
            refused.append(f"{tile.title}: {error}")
    assert refused == []


def test_the_pipeline_is_a_page_of_code(case: UseCase) -> None:
    text = (EXAMPLES / case.name / "app.py").read_text(encoding="utf-8")
    assert "app.alert(" in text
    assert len(text.split("# --- what people hear ---")[0].splitlines()) < 100
    for name in ("README.md", "source.py", "figures.py", "history.py", f"test_{case.name}.py"):
        assert (EXAMPLES / case.name / name).is_file(), name
