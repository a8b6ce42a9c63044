"""The client library and its cluster as one object: logs of numbers, a group, and what the client would say about them.

It is as strict as the library: a partition is assigned once, one thread at a time is inside, rebalances happen in a poll.
"""

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from types import SimpleNamespace
from typing import Any

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    OFFSET_INVALID,
    OFFSET_STORED,
    KafkaError,
    KafkaException,
    Message,
)
from confluent_kafka import TopicPartition as ClientPartition

from riverrun.config import KafkaSettings
from riverrun.kafka.connection import Connection
from riverrun.kafka.consumer.consumer import Consumer
from riverrun.model.cluster_state import TopicPartition

NOWHERE = Connection(KafkaSettings(bootstrap_servers="127.0.0.1:1", request_timeout_seconds=2))


class FakeClient:
    """`logs` has the offsets of each partition, `values` those of its values that are not their offset.

    What happens is said by the poll in which it does: `rebalances` and `in_poll`, one of each at a time. A group gives all
    partitions at once, unless told otherwise.
    """

    def __init__(self, partitions: int = 1) -> None:
        self.logs: dict[TopicPartition, range] = {TopicPartition("t", number): range(0) for number in range(partitions)}
        self.values: dict[TopicPartition, dict[int, bytes]] = {place: {} for place in self.logs}
        self.committed_offsets: dict[TopicPartition, int] = {}
        self.rebalances: deque[tuple[str, Collection[TopicPartition]]] = deque([("assign", list(self.logs))])
        self.in_poll: deque[Callable[[], object]] = deque()
        # Given out before anything of the logs.
        self.told: deque[Message] = deque()
        # How many records a `consume` brings; while silent, no commit is answered.
        self.most = 1000
        self.silent = False
        self.requests: list[dict[TopicPartition, int]] = []
        self.assigned: dict[TopicPartition, int | None] = {}
        self.paused: set[TopicPartition] = set()
        self.closed = False
        self._properties: dict[str, Any] = {}
        self._listeners: dict[str, Callable[..., None]] = {}
        self._positions: dict[TopicPartition, int] = {}
        self._at_end: set[TopicPartition] = set()
        self._unanswered: deque[list[ClientPartition]] = deque()
        self._inside = threading.RLock()
        self._touched = False

    def __call__(self, properties: dict[str, Any], **_: object) -> "FakeClient":
        self._properties = properties
        return self

    def consumer(self, **options: Any) -> Consumer[Any]:
        return Consumer(options.pop("topics", "t"), group=options.pop("group", "g"), connection=NOWHERE, **options)

    # --- reading ------------------------------------------------------------------------------------------------------

    def poll(self, seconds: float = 0.0) -> Message | None:
        with self._alone():
            if self.in_poll:
                self.in_poll.popleft()()
            if self.rebalances and self._listeners:
                self._rebalance(*self.rebalances.popleft())
            if self._unanswered and not self.silent:
                self._answer()
            found = self._next()
            if found is None:
                time.sleep(min(seconds, 0.005))
            return found

    def consume(self, most: int, _seconds: float) -> list[Message]:
        with self._alone():
            found: list[Message] = []
            while len(found) < min(most, self.most) and (message := self._next()) is not None:
                found.append(message)
            return found

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        # The library lets nobody in while another thread is inside, which may be for ever. A test should not hang.
        if not self._inside.acquire(timeout=1):
            raise AssertionError("another thread is in the client")
        try:
            yield
        finally:
            self._inside.release()

    def _next(self) -> Message | None:
        if self.told:
            return self.told.popleft()
        for place, offset in self.assigned.items():
            if offset is not None and place not in self.paused and (message := self._of(place, offset)) is not None:
                return message
        return None

    def _of(self, place: TopicPartition, offset: int) -> Message | None:
        log = self.logs[place]
        if offset in (OFFSET_STORED, OFFSET_INVALID):
            offset = self.committed_offsets.get(place, OFFSET_INVALID)
        if not log.start <= offset <= log.stop:
            self.assigned[place] = None
            return event(place, KafkaError._AUTO_OFFSET_RESET, offset)
        if offset < log.stop:
            self.assigned[place] = self._positions[place] = offset + 1
            self._at_end.discard(place)
            return self._record(place, offset)
        if place in self._at_end:
            return None
        self._at_end.add(place)
        return event(place, KafkaError._PARTITION_EOF, offset)

    def _record(self, place: TopicPartition, offset: int) -> Message:
        value = self.values[place].get(offset, b"%d" % offset)
        return Message(topic=place.topic, partition=place.partition, offset=offset, value=value)

    def stall(self, place: TopicPartition, offset: int, log: range, *, fetched: Iterable[int] = ()) -> None:
        """A partition has another log, and its offset is not in there: after what was `fetched`, this is told."""
        self.told += [self._record(place, each) for each in fetched]
        self.told.append(event(place, KafkaError._AUTO_OFFSET_RESET, offset))
        self.assigned[place] = None
        self.logs[place] = log

    # --- partitions ---------------------------------------------------------------------------------------------------

    def subscribe(self, _topics: list[str], **listeners: Callable[..., None]) -> None:
        self._listeners = {name.removeprefix("on_"): each for name, each in listeners.items()}

    def _rebalance(self, kind: str, places: Collection[TopicPartition]) -> None:
        if not kind:
            return
        partitions = [ClientPartition(*place) for place in places]
        self._touched = False
        self._listeners[kind](self, partitions)
        if not self._touched:
            # As the library does, unless the callback did.
            (self.incremental_assign if kind == "assign" else self.incremental_unassign)(partitions)

    def assign(self, partitions: list[ClientPartition]) -> None:
        self.assigned = {}
        self.incremental_assign(partitions)

    def incremental_assign(self, partitions: Iterable[ClientPartition]) -> None:
        self._touched = True
        for partition in partitions:
            place = TopicPartition(partition.topic, partition.partition)
            if place in self.assigned:
                raise KafkaException(KafkaError(KafkaError._CONFLICT))
            self.assigned[place] = partition.offset

    def incremental_unassign(self, partitions: Iterable[ClientPartition]) -> None:
        self._touched = True
        for partition in partitions:
            place = TopicPartition(partition.topic, partition.partition)
            if place not in self.assigned:
                raise KafkaException(KafkaError(KafkaError._INVALID_ARG))
            del self.assigned[place]
            self._positions.pop(place, None)
            self._at_end.discard(place)
            self.paused.discard(place)

    def pause(self, partitions: Iterable[ClientPartition]) -> None:
        self.paused |= {
            TopicPartition(partition.topic, partition.partition) for partition in partitions
        } & self.assigned.keys()

    def resume(self, partitions: Iterable[ClientPartition]) -> None:
        self.paused -= {TopicPartition(partition.topic, partition.partition) for partition in partitions}

    # --- questions ----------------------------------------------------------------------------------------------------

    def position(self, partitions: Iterable[ClientPartition]) -> list[ClientPartition]:
        places = [TopicPartition(partition.topic, partition.partition) for partition in partitions]
        return [ClientPartition(*place, self._positions.get(place, OFFSET_INVALID)) for place in places]

    def get_watermark_offsets(self, partition: ClientPartition, **_: Any) -> tuple[int, int]:
        log = self.logs[TopicPartition(partition.topic, partition.partition)]
        return log.start, log.stop

    def offsets_for_times(self, partitions: Iterable[ClientPartition], **_: Any) -> list[ClientPartition]:
        found = []
        for partition in partitions:
            log = self.logs[TopicPartition(partition.topic, partition.partition)]
            offset = {OFFSET_BEGINNING: log.start, OFFSET_END: log.stop}[partition.offset]
            found.append(ClientPartition(partition.topic, partition.partition, offset))
        return found

    def list_topics(self, *_: Any, **__: Any) -> Any:
        partitions = {place.partition: None for place in self.logs}
        return SimpleNamespace(topics={"t": SimpleNamespace(error=None, partitions=partitions)})

    # --- commits, and the end -----------------------------------------------------------------------------------------

    def commit(self, offsets: list[ClientPartition], asynchronous: bool) -> None:
        assert asynchronous
        with self._alone():
            self.requests.append({TopicPartition(offset.topic, offset.partition): offset.offset for offset in offsets})
            self._unanswered.append(offsets)

    def _answer(self) -> None:
        offsets = self._unanswered.popleft()
        self.committed_offsets |= {TopicPartition(offset.topic, offset.partition): offset.offset for offset in offsets}
        self._properties["on_commit"](None, offsets)

    def close(self) -> None:
        self.closed = True


def event(place: TopicPartition, code: int, offset: int) -> Message:
    """What the client says of a partition among its records."""
    return Message(topic=place.topic, partition=place.partition, offset=offset, error=KafkaError(code))
