"""The same figures in plain Python, from the same records: what the pipeline is held against. Nothing is shared with it.

python figures.py --seed 1 --events 50000        compare with what is in the project's Kafka, after source.py sent the same
"""

import csv
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from app import Count
from source import events

from riverrun.demo.comparison import StreamCheck, compare

MINUTE, FOUR = timedelta(minutes=1), timedelta(hours=4)
HERE = Path(__file__).parent


def _read(name: str) -> list[dict[str, str]]:
    with (HERE / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def day_of(at: datetime) -> datetime:
    """The four o'clock that it is after."""
    before = at - FOUR
    return datetime(before.year, before.month, before.day, 4, tzinfo=UTC)


class Figures:
    """What records come to. A minute of a sensor counts once, and people walk through doors one by one."""

    def __init__(self, counts: Iterable[Count]) -> None:
        self.counts = list({(count.sensor, count.at): count for count in counts}.values())
        self.doors = {each["sensor"]: (each["enters"].split(), each["leaves"].split()) for each in _read("doors.csv")}
        self.areas = {each["zone"]: each for each in _read("zones.csv")}

    def passages(self) -> list[tuple[datetime, str, int, int]]:
        """When, which zone, how many came into it and how many went out of it."""
        found = []
        for count in self.counts:
            enters, leaves = self.doors.get(count.sensor, ([], []))
            found += [(count.at, zone, count.entered, count.exited) for zone in enters]
            found += [(count.at, zone, count.exited, count.entered) for zone in leaves]
        return found

    def zone_minutes(self) -> dict[tuple[datetime, str], tuple[int, int]]:
        entered, exited = Counter[tuple[datetime, str]](), Counter[tuple[datetime, str]]()
        for at, zone, came, went in self.passages():
            entered[at, zone] += came
            exited[at, zone] += went
        return {key: (entered[key], exited[key]) for key in entered}

    def zones(self) -> dict[tuple[datetime, str], tuple[Any, ...]]:
        """By day and zone: entered, exited, people, minutes they stay, how full, and the newest minute."""
        minutes: dict[tuple[datetime, str], list[tuple[datetime, int, int]]] = defaultdict(list)
        for (at, zone), (came, went) in self.zone_minutes().items():
            minutes[day_of(at), zone].append((at, came, went))
        found = {}
        for (day, zone), several in minutes.items():
            several.sort()
            inside = entered = exited = 0
            spent, before = 0.0, day
            # How many are inside, minute after minute; who comes or goes in a minute does so in its middle.
            for at, came, went in several:
                spent += inside * ((at + MINUTE - before) / MINUTE) + (came - went) * 0.5
                inside, entered, exited, before = inside + came - went, entered + came, exited + went, at + MINUTE
            people, area = max(inside, 0), self.areas[zone]
            stay = spent / entered if entered else None
            full = 100 * people / int(area["capacity"])
            found[day, zone] = (entered, exited, people, stay, full, several[-1][0])
        return found

    def sensors(self) -> dict[tuple[datetime, str], tuple[int, int, datetime]]:
        """By day and sensor: minutes that it counted, how often it began anew, when it was last heard."""
        found: dict[tuple[datetime, str], tuple[int, int, datetime]] = {}
        for count in self.counts:
            key = (day_of(count.at), count.sensor)
            minutes, restarts, last = found.get(key, (0, 0, count.at))
            found[key] = (minutes + 1, restarts + (count.number == 1), max(last, count.at))
        return found

    def misses(self) -> dict[tuple[str, str], tuple[int, int, int, float | None]]:
        """Of the days that are over, by day and zone: entered, exited, the difference, and what part that is."""
        found = {}
        for (day, zone), (entered, exited, _, _, _, last) in self.zones().items():
            over = entered - exited
            if last >= day + timedelta(hours=23, minutes=55):
                found[f"{day:%Y-%m-%d}", zone] = (entered, exited, over, 100 * over / entered if entered else None)
        return found


# --- comparing ---

CHECKS = (
    StreamCheck("zone_minutes", ("minute.start", "zone"), ("entered", "exited"), lambda good: Figures(good).zone_minutes()),
    StreamCheck("zones", ("day.start", "zone"), ("entered", "exited", "people", "stay_minutes", "full_percent", "at"),
          lambda good: Figures(good).zones()),
    StreamCheck("sensors", ("day.start", "sensor"), ("minutes", "restarts", "at"), lambda good: Figures(good).sensors()),
)  # fmt: skip


if __name__ == "__main__":
    sys.exit(compare(__doc__ or "", events, Count, CHECKS))
