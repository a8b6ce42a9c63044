"""The stocks example in a store in memory, as its streams would have filled it; by plain Python."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from riverrun.model.table import TableSpec
from support.memory_store import MemoryStore, columns
from support.usecases import EXAMPLES, Modules

STOCKS = EXAMPLES / "stocks"
OHLC = {
    **dict.fromkeys(("open", "high", "low", "close"), "double"),
    **dict.fromkeys(("volume", "trades"), "bigint"),
    "vwap": "double",
}


def _windows(name: str, time: str, **more: str) -> TableSpec:
    own = columns(**{time: "timestamp", f"{time}_end": "timestamp", "symbol": "text"}, **more)
    key = (time, "symbol", "company") if "company" in more else (time, "symbol")
    return TableSpec(name, name, own, key, upserts=True, time=time)


TABLES = (
    _windows("candles", "minute", **OHLC),
    _windows("candles_5m", "span", **OHLC),
    _windows("movers", "day", company="text", **OHLC, change_percent="double"),
    _windows("halts", "span", low="double", high="double", move_percent="double"),
    _windows("official", "day", **OHLC),
    TableSpec(
        "blocks", "blocks", columns(symbol="text", trade_id="text", price="double", shares="bigint", at="timestamp"),
        (), upserts=False, time="at",
    ),
)  # fmt: skip
WIDTHS = {"candles": timedelta(minutes=1), "movers": timedelta(days=1), "official": timedelta(days=1)}


def market_store(modules: Modules, sent: Sequence[Any]) -> tuple[MemoryStore, Mapping[str, Any]]:
    """The tables of what was sent, and the figures they were made of."""
    figures, store = modules.figures.figures(sent), MemoryStore(*TABLES)
    companies = {each["symbol"]: each["company"] for each in modules.exchange.listed()}
    for table in TABLES:
        time, name = modules.figures.KEYS[table.name]
        rows = []
        for (at, key), row in figures[table.name].items():
            end = {f"{time}_end": at + WIDTHS.get(table.name, timedelta(minutes=5))}
            rows.append({time: at, name: key, "company": companies.get(key), **end, **row})
        store.put(table.name, rows)
    return store, figures
