"""The marker topic of a stream: which tasks of which batch were written, and which run of the stream may write.

The markers of a task are in a partition of their own, where no other task's open transaction can hide them. Partition 0 is
for claims: every run of a stream writes one there before it fences the transactional ids of all tasks (exactly_once.py).
"""

import json
import os
import socket
import time
from dataclasses import dataclass
from typing import Any, Self

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka import KafkaError as ClientError

from riverrun.errors import StreamFailedError, StreamTakenOverError
from riverrun.kafka.error_mapping import client_log, translate

# The number of tasks of a batch that is written as one: then its marker, that of task 0, is for all of it.
WHOLE = 1
# The partition of claims, and how many partitions of the marker topic come before those of the tasks.
_CLAIMS, OTHERS = 0, 1
# How far back a marker is searched first. At most a few aborted ones come after it.
_LOOKBACK_OFFSETS = 64
_UNKNOWN_PARTITION_CODES = (
    ClientError._UNKNOWN_PARTITION,
    ClientError._UNKNOWN_TOPIC,
    ClientError.UNKNOWN_TOPIC_OR_PART,
)
# The timeout of one call to the client library, which is repeated until the deadline.
STEP_SECONDS = 5.0


@dataclass(frozen=True)
class OutputTopic:
    """Where the parts of a stream go. `name` begins their transactional ids; `generation` is one life of the stream's
    checkpoint: the marks of another say nothing. `claim_offset` is the offset of the run's own claim; -1 asks for none.
    `writer_epoch` is how often the run itself has fenced its writers: one from before that is not used again."""

    properties: dict[str, Any]
    topic: str
    marker_topic: str
    name: str
    generation: str
    timeout_seconds: float = 60.0
    transaction_seconds: float = 300.0
    claim_offset: int = -1
    writer_epoch: int = 0

    def transactional_id(self, task: int) -> str:
        return f"{self.name}.{task}"


def marker_partition_count(tasks: int) -> int:
    """How many partitions a marker topic needs for so many tasks."""
    return tasks + OTHERS


def max_tasks(partitions: int) -> int:
    """How many tasks a marker topic of so many partitions has room for."""
    return max(0, partitions - OTHERS)


@dataclass(frozen=True)
class OutputBatch:
    """One batch of a stream. `input_digest` is a digest of the offsets it begins and ends at, `layout_digest` one of what
    each of its `tasks` reads: a batch that is computed again has the same."""

    number: int
    tasks: int = WHOLE
    input_digest: str = ""
    layout_digest: str = ""


@dataclass(frozen=True)
class CommitMarker:
    """Says that a task of a batch was written."""

    generation: str
    batch: OutputBatch

    def encode(self) -> bytes:
        batch = self.batch
        return json.dumps({
            "generation": self.generation, "batch": batch.number, "parts": batch.tasks,
            "input": batch.input_digest, "layout": batch.layout_digest,
        }).encode()  # fmt: skip

    @classmethod
    def decode(cls, value: bytes) -> "CommitMarker":
        content = json.loads(value)
        batch = OutputBatch(
            int(content["batch"]), int(content["parts"]), str(content.get("input")), str(content.get("layout"))
        )
        return cls(str(content["generation"]), batch)


@dataclass(frozen=True)
class Claim:
    """What a run wrote when it began to write, or when it ended; `ended` is None if it does not say."""

    generation: str
    host: str
    pid: int
    ended: bool | None

    @classmethod
    def decode(cls, value: bytes) -> "Claim":
        content = json.loads(value)
        return cls(str(content["generation"]), str(content["host"]), int(content["pid"]), content.get("ended"))


