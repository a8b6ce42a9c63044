"""The dashboards: how old an event is when its figure changes on a page. What viewers cost is in bench/viewers.py.

    python bench/dashboard.py [--speed real-time] [--rate 1000] [--seconds 40]    Kafka → Spark → store → a Chromium's page

`riverrun run` on this machine with a Kafka of its own and the embedded store, as a user runs it; load, browser and all take
their share. Every stage is measured in the same run: a reader of the first topic, which is what Kafka alone takes; a reader
of the stream's topic; the store, asked every 40 ms; a plain HTTP client; the page. Each tells the time of the newest event
that is there. All events between that one and the one before became visible at that moment: their ages are what is counted,
so a wait for the next batch is in them.
"""

import argparse
import json
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
from confluent_kafka import Consumer, Producer, TopicPartition

import riverrun as rr
from riverrun.config import Project
from riverrun.config.serve_state import StoreEndpoint, find_store_endpoint
from riverrun.kafka.connection import Connection
from riverrun.store.client import StoreClient
from riverrun.testing import CrashRun

sys.path.append(str(Path(__file__).parents[1] / "tests"))

TOPIC, STREAM, PARTITIONS = "events", "loads", 2
# Times are shown by their last digits: whole numbers up to here are written out on the page.
WRAP = 1_000_000
# The first number is the newest event's own time, so that its age is on the page; the rest is what a dashboard has besides.
APP = """
from datetime import datetime
import riverrun as rr

app = rr.App("bench")

class Load(rr.Event):
    house: str = rr.key()
    street: str
    load_kw: float
    sent: int
    at: datetime = rr.event_time(late="10 seconds")

events = app.topic("events", Load, partitions=2)

@app.stream
def loads(events):
    return events.where("load_kw >= 0")

app.dashboard(
    rr.number("Sent", "select max(sent) % 1000000 as sent from loads", compare=None),
    rr.number("Load", "select sum(load_kw) as load_kw from loads", compare=None),
    rr.line("Streets", "loads", by="street", y="load_kw", step="second", range="1 minute"),
    rr.leaderboard("Houses", "loads", by="house", y="load_kw", range="10 seconds"),
    rr.bar("Most", "loads", by="street", y="load_kw", range="10 seconds"),
)
"""


@contextmanager
def running(speed: str) -> Iterator[tuple[Connection, StoreEndpoint]]:
    """The app, running, with its dashboard served."""
    with tempfile.TemporaryDirectory(prefix="riverrun-bench-") as name:
        root = Path(name)
        (root / "app.py").write_text(APP)
        (root / "riverrun.toml").write_text('[project]\napp = "app.py"\n[streams]\nevery = "1 second"\n')
        with CrashRun(root, "app.py", ["--speed", speed]) as run:
            run.await_work()
            deadline = time.monotonic() + 60
            while (serving := find_store_endpoint(Project(root))) is None:
                if time.monotonic() > deadline:
                    raise SystemExit("The dashboard was not served within 60 s.")
                time.sleep(0.1)
            yield rr.connect(project=root), serving


# When it was looked at, and the time of the newest event there was.
Seen = tuple[float, float]


class Newest(threading.Thread):
    """Reads a topic as any consumer does: how old each batch's newest record is."""

    def __init__(self, connection: Connection, topic: str) -> None:
        super().__init__(daemon=True)
        self._consumer = Consumer(connection.properties({
            "group.id": "bench", "isolation.level": "read_committed", "enable.auto.commit": False, "fetch.wait.max.ms": 5,
        }))  # fmt: skip
        self._consumer.assign([TopicPartition(topic, each, -1) for each in range(PARTITIONS)])
        self.seen: list[Seen] = []
        self.measuring, self.done = threading.Event(), threading.Event()

    def run(self) -> None:
        while not self.done.is_set():
            batch = [each.value() for each in self._consumer.consume(1000, 0.02) if each.error() is None]
            if batch and self.measuring.is_set():
                self.seen.append((time.time() * 1000, json.loads(batch[-1] or b"{}")["sent"]))
        self._consumer.close()


class Load(threading.Thread):
    """Sends so many records a second, each with the time it was sent at."""

    def __init__(self, connection: Connection, rate: int) -> None:
        super().__init__(daemon=True)
        self._producer = Producer({"bootstrap.servers": connection.bootstrap_servers, "linger.ms": 1})
        self._rate = rate
        self.done = threading.Event()

    def run(self) -> None:
        number, began = 0, time.time()
        while not self.done.is_set():
            due = int((time.time() - began) * self._rate)
            for _ in range(number, due):
                now = time.time()
                at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now % 1 * 1e6):06d}Z"
                value = {"at": at, "house": f"house-{number * 7919 % 1000}", "street": f"street {number % 12}",
                         "load_kw": number % 30 / 10, "sent": int(now * 1000)}  # fmt: skip
                self._producer.produce(TOPIC, json.dumps(value).encode())
                number += 1
            self._producer.poll(0)
            time.sleep(0.002)
        self._producer.flush(10)


