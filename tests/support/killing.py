"""The kill suite: a pipeline under load loses its parts to kill -9, round after round, and must come out right.

`script/kill --rounds 30 --seed 1` is the long form; tests/e2e/test_kills.py a short one.
"""

import argparse
import json
import random
import shutil
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

import riverrun as rr
from riverrun.kafka.admin.admin import Admin
from riverrun.streams.run.row_identity import IDENTITY_HEADER
from riverrun.testing import Crash, CrashRun, crashes
from riverrun.testing.crash import VICTIMS

PIPELINE = """
from datetime import datetime
import riverrun as rr
from pyspark.sql import functions as F

app = rr.App("city")

class Reading(rr.Event):
    house_id: str = rr.key()
    number: int
    load_kw: float = rr.field(ge=0)
    at: datetime = rr.event_time(late="10 minutes")

readings = app.topic("readings", Reading, partitions=3)

@F.udf("boolean")
def is_high(load_kw):
    return load_kw >= 1

@app.stream
def high(readings):
    return readings.where(HIGH)

@app.stream
def per_house(readings):
    return (readings.groupBy(F.window("at", "1 minute").alias("minute"), "house_id")
            .agg(F.sum("number").alias("numbers"), F.count("*").alias("readings")))
"""
# In Python, so that there are workers to kill; real time takes no Python.
HIGH = {"near-real-time": 'is_high("load_kw")', "real-time": '"load_kw >= 1"'}
HOUSES = 50


