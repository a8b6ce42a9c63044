"""Read one part of a source, from its last position into its topic, exactly once.

A run begins by taking over the part's transactional id, which aborts the open transaction of an earlier holder, and then
reading the position. After any failure nobody knows what is committed: the run is over, and the next one reads the position
again. What was read is checked and sent in one transaction with the position behind it.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from riverrun.connectors.record_builder import RecordBuilder, SourceRecord
from riverrun.connectors.retry import Backoff, NoticeThrottle, is_permanent
from riverrun.connectors.state_topic import (
    CommittedPosition,
    StateRecord,
    mark_record,
    position_record,
    read_connector_state,
    state_topic_name,
)
from riverrun.connectors.status import ConnectorStatus, now_ms
from riverrun.errors import ProducerFencedError, RiverrunError
from riverrun.kafka.admin.admin import Admin
from riverrun.kafka.connection import Connection
from riverrun.kafka.consumer.dead_letter import DeadLetterProducer
from riverrun.kafka.producer.producer import Producer
from riverrun.model.connector import Items, Position, Reader, Source
from riverrun.model.topic import Topic

_LOG = logging.getLogger("riverrun.connectors")

# Open only while its records are being sent: after a crash, readers wait for it this long, or until the next run.
TRANSACTION_SECONDS = 15.0
# A transaction has at most about so many records and bytes; a `read` is never split.
MAX_RECORDS = 10_000
MAX_BYTES = 4 << 20
# How long an item waits for more when nothing else is there, and how long an endless flow is collected.
LINGER_SECONDS = 0.02
MAX_BATCH_SECONDS = 0.2
IDLE_SECONDS = 0.05
LAG_SECONDS = 0.5
MAX_POSITION_CHARACTERS = 2000
_DEFAULT_MAX_MESSAGE_BYTES = 1_048_588

_encode = msgspec.json.Encoder(order="deterministic").encode


@dataclass(frozen=True)
class SourceJob:
    """A source and the topic it writes to. `name` is the connector's."""

    app: str
    name: str
    topic: Topic[Any]
    source: Source

    def transactional_id(self, part: str) -> str:
        return f"riverrun.connectors.{self.app}.{self.name}.{part}"

    @property
    def group(self) -> str:
        """The group in the headers of its dead letters."""
        return f"{self.app}.{self.name}"


@dataclass
class TransactionBatch:
    """The content of one transaction."""

    records: list[SourceRecord] = field(default_factory=list)
    dead_letters: int = 0
    size: int = 0
    position: Position = None
    marks: dict[str, Any] = field(default_factory=dict)
    reads: int = 0
    last: bool = False
    # Why reading failed; raised when the rest is committed.
    failure: Exception | None = None

    def add(self, items: Items, builder: RecordBuilder) -> None:
        for item in items.items:
            record, is_dead = builder.build(item)
            self.records.append(record)
            self.dead_letters += is_dead
            self.size += record.size
        self.position = items.position
        self.marks |= items.marks or {}
        self.last = self.last or items.last
        self.reads += 1

    @property
    def is_full(self) -> bool:
        return len(self.records) >= MAX_RECORDS or self.size >= MAX_BYTES or self.last


