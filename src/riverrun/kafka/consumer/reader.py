"""Read partitions from one offset to another, in batches of records as they lie there. What `riverrun consume` stands on.

Unlike a consumer, a reader has no group and no handlers: it knows where to begin and where to end, and ends there. Records
that retention removed before they were read are counted and said, and reading goes on behind them.
"""

import heapq
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Literal, Self

from confluent_kafka import Consumer as ClientConsumer
from confluent_kafka import KafkaError as ClientError
from confluent_kafka import KafkaException
from confluent_kafka import TopicPartition as ClientPartition

from riverrun.errors import BrokerUnreachableError, OffsetGoneError, UsageError
from riverrun.kafka.admin.admin import Admin
from riverrun.kafka.admin.offsets import offsets_at
from riverrun.kafka.border import client_log, translate
from riverrun.kafka.connection import Connection
from riverrun.kafka.consumer.consumer import Consumer
from riverrun.model.record import RawRecord
from riverrun.model.state import Place
from riverrun.model.when import LATEST, Position

_PROPERTIES: dict[str, Any] = {
    "group.id": "riverrun-reader",
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "error",
    # With the default of 1 s the client sits idle whenever its queue has been full: 180,000 records/s against 480,000.
    "fetch.queue.backoff.ms": 5,
    # What the client may hold in memory ahead of us.
    "queued.max.messages.kbytes": 32_768,
}
# Where the last offset is a mark of a transaction, only an empty answer says that nothing follows: half a second by default.
_TO_AN_END = {"fetch.wait.max.ms": 50}
_LOGIN = frozenset({ClientError._AUTHENTICATION, ClientError._SSL, ClientError.SASL_AUTHENTICATION_FAILED})
_PASSING = frozenset(
    {ClientError._TRANSPORT, ClientError._ALL_BROKERS_DOWN, ClientError._TIMED_OUT, ClientError._RESOLVE}
)
_BATCH = 2000
_TURN_SECONDS = 0.1


@dataclass(frozen=True)
class Span:
    """From the offset `start` up to and without `end`; None: without an end."""

    start: int
    end: int | None


