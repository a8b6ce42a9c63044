"""One part of a batch into a topic, exactly once: its rows and a mark, in one transaction, and never a second time.

A batch has parts, numbered from 0, and is computed again after a crash, part by part the same. Each part has a transactional
id of its own. Who opens an id ends what an earlier holder has begun and keeps it from committing anything more: so the last
mark that is read after that is the truth, and a part whose mark is there is not written again. The marks of a part are in a
partition of their own of the marks topic, where no other part's open transaction can hide them.

A mark says of which records the batch was made and how it was split. A batch of the same number that is made of others, or
split otherwise, is refused: skipping a part for such a mark would lose rows.

Partition 0 of the marks topic is for claims: every run of a stream writes one there before it fences the ids of all parts.
A writer that opens an id looks whether the newest claim is still its own, so a run that was replaced writes nothing more.

Rows are kept back until the part is whole or large: a transaction that is open keeps readers waiting.
"""

import contextlib
import json
import math
import os
import socket
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka import KafkaError as ClientError

from riverrun.errors import BatchChangedError, CheckpointError, FencedError, StreamFailedError, StreamTakenOverError
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
# Where claims are, and how many partitions of the marks topic come before those of the parts.
_CLAIMS, _OTHERS = 0, 1
# How long a writer that failed may take to abort what it has sent.
ABORT_SECONDS = 5.0
# How many parts are released at a time.
_AT_ONCE = 8
# One call to the client library; what takes longer is asked again until the deadline.
_STEP_SECONDS = 5.0


@dataclass(frozen=True)
class Target:
    """Where the parts of a stream go. `name` begins their transactional ids; `generation` is one life of the stream's
    checkpoint: the marks of another say nothing. `claim` is the offset of the run's own claim; -1 asks for none. `turn` is
    how often the run itself has fenced its writers: one from before that is not used again."""

    properties: dict[str, Any]
    topic: str
    marks: str
    name: str
    generation: str
    timeout_seconds: float = 60.0
    transaction_seconds: float = 300.0
    claim: int = -1
    turn: int = 0

    def transactional_id(self, part: int) -> str:
        return f"{self.name}.{part}"


def marks_partitions(parts: int) -> int:
    """How many partitions a marks topic needs for so many parts."""
    return parts + _OTHERS


def parts_in(partitions: int) -> int:
    """For how many parts a marks topic of so many partitions has room."""
    return max(0, partitions - _OTHERS)


@dataclass(frozen=True)
class Batch:
    """One batch of a stream. `input` is a digest of the offsets it begins and ends at, `layout` one of what each of its
    `parts` reads: a batch that is computed again has the same."""

    number: int
    parts: int = _WHOLE
    input: str = ""
    layout: str = ""


