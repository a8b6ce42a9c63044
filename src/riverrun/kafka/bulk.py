"""Reads many topics at once, committed records only, as columns: what a store needs, with as little work a record as can be.

No group: the reader is told where to begin, and whoever reads keeps its positions where it keeps the records.
"""

import time
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from itertools import repeat

from confluent_kafka import Consumer, KafkaException, Message
from confluent_kafka import KafkaError as ClientError
from confluent_kafka import TopicPartition as ClientPartition

from riverrun.errors import KafkaError
from riverrun.kafka.admin.admin import Admin
from riverrun.kafka.border import client_log, translate
from riverrun.kafka.connection import Connection
from riverrun.kafka.consumer.gone import Gap
from riverrun.model.state import Place

# The header by which records that real time sends again are told (streams/compiler.py).
IDENTITY = "riverrun-id"
# One bite at the client's queue; between two of them the bytes are counted.
_BITE = 5_000
# What the client may have fetched and not handed over yet.
_QUEUE_KILOBYTES = 32_768
_ENDS_SECONDS = 0.2
_GONE = frozenset({ClientError._AUTO_OFFSET_RESET, ClientError.OFFSET_OUT_OF_RANGE, ClientError._LOG_TRUNCATION})


@dataclass
class Columns:
    """Records of one topic, in the order they were read. Lists of equal length; `times` are milliseconds since 1970."""

    partitions: list[int] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    times: list[int] = field(default_factory=list)
    keys: list[bytes | None] = field(default_factory=list)
    values: list[bytes | None] = field(default_factory=list)
    identities: list[bytes | None] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.offsets)

    def extend(self, other: "Columns") -> None:
        self.partitions += other.partitions
        self.offsets += other.offsets
        self.times += other.times
        self.keys += other.keys
        self.values += other.values
        self.identities += other.identities


@dataclass
class Block:
    """What one `read` gave. `reached` is the next offset of each partition that moved, past its records and past the marks
    of transactions behind them. `gaps` are partitions whose records retention took before they were read."""

    topics: dict[str, Columns] = field(default_factory=dict)
    reached: dict[Place, int] = field(default_factory=dict)
    gaps: list[Gap] = field(default_factory=list)
    rows: int = 0
    bytes: int = 0

    def extend(self, other: "Block") -> None:
        for topic, columns in other.topics.items():
            if topic in self.topics:
                self.topics[topic].extend(columns)
            else:
                self.topics[topic] = columns
        self.reached |= other.reached
        self.gaps += other.gaps
        self.rows += other.rows
        self.bytes += other.bytes

    def __bool__(self) -> bool:
        return bool(self.reached or self.gaps)