class Reader:
    """Iterates over batches; use it in a `with`. An empty batch says that a moment passed without records.

    `on_gone(place, first, count)` is told when `count` records from offset `first` on were removed before they could be
    read. `on_cut(error)` is told when a log ends before the offset it was read to, because it was cut or its topic made
    again: reading goes on with its first record. By default the error is raised. `on_trouble(text)` is told when no broker
    answers, and (with an empty text) when they do again. A `group` is only a name to commit by, in a transaction:
    `transaction.commit_offsets(reader.client)`. A batch is given out after `turn_seconds`, full or not.
    """

    def __init__(
        self,
        connection: Connection,
        spans: Mapping[Place, Span],
        *,
        on_gone: Callable[[Place, int, int], None] = lambda _place, _first, _count: None,
        on_cut: Callable[[OffsetGoneError], None] | None = None,
        on_trouble: Callable[[str], None] = lambda _text: None,
        group: str = "",
        turn_seconds: float = _TURN_SECONDS,
    ) -> None:
        self._turn_seconds = turn_seconds
        self._timeout = connection.settings.request_timeout_seconds
        self._where = connection.bootstrap_servers
        self._on_gone = on_gone
        self._on_cut = on_cut or _raise
        self._on_trouble = on_trouble
        self._next = {place: span.start for place, span in spans.items()}
        self._ends = {place: span.end for place, span in spans.items() if span.end is None or span.start < span.end}
        self._follow = any(end is None for end in self._ends.values())
        self._login_error: ClientError | None = None
        self._in_trouble = False
        self._at_end: set[Place] = set()
        named: dict[str, Any] = {"group.id": group} if group else {}
        if not self._follow:
            named |= _TO_AN_END
        self._consumer = ClientConsumer(
            connection.properties({**_PROPERTIES, **named, "error_cb": self._on_error}), logger=client_log
        )
        if self._ends:
            self._consumer.assign([ClientPartition(*place, self._next[place]) for place in self._ends])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._consumer.close()

    def __iter__(self) -> Iterator[list[RawRecord]]:
        quiet_since = time.monotonic()
        while self._ends:
            try:
                messages = self._consumer.consume(num_messages=_BATCH, timeout=self._turn_seconds)
            except KafkaException as error:
                raise translate(error, "reading", bootstrap=self._where) from error
            if self._login_error is not None:
                raise translate(self._login_error, "reading", bootstrap=self._where)
            batch = self._sorted_out(messages)
            if batch:
                quiet_since = time.monotonic()
                self._answered()
            elif self._ends and time.monotonic() - quiet_since > self._timeout:
                self._check_alive()
                quiet_since = time.monotonic()
            yield batch

    @property
    def client(self) -> ClientConsumer:
        return self._consumer

    @property
    def behind(self) -> set[Place]:
        """The partitions of which there was more to read when the last batch was given out."""
        return set(self._ends) - self._at_end

    @property
    def next(self) -> dict[Place, int]:
        """Where it stands: behind the last record it gave out, and at the end behind what is there besides records."""
        return dict(self._next)

    def _sorted_out(self, messages: list[Any]) -> list[RawRecord]:
        """The records of a batch that are within their span; ends and errors are taken care of."""
        batch: list[RawRecord] = []
        ends, keep = self._ends, batch.append
        for message in messages:
            place = Place(message.topic(), message.partition())
            if place not in ends:
                continue
            if message.error() is not None:
                self._event(place, message)
                continue
            end, offset = ends[place], message.offset()
            self._at_end.discard(place)
            if end is None or offset < end:
                keep(message)
                self._next[place] = offset + 1
            if end is not None and offset >= end - 1:
                self._finish(place)
        return batch

    def _event(self, place: Place, message: Any) -> None:
        error = message.error()
        end = self._ends[place]
        if error.code() == ClientError._PARTITION_EOF:
            self._at_end.add(place)
            self._next[place] = max(self._next[place], message.offset())
            # The last offsets before the end may be markers of transactions, which are no records.
            if end is not None and message.offset() >= end:
                self._finish(place)
        elif error.code() in (ClientError._AUTO_OFFSET_RESET, ClientError.OFFSET_OUT_OF_RANGE):
            self._skip_gone(place)
        elif error.code() not in _PASSING:
            raise translate(error, f"reading {place}", topic=place.topic, bootstrap=self._where)

    def _finish(self, place: Place) -> None:
        del self._ends[place]
        self._consumer.incremental_unassign([ClientPartition(*place)])

    def _skip_gone(self, place: Place) -> None:
        try:
            first, last = self._consumer.get_watermark_offsets(ClientPartition(*place), timeout=self._timeout)
        except KafkaException as error:
            raise translate(error, f"reading {place}", topic=place.topic, bootstrap=self._where) from error
        before, end = self._next[place], self._ends[place]
        if first >= before:
            self._on_gone(place, before, first - before)
        else:
            self._on_cut(_cut(place, before, last))
            if end is not None:
                # That was an offset of the log as it was.
                self._ends[place] = end = min(end, last)
        self._next[place] = first
        if end is not None and first >= end:
            self._finish(place)
        else:
            self._consumer.incremental_unassign([ClientPartition(*place)])
            self._consumer.incremental_assign([ClientPartition(*place, first)])

    def _check_alive(self) -> None:
        """Nothing came for a while: find out whether there is nothing or nobody."""
        topic = next(iter(self._ends)).topic
        try:
            # Metadata, not offsets: for those a client without brokers says that it knows no such partition.
            problem = self._consumer.list_topics(topic, timeout=self._timeout).topics[topic].error
            if problem is not None:
                raise KafkaException(problem)
        except KafkaException as error:
            told = translate(error, f"reading {topic}", topic=topic, bootstrap=self._where)
            if not self._follow or not isinstance(told, BrokerUnreachableError):
                raise told from error
            if not self._in_trouble:
                self._on_trouble(told.what)
            self._in_trouble = True
            return
        self._answered()

    def _answered(self) -> None:
        if self._in_trouble:
            self._in_trouble = False
            self._on_trouble("")

    def _on_error(self, error: ClientError) -> None:
        if error.code() in _LOGIN:
            self._login_error = error


