"""Write one task's output of a batch to a topic exactly once: its rows and a commit marker, in one transaction.

A batch has tasks, numbered from 0, and is computed again after a crash, task by task the same. Each task has a transactional
id of its own. Opening an id aborts the open transaction of an earlier holder and fences it: so the last marker
(kafka/commit_markers.py) that is read after that is the truth, and a task whose marker is there is not written again.

A marker identifies the records the batch was made of and how it was split. A batch of the same number made of other records,
or split otherwise, is refused: skipping a task for such a marker would lose rows.

A writer that opens an id checks that the newest claim is still that of its own run, so a run that was replaced writes
nothing more.

Rows are buffered until the task's output is complete or large: an open transaction keeps readers waiting.
"""

import contextlib
import math
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from confluent_kafka import KafkaError as ClientError
from confluent_kafka import KafkaException, Producer

from riverrun.errors import BatchChangedError, CheckpointError, ProducerFencedError, StreamFailedError
from riverrun.kafka.commit_markers import (
    OTHERS,
    STEP_SECONDS,
    WHOLE,
    CommitMarker,
    CommitMarkerReader,
    OutputBatch,
    OutputTopic,
    check_claim,
    last_committed_marker,
)
from riverrun.kafka.error_mapping import client_log, translate

Row = tuple[bytes | None, bytes | None]

# The header that says which batch of which generation of a stream wrote a record.
BATCH_HEADER = "riverrun-batch"
# Above this, rows are sent while the rest of the task is still computed.
SPOOL_BYTES = 32 << 20
# How long a writer that failed may take to abort its transaction.
ABORT_SECONDS = 5.0
# For how many tasks transactions are aborted at a time.
_ABORT_THREADS = 8


