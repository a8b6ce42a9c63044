"""What the demo shows: the streams as the pipeline tells of them, and the newest rows of their topics."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from app import Reading
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

import riverrun as rr
from riverrun.cli.stream_display import stream_table
from riverrun.demo.results import StreamResults as Counting
from riverrun.demo.runner import LiveCounts

HIGH_LOAD = rr.Topic("high_load", Reading)
# A house that was above the limit a minute ago still is.
STILL = timedelta(minutes=1)
SHOWN = 6


@dataclass
class Above:
    """A house above the limit: since when, and its newest row."""

    since: datetime
    row: Reading


class Results(Counting):
    """Keeps the newest row of each street, and of each house above the limit."""

    def __init__(self, names: Iterable[str]) -> None:
        super().__init__([HIGH_LOAD, *(name for name in names if name != HIGH_LOAD.name)])
        self._streets: dict[str, tuple[datetime, float]] = {}
        self._above: dict[str, Above] = {}
        self._newest: datetime | None = None

    def take(self, record: rr.Record[Any]) -> None:
        if record.topic == "street_load":
            row = record.value
            minute = datetime.fromisoformat(row["minute"]["start"])
            if minute >= self._streets.get(row["street"], (minute, 0.0))[0]:
                self._streets[row["street"]] = (minute, row["load_kw"])
        elif record.topic == HIGH_LOAD.name:
            reading: Reading = record.value
            before = self._above.get(reading.house_id)
            goes_on = before is not None and reading.at - before.row.at <= STILL
            self._above[reading.house_id] = Above(before.since if before and goes_on else reading.at, reading)
            self._newest = max(self._newest or reading.at, reading.at)

    def streets(self) -> list[tuple[str, datetime, float]]:
        """Each street's newest minute that is final, the highest first."""
        with self._lock:
            found = [(name, minute, load) for name, (minute, load) in self._streets.items()]
        return sorted(found, key=lambda each: -each[2])

    def above(self) -> list[Above]:
        """The houses above the limit now, the newest first."""
        with self._lock:
            newest = self._newest
            found = [each for each in self._above.values() if newest and newest - each.row.at <= STILL]
        return sorted(found, key=lambda each: (each.since, each.row.load_kw), reverse=True)


def page(numbers: LiveCounts, results: Results, speed: float, width: int) -> RenderableType:
    """One frame of the live view."""
    above = results.above()
    head = Text.assemble(
        (f"{numbers.rate:,.0f}", "bold green"), " readings/s  ",
        (f"{numbers.stored:,}", "bold"), " stored  ",
        (f"{len(above)}", "bold red"), " above 2 kW  ",
        (f"{numbers.sms_count:,}", "bold"), " SMS  ",
        (f"{numbers.letters:,}", "bold red"), " dead",
    )  # fmt: skip
    rows = Table.grid(expand=True)
    rows.add_column(ratio=1)
    rows.add_column(ratio=1)
    rows.add_row(
        Panel(_streets(results), title="topic street_load: highest now", border_style="blue", height=SHOWN + 3),
        Panel(_houses(above), title="topic high_load: newest", border_style="blue", height=SHOWN + 3),
    )
    return Group(
        Panel(head, title=f"riverrun · smart meters · city time runs {speed:g} times faster", border_style="blue"),
        Panel(stream_table(numbers.progress, width - 4), title="streams of app.py on Spark", border_style="blue"),
        rows,
        Text("Ctrl-C stops it and counts what was sent against what came out.", style="dim"),
    )


def line(numbers: LiveCounts, results: Results) -> str:
    """The same in a line of text, where there is no terminal."""
    lags = ", ".join(f"{stream.name} {max(0, stream.lag):,}" for stream in numbers.progress.streams)
    said = (
        f"{numbers.rate:,.0f} readings/s, {numbers.stored:,} stored, {numbers.letters:,} dead letters, "
        f"{numbers.sms_count:,} SMS; behind: {lags}"
    )
    for name, minute, load in results.streets()[:1]:
        said += f"; highest at {minute:%H:%M}: {name} {load:,.0f} kW"
    for each in results.above()[:1]:
        said += f"; newest above 2 kW: {each.row.house_id} {each.row.load_kw:.2f} kW"
    return said


def _streets(results: Results) -> Table:
    found = results.streets()
    table = _table("street", "minute", "kW", "")
    for number, (name, minute, load) in enumerate(found[:SHOWN]):
        bar = _bar(load / found[0][2], "red" if number == 0 else "yellow")
        table.add_row(name, f"{minute:%H:%M}", f"{load:,.0f}", bar)
    return table


def _houses(above: list[Above]) -> Table:
    table = _table("house", "since", "kW", "")
    for each in above[:SHOWN]:
        load = each.row.load_kw
        bar = _bar(load / 6, "red" if load > 3 else "yellow")
        table.add_row(each.row.house_id, f"{each.since:%H:%M}", f"{load:.2f}", bar)
    return table


def _table(*names: str) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="dim")
    for name in names:
        table.add_column(name, justify="right" if name == "kW" else "left", no_wrap=True)
    return table


def _bar(part: float, style: str) -> Text:
    return Text("█" * max(1, round(min(1.0, part) * 8)), style=style)