@dataclass(frozen=True)
class Mark:
    """A part of a batch that was written."""

    generation: str
    batch: Batch

    def encode(self) -> bytes:
        batch = self.batch
        return json.dumps({
            "generation": self.generation, "batch": batch.number, "parts": batch.parts,
            "input": batch.input, "layout": batch.layout,
        }).encode()  # fmt: skip

    @classmethod
    def decode(cls, value: bytes) -> "Mark":
        content = json.loads(value)
        batch = Batch(
            int(content["batch"]), int(content["parts"]), str(content.get("input")), str(content.get("layout"))
        )
        return cls(str(content["generation"]), batch)


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
        # Before, or a run that was replaced would fence the one that replaced it; after, or it would not see one that came
        # in between.
        check_claim(self.target)
        self._deadline = time.monotonic() + self.target.timeout_seconds
        try:
            self._do("opening a transactional producer", self._producer.init_transactions)
        except FencedError as error:
            raise self._fenced() from error
        check_claim(self.target)

    def write(self, batch: Batch, rows: Iterator[Row]) -> tuple[int, bool]:
        """Write a part's rows unless they are there; how many they are, and whether they were written now.

        All rows are taken in any case: what computes them keeps state of its own that must move on.
        """
        if self.next != batch.number and self._is_written(batch):
            self.next = batch.number + 1
            return sum(1 for _ in rows), False
        count, begun, done = 0, 0.0, False
        try:
            for chunk in _chunks(rows):
                if not count:
                    begun = time.monotonic()
                    self._producer.begin_transaction()
                count += self._send(chunk, batch.number)
            if count:
                mark, place = Mark(self.target.generation, batch).encode(), self.part + _OTHERS
                self._producer.produce(self.target.marks, mark, key=str(self.part), partition=place)
                self._deadline = time.monotonic() + self.target.timeout_seconds
                self._do(
                    f"committing {count} rows to {self.target.topic}",
                    self._producer.commit_transaction,
                )
            done = True
        except KafkaException as error:
            found = translate(error, f"writing to {self.target.topic}", topic=self.target.topic)
            raise (self._fenced(begun) if isinstance(found, FencedError) else found) from error
        except FencedError as error:
            raise self._fenced(begun) from error
        finally:
            if begun and not done:
                self._abort()
        self.next = batch.number + 1
        return count, True

    def _fenced(self, begun: float = math.inf) -> StreamFailedError:
        """Why Kafka takes nothing more of this writer, as the stream's error: StreamTakenOverError when another run has
        claimed the stream, and else one that says that it can be tried again with a new writer."""
        topic, open_for = self.target.topic, time.monotonic() - begun
        check_claim(self.target)
        if open_for >= self.target.transaction_seconds:
            return StreamFailedError(
                f"A transaction to {topic} was open for {open_for:.0f} s, and Kafka ended it",
                expected=f"at most {self.target.transaction_seconds:g} s",
                hint="Raise streams.transaction_timeout, or let the stream compute less in one batch",
                topic=topic,
            )
        return StreamFailedError(
            f"Another writer has opened {self.target.transactional_id(self.part)}, and this one can commit nothing more "
            f"to {topic}",
            hint="Does another program use this transactional id? It is for the stream alone",
            topic=topic,
        )

    def _abort(self) -> None:
        """Readers of committed records must not wait for what will never be. If Kafka does not take it, whoever opens the
        id next does it, or Kafka when the transaction's time is over."""
        with contextlib.suppress(KafkaException):
            self._producer.abort_transaction(ABORT_SECONDS)

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

    def _is_written(self, batch: Batch) -> bool:
        mark = last_mark(self.target, self.part)
        if mark is not None and mark.generation == self.target.generation and mark.batch.number >= batch.number:
            _check_same(self.target, mark, self.part, batch)
            return True
        if self.part == 0:
            return False
        # The whole batch may have been written as one, by a run that does not use Spark's workers for it.
        whole = last_mark(self.target, 0)
        if whole is None or (whole.generation, whole.batch.number, whole.batch.parts) != (
            self.target.generation,
            batch.number,
            _WHOLE,
        ):
            return False
        _check_same(self.target, whole, 0, batch)
        return True

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
    place = TopicPartition(target.marks, part + _OTHERS)
    deadline = time.monotonic() + target.timeout_seconds
    try:
        low, high = _ends(consumer, place, deadline)
        back = _BACK
        while True:
            begin = max(low, high - back)
            found = _last_of(consumer, TopicPartition(target.marks, place.partition, begin), deadline)
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
    """Abort what is still open for these parts, so that no reader waits for a writer that is gone. A run that was replaced
    must not do that to the one that replaced it."""
    check_claim(target)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for each in [pool.submit(_release, replace(target, claim=-1), part) for part in parts]:
            each.result()


def _release(target: Target, part: int) -> None:
    writer = PartWriter(target, part)
    try:
        writer.open()
    finally:
        writer.close()


def check_left(target: Target, left: Iterable[int], batch: Batch) -> None:
    """Parts that a batch does not have any more must not have been written when it had them."""
    for part in left:
        mark = last_mark(target, part)
        if mark is not None and mark.generation == target.generation and mark.batch.number >= batch.number:
            raise _elsewhere(target, mark, part, batch)


