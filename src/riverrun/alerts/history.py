"""What was written to topics, in the order in which it was: the partitions merged by Kafka's time of their records."""

import heapq
from collections.abc import Collection, Iterable, Iterator
from contextlib import ExitStack

from riverrun.alerts.engine import Arrived, Incoming
from riverrun.alerts.kafka_log import incoming
from riverrun.kafka.admin.admin import Admin
from riverrun.kafka.connection import Connection
from riverrun.kafka.consumer.reader import Reader, spans
from riverrun.model.when import Position

_CHUNK = 500


def history(
    connection: Connection, topics: Collection[str], *, start: Position, end: Position | None = None
) -> Iterator[Arrived]:
    """All records of these topics from `start` to `end`, or to where they end now."""
    wanted = spans(Admin(connection), topics, start=start, end=end)
    with ExitStack() as stack:
        # A reader for each: one for all would give out a whole partition before it begins with the next.
        readers = [stack.enter_context(Reader(connection, {place: span})) for place, span in wanted.items()]
        yield from in_order([(incoming(each) for batch in reader for each in batch) for reader in readers])


def in_order(partitions: Iterable[Iterable[Incoming]]) -> Iterator[Arrived]:
    """The records of several partitions as they came: by time, and of each partition by offset whatever its times say."""
    chunk: list[Incoming] = []
    for record in heapq.merge(*partitions, key=lambda each: each.recorded):
        chunk.append(record)
        if len(chunk) == _CHUNK:
            yield Arrived(chunk)
            chunk = []
    if chunk:
        yield Arrived(chunk)
