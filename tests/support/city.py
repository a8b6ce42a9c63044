"""A city of meters for the dashboards' tests and pictures: houses in streets, their load by the minute, always the same."""

import math
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import riverrun as rr
from riverrun.model.table import TableSpec
from support.memory_store import MemoryStore, columns

STREETS = ("Alder Lane", "Birch Street", "Canal Row", "Dock Road", "Elm Street", "Foundry Hill", "Garden Square",
           "Harbour Walk", "Iron Bridge", "Juniper Way", "Knight Parade", "Linden Avenue")  # fmt: skip
BEGIN = datetime(2026, 11, 16, 6, 0, tzinfo=UTC)

HOUSE_LOAD = TableSpec(
    "house_load",
    "house_load",
    columns(minute="timestamp", house_id="text", street="text", load_kw="double"),
    ("minute", "house_id", "street"),
    upserts=True,
    time="minute",
)
STREET_LOAD = TableSpec(
    "street_load",
    "street_load",
    columns(minute="timestamp", street="text", load_kw="double"),
    ("minute", "street"),
    upserts=True,
    time="minute",
)
PRICES = TableSpec(
    "prices",
    "prices",
    columns(minute="timestamp", open="double", high="double", low="double", close="double"),
    ("minute",),
    upserts=True,
    time="minute",
)


def city_app() -> rr.App:
    app = rr.App("meters")
    app.dashboard(
        rr.number("City load", "street_load", y="load_kw", unit="kW", closed=True),
        rr.number("Houses", "select count(distinct house_id) as houses from house_load", compare=None),
        rr.number("Highest house", "select max(load_kw) as load_kw from house_load where minute = latest", unit="kW",
                  thresholds={"warn": 3, "bad": 4}),
        rr.number("Mean load", "select avg(load_kw) as load_kw from house_load where minute = latest", unit="kW",
                  decimals=2),
        rr.line("Load by street", "street_load", x="minute", y="load_kw", by="street", unit="kW", limit=12),
        rr.leaderboard("Highest houses", "house_load", by="house_id", y="load_kw", unit="kW",
                       thresholds={"warn": 2, "bad": 3.5}),
        rr.line("Houses of {street}", "house_load", y="load_kw", by="house_id", unit="kW", when="street", width=8),
        rr.rows("Readings of {street}", "house_load", columns=["minute", "house_id", "load_kw"], when="street", width=4),
        rr.heat_map("Load through the hour", "street_load", by="street", y="load_kw", unit="kW", width=8),
        rr.status("Houses over their limit", "house_load", by="house_id", y="load_kw", limit=24,
                  thresholds={"warn": 2, "bad": 3.5}),
        title="City power",
    )  # fmt: skip
    app.dashboard(
        rr.area("Load, all streets", "street_load", by="street", y="load_kw", unit="kW", width=12),
        rr.bar("Streets now", "street_load", by="street", y="load_kw", unit="kW", closed=True),
        rr.bar("Readings a minute", "house_load", x="minute", aggregate="count", range="30 minutes", width=8),
        rr.candle("Price", "prices", unit="ct", range="1 hour", width=8),
        rr.text(
            "Loads are **averages** of a minute.\n\n- every house reports `load_kw`\n- above 2 kW its owner hears of it",
            title="About",
        ),
        name="more",
        title="More",
    )
    return app


class City:
    """Fills a store, minute by minute."""

    def __init__(self, houses: int = 40) -> None:
        self.store = MemoryStore(HOUSE_LOAD, STREET_LOAD, PRICES)
        self.houses = houses
        self.minutes = 0

    @property
    def newest(self) -> datetime:
        return BEGIN + timedelta(minutes=self.minutes - 1)

    def street_of(self, house: int) -> str:
        """The first houses one in each street; then long streets get more than short ones."""
        if house < len(STREETS):
            return STREETS[house]
        return STREETS[int(len(STREETS) * (house * 0.618034 % 1) ** 1.3)]

    def load(self, house: int, minute: int) -> float:
        """A base, a morning, kettles and ovens; no two houses alike, every run the same."""
        seed = (house * 2654435761) % 997 / 997
        hour = 6 + minute / 60
        morning = math.exp(-((hour - 7.4 - seed) ** 2) / 0.9)
        oven = 2.2 if math.sin(house * 12.9898 + minute // 9 * 78.233) > 0.965 else 0.0
        kettle = 1.8 if math.sin(house * 3.17 + minute * 4.77) > 0.985 else 0.0
        wave = 0.08 * math.sin(minute / 3 + seed * 9)
        return round(0.15 + 0.25 * seed + 0.7 * morning * (0.5 + seed) + oven + kettle + wave, 3)

    def rows(self, minute: int) -> list[dict[str, Any]]:
        at = BEGIN + timedelta(minutes=minute)
        return [
            {
                "minute": at,
                "house_id": f"house-{house:04}",
                "street": self.street_of(house),
                "load_kw": self.load(house, minute),
            }
            for house in range(self.houses)
        ]

    def run(self, minutes: int) -> None:
        """Let so many minutes come in."""
        houses: list[dict[str, Any]] = []
        streets: list[dict[str, Any]] = []
        prices: list[dict[str, Any]] = []
        for minute in range(self.minutes, self.minutes + minutes):
            rows = self.rows(minute)
            houses += rows
            sums: dict[str, float] = {}
            for row in rows:
                sums[row["street"]] = sums.get(row["street"], 0.0) + row["load_kw"]
            streets += [
                {"minute": rows[0]["minute"], "street": name, "load_kw": round(load, 3)} for name, load in sums.items()
            ]
            prices.append({"minute": rows[0]["minute"], **dict(self.candle(minute))})
        for table, rows in (("house_load", houses), ("street_load", streets), ("prices", prices)):
            self.store.put(table, rows)
        self.minutes += minutes

    def candle(self, minute: int) -> Iterator[tuple[str, float]]:
        def price(at: float) -> float:
            return 24 + 3 * math.sin(at / 17) + 1.2 * math.sin(at / 3.1) + 0.8 * math.sin(at * 2.3)

        along = [price(minute + part / 8) for part in range(9)]
        for name, value in zip(
            ("open", "high", "low", "close"), (along[0], max(along), min(along), along[-1]), strict=True
        ):
            yield name, round(value, 2)
