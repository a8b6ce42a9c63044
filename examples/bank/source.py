"""The source application: the bank's own system. It writes to the bank's Postgres, which riverrun follows; where the project
names none (postgres.url, postgres.follow), it sends the same straight to the same topics.

python source.py                              1,440 times as fast as ours: a day of the bank's in a minute
python source.py --rate 1000 --seed 7         1,000 transactions a second of ours, of a larger bank
python source.py --events 100000 --rate 0     so many records as fast as they go, and then the end

Channels are not perfect: terminals that were offline report late, some report twice, some report nonsense, and now and then
a leg of a transfer is lost.
"""

import argparse
import contextlib
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

import msgspec
from app import Transaction, app
from people import PER_DAY, START, Bank, Customer, customers, phone

import riverrun as rr
from riverrun.config import load
from riverrun.connectors.postgres.address import database_of

# So many minutes of the bank's time are one transaction of its database.
MINUTES = 5
USUAL_RATE, USUAL_SPEED_UP = 100.0, 1440.0
COLUMNS = tuple(Transaction.__struct_fields__)
KEYS = {"customers": "customer_id", "accounts": "account_id", "transactions": "account_id"}


@dataclass(frozen=True)
class Faults:
    """Which parts of the transactions come late (by less than two hours, as is allowed), too late (by more), twice, broken;
    and which of the transfers miss a leg."""

    late: float = 0.01
    too_late: float = 0.0005
    twice: float = 0.004
    broken: float = 0.0008
    lost: float = 0.003


USUAL = Faults()
# Nothing so late that it depends on the batches whether a window still takes it.
PUNCTUAL = Faults(too_late=0.0)


@dataclass(frozen=True)
class Sent:
    """A record as it leaves: when, of which table, what, and what is odd about it: late, too_late, twice, broken or lost."""

    due: datetime
    table: str
    value: Transaction | dict[str, Any] | bytes
    odd: str = ""


def feed(seed: int = 1, *, start: datetime | None = None, people: int = 1200, faults: Faults = USUAL) -> Iterator[Sent]:
    """What the bank writes, in the order in which it does, without end: first its customers and their accounts."""
    begin, those = start or START, customers(people, seed)
    yield from (Sent(begin, "customers", each.customer_row()) for each in those)
    yield from (Sent(begin, "accounts", each.account_row()) for each in those)
    chance, order, faulty = random.Random(f"{seed}/channels"), count(), count()
    waiting: list[tuple[datetime, int, Sent]] = []
    for now, made in Bank(those, seed, begin).minutes():
        reported = [sent for each in made for sent in channel(each, chance, faults, faulty)]
        for sent in (*reported, *changed(those, now, chance)):
            heapq.heappush(waiting, (sent.due, next(order), sent))
        while waiting and waiting[0][0] <= now:
            yield heapq.heappop(waiting)[2]


def channel(made: Transaction, chance: random.Random, faults: Faults, faulty: Iterator[int]) -> Iterator[Sent]:
    """What is reported of a transaction, and when."""
    if made.kind == "transfer" and chance.random() < faults.lost / 2:
        return
    luck, wait, odd = chance.random(), timedelta(), ""
    if luck < faults.late:
        wait, odd = timedelta(minutes=chance.uniform(5, 60)), "late"
    elif luck < faults.late + faults.too_late:
        wait, odd = timedelta(hours=chance.uniform(12, 30)), "too_late"
    yield Sent(made.at + wait, "transactions", made, odd)
    if luck > 1 - faults.twice:
        yield Sent(made.at + timedelta(seconds=chance.uniform(1, 60)), "transactions", made, "twice")
    elif luck > 1 - faults.twice - faults.broken:
        yield Sent(made.at, "transactions", broken(made, next(faulty)), "broken")


def changed(people: list[Customer], now: datetime, chance: random.Random) -> Iterator[Sent]:
    """In some minutes somebody gets a new phone, and somebody agrees with the bank on another overdraft."""
    if chance.random() < len(people) / 100_000:
        who = chance.choice(people)
        who.phone = phone(chance)
        yield Sent(now, "customers", who.customer_row())
    if chance.random() < len(people) / 100_000:
        who = chance.choice(people)
        who.overdraft_cents = chance.choice((0, 20, 50, 100)) * 1000
        yield Sent(now, "accounts", who.account_row())


def events(seed: int = 1, *, people: int = 1200) -> Iterator[Transaction | bytes]:
    """The transactions alone, none of them too late. Bytes are records that are no transactions."""
    for each in feed(seed, people=people, faults=PUNCTUAL):
        if each.table == "transactions" and not isinstance(each.value, dict):
            yield each.value


