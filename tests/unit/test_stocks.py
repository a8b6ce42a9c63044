"""The exchange of the stocks example: its days, its feed, and what its page asks for."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

import pytest

from riverrun.dashboard.tiles.checks import tile_problems
from riverrun.dashboard.tiles.data import tile_data_of
from riverrun.dashboard.tiles.queries import QueryTime, tile_query
from riverrun.errors import RecordUnreadableError
from riverrun.store.sql import prepare
from support.memory_store import MemoryStore
from support.stocks import STOCKS, TABLES, market_store
from support.usecases import Modules, modules_of

BEGIN = datetime(2026, 11, 16, 8, 0, tzinfo=UTC)
EVENTS = 12_000


@pytest.fixture(scope="module")
def stocks() -> Iterator[Modules]:
    with modules_of("stocks") as found:
        yield found


@pytest.fixture(scope="module")
def sent(stocks: Modules) -> list[Any]:
    often = stocks.source.Faults(late=0.01, too_late=0.002, twice=0.01, broken=0.005, corrected=0.01)
    return list(islice(stocks.source.events(seed=3, start=BEGIN, rate=2, faults=often), EVENTS))


@pytest.fixture(scope="module")
def filled(stocks: Modules, sent: list[Any]) -> tuple[MemoryStore, Any]:
    return market_store(stocks, sent)


# --- the exchange ---


def test_the_same_seed_gives_the_same_market(stocks: Modules, sent: list[Any]) -> None:
    again = stocks.source.events(seed=3, start=BEGIN, rate=2, faults=replace(stocks.source.USUAL))
    assert [each.value for each in islice(again, 300)] != [each.value for each in sent[:300]]
    feeds = [list(islice(stocks.source.events(seed=seed, start=BEGIN), 500)) for seed in (1, 1, 2)]
    assert feeds[0] == feeds[1] != feeds[2]


def test_a_day_opens_with_a_rush_and_nights_are_left_out(stocks: Modules) -> None:
    exchange = stocks.exchange
    hours = [exchange.busy(timedelta(hours=hour)) for hour in (0, 4, 8.49)]
    assert hours[0] > 5 * hours[1] < hours[2]
    friday = datetime(2026, 11, 20, 16, 29, 58, tzinfo=UTC)
    seconds = list(islice(exchange.days(friday, rate=50), 4))
    assert [second[0].at.strftime("%a %H:%M:%S") for second in seconds] == [
        "Fri 16:29:58", "Fri 16:29:59", "Mon 08:00:00", "Mon 08:00:01",
    ]  # fmt: skip


def test_who_moves_too_far_is_halted_for_five_minutes(stocks: Modules) -> None:
    share = stocks.exchange.Share("AVON", 50.0, 1.0, 0.0001)
    assert not share.goes_too_far(BEGIN, [50.0, 50.1])
    assert share.goes_too_far(BEGIN + timedelta(seconds=200), [54.0])
    share.halt(BEGIN)
    assert share.halted_until == BEGIN + timedelta(minutes=5)
    assert not share.recent


# --- the feed ---


def test_what_the_feed_does_to_trades(stocks: Modules, sent: list[Any]) -> None:
    """All come, some late, twice or corrected; what is broken comes besides. In about the shares that were asked for."""
    odd = Counter(each.odd for each in sent)
    assert odd["late"] == pytest.approx(EVENTS * 0.01, rel=0.3)
    assert odd["twice"] == pytest.approx(EVENTS * 0.01, rel=0.3)
    assert odd["broken"] == pytest.approx(EVENTS * 0.005, rel=0.4)
    assert odd["too_late"] > 3
    assert [each.due for each in sent] == sorted(each.due for each in sent)
    trades = [each for each in sent if isinstance(each.value, stocks.app.Trade)]
    assert max(trade.due - trade.value.at for trade in trades if trade.odd == "late") <= timedelta(seconds=8)
    assert min(trade.due - trade.value.at for trade in trades if trade.odd == "too_late") > timedelta(minutes=1)
    known = {trade.value.trade_id for trade in trades}
    assert {each.value.trade_id for each in sent if each.topic == "correction_log"} <= known


def test_every_broken_record_of_the_feed_is_refused(stocks: Modules, sent: list[Any]) -> None:
    broken = [each.value for each in sent if each.odd == "broken"]
    assert len(broken) >= len(stocks.source.FAULTS)
    for each in broken:
        with pytest.raises(RecordUnreadableError):
            stocks.app.trades.schema.decode(each)


# --- figures ---


def test_a_candle_by_hand(stocks: Modules) -> None:
    def trade(number: int, second: int, price: float, shares: int) -> Any:
        at = BEGIN + timedelta(seconds=second)
        return stocks.source.Sent(
            at, "trades", stocks.app.Trade(symbol="AVON", trade_id=f"AVON-{number}", price=price, shares=shares, at=at)
        )

    first, second = trade(1, 5, 50.0, 100), trade(2, 40, 49.0, 300)
    wrong = stocks.source.Sent(BEGIN, "correction_log", stocks.app.Correction(trade_id="AVON-2", price=49.0, shares=0))
    found = stocks.figures.figures([second, first, first, trade(3, 61, 54.0, 10_000), wrong])
    assert found["candles"][BEGIN, "AVON"] == {
        "open": 50.0, "high": 50.0, "low": 49.0, "close": 49.0, "volume": 400, "trades": 2, "vwap": 49.25,
    }  # fmt: skip
    assert found["candles_5m"][BEGIN, "AVON"]["trades"] == 3
    assert found["movers"][BEGIN.replace(hour=0), "AVON"]["change_percent"] == pytest.approx(8.0)
    spans = sorted(at for at, _ in found["halts"])
    assert spans == [BEGIN - timedelta(minutes=each) for each in (3, 2, 1, 0)]
    assert list(found["blocks"]) == [(BEGIN + timedelta(seconds=61), "AVON-3")]
    assert found["official"][BEGIN.replace(hour=0), "AVON"]["low"] == 50.0


# --- the pipeline and its page ---


def test_the_pipeline_is_a_page_of_code() -> None:
    pipeline, board = (STOCKS / "app.py").read_text(encoding="utf-8").split("# --- what people hear ---")
    assert len(pipeline.splitlines()) < 110
    assert "app.dashboard(" in board


def rows(stocks: Modules, store: MemoryStore, newest: datetime, title: str, **filters: str) -> list[tuple[Any, ...]]:
    """What a tile shows."""
    tile = next(each for each in stocks.app.app.dashboards["main"].tiles if each.title == title)
    sql = tile_query(tile, store.tables, filters, QueryTime(newest=newest)).sql
    return list(tile_data_of(tile, store.query(sql).rows).rows)


def test_every_tile_can_be_asked_of_both_stores(stocks: Modules, filled: tuple[MemoryStore, Any]) -> None:
    store, figures = filled
    newest = max(at for at, _ in figures["candles"])
    tiles = stocks.app.app.dashboards["main"].tiles
    assert list(tile_problems(stocks.app.app.dashboards.values(), store.tables)) == []
    for tile in tiles:
        filters = {tile.when: "AVON"} if tile.when else {}
        if tile.has_query:
            assert rows(stocks, store, newest, tile.title, **filters), tile.title
            asked = tile_query(tile, store.tables, filters, QueryTime(newest=newest)).sql
            assert prepare(asked, {table.name: table for table in TABLES}, "druid").sql


def test_figures_are_what_plain_python_finds(stocks: Modules, filled: tuple[MemoryStore, Any]) -> None:
    store, figures = filled
    newest = max(at for at, _ in figures["candles"])

    def shown(title: str) -> list[tuple[Any, ...]]:
        return rows(stocks, store, newest, title)

    movers = {symbol: row for (_, symbol), row in figures["movers"].items()}
    assert shown("Shares that rose") == [(sum(row["change_percent"] > 0 for row in movers.values()),)]
    best = sorted(movers, key=lambda each: (-movers[each]["change_percent"], each))
    assert [row[0] for row in shown("Movers: change since the opening")] == best
    spans = figures["halts"]
    first = {(at, symbol) for at, symbol in spans if (at - timedelta(minutes=1), symbol) not in spans}
    assert {(row[0], row[1]) for row in shown("Halts: above 7 % within five minutes")} == {
        (round(at.timestamp() * 1000), symbol) for at, symbol in first
    }
    assert shown("Halts") == [(len(first),)]
    assert first


def test_halts_of_yesterday_are_not_of_today(stocks: Modules, sent: list[Any]) -> None:
    store, _ = market_store(stocks, sent)
    day = BEGIN.replace(hour=0) + timedelta(days=1)
    assert rows(stocks, store, day, "Halts") != [(0,)]
    store.put("movers", [{"day": day, "symbol": "AVON", "company": "Avon"}])
    assert rows(stocks, store, day, "Halts") == [(0,)]
