"""A city of houses: what each draws, minute by minute. Seeded, so that a run can be repeated to the digit."""

import json
import math
import random
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from app import Reading

# (kW, minutes on, times a day): what people switch on, and for how long.
APPLIANCES = ((2.0, 4, 4.0), (1.9, 45, 0.6), (2.2, 70, 0.5), (1.2, 20, 1.0), (0.9, 90, 0.4))
STREETS = ("Anna Livia Row", "Bend Street", "Commodius Lane", "Eve's Terrace", "Howth Road", "Vicus Place")


class House:
    """One house: a base load, a daily shape of its own, and appliances that come on by chance."""

    def __init__(self, number: int, seed: int) -> None:
        self._chance = random.Random(f"{seed}/{number}")
        self.house_id = f"house-{number:05d}"
        self.street = STREETS[number % len(STREETS)]
        self._base = self._chance.uniform(0.08, 0.25)
        self._evening = self._chance.uniform(0.2, 0.6)
        self._shift = self._chance.gauss(0, 60)
        self._running: list[tuple[float, int]] = []

    def load_kw(self, minute_of_day: int) -> float:
        """The load in this minute; call it once per minute, in order."""
        day = _bump(minute_of_day, 7.5 * 60 + self._shift, 70) * 0.6 + _bump(minute_of_day, 19 * 60 + self._shift, 130)
        for kw, minutes, times in APPLIANCES:
            if self._chance.random() < times * (0.2 + 2.2 * day) / 1440:
                self._running.append((kw, max(1, round(self._chance.gauss(minutes, minutes / 4)))))
        appliances = sum(kw for kw, _ in self._running)
        self._running = [(kw, left - 1) for kw, left in self._running if left > 1]
        noise = self._chance.gauss(0, 0.02)
        return round(max(0.02, self._base + self._evening * day + appliances + noise), 3)


def _bump(minute: int, middle: float, width: float) -> float:
    apart = (minute - middle + 720) % 1440 - 720
    return math.exp(-(apart**2) / (2 * width**2))


def minutes(houses: int, seed: int, start: datetime | None = None) -> Iterator[list[Reading]]:
    """One list of readings per minute of the city's time, without end."""
    city = [House(number, seed) for number in range(houses)]
    at = start or datetime.now(UTC).replace(hour=17, minute=0, second=0, microsecond=0)
    while True:
        minute = at.hour * 60 + at.minute
        yield [Reading(house_id=h.house_id, street=h.street, load_kw=h.load_kw(minute), at=at) for h in city]
        at += timedelta(minutes=1)


# What a meter that is broken sends instead of a reading.
FAULTS: tuple[Callable[[dict[str, Any]], bytes], ...] = (
    lambda good: json.dumps(good).encode()[:-9],
    lambda good: json.dumps(good | {"load_kw": -1.0}).encode(),
    lambda good: json.dumps(good | {"load_kw": "much"}).encode(),
    lambda _: b"meter: low battery",
)


def broken(reading: Reading, number: int) -> bytes:
    """The bytes of a reading gone wrong; the kinds take turns by `number`."""
    good = {"house_id": reading.house_id, "street": reading.street, "load_kw": 1.0, "at": reading.at.isoformat()}
    return FAULTS[number % len(FAULTS)](good)