# What a channel that goes wrong makes of a transaction: rows that the table takes, and no transactions.
FAULTS: tuple[dict[str, Any], ...] = ({"kind": "crad"}, {"cents": None}, {"at": None}, {"kind": None}, {"ref": None})


def broken(good: Transaction, number: int) -> bytes:
    """A row gone wrong; the kinds take turns by `number`."""
    row: dict[str, Any] = msgspec.to_builtins(good)
    return json.dumps(row | {"ref": f"x-{number}"} | FAULTS[number % len(FAULTS)]).encode()


# --- the ways out ---

# Sends records that belong together; how many there are, safe where they went.
Send = Callable[[list[Sent]], int]


@contextlib.contextmanager
def way_out() -> Iterator[Send]:
    """By the project's settings: into the database that is followed, or past it."""
    loaded = load()
    postgres = loaded.settings.postgres
    if postgres.url and postgres.follow:
        with database_of(postgres, "", loaded.project.root).connect() as connection:
            yield lambda bundle: booked(connection, bundle)
    else:
        with rr.Producer() as producer:
            yield lambda bundle: straight(producer, bundle)


def booked(connection: Any, bundle: list[Sent]) -> int:
    """Into the bank's tables, in one transaction: both legs of a transfer are there, or none."""
    with connection.transaction(), connection.cursor() as cursor:
        for table, several in groupby(bundle, lambda each: each.table):
            rows = [row_of(each) for each in several]
            names = COLUMNS if table == "transactions" else tuple(rows[0])
            cursor.executemany(insert_into(table, names), [[row.get(name) for name in names] for row in rows])
    return len(bundle)


def insert_into(table: str, names: tuple[str, ...]) -> str:
    sql = f"insert into {table} ({', '.join(names)}) values ({', '.join(['%s'] * len(names))})"  # noqa: S608
    if table == "transactions":
        return sql
    changed = ", ".join(f"{name} = excluded.{name}" for name in names if name != KEYS[table])
    return f"{sql} on conflict ({KEYS[table]}) do update set {changed}"


def straight(producer: "rr.Producer", bundle: list[Sent]) -> int:
    """Into the topics that the database would fill, without one: a row is what its change would have been."""
    sent = 0
    for table, several in groupby(bundle, lambda each: each.table):
        values = [json.dumps(row_of(each)).encode() for each in several]
        # By the topic's name, because what is broken would be refused of an event's type.
        topic = table if table == "transactions" else f"{app.name}.{table}"
        sent += producer.send_all(topic, values, key=lambda value, name=KEYS[table]: json.loads(value)[name])
    return sent


def row_of(sent: Sent) -> dict[str, Any]:
    """The row of a table that a record is."""
    found: dict[str, Any] = json.loads(sent.value) if isinstance(sent.value, bytes) else msgspec.to_builtins(sent.value)
    return found


# --- the program ---


def moment(text: str) -> datetime:
    found = datetime.fromisoformat(text)
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).astimezone(UTC).replace(second=0, microsecond=0)


def options_of(description: str) -> argparse.Namespace:
    """What the source application can be asked for; figures.py takes the same, to compute the same."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    add: Callable[..., Any] = parser.add_argument
    add("--rate", type=float, default=USUAL_RATE, help="transactions a second of ours; 0: all at once (default: 100)")
    add("--speed-up", type=float, default=USUAL_SPEED_UP, help="the bank's time against ours (default: 1440 times)")
    add("--seed", type=int, default=1, help="the same seed gives the same bank (default: 1)")
    add("--events", type=int, default=0, help="stop after so many records (default: go on)")
    add("--start", type=moment, help=f"when the bank's time begins (default: {START:%Y-%m-%d %H:%M} UTC)")
    return parser.parse_args()


def feed_of(options: argparse.Namespace) -> Iterator[Sent]:
    people = max(2, round((options.rate or USUAL_RATE) * 86_400 / options.speed_up / PER_DAY))
    return islice(feed(options.seed, start=options.start, people=people), options.events or None)


def main() -> None:
    options, stop = options_of(__doc__ or ""), threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    counts = dict.fromkeys(("events", "acknowledged", "broken", "twice", "late"), 0)
    with way_out() as send:
        due = time.monotonic()
        for _, several in groupby(feed_of(options), lambda each: each.due.timestamp() // (MINUTES * 60)):
            bundle = list(several)
            counts["acknowledged"] += send(bundle)
            counts["events"] += len(bundle)
            for odd, name in (("broken", "broken"), ("twice", "twice"), ("too_late", "late")):
                counts[name] += sum(each.odd == odd for each in bundle)
            due += MINUTES * 60 / options.speed_up
            if stop.wait(max(0.0, due - time.monotonic()) if options.rate else 0):
                break
    print(json.dumps(counts))


if __name__ == "__main__":
    main()
