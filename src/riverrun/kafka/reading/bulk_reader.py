"""Reads many topics at once, committed records only, as columns: what a store needs, with little work per record.

No group: the caller sets where to start, and stores its positions together with the records.
"""

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from confluent_kafka import Consumer, KafkaException, Message
from confluent_kafka import KafkaError as ClientError
from confluent_kafka import TopicPartition as ClientPartition

from riverrun.errors import KafkaError
from riverrun.kafka.admin.admin import Admin
from riverrun.kafka.connection import Connection
from riverrun.kafka.consumer.offset_gap import OffsetGap
from riverrun.kafka.error_mapping import client_log, translate
from riverrun.model.cluster_state import TopicPartition

# The header that identifies records which the real-time mode sends again (streams/compile/compiler.py).
RECORD_ID_HEADER = "riverrun-id"
# Records per call to the client's queue; between two calls the bytes are counted. So few that they are freed before Python's
# garbage collector looks for cycles among them (every 700 new objects): that took 0.8 of 1.9 µs a record.
_CONSUME_RECORDS = 500
# What the client may have fetched and not returned yet.
_QUEUE_KILOBYTES = 32_768
_END_OFFSETS_SECONDS = 0.2
_OUT_OF_RANGE_CODES = frozenset(
    {ClientError._AUTO_OFFSET_RESET, ClientError.OFFSET_OUT_OF_RANGE, ClientError._LOG_TRUNCATION}
)


@dataclass
class RecordColumns:
    """Records of one topic, in the order they were read. Lists of equal length; `times` are milliseconds since 1970."""

    partitions: list[int] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    times: list[int] = field(default_factory=list)
    keys: list[bytes | None] = field(default_factory=list)
    values: list[bytes | None] = field(default_factory=list)
    record_ids: list[bytes | None] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.offsets)

    def extend(self, other: "RecordColumns") -> None:
        self.partitions += other.partitions
        self.offsets += other.offsets
        self.times += other.times
        self.keys += other.keys
        self.values += other.values
        self.record_ids += other.record_ids


@dataclass
class ColumnarBatch:
    """What one `read` gave. `next_offsets` is the next offset of each partition that moved, past its records and past the
    marks of transactions behind them. `gaps` are partitions whose records retention took before they were read."""

    topics: dict[str, RecordColumns] = field(default_factory=dict)
    next_offsets: dict[TopicPartition, int] = field(default_factory=dict)
    gaps: list[OffsetGap] = field(default_factory=list)
    rows: int = 0
    bytes: int = 0

    def add(self, topic: str, columns: RecordColumns, next_offsets: Mapping[TopicPartition, int]) -> None:
        """Add more records of a topic."""
        if topic in self.topics:
            self.topics[topic].extend(columns)
        else:
            self.topics[topic] = columns
        self.next_offsets |= next_offsets
        self.rows += len(columns)
        self.bytes += sum(map(len, filter(None, columns.values)))

    def extend(self, other: "ColumnarBatch") -> None:
        for topic, columns in other.topics.items():
            if topic in self.topics:
                self.topics[topic].extend(columns)
            else:
                self.topics[topic] = columns
        self.next_offsets |= other.next_offsets
        self.gaps += other.gaps
        self.rows += other.rows
        self.bytes += other.bytes

    def __bool__(self) -> bool:
        return bool(self.next_offsets or self.gaps)


