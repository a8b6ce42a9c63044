"""What the demo shows: the streams as the pipeline tells of them, and the newest rows of their topics."""

import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Self

from app import Reading
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

import riverrun as rr
from riverrun.cli.stream_table import stream_table
from riverrun.kafka.parts import BATCH
from riverrun.model.progress import PipelineProgress

if TYPE_CHECKING:
    from riverrun.model.state import Place

HIGH_LOAD = rr.Topic("high_load", Reading)
# A house that was above the limit a minute ago still is.
STILL = timedelta(minutes=1)
SHOWN = 6


@dataclass
class Above:
    """A house above the limit: since when, and its newest row."""

    since: datetime
    row: Reading


class Results:
    """Reads the topics of all streams, committed, by a thread of its own, in a `with`: counts rows and keeps the newest.

    They are counted as they come, so that the end does not have to read everything again.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._topics = [HIGH_LOAD, *(name for name in names if name != HIGH_LOAD.name)]
        self._consumer: rr.Consumer[Any] = rr.Consumer(self._topics, isolation="committed")
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._lock = threading.Lock()
        self._next: dict[Place, int] = {}
        self._streets: dict[str, tuple[datetime, float]] = {}
        self._above: dict[str, Above] = {}
        self._newest: datetime | None = None
        self._error: Exception | None = None
        self._names = tuple(names)
        # (topic, which batch wrote them): how many rows.
        self._rows: Counter[tuple[str, bytes]] = Counter()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.stop()
        self._thread.join(10)

    def _follow(self) -> None:
        try:
            with self._consumer:
                self._read(self._consumer)
        except rr.RiverrunError as error:
            self._error = error

    def finish(self) -> None:
        """Read what is left, once nothing is written any more."""
        self.__exit__()
        self.check()
        with rr.Consumer(self._topics, isolation="committed", follow=False) as consumer:
            for place, offset in self._next.items():
                consumer.seek(place, offset)
            self._read(consumer)

    def _read(self, consumer: "rr.Consumer[Any]") -> None:
        for batch in consumer.batches(5000, wait_seconds=0.2):
            with self._lock:
                for record in batch:
                    self._rows[record.topic, record.header(BATCH) or b""] += 1
                    self._next[record.place] = record.offset + 1
                    if record.topic in {HIGH_LOAD.name, "street_load"}:
                        self._take(record)

    def _take(self, record: rr.Record[Any]) -> None:
        if record.topic == "street_load":
            row = record.value
            minute = datetime.fromisoformat(row["minute"]["start"])
            if minute >= self._streets.get(row["street"], (minute, 0.0))[0]:
                self._streets[row["street"]] = (minute, row["load_kw"])
            return
        reading: Reading = record.value
        before = self._above.get(reading.house_id)
        goes_on = before is not None and reading.at - before.row.at <= STILL
        self._above[reading.house_id] = Above(before.since if before and goes_on else reading.at, reading)
        self._newest = max(self._newest or reading.at, reading.at)

    def rows(self, progress: PipelineProgress | None = None) -> dict[str, int]:
        """How many rows each stream has written: all, or those of the batches that were over when the pipeline told this.

        A batch that was broken off is done again, and its rows counted, when the pipeline goes on.
        """
        whole = {each.name: each.batch for each in progress.streams} if progress else {}
        with self._lock:
            counted = list(self._rows.items())
        return {
            name: sum(
                count
                for (topic, batch), count in counted
                if topic == name and int(batch.rpartition(b"/")[2] or 0) <= whole.get(name, sys.maxsize)
            )
            for name in self._names
        }

    def check(self) -> None:
        if self._error is not None:
            raise self._error

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


@dataclass
class Numbers:
    """How many records the topics hold, and what the pipeline last told."""

    progress: PipelineProgress
    stored: int = 0
    letters: int = 0
    told: int = 0
    _before: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=12))

    def update(self, stored: int, letters: int, told: int) -> None:
        self.stored, self.letters, self.told = stored, letters, told
        self._before.append((time.monotonic(), stored))

    @property
    def rate(self) -> float:
        """Readings stored a second, over the last looks."""
        (first, before), (last, now) = self._before[0], self._before[-1]
        return (now - before) / (last - first) if last > first else 0.0


def page(numbers: Numbers, results: Results, speed: float, width: int) -> RenderableType:
    """One frame of the live view."""
    above = results.above()
    head = Text.assemble(
        (f"{numbers.rate:,.0f}", "bold green"), " readings/s  ",
        (f"{numbers.stored:,}", "bold"), " stored  ",
        (f"{len(above)}", "bold red"), " above 2 kW  ",
        (f"{numbers.told:,}", "bold"), " SMS  ",
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


def line(numbers: Numbers, results: Results) -> str:
    """The same in a line of text, where there is no terminal."""
    lags = ", ".join(f"{each.name} {max(0, each.lag):,}" for each in numbers.progress.streams)
    said = (
        f"{numbers.rate:,.0f} readings/s, {numbers.stored:,} stored, {numbers.letters:,} dead letters, "
        f"{numbers.told:,} SMS; behind: {lags}"
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
