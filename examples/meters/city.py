"""What each house of the city draws, minute by minute: people, appliances, cars and the weather.

Any minute can be asked for, in any order: a day of a house is drawn from the seed, the house and the date, and nothing
depends on what was asked before. So a test, a replay and the demo see the same city, to the digit.
"""

import json
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import Any

from app import Reading
from houses import SEED, House

DAY = 1440
# How late a reading may be: `late` in app.py.
ALLOWED = timedelta(minutes=2)
# (from minute, to minute, kW): something that runs. It may go on into the next day.
Run = tuple[int, int, float]
# What of the readings does not come as it should: broken, twice, late within what is allowed, and later than that.
BROKEN, TWICE, LATE, TOO_LATE = 0.0005, 0.002, 0.002, 0.0002


def temperature(at: datetime, seed: int = SEED) -> float:
    """Degrees Celsius outside: by the season, the hour, and weather that differs from day to day."""
    days = at.timetuple().tm_yday + (at.hour + at.minute / 60) / 24
    season = 9.5 - 7.5 * math.cos(2 * math.pi * (days - 20) / 365.25)
    hour = 3.5 * math.cos(2 * math.pi * (at.hour + at.minute / 60 - 15) / 24)
    today, tomorrow = _weather(at.date(), seed), _weather(at.date() + timedelta(days=1), seed)
    return season + hour + today + (tomorrow - today) * (days % 1)


def _weather(day: date, seed: int) -> float:
    return random.Random(f"{seed}/weather/{day}").gauss(0, 2.0)


class Household:
    """One house and those who live in it."""

    def __init__(self, house: House, seed: int = SEED) -> None:
        self.house = house
        self._seed = seed
        chance = random.Random(f"{seed}/household/{house.house_id}")
        self._people = chance.choices((1, 2, 3, 4, 5), (28, 32, 17, 16, 7))[0]
        large = chance.choices(("heat pump", "heaters", "car"), (20, 7, 6))[0] if house.contract_kw > 9 else ""
        self._heated_by = large if house.contract_kw < 13 else chance.choice(("heat pump", "gas"))
        self._car_kw = 7.4 if house.contract_kw > 13 else 3.7 if large == "car" else 0.0
        self._base = chance.uniform(0.05, 0.12) + 0.02 * self._people
        self._lights = chance.uniform(0.05, 0.11)
        self._fridge = chance.randrange(40, 65), chance.randrange(60), chance.uniform(0.08, 0.14)
        self._early = chance.gauss(0, 45)
        self._cycle = chance.randrange(16, 40), chance.randrange(60)
        self._size = chance.uniform(0.8, 1.25)
        self._hob, self._dryer, self._dishes = (chance.random() < share for share in (0.75, 0.35, 0.6))
        self._salt = chance.randrange(65536)
        self._runs: dict[date, list[Run]] = {}

    def load_kw(self, at: datetime, outside: float) -> float:
        """The load in the minute that ends at `at`, in kW, with the temperature outside."""
        minute, day = at.hour * 60 + at.minute, at.date()
        if day not in self._runs:
            yesterday = day - timedelta(days=1)
            self._runs = {each: self._runs.get(each) or self._plan(each) for each in (yesterday, day)}
            self._runs[day] += [(begin - DAY, end - DAY, kw) for begin, end, kw in self._runs[yesterday] if end > DAY]
        running = sum(kw for begin, end, kw in self._runs[day] if begin <= minute < end)
        period, phase, compressor = self._fridge
        fridge = compressor if (minute + phase) % period < period * 0.4 else 0.0
        awake = _bump(minute, 7.5 * 60 + self._early, 80) * 0.6 + _bump(minute, 20 * 60 + self._early / 2, 150)
        lights = self._lights * self._people * awake
        # No two minutes are alike, and each is the same whenever it is asked for.
        noise = ((self._salt + day.toordinal() * DAY + minute) * 2654435761 % 65536 / 65536 - 0.5) * 0.05
        return round(max(0.02, self._base + fridge + lights + running + self._heating(minute, outside) + noise), 3)

    def _heating(self, minute: int, outside: float) -> float:
        """A heat pump runs longer the colder it is, and cools in the heat; electric heaters run while somebody is up."""
        period, phase = self._cycle
        turn = (minute + phase) % period / period
        if self._heated_by == "heat pump":
            need = max((16.0 - outside) / 26, (outside - 25.0) / 12)
            return 1.3 * self._size if turn < min(need, 1.0) else 0.0
        if self._heated_by == "heaters" and (360 <= minute < 540 or 960 <= minute < 1380):
            return 1.9 * self._size if turn < min((15.0 - outside) / 24, 0.8) else 0.0
        return 0.0

    def _plan(self, day: date) -> list[Run]:
        """What is switched on this day, and when."""
        chance = random.Random(f"{self._seed}/{self.house.house_id}/{day}")
        free = day.weekday() >= 5
        people, runs = self._people, list[Run]()

        def on(about: float, spread: float, minutes: float, kw: float) -> int:
            begin = min(DAY - 1, max(0, round(chance.gauss(about + self._early, spread))))
            end = begin + max(1, round(chance.gauss(minutes, minutes / 5)))
            runs.append((begin, end, round(kw * chance.uniform(0.9, 1.1), 3)))
            return end

        for _ in range(round(people * 0.8) + 1):
            on(chance.choice((435, 480, 780, 960, 1200)) + 60 * free, 40, 3, 2.1)
        meals = [(18.6 * 60, 0.8), (13 * 60, 0.55 if free else 0.1), (7.6 * 60 + 90 * free, 0.4)]
        for about, likely in meals:
            if self._hob and chance.random() < likely:
                on(about, 45, 25, chance.choice((0.9, 1.4, 1.9)))
                if about > DAY / 2 and chance.random() < 0.25:
                    on(about - 20, 30, 45, 1.7)
        if self._dishes and chance.random() < 0.25 + 0.12 * people:
            end = on(20 * 60, 60, 20, 1.8)
            runs.append((end, end + 60, 0.2))
        if chance.random() < (0.16 if free else 0.07) * people:
            end = on(11 * 60 if free else 18 * 60, 150, 20, 2.0)
            runs.append((end, end + 50, 0.25))
            if self._dryer:
                runs.append((end + 55, end + 110, 2.2))
        if self._car_kw and chance.random() < 0.5:
            late = self.house.tariff != "flat"
            on(23.3 * 60 if late else 18.6 * 60, 15 if late else 70, 170, self._car_kw)
        return runs


