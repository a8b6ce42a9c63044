"""Count the records between two offsets. Offsets are not records.

Every transaction leaves a marker in each partition it wrote to, which takes an offset; aborted records and compaction leave
holes. So the difference of two offsets is a number of offsets, and should be called that; records are counted here: exactly,
by reading them, or as an estimate from the newest of them, and the result says which of the two.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from confluent_kafka import Consumer, KafkaException
from confluent_kafka import KafkaError as ClientError
from confluent_kafka import TopicPartition as ClientPartition

from riverrun.errors import BrokerUnreachableError
from riverrun.kafka.connection import Connection
from riverrun.kafka.error_mapping import client_log, translate
from riverrun.model.cluster_state import TopicPartition

# How many of the newest offsets of a partition are sampled for the share of records; sampled again after so long.
SAMPLE_OFFSETS = 500
SAMPLE_SECONDS = 10.0
# Fetch little ahead of what is counted.
_FETCH_PROPERTIES = {"fetch.message.max.bytes": 262_144, "queued.max.messages.kbytes": 8192, "fetch.wait.max.ms": 50}


@dataclass(frozen=True)
class RecordCount:
    """Records of a topic, and the share of its offsets that are records. Not `exact`: estimated from the newest."""

    records: int
    share: float
    exact: bool


def count_records(
    connection: Connection, ranges: Mapping[TopicPartition, tuple[int, int]]
) -> dict[TopicPartition, int]:
    """The committed records from one offset up to and excluding another, counted one by one. What retention has removed is
    not counted. BrokerUnreachableError when they do not all come within `kafka.request_timeout_seconds`."""
    waiting = {partition: end for partition, (first, end) in ranges.items() if end > first}
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
                **_FETCH_PROPERTIES,
            }
        ),
        logger=client_log,
    )
    deadline = time.monotonic() + connection.settings.request_timeout_seconds
    try:
        consumer.assign([ClientPartition(*partition, ranges[partition][0]) for partition in waiting])
        while waiting:
            if time.monotonic() > deadline:
                raise BrokerUnreachableError(
                    f"No broker at {connection.bootstrap_servers} gave all records of {next(iter(waiting))} in time",
                    hint="Check that the cluster runs (`riverrun status`)",
                )
            for message in consumer.consume(num_messages=500, timeout=0.2):
                _count_message(message, waiting, counts, consumer)
    except KafkaException as error:
        topic = next(iter(waiting), next(iter(ranges))).topic
        raise translate(error, "reading records", topic=topic, bootstrap=connection.bootstrap_servers) from error
    finally:
        consumer.close()
    return counts


def _count_message(
    message: object, waiting: dict[TopicPartition, int], counts: dict[TopicPartition, int], consumer: Consumer
) -> None:
    error, offset = message.error(), message.offset()  # type: ignore[attr-defined]
    partition = TopicPartition(message.topic(), message.partition())  # type: ignore[attr-defined]
    if partition not in waiting or offset is None:
        return
    if error is not None and error.code() != ClientError._PARTITION_EOF:
        if not error.retriable() and error.code() != ClientError._TRANSPORT:
            raise KafkaException(error)
        return
    if error is None and offset < waiting[partition]:
        counts[partition] += 1
    # The end of the partition comes as an event behind the last markers.
    if error is not None or offset >= waiting[partition] - 1:
        del waiting[partition]
        consumer.pause([ClientPartition(*partition)])


@dataclass
class _Sample:
    taken_at: float
    ends: dict[TopicPartition, int] = field(default_factory=dict)
    records: int = 0
    share: float = 1.0
    complete: bool = False


class TopicCounter:
    """Counts topics again and again: a small topic is counted completely, a large one is sampled."""

    def __init__(
        self, connection: Connection, *, seconds: float = SAMPLE_SECONDS, offsets: int = SAMPLE_OFFSETS
    ) -> None:
        self._connection = connection
        self._seconds = seconds
        self._offsets = offsets
        self._samples: dict[str, _Sample] = {}

    def count(self, topic: str, first: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]) -> RecordCount:
        """`first` and `ends` are the current offsets of the topic's partitions."""
        sample = self._samples.get(topic)
        moved = sample is None or any(ends[partition] != sample.ends.get(partition) for partition in ends)
        if sample is None or (moved and time.monotonic() >= sample.taken_at + self._seconds):
            sample = self._samples[topic] = self._sample(first, ends)
        total = sum(ends[partition] - first.get(partition, 0) for partition in ends)
        since = sum(
            max(0, end - sample.ends.get(partition, first.get(partition, 0))) for partition, end in ends.items()
        )
        if sample.complete:
            # Of a topic that was counted completely, only what came since is an estimate.
            return RecordCount(sample.records + round(since * sample.share), sample.share, exact=not since)
        return RecordCount(round(total * sample.share), sample.share, exact=False)

    def _sample(self, first: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]) -> _Sample:
        ranges = {
            partition: (max(first.get(partition, 0), end - self._offsets), end) for partition, end in ends.items()
        }
        sampled_offsets = sum(end - begin for begin, end in ranges.values())
        sampled_records = sum(count_records(self._connection, ranges).values())
        complete = all(begin == first.get(partition, 0) for partition, (begin, _) in ranges.items())
        return _Sample(
            time.monotonic(),
            dict(ends),
            sampled_records,
            sampled_records / sampled_offsets if sampled_offsets else 1.0,
            complete,
        )