class BulkReader:
    """Reads the assigned partitions from the given offsets. One thread at a time."""

    def __init__(self, connection: Connection, name: str) -> None:
        self._bootstrap_servers = connection.bootstrap_servers
        self._timeout = float(connection.settings.request_timeout_seconds)
        self._positions: dict[TopicPartition, int] = {}
        # The client library's error while it retries by itself; empty when all is well.
        self.last_error = ""
        properties = {
            "group.id": name,  # the library requires one; nothing is committed to it
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "isolation.level": "read_committed",
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            "queued.max.messages.kbytes": _QUEUE_KILOBYTES,
            "queued.min.messages": 100_000,
            # How soon a full queue is checked again; the default, a second, is a second of idling.
            "fetch.queue.backoff.ms": 10,
            "error_cb": self._on_error,
        }
        self._consumer = Consumer(connection.properties(properties), logger=client_log)

    @property
    def partitions(self) -> Collection[TopicPartition]:
        return self._positions.keys()

    def assign(self, positions: Mapping[TopicPartition, int], restart: Collection[TopicPartition] = ()) -> None:
        """Read exactly these partitions from now on: new ones, and those in `restart`, from their position; others go on."""
        ended = [partition for partition in self._positions if partition not in positions or partition in restart]
        begun = [partition for partition in positions if partition not in self._positions or partition in restart]
        try:
            if ended:
                self._consumer.incremental_unassign([ClientPartition(*partition) for partition in ended])
            for partition in ended:
                del self._positions[partition]
            if begun:
                self._consumer.incremental_assign(
                    [ClientPartition(*partition, positions[partition]) for partition in begun]
                )
            self._positions |= {partition: positions[partition] for partition in begun}
        except KafkaException as error:
            raise translate(error, "choosing what to read", bootstrap=self._bootstrap_servers) from error

    def read(self, max_records: int, max_bytes: int, seconds: float) -> ColumnarBatch:
        """Wait for a record up to `seconds`; then all that are there, up to about `max_records` and `max_bytes`."""
        batch = ColumnarBatch()
        try:
            messages = self._consumer.consume(1, seconds)
            while messages:
                self._process(messages, batch)
                left = min(max_records - batch.rows, _CONSUME_RECORDS)
                if left <= 0 or batch.bytes >= max_bytes:
                    break
                messages = self._consumer.consume(left, 0)
        except KafkaException as error:
            raise translate(error, "reading records", bootstrap=self._bootstrap_servers) from error
        return batch

    def _process(self, messages: list[Message], batch: ColumnarBatch) -> None:
        """Separate records from events. Here and in `_to_columns` is all the work per record: keep it small."""
        if any([message.error() for message in messages]):  # noqa: C419  -- a list is faster than a generator
            # Events of a partition come in order with its records: an end after them, a gap between them.
            begun = 0
            for number, message in enumerate(messages):
                if message.error() is not None:
                    self._append(messages[begun:number], batch)
                    self._handle_event(message, batch)
                    begun = number + 1
            messages = messages[begun:]
        self._append(messages, batch)

    def _append(self, messages: list[Message], batch: ColumnarBatch) -> None:
        topics = [message.topic() for message in messages]
        for topic in dict.fromkeys(topics):
            assert topic is not None  # noqa: S101  -- a record is of a topic
            own = [record for record, message_topic in zip(messages, topics, strict=True) if message_topic == topic]
            columns = _to_columns(own if len(own) < len(messages) else messages)
            # In order within each partition: the last one remains.
            ends = dict(zip(columns.partitions, columns.offsets, strict=True))
            next_offsets = {TopicPartition(topic, partition): offset + 1 for partition, offset in ends.items()}
            self._positions |= next_offsets
            batch.add(topic, columns, next_offsets)
            self.last_error = ""

    def _handle_event(self, message: Message, batch: ColumnarBatch) -> None:
        error = message.error()
        assert error is not None  # noqa: S101  -- that is what an event is
        partition = TopicPartition(message.topic() or "", message.partition() or 0)
        if error.code() == ClientError._PARTITION_EOF:
            # The last offsets before the end may be transaction markers, which are no records.
            end = message.offset()
            if end is not None and partition in self._positions and end > self._positions[partition]:
                self._positions[partition] = batch.next_offsets[partition] = end
            self.last_error = ""
        elif error.code() in _OUT_OF_RANGE_CODES:
            if partition in self._positions:
                batch.gaps += self._skip_gap(partition)
        elif error.code() in (ClientError.UNKNOWN_TOPIC_OR_PART, ClientError._UNKNOWN_PARTITION):
            # Deleted, or not created yet: the code that assigns partitions will see it.
            self.last_error = f"{partition} is not there"
        else:
            self.last_error = f"{partition}: {error.str() or error.name()}"

    def _skip_gap(self, partition: TopicPartition) -> list[OffsetGap]:
        """Continue where the log has records."""
        try:
            first, end = self._consumer.get_watermark_offsets(ClientPartition(*partition), timeout=self._timeout)
        except KafkaException as error:
            raise translate(
                error, f"reading {partition}", topic=partition.topic, bootstrap=self._bootstrap_servers
            ) from error
        expected = self._positions[partition]
        # A position behind the end: the log has lost its end, and continues there.
        resumed = first if expected <= end else end
        self.assign({**self._positions, partition: resumed}, restart=[partition])
        return [OffsetGap(partition, expected, resumed, end)]

    def _on_error(self, error: ClientError) -> None:
        self.last_error = error.str() or error.name()

    def close(self) -> None:
        self._consumer.close()


def _to_columns(messages: list[Message]) -> RecordColumns:
    headers = [message.headers() for message in messages]
    return RecordColumns(
        [message.partition() for message in messages],  # type: ignore[misc]
        [message.offset() for message in messages],  # type: ignore[misc]
        [message.timestamp()[1] for message in messages],
        [message.key() for message in messages],
        [message.value() for message in messages],
        [_record_id(record_headers) if record_headers else None for record_headers in headers],
    )


def _record_id(headers: object) -> bytes | None:
    for name, value in headers:  # type: ignore[attr-defined]
        if name == RECORD_ID_HEADER:
            return value.encode() if isinstance(value, str) else value
    return None


class LogEndOffsets:
    """The partitions of topics, and their ends for readers of committed records, which are cached for a moment."""

    def __init__(self, connection: Connection) -> None:
        self._admin = Admin(connection)
        self._admin.timeout = min(self._admin.timeout, 5.0)
        self._ends: dict[TopicPartition, int] | None = {}
        self._asked = -1e9

    def partition_counts(self, topics: Collection[str]) -> dict[str, tuple[str, int]]:
        """The id and the number of partitions of those of the topics that exist."""
        states = self._admin.topics(topics, config=False)
        return {name: (topic.topic_id, len(topic.partitions)) for name, topic in states.items()}

    def end_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int] | None:
        """The end of each partition; None when the cluster does not answer."""
        known = self._ends is None or all(partition in self._ends for partition in partitions)
        if time.monotonic() - self._asked > _END_OFFSETS_SECONDS or not known:
            try:
                self._ends = self._admin.offsets(partitions, "latest", committed_only=True)
            except KafkaError:
                self._ends = None
            self._asked = time.monotonic()
        return self._ends
