# ruff: noqa: S608  -- SQL of our own
"""The embedded store: how fast it takes records, how fresh its rows are, what questions cost beside that, how it grows.

    python bench/store.py ingest    [--rows 2000000] [--repeats 3]    beside DuckDB, which loads the same rows from Arrow
    python bench/store.py freshness [--rate 10000] [--seconds 30]     from produce to visible
    python bench/store.py questions [--rows 10000000] [--repeats 7]   a group-by while it ingests, beside DuckDB alone
    python bench/store.py growth    [--sizes 1000000 10000000]        ingest, file, restart, questions
    python bench/store.py upserts   [--sizes 1000000 10000000]        three ways to update rows by key

One Kafka of its own, on this machine, which takes its share of it.
"""

import argparse
import multiprocessing
import random
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import duckdb
import pyarrow as pa
from confluent_kafka import Producer

from measure import alternate, report, timed
from riverrun.cluster.kafka.local import LocalKafka
from riverrun.config import KafkaSettings
from riverrun.config.spec import StoreSettings
from riverrun.kafka.admin.admin import Admin
from riverrun.kafka.connection import Connection
from riverrun.model.table import Column, TableSpec
from riverrun.store.contract import QueryLimits
from riverrun.store.embedded import EmbeddedStore
from riverrun.store.embedded.ingest import MAX_BATCH_ROWS

HOUSES = 10_000
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
COLUMNS = (
    Column("house_id", "text", ("house_id",)),
    Column("load_kw", "double", ("load_kw",)),
    Column("at", "timestamp", ("at",)),
    Column("meter", "text", ("meter",)),
    Column("number", "bigint", ("number",)),
)
KINDS = "house_id VARCHAR, load_kw DOUBLE, at TIMESTAMPTZ, meter VARCHAR, number BIGINT".replace(" at ", ' "at" ')
QUESTION = (
    "SELECT house_id, count(*) AS n, avg(load_kw) AS mean, max(load_kw) AS most FROM {} GROUP BY house_id ORDER BY n DESC, "
    "house_id LIMIT 10"
)


def readings(topic: str) -> TableSpec:
    return TableSpec("readings", topic, COLUMNS, time="at")


def reading(number: int, at: datetime | None = None) -> str:
    """About 150 bytes, as a stream writes them."""
    moment = (at or BEGIN + timedelta(milliseconds=number)).isoformat(timespec="microseconds").replace("+00:00", "Z")
    return (
        f'{{"house_id":"house-{number * 7919 % HOUSES:06d}","load_kw":{number * 31 % 30000 / 10000},"at":"{moment}",'
        f'"meter":"A1-{number % 1000:012d}","number":{number}}}'
    )


def arrow(first: int, rows: int) -> pa.Table:
    """The same rows, typed."""
    numbers = range(first, first + rows)
    return pa.table({
        "house_id": pa.array([f"house-{number * 7919 % HOUSES:06d}" for number in numbers]),
        "load_kw": pa.array([number * 31 % 30000 / 10000 for number in numbers]),
        "at": pa.array([BEGIN + timedelta(milliseconds=number) for number in numbers], pa.timestamp("us", "UTC")),
        "meter": pa.array([f"A1-{number % 1000:012d}" for number in numbers]),
        "number": pa.array(numbers, pa.int64()),
    })  # fmt: skip


def fill(connection: Connection, topic: str, last: int, first: int = 0) -> None:
    sender = Producer(
        connection.properties({"linger.ms": 20, "queue.buffering.max.messages": 500_000, "compression.type": "lz4"})
    )
    for number in range(first, last):
        if number > first and number % 10_000_000 == 0:
            print(f"  {number:,} of {last:,} sent", file=sys.stderr)
        while True:
            try:
                sender.produce(topic, reading(number))
                break
            except BufferError:
                sender.poll(0.1)
    sender.flush()


def send_more(address: str, topic: str, first: int, last: int) -> None:
    """For a process of its own."""
    fill(Connection(KafkaSettings(bootstrap_servers=address)), topic, last, first)


