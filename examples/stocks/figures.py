"""The same figures in plain Python: what the streams of app.py must come to. Nothing here is shared with them.

python figures.py --seed 1 --events 50000        compare with what is in the project's Kafka, after source.py sent the same
"""

import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from app import BLOCK_SHARES, HALT_PERCENT, Correction, Trade, app
from source import Sent, feed_of, options_of

from riverrun.demo.comparison import report, rows_of

MINUTE, FIVE, DAY = timedelta(minutes=1), timedelta(minutes=5), timedelta(days=1)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# When a span begins, and the symbol.
Key = tuple[datetime, str]
Row = dict[str, Any]


def figures(sent: Iterable[Sent]) -> dict[str, dict[Key, Row]]:
    """For each stream, its rows by their key. What comes twice counts once, what is broken not at all."""
    trades: dict[str, Trade] = {}
    corrections: dict[str, Correction] = {}
    for each in sent:
        if isinstance(each.value, Trade):
            trades[each.value.trade_id] = each.value
        elif isinstance(each.value, Correction):
            corrections[each.value.trade_id] = each.value
    made = sorted(trades.values(), key=lambda each: (each.at, each.trade_id))
    days = candles(made, DAY)
    five = candles(made, FIVE, MINUTE)
    return {
        "candles": candles(made, MINUTE),
        "candles_5m": candles(made, FIVE),
        "movers": {key: row | {"change_percent": (row["close"] / row["open"] - 1) * 100} for key, row in days.items()},
        "halts": {key: halt for key, row in five.items() if (halt := _halt(row))["move_percent"] > HALT_PERCENT},
        "blocks": {
            (each.at, each.trade_id): {"symbol": each.symbol, "price": each.price, "shares": each.shares}
            for each in made
            if each.shares >= BLOCK_SHARES
        },
        "official": candles(_mended(made, corrections), DAY),
    }


def candles(trades: Iterable[Trade], width: timedelta, every: timedelta | None = None) -> dict[Key, Row]:
    """Trades in order, by the spans that they lie in."""
    spans: dict[Key, list[Trade]] = defaultdict(list)
    for trade in trades:
        for begin in _begins(trade.at, width, every or width):
            spans[begin, trade.symbol].append(trade)
    return {key: _candle(several) for key, several in spans.items()}


def _begins(at: datetime, width: timedelta, every: timedelta) -> Iterator[datetime]:
    begin = at - (at - EPOCH) % every
    while begin > at - width:
        yield begin
        begin -= every


def _candle(trades: list[Trade]) -> Row:
    prices, volume = [trade.price for trade in trades], sum(trade.shares for trade in trades)
    return {
        "open": prices[0], "high": max(prices), "low": min(prices), "close": prices[-1], "volume": volume,
        "trades": len(trades), "vwap": sum(trade.price * trade.shares for trade in trades) / volume,
    }  # fmt: skip


def _halt(row: Row) -> Row:
    return {"low": row["low"], "high": row["high"], "move_percent": (row["high"] / row["low"] - 1) * 100}


def _mended(trades: Iterable[Trade], corrections: Mapping[str, Correction]) -> Iterator[Trade]:
    for trade in trades:
        own = corrections.get(trade.trade_id)
        if own is None:
            yield trade
        elif own.shares:
            yield Trade(symbol=trade.symbol, trade_id=trade.trade_id, price=own.price, shares=own.shares, at=trade.at)


# --- comparing ---

# The columns of a row that are its key, by the stream.
KEYS = {"candles": ("minute", "symbol"), "candles_5m": ("span", "symbol"), "movers": ("day", "symbol"),
        "halts": ("span", "symbol"), "blocks": ("at", "trade_id"), "official": ("day", "symbol")}  # fmt: skip


def keyed(stream: str, rows: Iterable[Mapping[str, Any]]) -> dict[Key, Row]:
    """Rows of a stream, as a consumer or the test kit gives them, like those above; the newest of each key."""
    time, name = KEYS[stream]
    found: dict[Key, Row] = {}
    for row in rows:
        at = row[time]["start"] if isinstance(row[time], Mapping) else row[time]
        at = datetime.fromisoformat(at) if isinstance(at, str) else at
        left_out = (time, name, "company")
        found[at.astimezone(UTC), row[name]] = {each: value for each, value in row.items() if each not in left_out}
    return found


def main() -> int:
    sent = list(feed_of(options_of(__doc__ or "")))
    # Whether a trade that came too late still counts depends on how far the streams were: what it touches is left out.
    too_late = figures(each for each in sent if each.odd == "too_late")
    expected, wrong = figures(sent), 0
    for stream in (each for each in app.streams if app.streams[each].speed != "batch"):
        touched = _near(too_late) if stream == "halts" else too_late[stream].keys()
        rows, why = keyed(stream, rows_of(stream)), "a trade of theirs came too late"
        wrong += report(stream, expected[stream], rows, left_out=touched, why=why)
    return 1 if wrong else 0


def _near(too_late: Mapping[str, Mapping[Key, Row]]) -> set[Key]:
    return {(minute - step * MINUTE, symbol) for minute, symbol in too_late["candles"] for step in range(5)}


if __name__ == "__main__":
    sys.exit(main())
