"""The dashboards: how old a record is when its figure changes on a page. What viewers cost is in bench/viewers.py.

    python bench/dashboard.py latency [--rate 1000] [--seconds 20]     produce → store → hub → a real Chromium's page

The store is the embedded one, with a Kafka of its own on this machine; load, browser and all take their share of it.
Stages of the latency are measured in the same run: when the store has the record (asked in the server's process, every
40 ms), when a plain HTTP client has the figure, when the page shows it.
"""

import argparse
import json
import random
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from confluent_kafka import Producer

import riverrun as rr
from riverrun.cluster.runner import LocalKafka
from riverrun.config import KafkaSettings
from riverrun.config.spec import StoreSettings
from riverrun.dash.live import Hub
from riverrun.dash.routes import dash_routes
from riverrun.kafka.admin.admin import Admin
from riverrun.kafka.connection import Connection
from riverrun.model.table import Column, TableSpec
from riverrun.store.embedded.store import EmbeddedStore
from riverrun.store.server import StoreServer

sys.path.append(str(Path(__file__).parents[1] / "tests"))

TOPIC = "loads"
# Times are shown by their last digits: whole numbers up to here are written out on the page.
WRAP = 1_000_000
SPEC = TableSpec(
    "loads",
    TOPIC,
    (Column("at", "timestamp", ("at",)), Column("house", "text", ("house",)), Column("street", "text", ("street",)),
     Column("load_kw", "double", ("load_kw",)), Column("sent", "bigint", ("sent",))),
    time="at",
)  # fmt: skip


def board() -> rr.App:
    """A number that is the newest record's own time, so that its age is on the page; and what a dashboard has besides."""
    app = rr.App("bench")
    app.dashboard(
        rr.number("Sent", f"select max(sent) % {WRAP} as sent from loads", compare=None),  # noqa: S608
        rr.number("Load", "select sum(load_kw) as load_kw from loads", compare=None),
        rr.line("Streets", "loads", by="street", y="load_kw", step="second", range="1 minute"),
        rr.leaderboard("Houses", "loads", by="house", y="load_kw", range="10 seconds"),
        rr.bar("Most", "loads", by="street", y="load_kw", range="10 seconds"),
    )
    return app


@contextmanager
def serving(connection: Connection, folder: Path) -> Iterator[tuple[str, EmbeddedStore]]:
    with EmbeddedStore(folder, connection, StoreSettings()) as store:
        store.apply([SPEC])
        hub = Hub(store, board().dashboards, "bench")
        with StoreServer(store, routes=dash_routes(hub)) as server:
            yield server.start(), store
            hub.end()


@contextmanager
def kafka(folder: Path) -> Iterator[Connection]:
    with LocalKafka(folder / "kafka", KafkaSettings(), first_port=random.randrange(12000, 28000, 10)) as cluster:
        connection = Connection(KafkaSettings(bootstrap_servers=cluster.bootstrap_servers))
        Admin(connection).create_topic(TOPIC, partitions=2, replicas=1, config={})
        yield connection


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


def show(name: str, ages: Sequence[float]) -> None:
    if len(ages) < 10:
        print(f"{name:<28} too few: {len(ages)}")
        return
    cuts = statistics.quantiles(ages, n=100)
    print(f"{name:<28} p50 {cuts[49]:6.0f} ms   p99 {cuts[98]:6.0f} ms   {len(ages)} changes")


def latency(rate: int, seconds: float) -> None:
    from support.browsing import chromium, page_of

    with (
        tempfile.TemporaryDirectory() as name,
        kafka(Path(name)) as connection,
        serving(connection, Path(name) / "store") as (address, store),
        chromium() as browser,
        page_of(browser) as page,
    ):
        load = Load(connection, rate)
        load.start()
        page.goto(address)
        # Not wait_for_function: the page's policy forbids what it does.
        while not page.evaluate("document.querySelector('[data-name=sent] .value')?.textContent.length > 2"):
            page.wait_for_timeout(50)
        page.evaluate(
            """() => { window.ages = []; const value = document.querySelector("[data-name=sent] .value");
            new MutationObserver(() => ages.push((Date.now() - Number(value.textContent.replace(/\\D/g, ""))) % 1e6))
            .observe(value, { childList: true, characterData: true, subtree: true }); }"""
        )
        plain = Plain(address)
        plain.start()
        direct: list[float] = []
        last, end = 0, time.time() + seconds
        while time.time() < end:
            newest = store.ask("select max(sent) as sent from loads").rows.column(0)[0].as_py() or 0
            if newest != last:
                direct.append(time.time() * 1000 - newest)
                last = newest
            page.wait_for_timeout(40)
        on_page: list[float] = page.evaluate("window.ages")
        plain.done.set()
        load.done.set()
        load.join()
        print(f"{rate} records/s for {seconds:g} s, five tiles:")
        show("in the store (asked)", direct)
        show("at a plain HTTP client", plain.ages)
        show("on a real page", on_page)


class Plain(threading.Thread):
    """Reads the stream as a client without a browser does."""

    def __init__(self, address: str) -> None:
        super().__init__(daemon=True)
        self._address = address
        self.ages: list[float] = []
        self.done = threading.Event()

    def run(self) -> None:
        with httpx.stream("GET", f"{self._address}/api/live/main", timeout=30, trust_env=False) as answer:
            for line in answer.iter_lines():
                if self.done.is_set():
                    return
                for tile in json.loads(line[6:]).get("tiles", ()) if line.startswith("data: ") else ():
                    rows: list[Any] = tile.get("rows") or [row for _, row in tile.get("put", ())]
                    if tile["tile"] == "sent" and rows:
                        self.ages.append((time.time() * 1000 - rows[-1][1]) % WRAP)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("latency",))
    parser.add_argument("--rate", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=20)
    given = parser.parse_args()
    latency(given.rate, given.seconds)


if __name__ == "__main__":
    main()
