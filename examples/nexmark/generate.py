"""Makes the events of the auction house and sends them. The same seed gives the same events.

python generate.py 20000 --seed 1
"""

import argparse
import random
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta

from market import Auction, Bid, Person

import riverrun as rr

START = datetime(2026, 1, 1, tzinfo=UTC)
# Of fifty events in a row one is a person, three are auctions, the others bids.
ROUND, AUCTIONS = 50, 3
BETWEEN = timedelta(milliseconds=50)
# How much earlier than its place in the stream an event may have happened: less than `late` in market.py.
JITTER_SECONDS = 3.0
NAMES = ["Ada", "Ben", "Cleo", "Dov", "Eva", "Finn", "Gita", "Hugo", "Iris", "Jan", "Kira", "Leo"]
TOWNS = {"Boise": "ID", "Eugene": "OR", "Fresno": "CA", "Nampa": "ID", "Oakland": "CA", "Reno": "NV", "Salem": "OR"}
ITEMS = ["atlas", "bicycle", "clock", "drum", "easel", "flute", "globe", "harp"]
# One event of each kind after all others: time goes on, and windows end.
CLOSING = START + timedelta(days=2)
NOBODY = 0


def events(number: int, seed: int = 1) -> Iterator[Person | Auction | Bid]:
    """So many events, and then one of each kind two days later."""
    chance = random.Random(seed)
    people = auctions = 0
    for each in range(number):
        at = START + each * BETWEEN - timedelta(seconds=round(chance.uniform(0, JITTER_SECONDS), 3))
        if each % ROUND == 0:
            people += 1
            yield _person(chance, people, at)
        elif each % ROUND <= AUCTIONS:
            auctions += 1
            yield _auction(chance, auctions, people, at)
        else:
            yield _bid(chance, auctions, people, at)
    yield Person(person=NOBODY, name="nobody", city="nowhere", state="", at=CLOSING)
    yield Auction(auction=NOBODY, item="nothing", seller=NOBODY, category=0, reserve=0, expires=CLOSING, at=CLOSING)
    yield Bid(auction=NOBODY, bidder=NOBODY, price=1, at=CLOSING)


def _person(chance: random.Random, person: int, at: datetime) -> Person:
    city = chance.choice(list(TOWNS))
    return Person(person=person, name=chance.choice(NAMES), city=city, state=TOWNS[city], at=at)


def _auction(chance: random.Random, auction: int, people: int, at: datetime) -> Auction:
    return Auction(
        auction=auction,
        item=chance.choice(ITEMS),
        # Who has just come sells most.
        seller=_recent(chance, people, hot=1, of=40),
        category=chance.randrange(10, 15),
        reserve=_price(chance),
        expires=at + timedelta(seconds=chance.randrange(60, 600)),
        at=at,
    )


def _bid(chance: random.Random, auctions: int, people: int, at: datetime) -> Bid:
    # Every twentieth auction is one that everybody wants.
    auction = _recent(chance, auctions, hot=20, of=100)
    return Bid(auction=auction, bidder=_recent(chance, people, hot=5, of=100), price=_price(chance), at=at)


def _recent(chance: random.Random, newest: int, *, hot: int, of: int) -> int:
    """Half of the time the newest number that `hot` divides, else any of the last `of`."""
    if chance.random() < 0.5 and newest >= hot:
        return newest - newest % hot
    return chance.randint(max(1, newest - of + 1), newest)


def _price(chance: random.Random) -> int:
    """Many small, few large: from one to a hundred thousand, in cents."""
    return int(100 * 10 ** chance.uniform(0, 5))


def send(made: Iterable[Person | Auction | Bid], connection: rr.Connection | None = None) -> int:
    """Make the topics and send the events; how many."""
    app = rr.App("market")
    topics = {
        Person: app.topic("persons", Person, partitions=4),
        Auction: app.topic("auctions", Auction, partitions=4),
        Bid: app.topic("bids", Bid, partitions=4),
    }
    app.apply(connection)
    sent = 0
    with rr.Producer(connection) as producer:
        for event in made:
            producer.send_soon(topics[type(event)], event)
            sent += 1
    return sent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("number", type=int, help="how many events")
    parser.add_argument(
        "--seed", type=int, default=1, help="the same seed gives the same events (default: %(default)s)"
    )
    options = parser.parse_args()
    print(f"sent {send(events(options.number, options.seed))} events")


if __name__ == "__main__":
    main()