class BulkReader:
    """Reads the partitions it was told to, from where it was told. One thread at a time."""

    def __init__(self, connection: Connection, name: str) -> None:
        self._where = connection.bootstrap_servers
        self._timeout = float(connection.settings.request_timeout_seconds)
        self._next: dict[Place, int] = {}
        # What the client library says is wrong while it tries again by itself; empty when all is well.
        self.trouble = ""
        properties = {
            "group.id": name,  # the library wants one; nothing is committed to it
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "isolation.level": "read_committed",
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            "queued.max.messages.kbytes": _QUEUE_KILOBYTES,
            "queued.min.messages": 100_000,
            # Full queues are looked at again after this; its default, a second, is a second of nothing.
            "fetch.queue.backoff.ms": 10,
            "error_cb": self._on_error,
        }
        self._consumer = Consumer(connection.properties(properties), logger=client_log)

    @property
    def places(self) -> Collection[Place]:
        return self._next.keys()

    def follow(self, positions: Mapping[Place, int], again: Collection[Place] = ()) -> None:
        """Read exactly these partitions from now on: new ones, and those in `again`, from their position; others go on."""
        ended = [place for place in self._next if place not in positions or place in again]
        begun = [place for place in positions if place not in self._next or place in again]
        try:
            if ended:
                self._consumer.incremental_unassign([ClientPartition(*place) for place in ended])
            for place in ended:
                del self._next[place]
            if begun:
                self._consumer.incremental_assign([ClientPartition(*place, positions[place]) for place in begun])
            self._next |= {place: positions[place] for place in begun}
        except KafkaException as error:
            raise translate(error, "choosing what to read", bootstrap=self._where) from error

    def read(self, most: int, most_bytes: int, seconds: float) -> Block:
        """Wait for a record up to `seconds`; then all that are there, up to about `most` and `most_bytes`."""
        block = Block()
        try:
            messages = self._consumer.consume(1, seconds)
            while messages:
                self._take(messages, block)
                left = min(most - block.rows, _BITE)
                if left <= 0 or block.bytes >= most_bytes:
                    break
                messages = self._consumer.consume(left, 0)
        except KafkaException as error:
            raise translate(error, "reading records", bootstrap=self._where) from error
        return block

    def _take(self, messages: list[Message], block: Block) -> None:
        by_topic: dict[str | None, list[Message]] = defaultdict(list)
        for message in messages:
            if message.error() is None:
                by_topic[message.topic()].append(message)
            elif by_topic:
                # Events of a partition come in order with its records: an end before, a loss after them.
                self._keep(by_topic, block)
                by_topic = defaultdict(list)
                self._event(message, block)
            else:
                self._event(message, block)
        self._keep(by_topic, block)

    def _keep(self, by_topic: Mapping[str | None, list[Message]], block: Block) -> None:
        for topic, messages in by_topic.items():
            assert topic is not None  # noqa: S101  -- a record is of a topic
            columns = _columns(messages)
            ends = dict(zip(zip(repeat(topic), columns.partitions), columns.offsets, strict=False))
            reached = {Place(*place): offset + 1 for place, offset in ends.items()}
            self._next |= reached
            block.extend(
                Block({topic: columns}, reached, rows=len(columns), bytes=sum(map(len, filter(None, columns.values))))
            )
            self.trouble = ""

    def _event(self, message: Message, block: Block) -> None:
        error = message.error()
        assert error is not None  # noqa: S101  -- that is what an event is
        place = Place(message.topic() or "", message.partition() or 0)
        if error.code() == ClientError._PARTITION_EOF:
            # The last offsets before the end may be marks of transactions, which are no records.
            end = message.offset()
            if end is not None and place in self._next and end > self._next[place]:
                self._next[place] = block.reached[place] = end
            self.trouble = ""
        elif error.code() in _GONE:
            if place in self._next:
                block.gaps += self._skip(place)
        elif error.code() in (ClientError.UNKNOWN_TOPIC_OR_PART, ClientError._UNKNOWN_PARTITION):
            # Deleted, or not there yet: whoever chooses what to read will see.
            self.trouble = f"{place} is not there"
        else:
            self.trouble = f"{place}: {error.str() or error.name()}"

    def _skip(self, place: Place) -> list[Gap]:
        """Go on where the log has records."""
        try:
            first, end = self._consumer.get_watermark_offsets(ClientPartition(*place), timeout=self._timeout)
        except KafkaException as error:
            raise translate(error, f"reading {place}", topic=place.topic, bootstrap=self._where) from error
        before = self._next[place]
        # A position behind the end: the log has lost its end, and goes on there.
        after = first if before <= end else end
        self.follow({**self._next, place: after}, again=[place])
        return [Gap(place, before, after, end)]

    def _on_error(self, error: ClientError) -> None:
        self.trouble = error.str() or error.name()

    def close(self) -> None:
        self._consumer.close()


def _columns(messages: list[Message]) -> Columns:
    heads = [message.headers() for message in messages]
    return Columns(
        [message.partition() for message in messages],  # type: ignore[misc]
        [message.offset() for message in messages],  # type: ignore[misc]
        [message.timestamp()[1] for message in messages],
        [message.key() for message in messages],  # type: ignore[misc]
        [message.value() for message in messages],  # type: ignore[misc]
        [_identity(head) if head else None for head in heads],
    )


def _identity(headers: object) -> bytes | None:
    for name, value in headers:  # type: ignore[attr-defined]
        if name == IDENTITY:
            return value.encode() if isinstance(value, str) else value
    return None


class Ends:
    """Which partitions topics have, and where they end for readers of committed records, which is not asked all the time."""

    def __init__(self, connection: Connection) -> None:
        self._admin = Admin(connection)
        self._admin.timeout = min(self._admin.timeout, 5.0)
        self._ends: dict[Place, int] | None = {}
        self._asked = -1e9

    def partitions(self, topics: Collection[str]) -> dict[str, tuple[str, int]]:
        """The id and the number of partitions of those of the topics that exist."""
        found = self._admin.topics(topics, config=False)
        return {name: (topic.topic_id, len(topic.partitions)) for name, topic in found.items()}

    def ends(self, places: Collection[Place]) -> dict[Place, int] | None:
        """The end of each partition; None when the cluster does not answer."""
        known = self._ends is None or all(place in self._ends for place in places)
        if time.monotonic() - self._asked > _ENDS_SECONDS or not known:
            try:
                self._ends = self._admin.offsets(places, "latest", committed_only=True)
            except KafkaError:
                self._ends = None
            self._asked = time.monotonic()
        return self._ends