class TransactionalWriter:
    """Writes one task's output of batch after batch. Created in the process that computes the task."""

    def __init__(self, target: OutputTopic, task: int) -> None:
        self.target = target
        self.task = task
        # The batch that may follow without reading the markers: nobody else can have written it.
        self.next_batch = -1
        self._deadline = 0.0
        # From `open` until the markers are first read.
        self._reader: CommitMarkerReader | None = None
        self._producer = Producer(
            target.properties
            | {
                "transactional.id": target.transactional_id(task),
                "transaction.timeout.ms": round(target.transaction_seconds * 1000),
                # Chooses partitions as Kafka's own client and Spark's sink do, so that a key stays in its partition.
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
        """Take over the task's id: another holder's open transaction is aborted, and it can commit nothing more."""
        # Checked before, else a run that was replaced would fence the one that replaced it; and after, to see one that came
        # in between.
        if self.target.claim_offset >= 0:
            self._reader = CommitMarkerReader(self.target)
            self._reader.check_claim()
        self._deadline = time.monotonic() + self.target.timeout_seconds
        try:
            self._retry_step("opening a transactional producer", self._producer.init_transactions)
        except ProducerFencedError as error:
            raise self._fencing_error() from error
        if self._reader is not None:
            self._reader.check_claim()

    def write(self, batch: OutputBatch, rows: Iterator[Row]) -> tuple[int, bool]:
        """Write a task's rows unless they are there; returns how many they are, and whether they were written now.

        All rows are consumed in any case: what computes them keeps state of its own that must move on.
        """
        if self.next_batch != batch.number:
            with self._reader or CommitMarkerReader(self.target) as reader:
                self._reader = None
                written = self._is_written(batch, reader)
            if written:
                self.next_batch = batch.number + 1
                return sum(1 for _ in rows), False
        count, begun, done = 0, 0.0, False
        try:
            for chunk in _chunks(rows):
                if not count:
                    begun = time.monotonic()
                    self._producer.begin_transaction()
                count += self._send(chunk, batch.number)
            if count:
                marker, partition = CommitMarker(self.target.generation, batch).encode(), self.task + OTHERS
                self._producer.produce(self.target.marker_topic, marker, key=str(self.task), partition=partition)
                self._deadline = time.monotonic() + self.target.timeout_seconds
                self._retry_step(
                    f"committing {count} rows to {self.target.topic}",
                    self._producer.commit_transaction,
                )
            done = True
        except KafkaException as error:
            translated = translate(error, f"writing to {self.target.topic}", topic=self.target.topic)
            raise (self._fencing_error(begun) if isinstance(translated, ProducerFencedError) else translated) from error
        except ProducerFencedError as error:
            raise self._fencing_error(begun) from error
        finally:
            if begun and not done:
                self._abort()
        self.next_batch = batch.number + 1
        return count, True

    def _fencing_error(self, begun: float = math.inf) -> StreamFailedError:
        """Why Kafka rejects this writer, as the stream's error: StreamTakenOverError when another run has claimed the
        stream, and else one that says that it can be tried again with a new writer."""
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
            f"Another writer has opened {self.target.transactional_id(self.task)}, and this one can commit nothing more "
            f"to {topic}",
            hint="Does another program use this transactional id? It is for the stream alone",
            topic=topic,
        )

    def _abort(self) -> None:
        """Abort, so that readers of committed records do not wait for nothing. If this fails, the next holder of the id does
        it, or Kafka when the transaction times out."""
        with contextlib.suppress(KafkaException):
            self._producer.abort_transaction(ABORT_SECONDS)

    def close(self) -> None:
        """Drop what is not sent: its transaction is aborted by the next holder of the id."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None
        with contextlib.suppress(KafkaException):
            self._producer.purge(in_queue=True, in_flight=True, blocking=False)

    def _send(self, chunk: list[Row], batch: int) -> int:
        self._deadline = time.monotonic() + self.target.timeout_seconds
        send, topic = self._producer.produce, self.target.topic
        headers: Any = [(BATCH_HEADER, f"{self.target.generation}/{batch}".encode())]
        for key, value in chunk:
            while True:
                try:
                    send(topic, value, key, headers=headers)
                    break
                except BufferError:
                    self._producer.poll(0.05)
                    self._check_deadline(f"sending rows to {topic}")
        self._producer.poll(0)
        return len(chunk)

    def _is_written(self, batch: OutputBatch, reader: CommitMarkerReader) -> bool:
        marker = reader.last_mark(self.task)
        if marker is not None and marker.generation == self.target.generation and marker.batch.number >= batch.number:
            _check_same_batch(self.target, marker, self.task, batch)
            return True
        if self.task == 0:
            return False
        # The whole batch may have been written as one, by a run that does not use Spark's workers for it.
        whole_marker = reader.last_mark(0)
        if whole_marker is None or (whole_marker.generation, whole_marker.batch.number, whole_marker.batch.tasks) != (
            self.target.generation,
            batch.number,
            WHOLE,
        ):
            return False
        _check_same_batch(self.target, whole_marker, 0, batch)
        return True

    def _retry_step(self, doing: str, step: Any) -> None:
        """Run a step of a transaction, again as long as its error is retriable and there is time."""
        while True:
            try:
                step(STEP_SECONDS)
                return
            except KafkaException as error:
                cause = error.args[0]
                retriable = isinstance(cause, ClientError) and cause.retriable() and not cause.fatal()
                if not retriable or time.monotonic() > self._deadline:
                    raise translate(error, doing, topic=self.target.topic) from error

    def _check_deadline(self, doing: str) -> None:
        if time.monotonic() > self._deadline:
            raise StreamFailedError(
                f"Kafka took no rows for {self.target.timeout_seconds:g} s while {doing}", topic=self.target.topic
            )


def abort_open_transactions(target: OutputTopic, tasks: Iterable[int]) -> None:
    """Abort what is still open for these tasks, so that no reader waits for a dead writer. A run that was replaced must not
    do that to the one that replaced it."""
    check_claim(target)
    with ThreadPoolExecutor(_ABORT_THREADS) as pool:
        for future in [pool.submit(_abort_open_transaction, replace(target, claim_offset=-1), task) for task in tasks]:
            future.result()


def _abort_open_transaction(target: OutputTopic, task: int) -> None:
    writer = TransactionalWriter(target, task)
    try:
        writer.open()
    finally:
        writer.close()


def check_removed_tasks(target: OutputTopic, removed: Iterable[int], batch: OutputBatch) -> None:
    """Check that tasks which a batch no longer has were not written when it had them."""
    for task in removed:
        marker = last_committed_marker(target, task)
        if marker is not None and marker.generation == target.generation and marker.batch.number >= batch.number:
            raise _checkpoint_mismatch_error(target, marker, task, batch)


def _check_same_batch(target: OutputTopic, marker: CommitMarker, task: int, batch: OutputBatch) -> None:
    """Check that a marker of this batch, or of a later one, is of the very same batch."""
    written = marker.batch
    if written.number > batch.number:
        raise _checkpoint_mismatch_error(target, marker, task, batch)
    if written.input_digest != batch.input_digest:
        raise _batch_changed_error(target, "it would be made of other records than those rows were", batch)
    if written.tasks == WHOLE:
        return
    if written.tasks != batch.tasks:
        raise _checkpoint_mismatch_error(target, marker, task, batch)
    if written.layout_digest != batch.layout_digest:
        raise _batch_changed_error(target, "its parts would read other partitions than when they were written", batch)


def _batch_changed_error(target: OutputTopic, difference: str, batch: OutputBatch) -> BatchChangedError:
    return BatchChangedError(
        f"Rows of batch {batch.number} of {target.name} are in {target.topic}, and the batch is not the same any more: "
        f"{difference}",
        hint="Did two runs share the checkpoint, or is it an older copy? Put the right one back, or begin again with "
        "`--fresh`",
        stream=target.name,
        topic=target.topic,
        batch=batch.number,
    )


def _checkpoint_mismatch_error(
    target: OutputTopic, marker: CommitMarker, task: int, batch: OutputBatch
) -> CheckpointError:
    written = marker.batch
    split_differs = written.number == batch.number and written.tasks != batch.tasks
    return CheckpointError(
        f"Part {task} of {target.name} is at batch {batch.number} of {batch.tasks} parts, and its output is elsewhere",
        found=f"batch {written.number} of {written.tasks} parts in {target.topic}",
        hint="Finish that batch at the speed it was begun with, then change the speed"
        if split_differs
        else "Is the checkpoint an older copy, or shared by two runs? Begin again with `--fresh`",
        stream=target.name,
    )


# --- in Spark's workers, or the process that runs the pipeline ------------------------------------------------------------

# By stream and task. A worker is used again, for any task.
_writers: dict[tuple[str, int], TransactionalWriter] = {}


def write_task_output(target: OutputTopic, batch: OutputBatch, task: int, rows: Iterator[Row]) -> tuple[int, bool]:
    """`TransactionalWriter.write` with a writer that this process may have from the batch before."""
    key = (target.name, task)
    _close_stale(target, batch)
    writer = _writers.pop(key, None)
    if writer is not None and writer.next_batch != batch.number:
        writer.close()
        writer = None
    done = False
    if writer is None:
        writer = TransactionalWriter(target, task)
    try:
        if writer.next_batch < 0:
            writer.open()
        result = writer.write(batch, rows)
        done = True
    finally:
        if done:
            _writers[key] = writer
        else:
            writer.close()
    return result


def _close_stale(target: OutputTopic, batch: OutputBatch) -> None:
    """Close the writers of tasks that have moved to other workers: those that did not write the batch before, and those of
    another run. Each has a producer, with threads and connections of its own, for as long as the worker lives."""
    for key, writer in list(_writers.items()):
        if key[0] == target.name and (writer.next_batch < batch.number or writer.target != target):
            _writers.pop(key, None)
            writer.close()


def close_writers(name: str) -> None:
    """Close the writers that this process has for a stream."""
    for key in [writer_key for writer_key in _writers if writer_key[0] == name]:
        if (writer := _writers.pop(key, None)) is not None:
            writer.close()


def _chunks(rows: Iterator[Row]) -> Iterator[list[Row]]:
    """All rows of a small task at once; of a large one, as many as fit."""
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
