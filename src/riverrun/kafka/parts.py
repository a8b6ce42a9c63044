"""One part of a batch into a topic, exactly once: its rows and a mark, in one transaction, and never a second time.

A batch has parts, numbered from 0, and is computed again after a crash, part by part the same. Each part has a transactional
id of its own. Who opens an id ends what an earlier holder has begun and keeps it from committing anything more: so the last
mark that is read after that is the truth, and a part whose mark is there is not written again. The marks of a part are in a
partition of their own of the marks topic, where no other part's open transaction can hide them.

Rows are kept back until the part is whole or large: a transaction that is open keeps readers waiting.
"""

import contextlib
import json
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka import KafkaError as ClientError

from riverrun.errors import CheckpointError, FencedError, StreamFailedError
from riverrun.kafka.border import client_log, translate

Row = tuple[bytes | None, bytes | None]

# The number of parts of a batch that is written as one: then its mark, that of part 0, is for all of it.
_WHOLE = 1

# The header that says which batch of which generation of a stream wrote a record.
BATCH = "riverrun-batch"
# Above this a part is sent while the rest of it is still computed.
SPOOL_BYTES = 32 << 20
# How far back a mark is looked for first. One is there after a few aborted ones at most.
_BACK = 64
_NOT_THERE = (ClientError._UNKNOWN_PARTITION, ClientError._UNKNOWN_TOPIC, ClientError.UNKNOWN_TOPIC_OR_PART)
# How many parts are released at a time.
_AT_ONCE = 8
# One call to the client library; what takes longer is asked again until the deadline.
_STEP_SECONDS = 5.0


@dataclass(frozen=True)
class Target:
    """Where the parts of a stream go. `name` begins their transactional ids; `generation` is one life of the stream's
    checkpoint: the marks of another say nothing."""

    properties: dict[str, Any]
    topic: str
    marks: str
    name: str
    generation: str
    timeout_seconds: float = 60.0
    transaction_seconds: float = 300.0

    def transactional_id(self, part: int) -> str:
        return f"{self.name}.{part}"


@dataclass(frozen=True)
class Mark:
    """A part that was written: of which batch, and of how many parts that batch had."""

    generation: str
    batch: int
    parts: int

    def encode(self) -> bytes:
        return json.dumps({"generation": self.generation, "batch": self.batch, "parts": self.parts}).encode()

    @classmethod
    def decode(cls, value: bytes) -> "Mark":
        content = json.loads(value)
        return cls(str(content["generation"]), int(content["batch"]), int(content["parts"]))


class PartWriter:
    """Writes one part of batch after batch. Made in the process that computes the part."""

    def __init__(self, target: Target, part: int) -> None:
        self.target = target
        self.part = part
        # The batch that may follow without a look at the marks: nobody else can have written it.
        self.next = -1
        self._deadline = 0.0
        self._producer = Producer(
            target.properties
            | {
                "transactional.id": target.transactional_id(part),
                "transaction.timeout.ms": round(target.transaction_seconds * 1000),
                # As Kafka's own client and Spark's sink choose partitions, so that a key stays where it is.
                "partitioner": "murmur2_random",
                "linger.ms": 5,
                "compression.type": "lz4",
                "batch.num.messages": 100_000,
                "queue.buffering.max.messages": 1_000_000,
                "queue.buffering.max.kbytes": 262_144,
            },
            logger=client_log,
        )

    def open(self) -> None:
        """Take the part's id over: whatever another holder has begun is aborted, and it can commit nothing more."""
        self._deadline = time.monotonic() + self.target.timeout_seconds
        self._do("opening a transactional producer", self._producer.init_transactions)

    def write(self, batch: int, parts: int, rows: Iterator[Row]) -> tuple[int, bool]:
        """Write a part's rows unless they are there; how many they are, and whether they were written now.

        All rows are taken in any case: what computes them keeps state of its own that must move on.
        """
        if self.next != batch and self._is_written(batch, parts):
            self.next = batch + 1
            return sum(1 for _ in rows), False
        count, begun = 0, 0.0
        try:
            for chunk in _chunks(rows):
                if not count:
                    begun = time.monotonic()
                    self._producer.begin_transaction()
                count += self._send(chunk, batch)
            if count:
                mark = Mark(self.target.generation, batch, parts).encode()
                self._producer.produce(self.target.marks, mark, key=str(self.part), partition=self.part)
                self._deadline = time.monotonic() + self.target.timeout_seconds
                self._do(
                    f"committing {count} rows to {self.target.topic}",
                    self._producer.commit_transaction,
                )
        except KafkaException as error:
            raise translate(error, f"writing to {self.target.topic}", topic=self.target.topic) from error
        except FencedError as error:
            open_for = time.monotonic() - begun
            if open_for < self.target.transaction_seconds:
                raise
            raise StreamFailedError(
                f"A transaction to {self.target.topic} was open for {open_for:.0f} s, and Kafka ended it",
                expected=f"at most {self.target.transaction_seconds:g} s",
                hint="Raise streams.transaction_timeout, or let the stream compute less in one batch",
                topic=self.target.topic,
            ) from error
        self.next = batch + 1
        return count, True

    def close(self) -> None:
        """Drop what is not sent: its transaction is aborted by whoever opens the id next."""
        with contextlib.suppress(KafkaException):
            self._producer.purge(in_queue=True, in_flight=True, blocking=False)

    def _send(self, chunk: list[Row], batch: int) -> int:
        self._deadline = time.monotonic() + self.target.timeout_seconds
        send, topic = self._producer.produce, self.target.topic
        headers: Any = [(BATCH, f"{self.target.generation}/{batch}".encode())]
        for key, value in chunk:
            while True:
                try:
                    send(topic, value, key, headers=headers)
                    break
                except BufferError:
                    self._producer.poll(0.05)
                    self._check_time(f"sending rows to {topic}")
        self._producer.poll(0)
        return len(chunk)

    def _is_written(self, batch: int, parts: int) -> bool:
        mark = last_mark(self.target, self.part)
        if mark is not None and mark.generation == self.target.generation and mark.batch >= batch:
            if mark.batch == batch and mark.parts in (parts, _WHOLE):
                return True
            raise _elsewhere(self.target, mark, self.part, batch, parts)
        if self.part == 0:
            return False
        # The whole batch may have been written as one, by a run that does not use Spark's workers for it.
        whole = last_mark(self.target, 0)
        return whole == Mark(self.target.generation, batch, _WHOLE)

    def _do(self, doing: str, step: Any) -> None:
        """A step of a transaction, again as long as it may be tried again and there is time."""
        while True:
            try:
                step(_STEP_SECONDS)
                return
            except KafkaException as error:
                cause = error.args[0]
                again = isinstance(cause, ClientError) and cause.retriable() and not cause.fatal()
                if not again or time.monotonic() > self._deadline:
                    raise translate(error, doing, topic=self.target.topic) from error

    def _check_time(self, doing: str) -> None:
        if time.monotonic() > self._deadline:
            raise StreamFailedError(
                f"Kafka took no rows for {self.target.timeout_seconds:g} s while {doing}", topic=self.target.topic
            )


