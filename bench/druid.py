"""Druid as riverrun's store beside Druid by hand: the same servers, the same topic, a spec as Druid's own pages write it.

    python bench/druid.py [--events 500000] [--repeats 3] [--rate 1000] [--seconds 20] [--versions 100000,1000000]
    python bench/druid.py --only growth [--sizes 1000000,10000000]

Start: from nothing running to the first answer of SQL. Ingest: rows a second between the first tenth and the last row that
SQL sees, the topic being full before, and what a row costs the indexer in processor time, which says more on a busy machine.
Freshness: how old a record is when SQL shows it, asked all the time. Upserts: what a question costs over all versions of a
key, grouped to the newest, beside the same question over the rows as they are. Growth: ingest, segments and questions as a
table gets larger.
"""

import argparse
import json
import multiprocessing
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psutil

from measure import alternate, machine, report, timed
from riverrun.cluster.druid.local import LocalDruid
from riverrun.cluster.kafka.local import LocalKafka
from riverrun.config import DruidSettings, KafkaSettings
from riverrun.kafka.admin.admin import Admin
from riverrun.kafka.connection import Connection
from riverrun.kafka.producer.producer import Producer
from riverrun.model.table import Column, TableSpec
from riverrun.store.contract import QueryLimits
from riverrun.store.druid.client import DruidClient
from riverrun.store.druid.store import DruidStore

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
COLUMNS = (
    Column("at", "timestamp", ("at",)),
    Column("house", "text", ("house",)),
    Column("street", "text", ("street",)),
    Column("load", "double", ("load",)),
    Column("number", "bigint", ("number",)),
    Column("sent", "double", ("sent",)),
)
SCALARS = ("COUNT(*)", "SUM(load)", "SUM(number)")


def row(number: int, keys: int = 1000, span_ms: int = 3_600_000) -> dict[str, Any]:
    at = NOON + timedelta(milliseconds=number % span_ms)
    house = number % keys
    return {
        "at": at.isoformat(), "house": f"house-{house}", "street": f"street-{house % 20}", "load": house / 8,
        "number": number, "sent": time.time(),
    }  # fmt: skip


def by_hand(name: str, topic: str, address: str) -> dict[str, Any]:
    """What a person writes who has read Druid's page on Kafka, for the same columns."""
    dimensions = ["house", "street", *({"type": kind, "name": each} for kind, each in
                                       (("double", "load"), ("long", "number"), ("double", "sent")))]  # fmt: skip
    return {
        "type": "kafka",
        "spec": {
            "dataSchema": {
                "dataSource": name,
                "timestampSpec": {"column": "at", "format": "iso"},
                "dimensionsSpec": {"dimensions": dimensions},
                "granularitySpec": {"segmentGranularity": "DAY", "queryGranularity": "NONE", "rollup": False},
            },
            "ioConfig": {
                "topic": topic,
                "inputFormat": {"type": "json"},
                "consumerProperties": {"bootstrap.servers": address},
                "useEarliestOffset": True,
                "startDelay": "PT1S",
                "period": "PT5S",
            },
            "tuningConfig": {"type": "kafka"},
        },
    }


class Bench:
    def __init__(self, druid: LocalDruid, kafka: LocalKafka) -> None:
        self.druid = druid
        self.connection = Connection(KafkaSettings(bootstrap_servers=kafka.bootstrap_servers))
        self.admin = Admin(self.connection)
        self.client = DruidClient(druid.url, DruidSettings())
        self.store = DruidStore("bench", DruidSettings(), self.connection, url=druid.url)
        self.turn = 0
        self.processor: dict[str, list[float]] = {"hand": [], "ours": []}

    def topic(self, name: str, values: int, keys: int = 1000) -> str:
        self.admin.create_topic(name, partitions=2, replicas=0, config={"retention.ms": "-1"})
        with Producer(self.connection) as producer:
            rows = (json.dumps(row(number, keys)).encode() for number in range(values))
            producer.send_all(name, rows, key=lambda value: json.loads(value)["house"])
        return name

    def begin(self, contender: str, topic: str) -> str:
        """Make Druid read a topic; the name of what it reads into."""
        self.turn += 1
        name = f"{contender}_{self.turn}"
        if contender == "hand":
            self.client.submit(by_hand(name, topic, self.connection.bootstrap_servers))
            return name
        self.store.apply([TableSpec(name, topic, COLUMNS, time="at")])
        return f"bench.{name}"

    def end(self, name: str) -> None:
        self.client.reset(name)
        self.client.terminate(name)
        self.client.stop_tasks(name)
        wait(lambda: not self.store._has_tasks(name))  # noqa: SLF001

    def count(self, name: str, what: str = "COUNT(*)") -> float:
        try:
            return float(self.client.sql(f'SELECT {what} FROM "{name}"', seconds=30).rows[0][0] or 0)  # noqa: S608
        except Exception:  # noqa: BLE001  -- not there yet
            return 0.0

    def ingest(self, contender: str, topic: str, events: int) -> float:
        """Rows a second."""
        name = self.begin(contender, topic)
        try:
            wait(lambda: self.count(name) >= events / 10)
            first, begun, worked = self.count(name), time.perf_counter(), self.worked()
            wait(lambda: self.count(name) >= events)
            seconds, worked = time.perf_counter() - begun, self.worked() - worked
            self.processor[contender].append(worked / (events - first) * 1e6)
            return (events - first) / seconds
        finally:
            self.end(name)

    def worked(self) -> float:
        """The indexer's processor time so far."""
        times = psutil.Process(self.druid.indexer.pid).cpu_times()
        return float(times.user + times.system)

    def freshness(self, contender: str, rate: int, seconds: float) -> float:
        """p99 of a record's age in ms when SQL shows it."""
        topic = f"fresh-{contender}-{self.turn}"
        self.admin.create_topic(topic, partitions=2, replicas=0, config={"retention.ms": "-1"})
        name = self.begin(contender, topic)
        ages: list[float] = []
        sent: dict[int, float] = {}
        stop = threading.Event()

        def produce() -> None:
            with Producer(self.connection) as producer:
                begun, number = time.perf_counter(), 0
                while not stop.is_set():
                    while number < (time.perf_counter() - begun) * rate:
                        sent[number] = time.time()
                        producer.send_soon(topic, json.dumps(row(number)).encode(), partition=0)
                        number += 1
                    stop.wait(0.002)

        thread = threading.Thread(target=produce)
        thread.start()
        try:
            wait(lambda: self.count(name) > rate)
            newest = int(self.count(name, "MAX(number)"))
            deadline = time.monotonic() + seconds
            while time.monotonic() < deadline:
                seen = int(self.count(name, "MAX(number)"))
                now = time.time()
                ages += [now - sent[each] for each in range(newest + 1, seen + 1)]
                newest = max(newest, seen)
        finally:
            stop.set()
            thread.join()
            self.end(name)
        ordered = sorted(ages)
        p50, p99 = (ordered[int(len(ordered) * part)] * 1000 for part in (0.5, 0.99))
        print(f"    {contender}: {len(ordered)} records, p50 {p50:.0f} ms, p99 {p99:.0f} ms")
        return p99

    def upserts(self, versions: int, keys: int) -> None:
        """One question three ways, medians of 7."""
        topic = self.topic(f"versions-{versions}-{keys}", versions, keys)
        table = TableSpec(f"v{versions}_{keys}", topic, COLUMNS, ("house",), True, "at")
        self.store.apply([table])
        wait(lambda: self.count(f"bench.{table.name}") >= versions)
        source, view = f'"bench.{table.name}"', table.name
        questions = {
            "rows as they are: sum": f"SELECT SUM(load) FROM {source}",  # noqa: S608
            "newest of each key: sum": f"SELECT SUM(load) FROM {view}",  # noqa: S608
            "rows as they are: by street": f"SELECT street, SUM(load) FROM {source} GROUP BY 1",  # noqa: S608
            "newest of each key: by street": f"SELECT street, SUM(load) FROM {view} GROUP BY 1",  # noqa: S608
            "newest of each key: count": f"SELECT COUNT(*) FROM {view}",  # noqa: S608
            "newest of each key: ten highest": f"SELECT house, load FROM {view} ORDER BY load DESC LIMIT 10",  # noqa: S608
            "newest of one key": f"SELECT * FROM {view} WHERE house = 'house-7'",  # noqa: S608
        }
        print(f"\n{versions:,} versions of {keys:,} keys  (ms; {machine()})")
        for what, sql in questions.items():
            taken = [timed(lambda sql=sql: self.asked(sql)) * 1000 for _ in range(7)]
            print(f"  {what:<36}{statistics.median(taken):>9.0f}   {min(taken):.0f}…{max(taken):.0f}")
        self.end(f"bench.{table.name}")

    def growth(self, sizes: Sequence[int]) -> None:
        """One table that gets larger: a row a millisecond of event time, of a thousand houses."""
        topic, name = "growth", "bench.growth"
        self.admin.create_topic(topic, partitions=2, replicas=0, config={"retention.ms": "-1"})
        self.store.apply([TableSpec("growth", topic, COLUMNS, time="at")])
        grouped = (
            "SELECT street, COUNT(*) AS n, AVG(load) AS mean FROM growth {} GROUP BY street ORDER BY n DESC, street"
        )
        minute = """WHERE "at" >= (SELECT MAX("at") FROM growth) - INTERVAL '1' MINUTE"""
        print(
            f"\n{'rows':>13}{'rows/s':>10}{'MB on disk':>12}{'segments':>10}{'group-by ms':>13}{'last minute ms':>16}"
        )
        before = 0
        for size in sizes:
            sender = multiprocessing.get_context("spawn").Process(
                target=send_more, args=(self.connection.bootstrap_servers, topic, before, size)
            )
            begun = time.perf_counter()
            sender.start()
            wait(lambda size=size: self.count(name) >= size, 7200)  # type: ignore[misc]
            took = time.perf_counter() - begun
            sender.join()
            segments = (
                f"SELECT COUNT(*), SUM(\"size\") FROM sys.segments WHERE datasource = '{name}' AND is_published = 1"  # noqa: S608
            )
            # No row at all where nothing is published yet.
            published, held = next(iter(self.client.sql(segments, seconds=60).rows), (0, 0))
            asked = [
                statistics.median(
                    timed(lambda sql=sql: self.store.query(sql, QueryLimits(seconds=120))) for _ in range(5)
                )
                for sql in (grouped.format(""), grouped.format(minute))
            ]
            print(
                f"{size:>13,}{(size - before) / took:>10,.0f}{(held or 0) / 1e6:>12,.0f}{published:>10}"
                f"{asked[0] * 1000:>13,.0f}{asked[1] * 1000:>16,.0f}",
                flush=True,
            )
            before = size
        self.end(name)

    def asked(self, sql: str) -> None:
        """A table by its own name is asked of the store, by Druid's name of Druid."""
        if '"bench.' in sql:
            self.client.sql(sql, seconds=120)
        else:
            self.store.query(sql, QueryLimits(seconds=120))


def send_more(address: str, topic: str, first: int, last: int) -> None:
    connection = Connection(KafkaSettings(bootstrap_servers=address))
    with Producer(connection) as producer:
        values = (json.dumps(row(number, span_ms=10**12)).encode() for number in range(first, last))
        producer.send_all(topic, values, key=lambda value: json.loads(value)["house"])


def wait(condition: Callable[[], bool], seconds: float = 600) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(0.1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--events", type=int, default=500_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rate", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--versions", default="100000,1000000")
    parser.add_argument("--only", default="ingest,freshness,upserts")
    parser.add_argument("--sizes", default="1000000,10000000")
    given = parser.parse_args()
    only = given.only.split(",")
    with tempfile.TemporaryDirectory() as folder, LocalKafka(Path(folder) / "kafka", KafkaSettings()) as kafka:
        begun = time.perf_counter()
        with LocalDruid(Path(folder) / "druid", DruidSettings()) as druid:
            print(f"start to the first answer: {time.perf_counter() - begun:.1f} s  ({machine()})")
            bench = Bench(druid, kafka)
            if "ingest" in only:
                topic = bench.topic("full", given.events)
                contenders = {
                    each: (lambda each=each: bench.ingest(each, topic, given.events)) for each in ("hand", "ours")
                }
                report("ingest", alternate(contenders, given.repeats), "rows/s", against="hand")
                # In the order they ran, which alternates.
                report("ingest: the indexer's processor time", bench.processor, "µs/row", against="hand")
            if "freshness" in only:
                contenders = {
                    each: (lambda each=each: bench.freshness(each, given.rate, given.seconds))
                    for each in ("hand", "ours")
                }
                report("freshness, p99", alternate(contenders, given.repeats), "ms", against="hand")
            if "upserts" in only:
                for versions in map(int, given.versions.split(",")):
                    bench.upserts(versions, 1000)
                    bench.upserts(versions, versions // 10)
            if "growth" in only:
                bench.growth([int(each) for each in given.sizes.split(",")])


if __name__ == "__main__":
    main()
