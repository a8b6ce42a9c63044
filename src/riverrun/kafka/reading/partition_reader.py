"""Read partitions from one offset to another, in batches of raw records. The basis of `riverrun consume`.

Unlike a consumer, a reader has no group and no handlers: it has a start and an end offset, and stops there. Records that
retention removed before they were read are counted and reported, and reading continues behind them.
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

from riverrun.errors import BrokerUnreachableError, OffsetOutOfRangeError, UsageError
from riverrun.kafka.admin.admin import Admin
from riverrun.kafka.admin.offsets import offsets_at
from riverrun.kafka.connection import Connection
from riverrun.kafka.consumer.consumer import Consumer
from riverrun.kafka.error_mapping import client_log, translate
from riverrun.model.cluster_state import TopicPartition
from riverrun.model.positions import LATEST, OffsetSpec
from riverrun.model.record import RawRecord

_PROPERTIES: dict[str, Any] = {
    "group.id": "riverrun-reader",
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "error",
    # With the default of 1 s the client is idle whenever its queue has been full: 180,000 records/s against 480,000.
    "fetch.queue.backoff.ms": 5,
    # How much the client may fetch ahead into memory.
    "queued.max.messages.kbytes": 32_768,
}
# If the last offset is a transaction marker, only an empty answer says that nothing follows: half a second by default.
_BOUNDED_PROPERTIES = {"fetch.wait.max.ms": 50}
_AUTHENTICATION_CODES = frozenset(
    {ClientError._AUTHENTICATION, ClientError._SSL, ClientError.SASL_AUTHENTICATION_FAILED}
)
_TRANSIENT_CODES = frozenset(
    {ClientError._TRANSPORT, ClientError._ALL_BROKERS_DOWN, ClientError._TIMED_OUT, ClientError._RESOLVE}
)
_BATCH_RECORDS = 2000
_POLL_SECONDS = 0.1


@dataclass(frozen=True)
class OffsetRange:
    """From the offset `start` up to and excluding `end`; None: without an end."""

    start: int
    end: int | None


class PartitionReader:
    """Iterates over batches; use it in a `with`. An empty batch says that a moment passed without records.

    `on_gone(place, first, count)` is told when `count` records from offset `first` on were removed before they could be
    read. `on_cut(error)` is told when a log ends before the offset it was read to, because it was cut or its topic made
    again: reading goes on with its first record. By default the error is raised. `on_trouble(text)` is told when no broker
    answers, and (with an empty text) when they do again. A `group` is only a name to commit by, in a transaction:
    `transaction.commit_offsets(reader.client)`. A batch is given out after `poll_seconds`, full or not.
    """

    def __init__(
        self,
        connection: Connection,
        ranges: Mapping[TopicPartition, OffsetRange],
        *,
        on_gone: Callable[[TopicPartition, int, int], None] = lambda _partition, _first, _count: None,
        on_truncated: Callable[[OffsetOutOfRangeError], None] | None = None,
        on_unreachable: Callable[[str], None] = lambda _text: None,
        group: str = "",
        poll_seconds: float = _POLL_SECONDS,
    ) -> None:
        self._poll_seconds = poll_seconds
        self._timeout = connection.settings.request_timeout_seconds
        self._bootstrap_servers = connection.bootstrap_servers
        self._on_gone = on_gone
        self._on_truncated = on_truncated or _raise
        self._on_unreachable = on_unreachable
        self._positions = {partition: offset_range.start for partition, offset_range in ranges.items()}
        self._ends = {
            partition: offset_range.end
            for partition, offset_range in ranges.items()
            if offset_range.end is None or offset_range.start < offset_range.end
        }
        self._follow = any(end is None for end in self._ends.values())
        self._login_error: ClientError | None = None
        self._unreachable = False
        self._at_end: set[TopicPartition] = set()
        overrides: dict[str, Any] = {"group.id": group} if group else {}
        if not self._follow:
            overrides |= _BOUNDED_PROPERTIES
        self._consumer = ClientConsumer(
            connection.properties({**_PROPERTIES, **overrides, "error_cb": self._on_error}), logger=client_log
        )
        if self._ends:
            self._consumer.assign([ClientPartition(*partition, self._positions[partition]) for partition in self._ends])

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
                messages = self._consumer.consume(num_messages=_BATCH_RECORDS, timeout=self._poll_seconds)
            except KafkaException as error:
                raise translate(error, "reading", bootstrap=self._bootstrap_servers) from error
            if self._login_error is not None:
                raise translate(self._login_error, "reading", bootstrap=self._bootstrap_servers)
            batch = self._process(messages)
            if batch:
                quiet_since = time.monotonic()
                self._mark_reachable()
            elif self._ends and time.monotonic() - quiet_since > self._timeout:
                self._check_alive()
                quiet_since = time.monotonic()
            yield batch

    @property
    def client(self) -> ClientConsumer:
        return self._consumer

    @property
    def behind(self) -> set[TopicPartition]:
        """The partitions that had more to read when the last batch was returned."""
        return set(self._ends) - self._at_end

    @property
    def positions(self) -> dict[TopicPartition, int]:
        """The next offsets: behind the last returned record, and at the end behind transaction markers too."""
        return dict(self._positions)

    def _process(self, messages: list[Any]) -> list[RawRecord]:
        """The records of a batch that are within their range; ends and errors are handled."""
        batch: list[RawRecord] = []
        ends, append = self._ends, batch.append
        for message in messages:
            partition = TopicPartition(message.topic(), message.partition())
            if partition not in ends:
                continue
            if message.error() is not None:
                self._handle_event(partition, message)
                continue
            end, offset = ends[partition], message.offset()
            self._at_end.discard(partition)
            if end is None or offset < end:
                append(message)
                self._positions[partition] = offset + 1
            if end is not None and offset >= end - 1:
                self._finish(partition)
        return batch

    def _handle_event(self, partition: TopicPartition, message: Any) -> None:
        error = message.error()
        end = self._ends[partition]
        if error.code() == ClientError._PARTITION_EOF:
            self._at_end.add(partition)
            self._positions[partition] = max(self._positions[partition], message.offset())
            # The last offsets before the end may be transaction markers, which are no records.
            if end is not None and message.offset() >= end:
                self._finish(partition)
        elif error.code() in (ClientError._AUTO_OFFSET_RESET, ClientError.OFFSET_OUT_OF_RANGE):
            self._skip_missing(partition)
        elif error.code() not in _TRANSIENT_CODES:
            raise translate(error, f"reading {partition}", topic=partition.topic, bootstrap=self._bootstrap_servers)

    def _finish(self, partition: TopicPartition) -> None:
        del self._ends[partition]
        self._consumer.incremental_unassign([ClientPartition(*partition)])

    def _skip_missing(self, partition: TopicPartition) -> None:
        try:
            first, last = self._consumer.get_watermark_offsets(ClientPartition(*partition), timeout=self._timeout)
        except KafkaException as error:
            raise translate(
                error, f"reading {partition}", topic=partition.topic, bootstrap=self._bootstrap_servers
            ) from error
        expected, end = self._positions[partition], self._ends[partition]
        if first >= expected:
            self._on_gone(partition, expected, first - expected)
        else:
            self._on_truncated(_truncated_error(partition, expected, last))
            if end is not None:
                # That was an offset of the old log.
                self._ends[partition] = end = min(end, last)
        self._positions[partition] = first
        if end is not None and first >= end:
            self._finish(partition)
        else:
            self._consumer.incremental_unassign([ClientPartition(*partition)])
            self._consumer.incremental_assign([ClientPartition(*partition, first)])

    def _check_alive(self) -> None:
        """Nothing came for a while: find out whether there are no records or no brokers."""
        topic = next(iter(self._ends)).topic
        try:
            # Metadata, not offsets: for those a client without brokers says that there is no such partition.
            problem = self._consumer.list_topics(topic, timeout=self._timeout).topics[topic].error
            if problem is not None:
                raise KafkaException(problem)
        except KafkaException as error:
            translated = translate(error, f"reading {topic}", topic=topic, bootstrap=self._bootstrap_servers)
            if not self._follow or not isinstance(translated, BrokerUnreachableError):
                raise translated from error
            if not self._unreachable:
                self._on_unreachable(translated.what)
            self._unreachable = True
            return
        self._mark_reachable()

    def _mark_reachable(self) -> None:
        if self._unreachable:
            self._unreachable = False
            self._on_unreachable("")

    def _on_error(self, error: ClientError) -> None:
        if error.code() in _AUTHENTICATION_CODES:
            self._login_error = error


def _truncated_error(partition: TopicPartition, expected: int, last: int) -> OffsetOutOfRangeError:
    return OffsetOutOfRangeError(
        f"{partition} was to be read from offset {expected} on, and its log ends at {last}: it was cut, or its topic was "
        "deleted and made again",
        hint="Begin with the first record there is: --from earliest",
        topic=partition.topic,
    )


def _raise(error: OffsetOutOfRangeError) -> None:
    raise error


def resolve_offset_ranges(
    admin: Admin,
    topics: Collection[str],
    *,
    start: OffsetSpec,
    end: OffsetSpec | None = None,
    follow: bool = False,
    partitions: Collection[int] = (),
) -> dict[TopicPartition, OffsetRange]:
    """The offsets to read: in these topics (in these partitions only, if any are named) from `start` to `end`, by default to
    the current end of the log for readers of committed records. TopicNotFoundError when a topic does not exist."""
    topic_partitions = [
        topic_partition
        for name in topics
        for topic_partition in admin.topic(name).topic_partitions
        if not partitions or topic_partition.partition in partitions
    ]
    unknown = sorted(set(partitions) - {topic_partition.partition for topic_partition in topic_partitions})
    if unknown:
        raise UsageError(f"There is no partition {', '.join(map(str, unknown))} in {', '.join(topics)}")
    first = offsets_at(admin, topic_partitions, start)
    last = offsets_at(admin, topic_partitions, end or LATEST)
    return {
        topic_partition: OffsetRange(first[topic_partition], None if follow else last[topic_partition])
        for topic_partition in topic_partitions
    }


def newest_per_topic(batches: Iterable[list[RawRecord]], count: int) -> list[RawRecord]:
    """The last `count` records of each topic, by the time they were written. Keeps no more than those in memory."""
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
    start: OffsetSpec,
    follow: bool,
    partitions: Collection[int] = (),
    max_records: Callable[[], int] = lambda: _BATCH_RECORDS,
    on_gone: Callable[[OffsetOutOfRangeError], None] = lambda _error: None,
) -> Iterator[list[RawRecord]]:
    """Batches of up to `max_records()` records (0 ends it), as a member of a group, from its committed offsets (or from
    `start`, in a partition without one). A batch is committed when the next one is asked for; if the iteration is left, the
    current one is read again."""
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
        partitions=[TopicPartition(topic, number) for topic in topics for number in partitions] or None,
        on_gone=on_gone,
    ) as consumer:
        while (count := max_records()) and (batch := next(consumer.batches(count, wait_seconds=0.2), None)) is not None:
            yield list(batch._messages)
            consumer.commit()
