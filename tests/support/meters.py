"""The meters example for tests and pictures: its modules, what its streams come to by plain Python, and a store of that."""

import importlib
from collections import defaultdict
from collections.abc import Iterator
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from typing import Any

import riverrun as rr
from riverrun.model.table import TableSpec
from support.memory_store import MemoryStore, columns
from support.usecases import EXAMPLES, Modules, modules_of

METERS = EXAMPLES / "meters"
MINUTE = timedelta(minutes=1)
LIMIT_KW = 2.0

HOUSE_LOAD = TableSpec(
    "house_load", "house_load",
    columns(minute="timestamp", minute_end="timestamp", house_id="text", street="text", owner="text", load_kw="double"),
    ("minute", "house_id", "street", "owner"), upserts=True, time="minute",
)  # fmt: skip
STREET_LOAD = TableSpec(
    "street_load", "street_load", columns(minute="timestamp", minute_end="timestamp", street="text", load_kw="double"),
    (), upserts=False, time="minute",
)  # fmt: skip
HIGH_LOAD = TableSpec(
    "high_load", "high_load", columns(house_id="text", load_kw="double", at="timestamp"), (), upserts=False, time="at"
)
EPISODES = TableSpec(
    "episodes", "episodes",
    columns(house_id="text", street="text", owner="text", began="timestamp", ended="timestamp", minutes="bigint",
            peak_kw="double"),
    (), upserts=False, time="ended",
)  # fmt: skip


Example = Modules


def example() -> AbstractContextManager[Modules]:
    return modules_of("meters")


class MeterCity:
    """The example's city in a store in memory, as its streams would have filled it: `run` lets so many minutes come in."""

    def __init__(self, modules: Example, houses: int, begin: datetime) -> None:
        self.store = MemoryStore(HOUSE_LOAD, STREET_LOAD, HIGH_LOAD, EPISODES)
        self.houses = modules.houses.read(houses)
        self._of = {house.house_id: house for house in self.houses}
        self._minutes = modules.city.minutes(self.houses, begin)
        self._figures = modules.figures
        self._open: dict[str, Any] = {}
        self.readings: list[Any] = []

    @property
    def app(self) -> rr.App:
        found: rr.App = importlib.import_module("app").app
        return found

    @property
    def truth(self) -> Any:
        return self._figures.Truth(self.readings, {house.house_id: house.street for house in self.houses})

    def run(self, minutes: int) -> None:
        houses: list[dict[str, Any]] = []
        streets: list[dict[str, Any]] = []
        ended: list[dict[str, Any]] = []
        for readings in (next(self._minutes) for _ in range(minutes)):
            self.readings += readings
            sums: dict[str, float] = defaultdict(float)
            for reading in readings:
                place = {name: getattr(self._of[reading.house_id], name) for name in ("house_id", "street", "owner")}
                houses.append(
                    {"minute": reading.at, "minute_end": reading.at + MINUTE, "load_kw": reading.load_kw, **place}
                )
                sums[place["street"]] += reading.load_kw
                ended += self._follow(reading, place)
            span = {"minute": readings[0].at, "minute_end": readings[0].at + MINUTE}
            streets += [{"street": name, "load_kw": load, **span} for name, load in sums.items()]
        for table, rows in (("house_load", houses), ("street_load", streets), ("episodes", ended)):
            self.store.put(table, rows)

    def _follow(self, reading: Any, place: dict[str, str]) -> Iterator[dict[str, Any]]:
        before = self._open.pop(reading.house_id, None)
        if reading.load_kw > LIMIT_KW:
            began, peak = (before.began, before.peak_kw) if before else (reading.at, 0.0)
            self._open[reading.house_id] = self._figures.Episode(
                reading.house_id, began, None, max(peak, reading.load_kw)
            )
        elif before:
            done = self._figures.Episode(before.house_id, before.began, reading.at, before.peak_kw)
            yield {"began": done.began, "ended": done.ended, "minutes": done.minutes, "peak_kw": done.peak_kw, **place}