def until(condition: Callable[[], bool], seconds: float = 3600) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit("It did not come to an end")
        time.sleep(0.02)


class Bench:
    """A Kafka and a folder for all that is measured."""

    def __init__(self, root: Path, connection: Connection) -> None:
        self.root = root
        self.connection = connection
        self.admin = Admin(connection)
        self.number = 0

    def topic(self, partitions: int = 4) -> str:
        self.number += 1
        name = f"readings-{self.number}"
        self.admin.create_topic(name, partitions=partitions, replicas=0, config={"retention.ms": "-1"})
        return name

    @contextmanager
    def store(self, folder: Path | None = None) -> Iterator[EmbeddedStore]:
        self.number += 1
        with EmbeddedStore(
            folder or self.root / f"store-{self.number}", self.connection, StoreSettings(), notice=print
        ) as store:
            yield store

    # --- how fast ---------------------------------------------------------------------------------------------------------

    def ingest(self, rows: int, repeats: int) -> None:
        topic = self.topic()
        fill(self.connection, topic, rows)
        blocks = [arrow(first, min(MAX_BATCH_ROWS, rows - first)) for first in range(0, rows, MAX_BATCH_ROWS)]

        cost: dict[str, list[float]] = {"DuckDB from Arrow": [], "riverrun from Kafka": []}

        def riverrun() -> float:
            with self.store() as store:
                begun, used = time.perf_counter(), time.process_time()
                store.apply([readings(topic)])
                until(lambda: store.table_statuses()[0].rows == rows)
                cost["riverrun from Kafka"].append((time.process_time() - used) / rows * 1e6)
                return rows / (time.perf_counter() - begun) / 1000

        def by_hand() -> float:
            """DuckDB alone, durable as often as we are: a transaction a block, with one row that says how far it is."""
            self.number += 1
            path = self.root / f"by-hand-{self.number}.duckdb"
            with duckdb.connect(str(path), config={"checkpoint_threshold": "64MiB"}) as database:
                database.execute(
                    f"CREATE TABLE readings ({KINDS}); CREATE TABLE position (n BIGINT); INSERT INTO position VALUES (0)"
                )
                begun, used = time.perf_counter(), time.process_time()
                for block in blocks:
                    database.register("block", block)
                    database.execute(
                        "BEGIN; INSERT INTO readings SELECT * FROM block; UPDATE position SET n = n + 1; COMMIT"
                    )
                took = time.perf_counter() - begun
                cost["DuckDB from Arrow"].append((time.process_time() - used) / rows * 1e6)
            path.unlink()
            return rows / took / 1000

        figures = alternate({"DuckDB from Arrow": by_hand, "riverrun from Kafka": riverrun}, repeats)
        report(f"Ingest of {rows:,} rows", figures, "thousand rows/s", against="DuckDB from Arrow")
        report(
            "Processor time, which a crowded machine does not change much",
            cost,
            "µs a row",
            against="DuckDB from Arrow",
        )

    # --- how fresh --------------------------------------------------------------------------------------------------------

    def freshness(self, rate: int, seconds: int) -> None:
        topic = self.topic()
        with self.store() as store:
            store.apply([readings(topic)])
            # Who has just begun looks for partitions first.
            warm = 1000
            fill(self.connection, topic, warm)
            until(lambda: store.table_statuses()[0].rows == warm, 60)
            ages: list[float] = []
            began = datetime.now(UTC)
            over = threading.Event()

            def look() -> None:
                """The age of the newest row whenever there is a newer one."""
                last = -1
                while not over.is_set():
                    found = store.query('SELECT max(number) AS n, max("at") AS newest FROM readings').rows.to_pylist()[
                        0
                    ]
                    if found["n"] is not None and found["n"] != last and found["newest"] > began:
                        last = found["n"]
                        ages.append(time.time() - found["newest"].timestamp())
                    time.sleep(0.002)

            # And of every row: when the count that includes it was first seen.
            seen: list[tuple[float, int]] = []

            def count() -> None:
                while not over.is_set():
                    seen.append((time.time(), store._states["readings"].rows - warm))  # noqa: SLF001  -- often, and for nothing
                    time.sleep(0.002)

            watcher = threading.Thread(target=count)
            asker = threading.Thread(target=look)
            made: list[float] = []
            sender = Producer(self.connection.properties({"linger.ms": 5}))
            watcher.start()
            asker.start()
            begun = time.time()
            for number in range(rate * seconds):
                due = begun + number / rate
                if number % 20 == 0 and (ahead := due - time.time()) > 0:
                    time.sleep(ahead)
                made.append(time.time())
                sender.produce(topic, reading(number, datetime.now(UTC)), partition=number % 4)
                if number % 100 == 0:
                    sender.poll(0)
            sender.flush()
            until(lambda: store.table_statuses()[0].rows == len(made) + warm, 60)
            time.sleep(0.1)
            over.set()
            watcher.join()
            asker.join()
            late = visible(made, seen)
            print(f"\nFreshness at {rate:,} rows/s for {seconds} s: produce → visible, every row, ms")
            print(f"  p50 {quantile(late, 0.5):.0f}  p99 {quantile(late, 0.99):.0f}  max {max(late) * 1000:.0f}")
            print(f"  as a question sees it, newest row: p50 {quantile(ages, 0.5):.0f}  p99 {quantile(ages, 0.99):.0f}")

    # --- questions --------------------------------------------------------------------------------------------------------

    def questions(self, rows: int, repeats: int, rate: int = 10_000) -> None:
        topic = self.topic()
        path = self.root / "alone.duckdb"
        with self.store() as store, duckdb.connect(str(path)) as alone:
            store.apply([readings(topic)])
            self.preload(store, alone, rows)
            over, sent = threading.Event(), [0]

            def load() -> None:
                sender, begun = Producer(self.connection.properties({"linger.ms": 5})), time.monotonic()
                while not over.is_set():
                    for _ in range(rate // 100):
                        sender.produce(topic, reading(rows + sent[0]))
                        sent[0] += 1
                    sender.poll(0)
                    time.sleep(max(0.0, begun + sent[0] / rate - time.monotonic()))
                sender.flush()

            def ask() -> float:
                return timed(lambda: store.query(QUESTION.format("readings"), QueryLimits(seconds=60))) * 1000

            def by_hand() -> float:
                return timed(lambda: alone.sql(QUESTION.format("readings")).to_arrow_table()) * 1000

            quiet = alternate({"DuckDB alone": by_hand, "riverrun, idle": ask}, repeats)
            report(f"Group-by over {rows:,} rows, nothing else", quiet, "ms", against="DuckDB alone")
            threading.Thread(target=load, daemon=True).start()
            until(lambda: store.table_statuses()[0].rows > rows)
            # DuckDB alone is timed with the store and Kafka standing still: by the figures above.
            busy = {
                "DuckDB alone": quiet["DuckDB alone"],
                f"riverrun, {rate:,} rows/s": [ask() for _ in range(repeats)],
            }
            report(f"Group-by over {rows:,} rows while it ingests", busy, "ms", against="DuckDB alone")
            shared = alternate({"DuckDB alone, same machine": by_hand, "riverrun, ingesting": ask}, repeats)
            report("Both with the load on the machine", shared, "ms", against="DuckDB alone, same machine")
            over.set()

    def preload(self, store: EmbeddedStore, alone: duckdb.DuckDBPyConnection, rows: int) -> None:
        """The same rows into both, past Kafka: only questions are measured."""
        made = (
            f"SELECT format('house-{{:06d}}', range * 7919 % {HOUSES}) AS house_id, range * 31 % 30000 / 10000 AS load_kw, "
            "TIMESTAMPTZ '2026-01-01 00:00:00+00' + to_milliseconds(range) AS \"at\", "
            f"format('A1-{{:012d}}', range % 1000) AS meter, range AS number FROM range({rows})"
        )
        alone.execute(f"SET TimeZone = 'UTC'; CREATE TABLE readings ({KINDS}); INSERT INTO readings {made}; CHECKPOINT")
        with store._lock:  # noqa: SLF001  -- nobody else writes past the ingest
            database = store._open_session()  # noqa: SLF001
            database.run(f"BEGIN; INSERT INTO _rows.readings {made}; COMMIT; CHECKPOINT")
            store._states["readings"].rows = rows  # noqa: SLF001

    # --- how it grows -----------------------------------------------------------------------------------------------------

    def growth(self, sizes: Sequence[int]) -> None:
        topic, folder = self.topic(), self.root / "growth"
        print(
            f"\n{'rows':>13}{'rows/s':>10}{'file MB':>9}{'B/row':>7}{'open s':>8}{'group-by ms':>12}{'last minute ms':>15}"
        )
        before = 0
        for size in sizes:
            with self.store(folder) as store:
                store.apply([readings(topic)])
                # A process of its own: in ours it would take turns with the store for Python's lock.
                sender = multiprocessing.get_context("spawn").Process(
                    target=send_more, args=(self.connection.bootstrap_servers, topic, before, size)
                )
                begun = time.perf_counter()
                sender.start()
                until(lambda size=size, store=store: store.table_statuses()[0].rows == size)  # type: ignore[misc]
                took = time.perf_counter() - begun
                sender.join()
            with_file = sum(each.stat().st_size for each in folder.glob("tables.duckdb*"))
            opened = time.perf_counter()
            with self.store(folder) as store:
                store.query("SELECT count(*) AS n FROM readings")
                opened = time.perf_counter() - opened
                grouped = statistics.median(
                    timed(lambda store=store: store.query(QUESTION.format("readings")))
                    for _ in range(5)  # type: ignore[misc]
                )
                last = QUESTION.format("readings").replace(
                    "GROUP BY", 'WHERE "at" >= (SELECT max("at") FROM readings) - INTERVAL 1 MINUTE GROUP BY'
                )
                recent = statistics.median(timed(lambda store=store, last=last: store.query(last)) for _ in range(5))  # type: ignore[misc]
            print(
                f"{size:>13,}{(size - before) / took:>10,.0f}{with_file / 1e6:>9,.0f}{with_file / size:>7.1f}{opened:>8.2f}"
                f"{grouped * 1000:>12,.0f}{recent * 1000:>15,.0f}",
                flush=True,
            )
            before = size


def visible(made: Sequence[float], seen: Sequence[tuple[float, int]]) -> list[float]:
    """For every row, in the order they were made, how long until so many were there."""
    late, at = [], 0
    for number, begun in enumerate(made):
        while seen[at][1] <= number:
            at += 1
        late.append(seen[at][0] - begun)
    return late


def quantile(values: Sequence[float], part: float) -> float:
    """In milliseconds."""
    return sorted(values)[min(len(values) - 1, int(len(values) * part))] * 1000


# --- three ways to update by key ------------------------------------------------------------------------------------------


def upserts(root: Path, sizes: Sequence[int]) -> None:
    """Batches of updates into a table of so many keys; the file and the memory it takes; recent keys, and any."""
    ways: dict[str, Callable[[duckdb.DuckDBPyConnection, str], None]] = {
        "delete + insert": delete_insert,
        "delete + insert, by time": delete_insert_by_time,
        "merge": merge,
        "primary key": replace_by_key,
    }
    for size in sizes:
        print(f"\nUpdates of a table of {size:,} keys: ms a batch, median of 10 (MB of file after, MB before)")
        print(f"{'':<28}{'recent 1,000':>14}{'recent 50,000':>15}{'any 1,000':>12}{'any 50,000':>12}{'file':>18}")
        for name, way in ways.items():
            path = root / "upserts.duckdb"
            path.unlink(missing_ok=True)
            with duckdb.connect(str(path), config={"checkpoint_threshold": "64MiB"}) as database:
                key = ", PRIMARY KEY (minute, house)" if name == "primary key" else ""
                database.execute(f"CREATE TABLE loads (minute TIMESTAMP, house INTEGER, kw DOUBLE, note VARCHAR{key})")
                database.execute(
                    "INSERT INTO loads SELECT TIMESTAMP '2026-01-01' + to_minutes(range // 10000), range % 10000, random(), "
                    f"'note ' || range % 100 FROM range({size}); CHECKPOINT"
                )
                before = path.stat().st_size / 1e6
                figures = []
                for recent in (True, False):
                    for count in (1_000, 50_000):
                        low = max(0, size - 100_000) if recent else 0
                        turns = []
                        for turn in range(10):
                            database.execute(
                                "CREATE OR REPLACE TEMP TABLE latest AS SELECT DISTINCT ON (n) TIMESTAMP '2026-01-01' + "
                                "to_minutes(n // 10000) AS minute, n % 10000 AS house, random() AS kw, 'new' AS note FROM "
                                f"(SELECT {low} + floor(random() * {size - low})::BIGINT AS n, {turn} FROM range({count}))"
                            )
                            turns.append(timed(lambda way=way, database=database: way(database, "latest")))  # type: ignore[misc]
                        figures.append(statistics.median(turns) * 1000)
                database.execute("CHECKPOINT")
                after = path.stat().st_size / 1e6
            told = "".join(f"{each:>{width}.1f}" for each, width in zip(figures, (14, 15, 12, 12), strict=True))
            print(f"{name:<28}{told}{after:>10.0f} {before:>7.0f}")


SAME = "kept.minute IS NOT DISTINCT FROM l.minute AND kept.house IS NOT DISTINCT FROM l.house"


def delete_insert(database: duckdb.DuckDBPyConnection, batch: str, bounds: str = "") -> None:
    database.execute(
        f"BEGIN; DELETE FROM loads AS kept USING {batch} AS l WHERE {SAME}{bounds}; INSERT INTO loads FROM {batch}; COMMIT"
    )


def delete_insert_by_time(database: duckdb.DuckDBPyConnection, batch: str) -> None:
    low, high = database.execute(f"SELECT min(minute), max(minute) FROM {batch}").fetchone() or ("", "")
    delete_insert(database, batch, f" AND kept.minute BETWEEN '{low}' AND '{high}'")


def merge(database: duckdb.DuckDBPyConnection, batch: str) -> None:
    low, high = database.execute(f"SELECT min(minute), max(minute) FROM {batch}").fetchone() or ("", "")
    database.execute(
        f"BEGIN; MERGE INTO loads AS kept USING {batch} AS l ON {SAME} AND kept.minute BETWEEN '{low}' AND '{high}' "
        "WHEN MATCHED THEN UPDATE SET kw = l.kw, note = l.note WHEN NOT MATCHED THEN INSERT; COMMIT"
    )


def replace_by_key(database: duckdb.DuckDBPyConnection, batch: str) -> None:
    database.execute(f"BEGIN; INSERT OR REPLACE INTO loads FROM {batch}; COMMIT")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["ingest", "freshness", "questions", "growth", "upserts"])
    parser.add_argument("--rows", type=int, default=0)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--rate", type=int, default=10_000)
    parser.add_argument("--seconds", type=int, default=30)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1_000_000, 10_000_000])
    chosen = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="bench-store-"))
    try:
        if chosen.what == "upserts":
            upserts(root, chosen.sizes)
            return
        with LocalKafka(root / "kafka", KafkaSettings(), first_port=random.randrange(12000, 28000, 10)) as kafka:
            bench = Bench(root, Connection(KafkaSettings(bootstrap_servers=kafka.bootstrap_servers)))
            if chosen.what == "ingest":
                bench.ingest(chosen.rows or 2_000_000, chosen.repeats)
            elif chosen.what == "freshness":
                bench.freshness(chosen.rate, chosen.seconds)
            elif chosen.what == "questions":
                bench.questions(chosen.rows or 10_000_000, chosen.repeats, chosen.rate)
            else:
                bench.growth(chosen.sizes)
    finally:
        shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    main()