@dataclass(eq=False)
class Load(threading.Thread):
    """A source application: numbered readings, as fast as asked, until it is told to stop."""

    bootstrap: str
    rate: int
    acknowledged: list[tuple[str, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(daemon=True)
        self._over = threading.Event()

    def run(self) -> None:
        producer = Producer({
            "bootstrap.servers": self.bootstrap, "enable.idempotence": True, "delivery.timeout.ms": 300_000,
            "reconnect.backoff.max.ms": 500, "partitioner": "murmur2_random",
        })  # fmt: skip
        chance, numbers, begun, sent = random.Random(1), defaultdict[str, int](int), time.monotonic(), 0
        start = datetime(2026, 3, 1, tzinfo=UTC)

        def told(error: Any, message: Any) -> None:
            if error is None:
                self.acknowledged.append((message.key().decode(), int(json.loads(message.value())["number"])))

        while not self._over.is_set():
            while sent < (time.monotonic() - begun) * self.rate:
                house = f"h{chance.randrange(HOUSES)}"
                numbers[house] += 1
                reading = {"house_id": house, "number": numbers[house], "load_kw": chance.choice([0.5, 1.5, 2.5]),
                           "at": (start + timedelta(seconds=sent // 20)).isoformat()}  # fmt: skip
                producer.produce("readings", json.dumps(reading), house, on_delivery=told)
                sent += 1
            producer.poll(0.02)
        assert producer.flush(120) == 0, "the load was not acknowledged"

    def stop(self) -> None:
        self._over.set()
        self.join(180)


def committed(connection: "rr.Connection", topic: str) -> dict[int, list[dict[str, Any]]]:
    """All committed records of a topic, in order, by partition; what they say which they are is beside their fields."""
    parts = range(len(Admin(connection).topic(topic).partitions))
    consumer = Consumer(connection.properties({
        "group.id": "judge", "isolation.level": "read_committed", "enable.partition.eof": True, "auto.offset.reset": "error",
    }))  # fmt: skip
    found: dict[int, list[dict[str, Any]]] = {}
    try:
        for part in parts:
            consumer.assign([TopicPartition(topic, part, 0)])
            found[part] = []
            while True:
                message = consumer.poll(30)
                assert message is not None, "no answer from the broker"
                if (error := message.error()) is not None:
                    if error.code() == KafkaError._PARTITION_EOF:
                        break
                    # Whatever else it says, the client tries again by itself; but a place that is gone is the judgement.
                    assert error.code() != KafkaError._AUTO_OFFSET_RESET, f"{topic}[{part}]: {error}"
                    continue
                headers: Any = dict(message.headers() or [])
                found[part].append(json.loads(message.value() or b"{}") | {"_id": headers.get(IDENTITY_HEADER)})
    finally:
        consumer.close()
    return found


@dataclass
class Outcome:
    killed: list[str]
    readings: int
    rows: int
    # At real time: rows that are there again.
    twice: int
    seconds: float
    # How often the pipeline did not end within a minute when it was asked to.
    cut_off: int = 0


def survive(
    root: Path,
    plan: Sequence[Crash],
    *,
    rate: int = 300,
    brokers: int = 1,
    speed: str = "near-real-time",
    say: Any = print,
) -> Outcome:
    """Kill by plan; raises AssertionError with what is wrong in the end."""
    begun = time.monotonic()
    (root / "app.py").write_text(PIPELINE.replace("HIGH", HIGH[speed]))
    replicas = f"brokers = {brokers}\n" if brokers > 1 else ""
    (root / "riverrun.toml").write_text(
        f'[project]\napp = "app.py"\n[kafka]\n{replicas}[spark]\ndriver_memory_mb = 1024\n[streams]\nevery = "200 ms"\n'
    )
    with CrashRun(root, "app.py", ["--speed", speed]) as run:
        run.await_work()
        connection = rr.connect(project=root)
        load = Load(connection.bootstrap_servers, rate)
        load.start()
        try:
            for number, crash in enumerate(plan, 1):
                run.strike(crash)
                say(f"round {number}/{len(plan)}: {crash.victim} after {crash.after_seconds:.1f} s")
        finally:
            load.stop()
        run.finish()
        readings = [row for rows in committed(connection, "readings").values() for row in rows]
        check_source(readings, load)
        high = committed(connection, "high")
        check_rows(readings, high)
        if speed == "real-time":
            twice = check_twins(high) + check_twins(committed(connection, "per_house"))
            check_newest(readings, committed(connection, "per_house"))
        else:
            twice = 0
            check_once(run, high)
        rows = sum(map(len, high.values()))
        return Outcome(run.killed, len(load.acknowledged), rows, twice, time.monotonic() - begun, run.cut_off)


def place(row: dict[str, Any]) -> tuple[str, int]:
    return row["house_id"], row["number"]


def check_source(readings: list[dict[str, Any]], load: Load) -> None:
    everything = [place(row) for row in readings]
    assert len(everything) == len(set(everything)), "the source itself sent a reading twice"
    assert set(load.acknowledged) <= set(everything), "an acknowledged reading is gone"


def check_rows(readings: list[dict[str, Any]], high: dict[int, list[dict[str, Any]]]) -> None:
    """All that should be there are, and nothing else."""
    got = {place(row) for rows in high.values() for row in rows}
    wanted = {place(row) for row in readings if row["load_kw"] >= 1}
    missing = wanted - got
    found = {part: len(rows) for part, rows in high.items()}
    assert not missing, (
        f"{len(missing)} of {len(wanted)} rows are missing, such as {sorted(missing)[:3]}; found: {found}"
    )
    assert got == wanted, "there are rows that nobody sent"


def check_twins(found: dict[int, list[dict[str, Any]]]) -> int:
    """Rows that are equal say that they are the same, those that are not, not; how many are there again."""
    identities: dict[str, bytes] = {}
    count = 0
    for rows in found.values():
        for row in rows:
            assert row["_id"], f"{row} does not say which it is"
            said = json.dumps({name: each for name, each in row.items() if name != "_id"}, sort_keys=True)
            assert identities.setdefault(said, row["_id"]) == row["_id"], f"{row} has a twin with another identity"
            count += 1
    assert len(set(identities.values())) == len(identities), "rows that differ have one identity"
    return count - len(identities)


def check_newest(readings: list[dict[str, Any]], per_house: dict[int, list[dict[str, Any]]]) -> None:
    """The newest row of each key is what all readings come to."""
    wanted: dict[tuple[str, str], tuple[int, int]] = {}
    for row in readings:
        minute = row["house_id"], row["at"][:16]
        numbers, count = wanted.get(minute, (0, 0))
        wanted[minute] = numbers + row["number"], count + 1
    got = {
        (row["house_id"], row["minute"]["start"][:16]): (row["numbers"], row["readings"])
        for rows in per_house.values()
        for row in rows
    }
    wrong = [each for each in {*wanted, *got} if wanted.get(each) != got.get(each)]
    assert not wrong, f"{len(wrong)} results did not come to what they should: {sorted(wrong)[:3]}"


def check_once(run: CrashRun, high: dict[int, list[dict[str, Any]]]) -> None:
    """Each row once, those of a house in the order of its readings, and everything as `riverrun verify` computes it."""
    got = [place(row) for rows in high.values() for row in rows]
    twice = len(got) - len(set(got))
    assert not twice, f"{twice} rows are there twice"
    for rows in high.values():
        last: dict[str, int] = {}
        for row in rows:
            assert row["number"] > last.get(row["house_id"], 0), f"{row} is out of order"
            last[row["house_id"]] = row["number"]
    wrong = run.verify()
    assert wrong == [], json.dumps(wrong, indent=1)[:3000]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rate", type=int, default=300, help="readings a second")
    parser.add_argument("--brokers", type=int, default=1)
    parser.add_argument("--speed", choices=list(HIGH), default="near-real-time")
    given = parser.parse_args()
    victims = [each for each in VICTIMS if each != "worker" or given.speed != "real-time"]
    plan = crashes(given.seed, given.rounds, victims=victims)
    folder = Path(tempfile.mkdtemp(prefix="riverrun-kill-"))
    try:
        done = survive(folder, plan, rate=given.rate, brokers=given.brokers, speed=given.speed)
    except BaseException:
        print(f"What is left of it is in {folder}", file=sys.stderr)
        raise
    shutil.rmtree(folder, ignore_errors=True)
    kinds = {kind: done.killed.count(kind) for kind in dict.fromkeys(done.killed)}
    print(
        f"{len(done.killed)} kills {kinds} in {done.seconds:.0f} s; {done.readings} readings, {done.rows} rows, "
        f"{done.twice} sent again with their identity: all right"
        f"{f'; asked to end, it did not within a minute {done.cut_off} times' if done.cut_off else ''}"
    )


if __name__ == "__main__":
    main()
