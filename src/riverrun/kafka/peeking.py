"""The newest records of a topic, for people who look: few of them, soon, and whatever is in them."""

import time
from dataclasses import dataclass, field

from riverrun.kafka.admin.admin import Admin
from riverrun.kafka.consumer.reader import Reader, newest, spans
from riverrun.kafka.registry.opening import opened
from riverrun.model.record import RawRecord
from riverrun.model.when import Position

# A transaction ends with a mark that takes an offset: twice as many offsets hold enough records.
_WIDER = 2
MOST_BYTES = 32_000_000
MOST_SECONDS = 5.0


@dataclass
class Peek:
    """Records, newest first. Not `whole`: reading took too long or was too much, so that newer ones may be missing."""

    records: list[RawRecord] = field(default_factory=list)
    whole: bool = True


def peek(
    admin: Admin, topic: str, count: int, *, most_bytes: int = MOST_BYTES, most_seconds: float = MOST_SECONDS
) -> Peek:
    """The last `count` records of all partitions. TopicNotFoundError when the topic is not there."""
    where = spans(admin, [topic], start=Position("last", count * _WIDER))
    found = Peek()
    deadline = time.monotonic() + most_seconds
    taken = 0
    seen: list[RawRecord] = []
    with Reader(admin.connection, where) as reader:
        for batch in reader:
            seen = newest([seen, batch], count)
            taken += sum(len(each.value() or b"") for each in batch)
            if taken > most_bytes or time.monotonic() > deadline:
                found.whole = False
                break
    found.records = list(opened(admin.connection.registry, seen[::-1]))
    return found
