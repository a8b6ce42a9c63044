"""Rounds in which one part of a batch fails, or the driver dies, after the other parts were committed.

The pipeline's own function does it: for the records of one Kafka partition it waits until the rows of all others are
committed, and then raises, or stands still so that the driver can be killed. So the rerun of the batch finds some parts
written and one not, which is what loses and doubles rows when parts are told apart wrongly.
"""

import json
import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from confluent_kafka import Consumer, Producer, TopicPartition

from riverrun.app import load_app
from riverrun.kafka.connection import Connection
from support.streaming import read_rows

# The part raises once and for all, or so that the batch is tried again; or it stands still.
Mode = Literal["fail", "retry", "stall"]

PARTITIONS = 4
APP = '''
import json
import os
import time
from pathlib import Path

import riverrun as rr
from pyspark import TaskContext
from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType
from riverrun.errors import StreamFailedError

app = rr.App("{name}")
ORDER = "{order}"
OUT = "{name}_kept"


class Reading(rr.Event):
    house_id: str = rr.key()
    part: int
    turn: int
    number: int


readings = app.topic("{topic}", Reading, partitions={partitions})


def others_in_batch(order):
    """How many records of the round the other parts have up to the end of this batch: Spark may have planned it when some
    were not there yet, and those wait for this one to end."""
    batch = TaskContext.get().getLocalProperty("streaming.sql.batchId")
    (planned,) = Path(ORDER).parent.rglob("kept/offsets/" + batch)
    ends = json.loads(planned.read_text().splitlines()[-1])["{topic}"]
    return sum(max(0, min(ends.get(part, 0) - first, count)) for part, (first, count) in order["others"].items())


def wait_for_others(order):
    """Until the rows of all other parts of the batch are committed."""
    from confluent_kafka import Consumer, TopicPartition

    others = others_in_batch(order)
    consumer = Consumer({{
        "bootstrap.servers": "{bootstrap}", "group.id": "others", "isolation.level": "read_committed",
        "enable.auto.commit": False, "auto.offset.reset": "earliest",
    }})
    deadline, found = time.monotonic() + 60, set()
    try:
        consumer.assign([TopicPartition(OUT, part, 0) for part in range({partitions})])
        while len(found) < others:
            message = consumer.poll(0.2)
            if message is not None and message.error() is None:
                row = json.loads(message.value())
                if row["turn"] == order["turn"] and row["part"] != order["part"]:
                    found.add(row["number"])
            if time.monotonic() > deadline:
                raise TimeoutError(f"{{len(found)}} of {{others}} rows of the other parts were committed")
    finally:
        consumer.close()


@F.udf(IntegerType())
def fate(part, turn):
    try:
        with open(ORDER) as file:
            order = json.load(file)
    except FileNotFoundError:
        return 0
    if (order["part"], order["turn"]) == (part, turn):
        wait_for_others(order)
        os.rename(ORDER, ORDER + ".done")
        if order["mode"] == "retry":
            # The pipeline starts the batch again by itself, as after a lost broker.
            raise StreamFailedError(f"partition {{part}} fails in round {{turn}}")
        if order["mode"] == "fail":
            raise ValueError(f"partition {{part}} fails in round {{turn}}")
        time.sleep(300)
    return 0


@app.stream(topic=OUT)
def kept({topic}):
    return {topic}.select("house_id", "part", "turn", "number", fate("part", "turn").alias("fate"))
'''


class Tally:
    """Counts the rows that are committed, by the number of their record, as they come."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self.rows: Counter[int] = Counter()

    def until(self, count: int, seconds: float) -> None:
        """Until rows of so many records are there."""
        deadline = time.monotonic() + seconds
        while len(self.rows) < count:
            for message in self._consumer.consume(500, 0.2):
                if message.error() is None:
                    self.rows[int(json.loads(message.value() or b"")["number"])] += 1
            lost = [number for number in range(count) if number not in self.rows]
            assert time.monotonic() < deadline, f"after {seconds:.0f} s {len(lost)} rows are not there: {lost}"


class Rounds:
    """An app in `folder`, and what was sent to it. `plan` sends the records of a round, of which one part goes wrong."""

    def __init__(self, folder: Path, connection: Connection, *, name: str, seed: int) -> None:
        self.folder = folder
        self.connection = connection
        self.name = name
        self.topic, self.output = f"{name}_readings", f"{name}_kept"
        self.order = folder / "order.json"
        self.done = folder / "order.json.done"
        self.app = folder / "app.py"
        self.sent = 0
        self._chance = random.Random(seed)
        bootstrap = str(connection.properties()["bootstrap.servers"])
        text = APP.format(name=name, topic=self.topic, order=self.order, partitions=PARTITIONS, bootstrap=bootstrap)
        self.app.write_text(text, encoding="utf-8")
        # How many records each partition has. All of a round go out together: Spark is to find them in one batch.
        self._ends = [0] * PARTITIONS
        self._producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 1000})

    def plan(self, turn: int, mode: Mode, part: int | None = None) -> int:
        """Records into some of the partitions, one of which is to go wrong; which."""
        chance = self._chance
        parts = chance.sample(range(PARTITIONS), chance.randint(2, PARTITIONS))
        bad = parts[0] if part is None else part
        rows = {each: chance.randint(1, 10) for each in {*parts, bad}}
        others = {each: (self._ends[each], count) for each, count in rows.items() if each != bad}
        self.done.unlink(missing_ok=True)
        self.order.write_text(json.dumps({"turn": turn, "part": bad, "mode": mode, "others": others}), encoding="utf-8")
        for each, count in rows.items():
            self._ends[each] += count
            for _ in range(count):
                row = {"house_id": f"h{each}", "part": each, "turn": turn, "number": self.sent}
                self._producer.produce(self.topic, json.dumps(row), f"h{each}", partition=each)
                self.sent += 1
        assert self._producer.flush(60) == 0, "the records were not acknowledged"
        return bad

    def wrong(self) -> tuple[list[int], list[int]]:
        """The numbers of the records whose rows are lost, and of those that are there more than once."""
        rows = Counter(int(row["number"]) for row in read_rows(self.connection, self.output))
        return [each for each in range(self.sent) if not rows[each]], [
            each for each, times in rows.items() if times > 1
        ]

    @contextmanager
    def tally(self) -> Iterator[Tally]:
        consumer = Consumer(
            self.connection.properties(
                {"group.id": "judge", "isolation.level": "read_committed", "enable.auto.commit": False}
            )
        )
        try:
            consumer.assign([TopicPartition(self.output, part, 0) for part in range(PARTITIONS)])
            yield Tally(consumer)
        finally:
            consumer.close()

    def make_topics(self) -> None:
        load_app(self.app).apply(self.connection)
