"""How many records lie between two offsets. Offsets are not records.

Every transaction leaves a marker in each partition it wrote to, which takes an offset; aborted records and compaction leave
holes. So the difference of two offsets is a number of offsets, and is to be called that; where people want records, they are
counted here: exactly, by reading them, or as an estimate from the newest of them, and it is said which of the two.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from confluent_kafka import Consumer, KafkaException
from confluent_kafka import KafkaError as ClientError
from confluent_kafka import TopicPartition as ClientPartition

from riverrun.errors import BrokerUnreachableError
from riverrun.kafka.border import client_log, translate
from riverrun.kafka.connection import Connection
from riverrun.model.state import Place

# So many of the newest offsets of a partition say how many of them are records; looked at again after so long.
SAMPLE_OFFSETS = 500
SAMPLE_SECONDS = 10.0
# Little is fetched ahead of what is counted.
_FETCH = {"fetch.message.max.bytes": 262_144, "queued.max.messages.kbytes": 8192, "fetch.wait.max.ms": 50}


@dataclass(frozen=True)
class RecordCount:
    """Records of a topic, and the part of its offsets that are records. Not `exact`: estimated from the newest."""

    records: int
    share: float
    exact: bool


def count_records(connection: Connection, ranges: Mapping[Place, tuple[int, int]]) -> dict[Place, int]:
    """The committed records from one offset up to and without another, counted one by one. What retention has taken is not
    there to be counted. BrokerUnreachableError when they do not all come within `kafka.request_timeout_seconds`."""
    waiting = {place: end for place, (first, end) in ranges.items() if end > first}
    counts = dict.fromkeys(ranges, 0)
    if not waiting:
        return counts
    consumer = Consumer(
        connection.properties(
            {
                "group.id": "riverrun-count",
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "enable.partition.eof": True,
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
                **_FETCH,
            }
        ),
        logger=client_log,
    )
    deadline = time.monotonic() + connection.settings.request_timeout_seconds
    try:
        consumer.assign([ClientPartition(*place, ranges[place][0]) for place in waiting])
        while waiting:
            if time.monotonic() > deadline:
                raise BrokerUnreachableError(
                    f"No broker at {connection.bootstrap_servers} gave all records of {next(iter(waiting))} in time",
                    hint="Check that the cluster runs (`riverrun status`)",
                )
            for message in consumer.consume(num_messages=500, timeout=0.2):
                _take(message, waiting, counts, consumer)
    except KafkaException as error:
        topic = next(iter(waiting), next(iter(ranges))).topic
        raise translate(error, "reading records", topic=topic, bootstrap=connection.bootstrap_servers) from error
    finally:
        consumer.close()
    return counts


def _take(message: object, waiting: dict[Place, int], counts: dict[Place, int], consumer: Consumer) -> None:
    error, offset = message.error(), message.offset()  # type: ignore[attr-defined]
    place = Place(message.topic(), message.partition())  # type: ignore[attr-defined]
    if place not in waiting or offset is None:
        return
    if error is not None and error.code() != ClientError._PARTITION_EOF:
        if not error.retriable() and error.code() != ClientError._TRANSPORT:
            raise KafkaException(error)
        return
    if error is None and offset < waiting[place]:
        counts[place] += 1
    # The end of what there is comes as an event behind the last markers.
    if error is not None or offset >= waiting[place] - 1:
        del waiting[place]
        consumer.pause([ClientPartition(*place)])


@dataclass
class _Sample:
    at: float
    ends: dict[Place, int] = field(default_factory=dict)
    records: int = 0
    share: float = 1.0
    whole: bool = False


class TopicCounter:
    """The records of topics that are looked at again and again: a small topic is counted, of a large one a sample."""

    def __init__(
        self, connection: Connection, *, seconds: float = SAMPLE_SECONDS, offsets: int = SAMPLE_OFFSETS
    ) -> None:
        self._connection = connection
        self._seconds = seconds
        self._offsets = offsets
        self._samples: dict[str, _Sample] = {}

    def count(self, topic: str, first: Mapping[Place, int], ends: Mapping[Place, int]) -> RecordCount:
        """`first` and `ends` are the offsets of the topic's partitions now."""
        sample = self._samples.get(topic)
        moved = sample is None or any(ends[place] != sample.ends.get(place) for place in ends)
        if sample is None or (moved and time.monotonic() >= sample.at + self._seconds):
            sample = self._samples[topic] = self._sample(first, ends)
        total = sum(ends[place] - first.get(place, 0) for place in ends)
        since = sum(max(0, end - sample.ends.get(place, first.get(place, 0))) for place, end in ends.items())
        if sample.whole:
            # Of a topic that was counted whole, only what came since is an estimate.
            return RecordCount(sample.records + round(since * sample.share), sample.share, exact=not since)
        return RecordCount(round(total * sample.share), sample.share, exact=False)

    def _sample(self, first: Mapping[Place, int], ends: Mapping[Place, int]) -> _Sample:
        ranges = {place: (max(first.get(place, 0), end - self._offsets), end) for place, end in ends.items()}
        looked = sum(end - begin for begin, end in ranges.values())
        counted = sum(count_records(self._connection, ranges).values())
        whole = all(begin == first.get(place, 0) for place, (begin, _) in ranges.items())
        return _Sample(time.monotonic(), dict(ends), counted, counted / looked if looked else 1.0, whole)