class CommitMarkerReader:
    """Reads a marker topic, with one consumer for all reads: creating one costs more than a read."""

    def __init__(self, target: OutputTopic) -> None:
        self._target = target
        self._consumer = Consumer(
            target.properties
            | {
                "group.id": f"{target.name}.marks",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "fetch.wait.max.ms": 10,
            },
            logger=client_log,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._consumer.close()

    def check_claim(self) -> None:
        """StreamTakenOverError when another run has claimed the stream since this one did."""
        target = self._target
        if target.claim_offset < 0:
            return
        try:
            # Claims are in no transaction: the last stable offset is the end.
            _, end = self._ends(TopicPartition(target.marker_topic, _CLAIMS), self._deadline())
        except KafkaException as error:
            raise translate(error, f"reading the claims in {target.marker_topic}", topic=target.marker_topic) from error
        if end != target.claim_offset + 1:
            raise StreamTakenOverError(
                f"Another run of {target.name} has begun to write to {target.topic}, and this one writes nothing more",
                hint="Let one of the two run; a checkpoint is for one run at a time",
                stream=target.name,
                topic=target.topic,
            )

    def last_mark(self, part: int) -> CommitMarker | None:
        """The newest committed marker of a task."""
        value = self._last_value(part + OTHERS)
        return CommitMarker.decode(value) if value is not None else None

    def last_claim(self) -> Claim | None:
        """The newest claim; None when no run has written."""
        value = self._last_value(_CLAIMS)
        return Claim.decode(value) if value is not None else None

    def _deadline(self) -> float:
        return time.monotonic() + self._target.timeout_seconds

    def _last_value(self, partition: int) -> bytes | None:
        marker_topic, deadline = self._target.marker_topic, self._deadline()
        try:
            low, high = self._ends(TopicPartition(marker_topic, partition), deadline)
            back = _LOOKBACK_OFFSETS
            while True:
                begin = max(low, high - back)
                value = self._last_from(TopicPartition(marker_topic, partition, begin), deadline)
                if value is not None or begin <= low:
                    return value
                back *= 16
        except KafkaException as error:
            raise translate(error, f"reading the marks in {marker_topic}", topic=marker_topic) from error

    def _ends(self, partition: TopicPartition, deadline: float) -> tuple[int, int]:
        """The first and the last offset, retried while a leader is being elected."""
        while True:
            try:
                low, high = self._consumer.get_watermark_offsets(partition, STEP_SECONDS)
            except KafkaException as error:
                if time.monotonic() > deadline or error.args[0].code() in _UNKNOWN_PARTITION_CODES:
                    raise
                self._consumer.poll(0.05)
            else:
                return low, high

    def _last_from(self, start: TopicPartition, deadline: float) -> bytes | None:
        self._consumer.assign([start])
        last: bytes | None = None
        while True:
            message = self._consumer.poll(0.5)
            if message is None:
                if time.monotonic() > deadline:
                    raise StreamFailedError(
                        f"No broker answered while the marks in {start.topic} were read", topic=start.topic
                    )
                continue
            error = message.error()
            if error is None:
                last = message.value()
            elif error.code() == ClientError._PARTITION_EOF:
                self._consumer.unassign()
                return last
            elif error.fatal():
                raise translate(error, f"reading the marks in {start.topic}", topic=start.topic)


def last_committed_marker(target: OutputTopic, task: int) -> CommitMarker | None:
    """The newest committed marker of a task."""
    with CommitMarkerReader(target) as reader:
        return reader.last_mark(task)


def check_claim(target: OutputTopic) -> None:
    """StreamTakenOverError when another run has claimed the stream since this one did."""
    if target.claim_offset >= 0:
        with CommitMarkerReader(target) as reader:
            reader.check_claim()


def claim_output(target: OutputTopic, *, ended: bool = False) -> int:
    """Write that a new run begins to write, or that it has ended; returns the offset. After a run has begun, all ids must be
    fenced (`exactly_once.abort_open_transactions`)."""
    reports: list[Any] = []
    producer = Producer(target.properties | {"enable.idempotence": True}, logger=client_log)
    claimant = {"generation": target.generation, "host": socket.gethostname(), "pid": os.getpid(), "ended": ended}
    producer.produce(
        target.marker_topic,
        json.dumps(claimant).encode(),
        key="run",
        partition=_CLAIMS,
        on_delivery=lambda error, message: reports.append((error, message)),
    )
    producer.flush(target.timeout_seconds)
    if not reports:
        raise StreamFailedError(
            f"No broker took the claim of {target.name} to {target.marker_topic}", topic=target.marker_topic
        )
    error, message = reports[0]
    if error is not None:
        raise translate(error, f"claiming {target.name}", topic=target.marker_topic)
    return int(message.offset())