def last_mark(target: Target, part: int) -> Mark | None:
    """The newest mark of a part that is committed."""
    consumer = Consumer(
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
    place = TopicPartition(target.marks, part)
    deadline = time.monotonic() + target.timeout_seconds
    try:
        low, high = _ends(consumer, place, deadline)
        back = _BACK
        while True:
            begin = max(low, high - back)
            found = _last_of(consumer, TopicPartition(target.marks, part, begin), deadline)
            if found is not None or begin <= low:
                return found
            back *= 16
    except KafkaException as error:
        raise translate(error, f"reading the marks in {target.marks}", topic=target.marks) from error
    finally:
        consumer.close()


def _ends(consumer: Consumer, place: TopicPartition, deadline: float) -> tuple[int, int]:
    """The first and the last offset, asked again while a leader is being chosen."""
    while True:
        try:
            low, high = consumer.get_watermark_offsets(place, _STEP_SECONDS)
        except KafkaException as error:
            if time.monotonic() > deadline or error.args[0].code() in _NOT_THERE:
                raise
            consumer.poll(0.05)
        else:
            return low, high


def _last_of(consumer: Consumer, place: TopicPartition, deadline: float) -> Mark | None:
    consumer.assign([place])
    last: bytes | None = None
    while True:
        message = consumer.poll(0.5)
        if message is None:
            if time.monotonic() > deadline:
                raise StreamFailedError(
                    f"No broker answered while the marks in {place.topic} were read", topic=place.topic
                )
            continue
        error = message.error()
        if error is None:
            last = message.value()
        elif error.code() == ClientError._PARTITION_EOF:
            return Mark.decode(last) if last is not None else None
        elif error.fatal():
            raise translate(error, f"reading the marks in {place.topic}", topic=place.topic)


def release(target: Target, parts: Iterable[int]) -> None:
    """Abort what is still open for these parts, so that no reader waits for a writer that is gone."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for each in [pool.submit(_release, target, part) for part in parts]:
            each.result()


def _release(target: Target, part: int) -> None:
    writer = PartWriter(target, part)
    try:
        writer.open()
    finally:
        writer.close()


def check_left(target: Target, left: Iterable[int], batch: int, parts: int) -> None:
    """Parts that a batch does not have any more must not have been written when it had them."""
    for part in left:
        mark = last_mark(target, part)
        if mark is not None and mark.generation == target.generation and mark.batch >= batch:
            raise _elsewhere(target, mark, part, batch, parts)


def _elsewhere(target: Target, mark: Mark, part: int, batch: int, parts: int) -> CheckpointError:
    split = mark.batch == batch and mark.parts != parts
    return CheckpointError(
        f"Part {part} of {target.name} is at batch {batch} of {parts} parts, and its output is elsewhere",
        found=f"batch {mark.batch} of {mark.parts} parts in {target.topic}",
        hint="Finish that batch at the speed it was begun with, then change the speed"
        if split
        else "Is the checkpoint an older copy, or shared by two runs? Begin again with `--fresh`",
        stream=target.name,
    )


# --- in Spark's workers, or the process that runs the pipeline ------------------------------------------------------------

# By stream and part. A worker is used again, for any part.
_writers: dict[tuple[str, int], PartWriter] = {}


def write_part(target: Target, batch: int, part: int, parts: int, rows: Iterator[Row]) -> tuple[int, bool]:
    """`PartWriter.write` with a writer that this process may have from the batch before."""
    place = (target.name, part)
    writer = _writers.pop(place, None)
    if writer is not None and (writer.target != target or writer.next != batch):
        writer.close()
        writer = None
    if writer is None:
        writer = PartWriter(target, part)
        writer.open()
    done = False
    try:
        result = writer.write(batch, parts, rows)
        done = True
    finally:
        if done:
            _writers[place] = writer
        else:
            writer.close()
    return result


def drop_writers(name: str) -> None:
    """Let go of the writers that this process has for a stream."""
    for place in [each for each in _writers if each[0] == name]:
        if (writer := _writers.pop(place, None)) is not None:
            writer.close()


def _chunks(rows: Iterator[Row]) -> Iterator[list[Row]]:
    """All rows of a small part at once; of a large one, as many as fit."""
    chunk: list[Row] = []
    size = 0
    for key, value in rows:
        chunk.append((key, value))
        size += 64 + len(key or b"") + len(value or b"")
        if size > SPOOL_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk
