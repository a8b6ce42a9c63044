"""An exchange in a box: what is traded, second by second, from the opening auction to the closing one.

Prices walk by chance; now and then news makes one run. Who moves too far within five minutes is halted for five. The same
seed gives the same days, to the cent.
"""

import csv
import math
import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from app import HALT_PERCENT, Trade

SECOND, HALT = timedelta(seconds=1), timedelta(minutes=5)
# The exchange lives in UTC. Sixty seconds of auction, then trading until the closing one.
OPENS, CLOSES = timedelta(hours=8), timedelta(hours=16, minutes=30)
LISTINGS = Path(__file__).with_name("listings.csv")
# How often news comes, for each share and second; how far it moves a price, and within how many seconds.
NEWS, FAR, SOON = 1 / 14_400, (0.04, 0.13), (40, 100)


@dataclass
class Share:
    """One share as it is now."""

    symbol: str
    price: float
    # Of the whole market's trades, and how far a price walks in a second.
    part: float
    restless: float
    trades: int = 0
    # News under way: how far in a second, and for how long.
    drift: float = 0.0
    news_left: int = 0
    halted_until: datetime | None = None
    # Lowest and highest price of each ten seconds.
    recent: deque[tuple[datetime, float, float]] = field(default_factory=deque)

    def walk(self, chance: random.Random, now: datetime) -> None:
        """A second goes by."""
        if self.news_left:
            self.news_left -= 1
        elif chance.random() < NEWS:
            self.news_left = chance.randint(*SOON)
            self.drift = chance.choice((-1, 1)) * chance.uniform(*FAR) / self.news_left
        step = chance.gauss(0, self.restless) + (self.drift if self.news_left else 0.0)
        self.price = max(1.0, self.price * math.exp(step))
        while self.recent and now - self.recent[0][0] >= HALT:
            self.recent.popleft()

    def trade(self, chance: random.Random, at: datetime) -> Trade:
        price = round(self.price * (1 + chance.gauss(0, 0.0002)), 2)
        shares = (
            100 * min(200, 1 + int(chance.paretovariate(1.3) - 1)) if chance.random() < 0.8 else chance.randint(1, 99)
        )
        self.trades += 1
        return Trade(symbol=self.symbol, trade_id=f"{self.symbol}-{self.trades:09}", price=price, shares=shares, at=at)

    def goes_too_far(self, now: datetime, prices: list[float]) -> bool:
        """Whether these, the prices of a second, are too far from those of the five minutes before."""
        ten, low, high = now.replace(second=now.second // 10 * 10), min(prices), max(prices)
        if self.recent and self.recent[-1][0] == ten:
            _, before_low, before_high = self.recent.pop()
            low, high = min(low, before_low), max(high, before_high)
        self.recent.append((ten, low, high))
        low, high = min(low for _, low, _ in self.recent), max(high for _, _, high in self.recent)
        return (high / low - 1) * 100 > HALT_PERCENT

    def halt(self, now: datetime) -> None:
        self.halted_until, self.news_left = now + HALT, 0
        self.recent.clear()


def listed() -> list[dict[str, str]]:
    with LISTINGS.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def shares(seed: int = 1) -> list[Share]:
    found, chance = listed(), random.Random(f"{seed}/shares")
    weights = [chance.lognormvariate(0, 0.7) for _ in found]
    return [
        Share(each["symbol"], float(each["reference"]), weight / sum(weights), chance.uniform(0.00008, 0.0002))
        for each, weight in zip(found, weights, strict=True)
    ]


def busy(since_open: timedelta) -> float:
    """How busy the market is, 1 on average: a rush as it opens, a quiet noon, a rush as it closes."""
    passed, day = since_open / SECOND, (CLOSES - OPENS) / SECOND
    rush = 9.0 * math.exp(-passed / 240) + 7.0 * math.exp(-(day - passed) / 200)
    return 0.74 + 0.45 * (2 * passed / day - 1) ** 2 + rush


def days(start: datetime | None = None, *, rate: float = 20.0, seed: int = 1) -> Iterator[list[Trade]]:
    """The trades of every second of the exchange's time, `rate` of them on average, day after day, without end.

    Weekends and the nights between are left out. `start` is moved into the opening hours.
    """
    market, chance = shares(seed), random.Random(f"{seed}/exchange")
    now = start or datetime.now(UTC).replace(hour=8, minute=0, second=0, microsecond=0)
    while True:
        midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
        if now.weekday() > 4 or now - midnight >= CLOSES:
            now = midnight + timedelta(days=1) + OPENS
            for each in market:
                each.recent.clear()
            continue
        now = max(now, midnight + OPENS)
        expected = rate * busy(now - midnight - OPENS)
        yield sorted(
            (each for share in market for each in _second(share, chance, now, expected * share.part)),
            key=lambda each: (each.at, each.trade_id),
        )
        now += SECOND


def _second(share: Share, chance: random.Random, now: datetime, expected: float) -> list[Trade]:
    share.walk(chance, now)
    reopens = False
    if share.halted_until is not None:
        if now < share.halted_until:
            return []
        # An auction ends the halt: what waited is traded at once.
        share.halted_until, reopens = None, True
    count = _poisson(chance, expected * (30 if reopens else 1))
    moments = sorted(chance.randrange(1000) for _ in range(count))
    made = [share.trade(chance, now + timedelta(milliseconds=moment)) for moment in moments]
    if made and share.goes_too_far(now, [each.price for each in made]):
        share.halt(now)
    return made


def _poisson(chance: random.Random, expected: float) -> int:
    if expected > 30:
        return max(0, round(chance.gauss(expected, math.sqrt(expected))))
    limit, product, count = math.exp(-expected), chance.random(), 0
    while product > limit:
        product *= chance.random()
        count += 1
    return count