def ages_of(seen: Sequence[Seen]) -> list[float]:
    """The ages of events as they became visible: ten of each change, evenly."""
    found = []
    for (_, before), (now, newest) in pairwise(seen):
        gone = (newest - before) % WRAP
        # Of several partitions, an older event may come behind a newer one.
        if 0 < gone < WRAP / 2:
            found += [(now - newest + gone * (each + 0.5) / 10) % WRAP for each in range(10)]
    return found


def show(name: str, seen: Sequence[Seen]) -> None:
    ages = ages_of(seen)
    if len(ages) < 10:
        print(f"{name:<28} too few: {len(ages)}")
        return
    cuts = statistics.quantiles(ages, n=100)
    print(f"{name:<28} p50 {cuts[49]:6.0f} ms   p99 {cuts[98]:6.0f} ms   {len(seen)} changes")


def latency(speed: str, rate: int, seconds: float, warm: float) -> None:
    from support.browsing import chromium, page_of

    with (
        running(speed) as (connection, serving),
        StoreClient.for_serving(serving) as store,
        chromium() as browser,
        page_of(browser) as page,
    ):
        load = Load(connection, rate)
        load.start()
        readers = [Newest(connection, TOPIC), Newest(connection, STREAM)]
        for reader in readers:
            reader.start()
        page.goto(serving.address)
        # Not wait_for_function: the page's policy forbids what it does.
        while not page.evaluate("document.querySelector('[data-name=sent] .value')?.textContent.length > 2"):
            page.wait_for_timeout(50)
        page.wait_for_timeout(warm * 1000)
        page.evaluate(
            """() => { window.seen = []; const value = document.querySelector("[data-name=sent] .value");
            new MutationObserver(() => seen.push([Date.now(), Number(value.textContent.replace(/\\D/g, ""))]))
            .observe(value, { childList: true, characterData: true, subtree: true }); }"""
        )
        plain = Plain(serving.address)
        plain.start()
        for reader in readers:
            reader.measuring.set()
        asked = _asked(store, page, seconds)
        on_page: list[Seen] = page.evaluate("window.seen")
        for done in (plain.done, load.done, *(reader.done for reader in readers)):
            done.set()
        load.join()
        print(f"{speed}, {rate} events/s for {seconds:g} s after {warm:g} s to warm up, five tiles:")
        show("a reader of the first topic", readers[0].seen)
        show("a reader of the stream", readers[1].seen)
        show("in the store (asked)", asked)
        show("at a plain HTTP client", plain.seen)
        show("on a real page", on_page)


def _asked(store: StoreClient, page: Any, seconds: float) -> list[Seen]:
    found: list[Seen] = []
    last, end = 0, time.time() + seconds
    while time.time() < end:
        newest = store.query("select max(sent) as sent from loads").rows.column(0)[0].as_py() or 0
        if newest != last:
            found.append((time.time() * 1000, newest))
            last = newest
        page.wait_for_timeout(40)
    return found


class Plain(threading.Thread):
    """Reads the stream as a client without a browser does."""

    def __init__(self, address: str) -> None:
        super().__init__(daemon=True)
        self._address = address
        self.seen: list[Seen] = []
        self.done = threading.Event()

    def run(self) -> None:
        with httpx.stream("GET", f"{self._address}/api/live/main", timeout=30, trust_env=False) as answer:
            for line in answer.iter_lines():
                if self.done.is_set():
                    return
                for tile in json.loads(line[6:]).get("tiles", ()) if line.startswith("data: ") else ():
                    rows: list[Any] = tile.get("rows") or [row for _, row in tile.get("put", ())]
                    if tile["tile"] == "sent" and rows:
                        self.seen.append((time.time() * 1000, rows[-1][1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--speed", choices=("near-real-time", "real-time"), default="real-time")
    parser.add_argument("--rate", type=int, default=1000, help="events a second (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=40)
    parser.add_argument("--warm", type=float, default=60, help="seconds before it is measured (default: %(default)s)")
    given = parser.parse_args()
    latency(given.speed, given.rate, given.seconds, given.warm)


if __name__ == "__main__":
    main()
