"""Bytewax. Two processes of one worker each (Python steps would share one lock as threads), which exchange rows by key.

Promise: at least once, by snapshots to a recovery store. Emission: `fold_window` writes a row when its window closes;
updates in between are not what its windows do.
"""

import os
from datetime import UTC, datetime, timedelta
from typing import Any

import bytewax.operators as op
import orjson
from bytewax.connectors.kafka import KafkaSinkMessage, KafkaSourceMessage
from bytewax.connectors.kafka import operators as kop
from bytewax.dataflow import Dataflow
from bytewax.operators.windowing import EventClock, TumblingWindower, fold_window

State = tuple[float, int, datetime]
OLDEST = datetime.min.replace(tzinfo=UTC)
ALIGN = datetime(2026, 1, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def parse(message: KafkaSourceMessage[Any, Any]) -> tuple[str, tuple[float, datetime]]:
    reading = orjson.loads(message.value)
    return reading["house_id"], (reading["load_kw"], datetime.fromisoformat(reading["at"]))


def add(state: State, reading: tuple[float, datetime]) -> State:
    total, count, last = state
    return total + reading[0], count + 1, max(last, reading[1])


def merge(one: State, other: State) -> State:
    return one[0] + other[0], one[1] + other[1], max(one[2], other[2])


def row(item: tuple[str, tuple[int, State]]) -> KafkaSinkMessage[bytes, bytes]:
    house, (window, (total, count, last)) = item
    start = ALIGN + window * MINUTE
    content = {"house_id": house, "minute": start, "load_kw": total / count, "last": last}
    return KafkaSinkMessage(house.encode(), orjson.dumps(content))


brokers = [os.environ["BENCH_SERVERS"]]
flow = Dataflow("meters")
readings = kop.input("readings", flow, brokers=brokers, topics=["readings"], batch_size=1000)
by_house = op.map("parse", readings.oks, parse)
averages = fold_window(
    "average",
    by_house,
    EventClock(lambda reading: reading[1], wait_for_system_duration=timedelta(minutes=2)),
    TumblingWindower(length=MINUTE, align_to=ALIGN),
    lambda: (0.0, 0, OLDEST),
    add,
    merge,
    # An average does not ask for order, and sorting costs.
    ordered=False,
)
kop.output("rows", op.map("row", averages.down, row), brokers=brokers, topic=os.environ["BENCH_OUTPUT"])
