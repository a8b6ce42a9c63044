"""A stock exchange: trades as they are made; candles, volume-weighted prices, movers, and prices that move too fast."""

from datetime import datetime

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

import riverrun as rr

app = rr.App("stocks")


class Trade(rr.Event):
    symbol: str = rr.key()
    trade_id: str
    price: float = rr.field(gt=0)
    shares: int = rr.field(gt=0)
    at: datetime = rr.event_time(late="1 minute")


class Correction(rr.Event):
    """What a trade should have been. No shares: it never happened."""

    trade_id: str = rr.key()
    price: float = rr.field(gt=0)
    shares: int = rr.field(ge=0)


trades = app.topic("trades", Trade, partitions=4, retention="30 days")
corrections = app.table("corrections", app.topic("correction_log", Correction, partitions=4, compact=True))
listings = app.table("listings", rr.csv("listings.csv", "symbol string, company string, sector string, reference double"),
                     key="symbol")  # fmt: skip

# Who moves more than this within five minutes is halted by the exchange.
HALT_PERCENT = 7.0
BLOCK_SHARES = 10_000


def once(trades: DataFrame) -> DataFrame:
    """Each trade once: the feed sends some twice."""
    return trades.dropDuplicates(["symbol", "trade_id", "at"])


def prices(rows: DataFrame, span: Column, *names: str) -> DataFrame:
    """What a trader asks of any span of time. Trades of one millisecond are in the order of their numbers."""
    order, traded = F.struct("at", "trade_id"), F.sum(F.col("price") * F.col("shares"))
    return rows.groupBy(span, "symbol", *names).agg(
        F.min_by("price", order).alias("open"), F.max("price").alias("high"), F.min("price").alias("low"),
        F.max_by("price", order).alias("close"), F.sum("shares").alias("volume"), F.count("*").alias("trades"),
        (traded / F.sum("shares")).alias("vwap"))  # fmt: skip


@app.stream
def candles(trades: DataFrame) -> DataFrame:
    return prices(once(trades), F.window("at", "1 minute").alias("minute"))


@app.stream
def candles_5m(trades: DataFrame) -> DataFrame:
    return prices(once(trades), F.window("at", "5 minutes").alias("span"))


@app.stream
def movers(trades: DataFrame, listings: DataFrame) -> DataFrame:
    """Each share's day so far, and how far it is from its first price."""
    known = once(trades).join(listings.select("symbol", "company"), "symbol", "left")
    day = prices(known, F.window("at", "1 day").alias("day"), "company")
    return day.withColumn("change_percent", (F.col("close") / F.col("open") - 1) * 100)


@app.stream
def halts(trades: DataFrame) -> DataFrame:
    """Five minutes, beginning with every minute, in which a price went too far. From there it can only go further."""
    five = prices(once(trades), F.window("at", "5 minutes", "1 minute").alias("span"))
    moved = five.withColumn("move_percent", (F.col("high") / F.col("low") - 1) * 100)
    return moved.where(f"move_percent > {HALT_PERCENT}").select("span", "symbol", "low", "high", "move_percent")


@app.stream
def blocks(trades: DataFrame) -> DataFrame:
    """Trades so large that somebody wants to know."""
    return once(trades).where(f"shares >= {BLOCK_SHARES}")


@app.stream(speed="batch")
def official(trades: DataFrame, corrections: DataFrame) -> DataFrame:
    """The days as they go into the books, with every trade and correction, however late it came: a question to history."""
    mended = corrections.select("trade_id", F.col("price").alias("own_price"), F.col("shares").alias("own_shares"))
    right = once(trades).join(mended, "trade_id", "left").select(
        "symbol", "trade_id", "at", F.coalesce("own_price", "price").alias("price"),
        F.coalesce("own_shares", "shares").alias("shares"))  # fmt: skip
    return prices(right.where("shares > 0"), F.window("at", "1 day").alias("day"))


# --- what people hear ---

DESK = "+353 20 910 0600"
app.alert(
    "halt",
    halts,
    by="symbol",
    to=[DESK],
    text="{symbol} moved {move_percent:.1f} % within five minutes ({low:.2f} to {high:.2f}): trading is halted.",
    cooldown="15 minutes",
    severity="critical",
)

# --- what people see ---

TODAY = "from movers where day = latest"
# Of five minutes that begin a minute after others with a halt, nothing is told: it is the same halt.
FIRST = """
    from halts h left join (select symbol, span + interval '1 minute' as span from halts) b
    on b.symbol = h.symbol and b.span = h.span where b.symbol is null"""
HALTED = (
    f"select h.span as since, h.symbol, h.move_percent, h.low, h.high {FIRST} order by since desc, h.symbol limit 50"
)
# Today is the day of the movers, which always move: the newest halt may be days old.
HALTS = f"select count(*) {FIRST} and h.span >= (select max(day) from movers)"
# Prices of one scale: each share against its own first price of the day.
SINCE = """
    select c.span, c.symbol, (c.vwap / m.open - 1) * 100 as change
    from candles_5m c join movers m on m.symbol = c.symbol and m.day = date_trunc('day', c.span)
    where c.span > latest - interval '6 hours' order by c.span, c.symbol"""
MARKET = """
    select minute, sum(volume * vwap) / 1000000 as traded from candles group by minute order by minute"""

app.dashboard(
    rr.number("Traded today", f"select sum(volume * vwap) / 1000000 {TODAY}", unit="million €", decimals=1, width=3),
    rr.number("Shares that rose", f"select count(*) {TODAY} and change_percent > 0", unit="of 16", width=2),
    rr.number("Trades a minute", "select sum(trades) from candles where minute = latest - interval '1 minute'", width=3),
    rr.number("Halts", HALTS, unit="today", width=2),
    rr.text("The exchange is made up: its companies, their prices and all that happens to them.", title="About", width=2),
    rr.candle("{symbol}, minute by minute", "candles", range="1 hour", when="symbol", unit="€", width=8),
    rr.line("Price and VWAP of {symbol}", "candles", y=("close", "vwap"), range="1 hour", when="symbol", unit="€", width=4),
    rr.leaderboard("Movers: change since the opening",
                   f"select symbol, company, change_percent {TODAY} order by change_percent desc, symbol",
                   by="symbol", unit="%", decimals=2, limit=16, width=4, height=6),
    rr.line("VWAP of five minutes, against the opening", SINCE, x="span", y="change", by="symbol", unit="%", limit=16,
            width=8, height=6),
    rr.bar("Traded, minute by minute", MARKET, x="minute", y="traded", unit="million €", range="1 hour", width=7),
    rr.rows("Halts: above 7 % within five minutes", HALTED, by="symbol", width=5),
    rr.rows("Blocks: 10,000 shares and more", "blocks", columns=("at", "symbol", "shares", "price"), by="symbol", width=12),
    title="The exchange",
)  # fmt: skip