def _bump(minute: int, middle: float, width: float) -> float:
    apart = (minute - middle + 720) % 1440 - 720
    return math.exp(-(apart**2) / (2 * width**2))


def minutes(houses: list[House], start: datetime | None = None, seed: int = SEED) -> Iterator[list[Reading]]:
    """The readings of all houses, one list for each minute of the city's time, without end."""
    city = [Household(house, seed) for house in houses]
    at = start or datetime.now(UTC).replace(hour=17, minute=0, second=0, microsecond=0)
    while True:
        outside = temperature(at, seed)
        yield [Reading(house_id=each.house.house_id, load_kw=each.load_kw(at, outside), at=at) for each in city]
        at += timedelta(minutes=1)


@dataclass
class Sent:
    """What comes in a minute. `readings` has those that come twice and late as well: `late` counts those that come later
    than the pipeline waits for. `broken` are no readings."""

    readings: list[Reading] = field(default_factory=list)
    broken: list[bytes] = field(default_factory=list)
    twice: int = 0
    late: int = 0


class Radio:
    """The way from the meters. Nearly all readings come at once; some a minute or two late, a few much later, some twice
    because the meter has not heard that they came, and now and then something comes that is no reading."""

    def __init__(self, seed: int = SEED) -> None:
        self._chance = random.Random(f"{seed}/radio")
        self._held: dict[int, list[Reading]] = {}
        self._minute = 0
        self._faults = 0

    def send(self, readings: list[Reading]) -> Sent:
        """What comes through in this minute; call it once for each, in order."""
        sent = Sent()
        for reading in readings:
            luck = self._chance.random()
            if luck < LATE + TOO_LATE:
                wait = self._chance.randint(1, 2) if luck < LATE else self._chance.randint(10, 40)
                self._held.setdefault(self._minute + wait, []).append(reading)
                continue
            sent.readings.append(reading)
            if luck > 1 - TWICE:
                sent.readings.append(reading)
                sent.twice += 1
            elif luck > 1 - TWICE - BROKEN:
                sent.broken.append(broken(reading, self._faults))
                self._faults += 1
        held = self._held.pop(self._minute, [])
        sent.readings += held
        sent.late = sum(readings[0].at - each.at > ALLOWED for each in held)
        self._minute += 1
        return sent


# What a meter that is broken sends before its reading.
FAULTS: tuple[Callable[[dict[str, Any]], bytes], ...] = (
    lambda good: json.dumps(good).encode()[:-9],
    lambda good: json.dumps(good | {"load_kw": -1.0}).encode(),
    lambda good: json.dumps(good | {"load_kw": "much"}).encode(),
    lambda _: b"meter: low battery",
)


def broken(reading: Reading, number: int) -> bytes:
    """The bytes of a reading gone wrong; the kinds take turns by `number`."""
    good = {"house_id": reading.house_id, "load_kw": 1.0, "at": reading.at.isoformat()}
    return FAULTS[number % len(FAULTS)](good)