def _check_same(target: Target, mark: Mark, part: int, batch: Batch) -> None:
    """That a mark of this batch, or of a later one, is of the very same batch."""
    there = mark.batch
    if there.number > batch.number:
        raise _elsewhere(target, mark, part, batch)
    if there.input != batch.input:
        raise _changed(target, "it would be made of other records than those rows were", batch)
    if there.parts == _WHOLE:
        return
    if there.parts != batch.parts:
        raise _elsewhere(target, mark, part, batch)
    if there.layout != batch.layout:
        raise _changed(target, "its parts would read other partitions than when they were written", batch)


def _changed(target: Target, what: str, batch: Batch) -> BatchChangedError:
    return BatchChangedError(
        f"Rows of batch {batch.number} of {target.name} are in {target.topic}, and the batch is not the same any more: "
        f"{what}",
        hint="Did two runs share the checkpoint, or is it an older copy? Put the right one back, or begin again with "
        "`--fresh`",
        stream=target.name,
        topic=target.topic,
        batch=batch.number,
    )


def _elsewhere(target: Target, mark: Mark, part: int, batch: Batch) -> CheckpointError:
    there = mark.batch
    split = there.number == batch.number and there.parts != batch.parts
    return CheckpointError(
        f"Part {part} of {target.name} is at batch {batch.number} of {batch.parts} parts, and its output is elsewhere",
        found=f"batch {there.number} of {there.parts} parts in {target.topic}",
        hint="Finish that batch at the speed it was begun with, then change the speed"
        if split
        else "Is the checkpoint an older copy, or shared by two runs? Begin again with `--fresh`",
        stream=target.name,
    )


# --- which run may write --------------------------------------------------------------------------------------------------


def claim(target: Target) -> int:
    """Say that a new run begins to write; the offset of that. All ids are to be fenced after this (`release`)."""
    told: list[Any] = []
    producer = Producer(target.properties | {"enable.idempotence": True}, logger=client_log)
    who = {"generation": target.generation, "host": socket.gethostname(), "pid": os.getpid()}
    producer.produce(
        target.marks,
        json.dumps(who).encode(),
        key="run",
        partition=_CLAIMS,
        on_delivery=lambda error, message: told.append((error, message)),
    )
    producer.flush(target.timeout_seconds)
    if not told:
        raise StreamFailedError(f"No broker took the claim of {target.name} to {target.marks}", topic=target.marks)
    error, message = told[0]
    if error is not None:
        raise translate(error, f"claiming {target.name}", topic=target.marks)
    return int(message.offset())


def check_claim(target: Target) -> None:
    """StreamTakenOverError when another run has claimed the stream since this one did."""
    if target.claim < 0:
        return
    asking = {"group.id": f"{target.name}.marks", "isolation.level": "read_uncommitted"}
    consumer = Consumer(target.properties | asking, logger=client_log)
    try:
        _, end = _ends(consumer, TopicPartition(target.marks, _CLAIMS), time.monotonic() + target.timeout_seconds)
    except KafkaException as error:
        raise translate(error, f"reading the claims in {target.marks}", topic=target.marks) from error
    finally:
        consumer.close()
    if end != target.claim + 1:
        raise StreamTakenOverError(
            f"Another run of {target.name} has begun to write to {target.topic}, and this one writes nothing more",
            hint="Let one of the two run; a checkpoint is for one run at a time",
            stream=target.name,
            topic=target.topic,
        )


# --- in Spark's workers, or the process that runs the pipeline ------------------------------------------------------------

# By stream and part. A worker is used again, for any part.
_writers: dict[tuple[str, int], PartWriter] = {}


def write_part(target: Target, batch: Batch, part: int, rows: Iterator[Row]) -> tuple[int, bool]:
    """`PartWriter.write` with a writer that this process may have from the batch before."""
    place = (target.name, part)
    writer = _writers.pop(place, None)
    if writer is not None and (writer.target != target or writer.next != batch.number):
        writer.close()
        writer = None
    done = False
    if writer is None:
        writer = PartWriter(target, part)
    try:
        if writer.next < 0:
            writer.open()
        result = writer.write(batch, rows)
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
