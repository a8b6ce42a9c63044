"""The source application: the exchange's feed, sent to Kafka as it happens, or as fast as it goes.

python source.py                              60 times as fast as ours: a day of trading in eight minutes and a half
python source.py --rate 2000 --seed 7         2,000 trades a second of ours, of another market
python source.py --events 100000 --rate 0     so many records as fast as they go, and then the end

A feed is not perfect: some trades come late or twice, some records are no trades, and some trades were mistakes that are
corrected minutes or hours later.
"""

import argparse
import heapq
import json
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import count, groupby, islice
from typing import Any

from app import Correction, Trade
from exchange import days

import riverrun as rr

# So many seconds of the exchange's time are sent together.
SECONDS = 5.0


@dataclass(frozen=True)
class Faults:
    """Which parts of the trades come late (by seconds, as is allowed), too late (by minutes), twice, broken; and how many
    are corrected later."""

    late: float = 0.003
    too_late: float = 0.0002
    twice: float = 0.002
    broken: float = 0.0005
    corrected: float = 0.0005


USUAL = Faults()


@dataclass(frozen=True)
class Sent:
    """A record as it leaves: when, to which topic, what, and what is odd about it: late, too_late, twice or broken."""

    due: datetime
    topic: str
    value: Trade | Correction | bytes
    odd: str = ""


def events(
    seed: int = 1, *, start: datetime | None = None, rate: float = 20.0, faults: Faults = USUAL
) -> Iterator[Sent]:
    """The feed's records in the order in which they leave, without end. `rate` is trades in a second of the exchange's."""
    chance, order, faulty = random.Random(f"{seed}/feed"), count(), count()
    waiting: list[tuple[datetime, int, Sent]] = []

    def later(sent: Sent) -> None:
        heapq.heappush(waiting, (sent.due, next(order), sent))

    for second in days(start, rate=rate, seed=seed):
        for trade in second:
            luck = chance.random()
            wait, odd = 0.0, ""
            if luck < faults.late:
                wait, odd = chance.uniform(1, 8), "late"
            elif luck < faults.late + faults.too_late:
                wait, odd = chance.uniform(120, 1200), "too_late"
            later(Sent(trade.at + timedelta(seconds=wait), "trades", trade, odd))
            if luck > 1 - faults.twice:
                later(Sent(trade.at + timedelta(seconds=chance.uniform(0, 3)), "trades", trade, "twice"))
            elif luck > 1 - faults.twice - faults.broken:
                later(Sent(trade.at, "trades", broken(trade, next(faulty)), "broken"))
            elif luck > 1 - faults.twice - faults.broken - faults.corrected:
                later(
                    Sent(
                        trade.at + timedelta(seconds=chance.uniform(30, 7200)), "correction_log", mended(trade, chance)
                    )
                )
        while waiting and second and waiting[0][0] <= second[-1].at:
            yield heapq.heappop(waiting)[2]


def mended(trade: Trade, chance: random.Random) -> Correction:
    """It never happened, or it was for another price: a slip of a finger."""
    if chance.random() < 0.5:
        return Correction(trade_id=trade.trade_id, price=trade.price, shares=0)
    return Correction(
        trade_id=trade.trade_id, price=round(trade.price * chance.uniform(0.9, 1.1), 2), shares=trade.shares
    )


# What a line that goes wrong makes of a trade.
FAULTS: tuple[Callable[[dict[str, Any]], bytes], ...] = (
    lambda good: json.dumps(good).encode()[:-7],
    lambda good: json.dumps(good | {"price": 0}).encode(),
    lambda good: json.dumps(good | {"shares": "many"}).encode(),
    lambda _: b"FEED RESET",
)


def broken(trade: Trade, number: int) -> bytes:
    """The bytes of a trade gone wrong; the kinds take turns by `number`."""
    good = {each: getattr(trade, each) for each in ("symbol", "trade_id", "price", "shares")}
    return FAULTS[number % len(FAULTS)](good | {"at": trade.at.isoformat()})


def moment(text: str) -> datetime:
    found = datetime.fromisoformat(text)
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).astimezone(UTC).replace(microsecond=0)


def options_of(description: str) -> argparse.Namespace:
    """What the source application can be asked for; figures.py takes the same, to compute the same."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--rate", type=float, default=600, help="trades a second of ours; 0: all at once (default: 600)"
    )
    parser.add_argument(
        "--speed-up", type=float, default=60, help="the exchange's time against ours (default: 60 times)"
    )
    parser.add_argument("--seed", type=int, default=1, help="the same seed gives the same market (default: 1)")
    parser.add_argument("--events", type=int, default=0, help="stop after so many records (default: go on)")
    parser.add_argument("--start", type=moment, help="when the exchange's time begins (default: today at 08:00 UTC)")
    return parser.parse_args()


def feed_of(options: argparse.Namespace) -> Iterator[Sent]:
    feed = events(options.seed, start=options.start, rate=(options.rate or 600) / options.speed_up)
    return islice(feed, options.events or None)


def main() -> None:
    options = options_of(__doc__ or "")
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    counts = dict.fromkeys(("events", "acknowledged", "broken", "twice", "late"), 0)
    with rr.Producer() as producer:
        due = time.monotonic()
        for bundle in bundles(feed_of(options)):
            for topic in ("trades", "correction_log"):
                # By the topic's name, because what is broken would be refused of an event's type.
                counts["acknowledged"] += producer.send_all(
                    topic, [each.value for each in bundle if each.topic == topic]
                )
            counts["events"] += len(bundle)
            for odd, name in (("broken", "broken"), ("twice", "twice"), ("too_late", "late")):
                counts[name] += sum(each.odd == odd for each in bundle)
            due += SECONDS / options.speed_up
            if stop.wait(max(0.0, due - time.monotonic()) if options.rate else 0):
                break
    print(json.dumps(counts))


def bundles(feed: Iterator[Sent]) -> Iterator[list[Sent]]:
    """The records of some seconds of the exchange's together, wherever a night is left out."""
    return (list(several) for _, several in groupby(feed, lambda each: each.due.timestamp() // SECONDS))


if __name__ == "__main__":
    main()
