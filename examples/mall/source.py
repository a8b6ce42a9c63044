"""The source application: the doors of a mall, with a sensor over each, which post what they counted to riverrun by HTTP.

python source.py                        a day in about three minutes
python source.py --rate 500             500 records a second, whatever their times
python source.py --seed 7 --events 20000

The same seed gives the same days. People come and go by the hour; when a film ends, hundreds leave at once. Sensors miss one
person in a hundred. They restart, and their numbers begin with 1 again; some are dead for half an hour, some cannot reach
anybody for minutes and send what they counted later. One record in a hundred is sent twice, one in two thousand is broken.
Every minute of every sensor goes through gateway.py.
"""

import csv
import heapq
import json
import math
import random
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path

import msgspec
from app import Count, counts
from gateway import Gateway

from riverrun.demo.source_program import run_source

# A Saturday, as the shops open.
START = datetime(2026, 10, 17, 9, 0, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
TWICE, BROKEN = 1 / 100, 1 / 2000
# For a sensor and a minute: it restarts, or the line to it is cut.
RESTARTS, CUTS = 1 / 2000, 1 / 700
VISITORS_A_MINUTE, STREET = 52.0, "street"

# Where people go from a zone, with weights, and how many minutes they stay there.
STAYS = {"concourse": 14.0, "gallery": 20.0, "store": 30.0, "food": 38.0, "cars": 110.0}
NEXT = {
    "concourse": {"gallery": 40, "store": 22, STREET: 38},
    "gallery": {"concourse": 74, "food": 26},
    "store": {"concourse": 85, STREET: 15},
    "food": {"gallery": 1},
    "cars": {STREET: 1},
}
# When films begin, in hours; how many minutes they last, and how many come at most.
FILMS = ((11.0, 105, 250), (13.5, 110, 420), (14.5, 95, 300), (16.5, 125, 520), (17.5, 100, 380), (19.25, 130, 620),
         (20.25, 110, 520), (22.5, 125, 460))  # fmt: skip
# By what doors they come and go, and with how much of them.
WAYS = {"north": 34, "south": 30, "east": 12, "lobby": 24}
# From Monday on.
DAYS = (0.55, 0.55, 0.6, 0.7, 0.9, 1.0, 0.7)
Edge = tuple[str, str]


def doors() -> dict[Edge, list[str]]:
    """The sensors between two zones; of doors to the outside, between the street and the zone."""
    found: dict[Edge, list[str]] = defaultdict(list)
    with Path(__file__).with_name("doors.csv").open(encoding="utf-8", newline="") as file:
        for each in csv.DictReader(file):
            found[each["leaves"] or STREET, each["enters"].split()[-1]].append(each["sensor"])
    return dict(found)


def some(chance: random.Random, mean: float, most: int = 10**6) -> int:
    """How many of many it happens to, each with a small chance."""
    if mean <= 0:
        return 0
    if mean > 15:
        return min(most, max(0, round(chance.gauss(mean, math.sqrt(mean)))))
    found, left = 0, chance.random()
    while left > math.exp(-mean) and found < most:
        found, left = found + 1, left * chance.random()
    return found


def busy(at: datetime) -> float:
    """How many come, against the most: by the hour, and by the day of the week."""
    hour = at.hour + at.minute / 60
    if not 9 <= hour < 22.5:
        return 0.0
    noon, evening = math.exp(-(((hour - 13.5) / 2.6) ** 2)), 0.75 * math.exp(-(((hour - 18.5) / 1.8) ** 2))
    opened = min(1.0, (hour - 9) / 0.75)
    shut = 1.0 if hour < 20.5 else 0.4
    return opened * shut * (0.12 + noon + evening) * DAYS[at.weekday()]


class Mall:
    """Who is where, minute by minute, as it truly is."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._inside: Counter[str] = Counter()
        # When each film lets people out: how many are still in it.
        self._films: dict[datetime, int] = {}

    def minute(self, at: datetime, chance: random.Random) -> dict[Edge, int]:
        """How many go from where to where within a minute."""
        moved: Counter[Edge] = Counter()
        arriving = some(chance, VISITORS_A_MINUTE * busy(at))
        to_store = some(chance, arriving * 0.06, arriving)
        moved[STREET, "store"], moved[STREET, "concourse"] = to_store, arriving - to_store
        moved[STREET, "cars"] = some(chance, arriving * 0.22)
        for zone, stay in STAYS.items():
            leaving = self._leaving(at, zone, stay, chance)
            ways, weights = list(NEXT[zone]), list(NEXT[zone].values())
            if zone == "gallery" and at.hour in (12, 13):
                weights = [55, 45]
            if closing(at):
                # Whatever is on the way out.
                ways, weights = [{"gallery": "concourse", "food": "gallery"}.get(zone, STREET)], [1]
            for choice in chance.choices(ways, weights, k=leaving):
                moved[zone, choice] += 1
        self._cinema(at, chance, moved)
        for (before, behind), number in moved.items():
            self._inside[before] -= number
            self._inside[behind] += number
        return moved

    def _leaving(self, at: datetime, zone: str, stay: float, chance: random.Random) -> int:
        inside = self._inside[zone]
        # Shops close at nine; at half past one the last are shown out.
        pace = 3.0 if closing(at) else 1.0
        if at.hour in (2, 3) or (at.hour == 1 and at.minute >= 30):
            return inside
        return some(chance, inside * pace / stay, inside)

    def _cinema(self, at: datetime, chance: random.Random, moved: Counter[Edge]) -> None:
        midnight = at.replace(hour=0, minute=0)
        free = self._inside["gallery"] - moved["gallery", "concourse"] - moved["gallery", "food"]
        for number, (hour, lasts, most) in enumerate(FILMS):
            begins = midnight + timedelta(hours=hour)
            if begins - 25 * MINUTE <= at < begins + 5 * MINUTE:
                likes = random.Random(f"{self._seed}/{midnight:%Y-%m-%d}/{number}").uniform(0.45, 1.0)
                # When the shops are closed, straight from the street.
                way, room = (STREET, most) if closing(at) else ("gallery", max(0, free))
                coming = some(chance, most * likes * (0.3 + 0.7 * busy(at)) / 30, room)
                free -= coming if way == "gallery" else 0
                moved[way, "cinema"] += coming
                self._films[begins + lasts * MINUTE] = self._films.get(begins + lasts * MINUTE, 0) + coming
        for ends, inside in list(self._films.items()):
            if at < ends:
                continue
            # Most go within the first three minutes, none stays longer than twelve.
            leaving = inside if at >= ends + 12 * MINUTE else some(chance, inside * 0.38, inside)
            self._films[ends] = inside - leaving
            if not self._films[ends]:
                del self._films[ends]
            way = STREET if at.hour >= 23 or at.hour < 4 else "gallery"
            moved["cinema", way] += leaving


def closing(at: datetime) -> bool:
    """Shops close at nine in the evening; the cinema has a way out of its own."""
    return at.hour >= 21 or at.hour < 9


@dataclass
class Sensor:
    """One sensor: what it misses, and how it is."""

    name: str
    misses: float
    number: int
    dead_until: datetime
    cut_until: datetime

    def count(self, at: datetime, passed: tuple[int, int], chance: random.Random) -> Count | None:
        """What it counted in a minute; None while it is dead."""
        if at < self.dead_until:
            return None
        if chance.random() < RESTARTS:
            # Two minutes mostly, and at times until somebody comes.
            self.dead_until = at + MINUTE * (chance.randint(18, 40) if chance.random() < 0.5 else chance.randint(1, 3))
            self.number = 0
            return None
        self.number += 1
        entered, exited = (each - some(chance, each * self.misses, each) for each in passed)
        return Count(sensor=self.name, number=self.number, entered=entered, exited=exited, at=at)

    def wait(self, at: datetime, chance: random.Random) -> timedelta:
        """How long a record of that minute waits for the line. Never longer than `late` in app.py allows."""
        if at >= self.cut_until and chance.random() < CUTS:
            self.cut_until = at + MINUTE * chance.randint(2, 7)
        return max(self.cut_until - at, timedelta())


def sensors(seed: int) -> dict[str, Sensor]:
    names = [name for several in doors().values() for name in several]
    found = {}
    for name in names:
        chance = random.Random(f"{seed}/sensor/{name}")
        misses = chance.uniform(0.003, 0.014) if chance.random() < 0.9 else 0.03
        found[name] = Sensor(name, misses, chance.randrange(1, 20_000), START, START)
    return found


def passing(moved: dict[Edge, int], edges: dict[Edge, list[str]], chance: random.Random) -> dict[str, list[int]]:
    """In and out by sensor, of how many went from where to where."""
    found: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for (before, behind), number in moved.items():
        way_in = (before, behind) in edges
        over = edges[(before, behind) if way_in else (behind, before)]
        weights = [WAYS.get(name.rpartition("-")[0], 1) for name in over]
        for name in chance.choices(over, weights, k=number):
            found[name][0 if way_in else 1] += 1
    return found


def events(seed: int = 1) -> Iterator[Count | bytes]:
    """What the sensors send, in the order in which it comes, without an end. Bytes are records that are none."""
    mall, edges, known, order = Mall(seed), doors(), sensors(seed), count()
    due: list[tuple[datetime, int, Count | bytes]] = []
    for number in count():
        at, chance = START + number * MINUTE, random.Random(f"{seed}/minute/{number}")
        passed = passing(mall.minute(at, chance), edges, chance)
        for name, sensor in known.items():
            entered, exited = passed.get(name, (0, 0))
            counted = sensor.count(at, (entered, exited), chance)
            if counted is None:
                continue
            leaves = at + MINUTE + sensor.wait(at, chance) + timedelta(seconds=chance.uniform(0, 5))
            heapq.heappush(due, (leaves, next(order), counted))
            if chance.random() < TWICE:
                again = leaves + timedelta(seconds=chance.uniform(1, 45))
                heapq.heappush(due, (again, next(order), counted))
            if chance.random() < BROKEN:
                heapq.heappush(due, (leaves, next(order), _broken(counted, chance)))
        while due and due[0][0] < at + 2 * MINUTE:
            yield heapq.heappop(due)[2]


def _broken(counted: Count, chance: random.Random) -> bytes:
    good = msgspec.json.decode(msgspec.json.encode(counted))
    return chance.choice([
        b"SENSOR BOOT 4.2.1 OK",
        json.dumps(good | {"entered": -1}).encode(),
        json.dumps(good | {"exited": 65535}).encode(),
        json.dumps({name: value for name, value in good.items() if name != "sensor"}).encode(),
        msgspec.json.encode(counted)[:-9],
    ])  # fmt: skip


if __name__ == "__main__":
    run_source(__doc__ or "", counts, events, speed_up=480, what="days", sender=Gateway)