def _cut(place: Place, before: int, last: int) -> OffsetGoneError:
    return OffsetGoneError(
        f"{place} was to be read from offset {before} on, and its log ends at {last}: it was cut, or its topic was deleted "
        "and made again",
        hint="Begin with the first record there is: --from earliest",
        topic=place.topic,
    )


def _raise(error: OffsetGoneError) -> None:
    raise error


def spans(
    admin: Admin,
    topics: Collection[str],
    *,
    start: Position,
    end: Position | None = None,
    follow: bool = False,
    partitions: Collection[int] = (),
) -> dict[Place, Span]:
    """Where to read: in these topics (in these partitions only, if any are named) from `start` to `end`, by default to
    where the log ends now for readers of committed records. TopicNotFoundError when a topic is not there."""
    places = [
        place
        for name in topics
        for place in admin.topic(name).places
        if not partitions or place.partition in partitions
    ]
    unknown = sorted(set(partitions) - {place.partition for place in places})
    if unknown:
        raise UsageError(f"There is no partition {', '.join(map(str, unknown))} in {', '.join(topics)}")
    first = offsets_at(admin, places, start)
    last = offsets_at(admin, places, end or LATEST)
    return {place: Span(first[place], None if follow else last[place]) for place in places}


def newest(batches: Iterable[list[RawRecord]], count: int) -> list[RawRecord]:
    """The last `count` records of each topic, by the time they were written. Holds no more than those."""
    heaps: dict[str | None, list[tuple[int, int, int, RawRecord]]] = {}
    for batch in batches:
        for record in batch:
            # Ties keep the order within a partition.
            entry = (record.timestamp()[1], record.offset() or 0, -(record.partition() or 0), record)
            heap = heaps.setdefault(record.topic(), [])
            if len(heap) < count:
                heapq.heappush(heap, entry)
            elif heap and entry[:3] > heap[0][:3]:
                heapq.heapreplace(heap, entry)
    return [entry[3] for heap in heaps.values() for entry in sorted(heap, key=lambda entry: entry[:3])]


def read_as_group(
    connection: Connection,
    group: str,
    topics: Collection[str],
    *,
    start: Position,
    follow: bool,
    partitions: Collection[int] = (),
    most: Callable[[], int] = lambda: _BATCH,
    on_gone: Callable[[OffsetGoneError], None] = lambda _error: None,
) -> Iterator[list[RawRecord]]:
    """Batches of up to `most()` records (0 ends it), as a member of a group, from where the group stands (or from `start`,
    in a partition where it has not been). A batch is committed when the next one is asked for; one that is in hand when
    the iteration is left is read again."""
    if start.kind in ("offset", "last"):
        raise UsageError(
            f"A group begins at earliest, latest or a time, not at {start}",
            hint="`riverrun offsets move` starts a group at an offset",
        )
    begin: Literal["earliest", "latest"] | datetime = "earliest" if start.kind == "earliest" else "latest"
    if start.kind == "time":
        begin = datetime.fromtimestamp(start.number / 1000, UTC)
    with Consumer(
        list(topics),
        group=group,
        connection=connection,
        start=begin,
        follow=follow,
        commit="batch",
        partitions=[Place(topic, each) for topic in topics for each in partitions] or None,
        on_gone=on_gone,
    ) as consumer:
        while (count := most()) and (batch := next(consumer.batches(count, wait_seconds=0.2), None)) is not None:
            yield list(batch._messages)
            consumer.commit()