class SourceRunner(threading.Thread):
    """Runs one part until `stop`, or until it is over. `on_fenced` is told when somebody else has its id."""

    def __init__(
        self,
        connection: Connection,
        job: SourceJob,
        part: str,
        status: ConnectorStatus,
        stop: threading.Event,
        *,
        on_fenced: Callable[[ProducerFencedError], None] = lambda _error: None,
        notice: Callable[[str], None] = _LOG.warning,
    ) -> None:
        super().__init__(name=status.label, daemon=True)
        self._connection = connection
        self._job = job
        self._part = part
        self._status = status
        self._halt = stop
        self._on_fenced = on_fenced
        self._notice = notice
        self._backoff = Backoff()
        self._notice_throttle = NoticeThrottle()
        self._lag_checked_at = 0.0
        # Whether its reader said that there is no more.
        self.finished = False

    def run(self) -> None:
        status = self._status
        while not self._halt.is_set():
            status.set_state("starting", status.error)
            try:
                self._run_once()
                self.finished = not self._halt.is_set()
                status.set_state("finished" if self.finished else "stopped")
                return
            except ProducerFencedError as error:
                status.set_state("retrying", str(error))
                self._on_fenced(error)
                self._back_off(error)
            except Exception as error:  # noqa: BLE001  -- a source is anybody's code: any error is reported and tried again
                if is_permanent(error):
                    status.set_state("failed", _error_text(error))
                    self._notice(f"{status.label} has failed, and is not tried again: {_error_text(error)}")
                    return
                status.set_state("retrying", _error_text(error))
                self._back_off(error)
        status.set_state("stopped", status.error)

    def _back_off(self, error: Exception) -> None:
        delay = self._backoff.next_delay()
        _LOG.debug("%s failed", self._status.label, exc_info=error)
        if self._notice_throttle.should_notify(_error_text(error)):
            self._notice(f"{self._status.label} is tried again in {delay:g} s: {_error_text(error)}")
        self._halt.wait(delay)

    def _run_once(self) -> None:
        job = self._job
        dead_letters = DeadLetterProducer(self._connection, job.group)
        dead_letters.prepare([job.topic.name])
        builder, limits = self._record_builder(dead_letters)
        producer = Producer(
            self._connection,
            transactional_id=job.transactional_id(self._part),
            transaction_timeout_seconds=TRANSACTION_SECONDS,
            queue_records=50_000,
            queue_mb=32,
            # A broker refuses a whole batch that is larger than a record of the topic may be.
            properties={"message.max.bytes": max(limits) + 65_536, "batch.size": min(1_000_000, min(limits) * 3 // 4)},
        )
        try:
            # Before the position is read: from here on nobody else can move it.
            with producer.transaction():
                pass
            snapshot = read_connector_state(self._connection, job.app)
            committed = snapshot.positions.get((job.name, self._part)) or CommittedPosition(None)
            self._status.records, self._status.dead_letters = committed.records, committed.dead_letters
            self._status.position = _position_text(committed.position)
            marks = snapshot.marks.get((job.name, self._part), {})
            position = committed.position if job.source.resumable else None
            reader = job.source.open_with_marks(self._part, position, marks)
            try:
                self._pump(producer, reader, builder, position)
            finally:
                reader.close()
        finally:
            with contextlib.suppress(RiverrunError):
                producer.close(1.0)

    def _record_builder(self, dead_letters: DeadLetterProducer) -> tuple[RecordBuilder, tuple[int, int]]:
        job = self._job
        dead_topic = dead_letters.topic_for(job.topic.name)
        limit, dead_limit = self._max_message_bytes(job.topic.name), self._max_message_bytes(dead_topic)
        builder = RecordBuilder(
            job.topic,
            dead_topic,
            group=job.group,
            max_bytes=limit,
            max_dead_letter_bytes=dead_limit,
            registry=self._connection.registry,
        )
        return builder, (limit, dead_limit)

    def _max_message_bytes(self, topic: str) -> int:
        """How large a record of a topic may be."""
        config = Admin(self._connection).topic(topic).config.get("max.message.bytes")
        return int(config.value) if config is not None else _DEFAULT_MAX_MESSAGE_BYTES

    def _pump(self, producer: Producer, reader: Reader, builder: RecordBuilder, position: Position) -> None:
        while not self._halt.is_set():
            batch = self._read_batch(reader, builder)
            if batch is None:
                continue
            if batch.records or batch.marks or batch.position != position:
                self._commit(producer, batch)
                position = batch.position
                self._backoff.reset()
                self._notice_throttle.reset()
            reader.acknowledged(batch.position)
            if batch.failure is not None:
                raise batch.failure
            if batch.last:
                return

    def _read_batch(self, reader: Reader, builder: RecordBuilder) -> TransactionBatch | None:
        """Read until there is no more, the batch is full, or it has waited long enough. None: nothing."""
        first = reader.read()
        self._update_lag(reader)
        if first is None:
            self._status.set_state("waiting")
            reader.wait(IDLE_SECONDS)
            return None
        self._status.set_state("running")
        began = time.monotonic()
        batch = TransactionBatch()
        batch.add(first, builder)
        while not batch.is_full and not self._halt.is_set():
            waited = time.monotonic() - began
            if waited >= MAX_BATCH_SECONDS:
                break
            try:
                more = reader.read()
            except Exception as error:  # noqa: BLE001  -- what it returned before is good, and may be nowhere else
                batch.failure = error
                break
            if more is not None:
                batch.add(more, builder)
            elif waited >= LINGER_SECONDS:
                break
            else:
                reader.wait(LINGER_SECONDS - waited)
        return batch

    def _commit(self, producer: Producer, batch: TransactionBatch) -> None:
        status, state_topic = self._status, state_topic_name(self._job.app)
        records, dead_letters = status.records + len(batch.records), status.dead_letters + batch.dead_letters
        with producer.transaction() as transaction:
            send = transaction.send_soon
            for topic, data, key, headers, timestamp in batch.records:
                send(topic, data, key=key, headers=headers, timestamp=timestamp)
            for key, value in self._state_records(batch, records, dead_letters):
                send(state_topic, value, key=key)
        status.records, status.dead_letters, status.committed_ms = records, dead_letters, now_ms()
        status.position = _position_text(batch.position)

    def _state_records(self, batch: TransactionBatch, records: int, dead_letters: int) -> list[StateRecord]:
        job = self._job
        committed = CommittedPosition(batch.position if job.source.resumable else None, records, dead_letters, now_ms())
        state_records = [position_record(job.name, self._part, committed)]
        return state_records + [mark_record(job.name, self._part, mark, value) for mark, value in batch.marks.items()]

    def _update_lag(self, reader: Reader) -> None:
        now = time.monotonic()
        if now - self._lag_checked_at >= LAG_SECONDS:
            self._lag_checked_at = now
            self._status.lag, self._status.lag_unit = reader.lag(), self._job.source.lag_unit


def _error_text(error: Exception) -> str:
    return str(error) if isinstance(error, RiverrunError) else f"{type(error).__name__}: {error}"


def _position_text(position: Position) -> str:
    text: str = _encode(position).decode() if position is not None else ""
    return text if len(text) <= MAX_POSITION_CHARACTERS else f"{text[:MAX_POSITION_CHARACTERS]}…"
