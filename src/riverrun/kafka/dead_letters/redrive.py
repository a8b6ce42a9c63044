"""Send dead letters back to the topics they came from, each exactly once, even if a process is killed on the way.

First a dry run over everything: the user's fix is tried on each dead letter, each value is checked with its topic's type,
and what would happen is counted. Then they are sent, in transactions of some hundred dead letters, each with its entries in
the re-drive log (redrive_log.py). A process killed at any moment leaves whole transactions behind: the next run takes over
its transactional id, which aborts the open transaction, reads the log, and continues with the rest. Two cannot run at the
same time: the later one takes over.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

from riverrun.errors import EventInvalidError, ProducerFencedError, RecordUnreadableError
from riverrun.kafka.admin.admin import Admin
from riverrun.kafka.dead_letters.fix import FixFunction
from riverrun.kafka.dead_letters.reader import (
    DeadLetterRecord,
    DeadLetterSelector,
    OriginTopics,
    count_offsets,
    read_dead_letters,
    reason_pattern,
)
from riverrun.kafka.dead_letters.redrive_log import (
    RedriveLog,
    encode_entry,
    ensure_redrive_topic,
    read_redrive_log,
    record_identity,
)
from riverrun.kafka.producer.producer import Producer
from riverrun.kafka.producer.transaction import Transaction
from riverrun.kafka.reading.partition_reader import OffsetRange
from riverrun.kafka.registry.json_view import value_to_json
from riverrun.kafka.registry.wire_format import wire_format_of
from riverrun.model.cluster_state import TopicPartition
from riverrun.model.event import SCHEMA_HEADER
from riverrun.model.framing import is_framed
from riverrun.model.topic import Topic

# The header of a record that was sent back: which dead letter it was, as topic/partition/offset.
REDRIVEN_HEADER = "riverrun.redriven"

SKIPPED_BY_FIX = "the fix left it"

_CHUNK_LETTERS = 500
_CHUNK_BYTES = 8_000_000
_TRANSACTION_SECONDS = 30
# What Kafka adds to a record that is alone in its batch, at most.
_FRAME_BYTES = 200
_LARGEST_BATCH = 1_000_000

ProgressCallback = Callable[[int, int], None]


@dataclass
class RedriveOutcome:
    """What a re-drive did, or would do. `sent` is by topic, `left` by reason; `duplicates` are letters of a record that
    another letter had brought back; `redriven_before` were re-driven earlier; `not_chosen` were not chosen; `other_records`
    are no letters."""

    sent: Counter[str] = field(default_factory=Counter)
    left: Counter[str] = field(default_factory=Counter)
    duplicates: int = 0
    redriven_before: int = 0
    not_chosen: int = 0
    other_records: int = 0
    gone: int = 0

    @property
    def sent_count(self) -> int:
        return self.sent.total()

    @property
    def left_count(self) -> int:
        return self.left.total()

    def rows(self, sent: str = "sent") -> list[dict[str, Any]]:
        """One row for each outcome of dead letters."""
        outcome_rows: list[dict[str, Any]] = [
            {"letters": count, "outcome": sent, "detail": f"to {topic}"} for topic, count in self.sent.most_common()
        ]
        outcome_rows += [
            {"letters": count, "outcome": "left", "detail": detail} for detail, count in self.left.most_common()
        ]
        rest = (
            (self.duplicates, sent, "with another letter of the same record"),
            (self.redriven_before, "re-driven before", ""),
            (self.not_chosen, "not chosen", ""),
            (self.other_records, "no dead letter", ""),
        )
        return outcome_rows + [
            {"letters": count, "outcome": outcome, "detail": detail} for count, outcome, detail in rest if count
        ]

    def as_dict(self) -> dict[str, Any]:
        return {
            "sent": dict(self.sent),
            "left": dict(self.left),
            "doubles": self.duplicates,
            "redriven_before": self.redriven_before,
            "not_chosen": self.not_chosen,
            "no_letters": self.other_records,
            "gone": self.gone,
        }


@dataclass(frozen=True)
class _RedriveRecord:
    """A dead letter as it is sent back, and the id of its target topic. Without `send`, only its log entry is written."""

    letter: DeadLetterRecord
    topic_id: str
    key: bytes | None = None
    value: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    send: bool = True

    @property
    def size(self) -> int:
        own = sum(len(name) + len(value or b"") + 10 for name, value in self.headers)
        return len(self.value or b"") + len(self.key or b"") + own + _FRAME_BYTES


class Redrive:
    """One re-drive of one dead-letter topic: `plan` first, then `run`. Dead letters written meanwhile are not part of it, so
    a record that fails again is not sent again by the same re-drive."""

    def __init__(
        self,
        admin: Admin,
        dead: str,
        *,
        selector: DeadLetterSelector | None = None,
        limit: int | None = None,
        fix: FixFunction | None = None,
        topics: Mapping[str, Topic[Any]] | None = None,
    ) -> None:
        self._admin = admin
        self._dead = dead
        self._selector = selector or DeadLetterSelector()
        self._limit = limit
        self._fix = fix
        self._topics = topics or {}
        self._origins = OriginTopics(admin)
        self._gone = 0
        # What the transactions committed so far did; correct at any moment, also when `run` raises.
        self.done = RedriveOutcome()

    @cached_property
    def offset_ranges(self) -> dict[TopicPartition, OffsetRange]:
        """The offsets to read, fixed by the first access."""
        return self._selector.offset_ranges(self._admin, self._dead)

    @property
    def checks_types(self) -> bool:
        """Whether values are checked with a type before they are sent; known after `plan`."""
        return any(self._type_of(topic.name) is not None for topic in self._origins.existing())

    def plan(self, on_progress: ProgressCallback = lambda _done, _all: None) -> RedriveOutcome:
        """What `run` would do; HandlerError when the fix fails on a dead letter. Sends nothing."""
        outcome = RedriveOutcome()
        for _ in self._decide(read_redrive_log(self._admin, self._dead), outcome, on_progress):
            pass
        return outcome

    def run(self, on_progress: ProgressCallback = lambda _done, _all: None) -> RedriveOutcome:
        """Send. What `done` counts stays done when this raises, and the next re-drive continues from there."""
        redrive_topic = ensure_redrive_topic(self._admin, self._dead)
        limits = [_max_message_bytes(topic.config) for topic in self._origins.existing()]
        with Producer(
            self._admin.connection,
            transactional_id=f"riverrun.dlq.{self._dead}",
            transaction_timeout_seconds=_TRANSACTION_SECONDS,
            properties={
                # Each topic decides how large its records may be; a batch must not be larger than the strictest allows.
                "message.max.bytes": max([_LARGEST_BATCH, *limits]) + _FRAME_BYTES,
                "batch.size": min([_LARGEST_BATCH, *limits]),
            },
        ) as producer:
            try:
                self._send_all(producer, redrive_topic, on_progress)
            except ProducerFencedError as error:
                raise ProducerFencedError(
                    f"Another re-drive of {self._dead} took over",
                    found=error.found,
                    hint="Let that one end. What this one had sent is noted, and not sent again",
                    topic=self._dead,
                ) from error
        return self.done

    def _send_all(self, producer: Producer, redrive_topic: str, on_progress: ProgressCallback) -> None:
        # Before the log is read: this aborts what an earlier process left open, so that nothing of it can still appear.
        producer._core.init_transactions()
        redriven = read_redrive_log(self._admin, self._dead)
        now = datetime.now(UTC).isoformat(timespec="seconds")
        outcome = RedriveOutcome()
        chunk: list[_RedriveRecord] = []
        size = 0
        for sending in self._decide(redriven, outcome, on_progress):
            chunk.append(sending)
            size += sending.size
            if len(chunk) >= _CHUNK_LETTERS or size >= _CHUNK_BYTES:
                self._commit(producer, redrive_topic, chunk, now)
                chunk, size = [], 0
        if chunk:
            self._commit(producer, redrive_topic, chunk, now)
        sent, duplicates = self.done.sent, self.done.duplicates
        self.done = outcome
        self.done.sent, self.done.duplicates = sent, duplicates
        if self._selector.covers_all and self._limit is None:
            self._expire_entries(producer, redrive_topic, redriven)

    def _commit(self, producer: Producer, redrive_topic: str, chunk: list[_RedriveRecord], now: str) -> None:
        with producer.transaction() as tx:
            for sending in chunk:
                if sending.send:
                    _send(tx, sending)
                key, value = encode_entry(sending.letter, sending.topic_id, now)
                tx.send_soon(redrive_topic, value, key=key)
        for sending in chunk:
            if sending.send:
                self.done.sent[sending.letter.details.topic] += 1
            else:
                self.done.duplicates += 1

    def _expire_entries(self, producer: Producer, redrive_topic: str, redriven: RedriveLog) -> None:
        """Delete the entries of dead letters that retention has removed, so that the log does not grow for ever."""
        keys = list(
            redriven.expired_keys(
                {partition: offset_range.start for partition, offset_range in self.offset_ranges.items()}
            )
        )
        for start in range(0, len(keys), _CHUNK_LETTERS):
            with producer.transaction() as tx:
                for key in keys[start : start + _CHUNK_LETTERS]:
                    tx.send_soon(redrive_topic, None, key=key)

    # --- which dead letters, and as what ------------------------------------------------------------------------------

    def _decide(
        self, redriven: RedriveLog, outcome: RedriveOutcome, on_progress: ProgressCallback
    ) -> Iterator[_RedriveRecord]:
        """What is to be sent or noted, counted in `outcome`. Ends early when the limit is reached."""
        total = count_offsets(self.offset_ranges)
        sent_identities: set[bytes] = set()
        self._gone = 0
        for number, dead_letter in enumerate(
            read_dead_letters(self._admin.connection, self.offset_ranges, on_gone=self._count_gone), start=1
        ):
            if dead_letter is None:
                outcome.other_records += 1
            else:
                decided = self._decide_letter(dead_letter, redriven, sent_identities, outcome)
                if decided is not None:
                    yield decided
            on_progress(number, total)
            if self._limit is not None and outcome.sent_count >= self._limit:
                break
        outcome.gone = self._gone

    def _count_gone(self, _partition: TopicPartition, _first: int, count: int) -> None:
        self._gone += count

    def _decide_letter(
        self, dead_letter: DeadLetterRecord, redriven: RedriveLog, sent_identities: set[bytes], outcome: RedriveOutcome
    ) -> _RedriveRecord | None:
        topic_id = self._origins.topic_id(dead_letter.details.topic)
        if redriven.has_letter(dead_letter):
            outcome.redriven_before += 1
            return None
        identity = record_identity(dead_letter, topic_id)
        if identity in sent_identities or redriven.has_record(dead_letter, topic_id):
            # Logged even if it was not chosen: its own entry must outlive that of the dead letter which brought it back.
            outcome.duplicates += 1
            return _RedriveRecord(dead_letter, topic_id, send=False)
        if not self._selector.matches(dead_letter):
            outcome.not_chosen += 1
            return None
        ready = self._prepare(dead_letter, topic_id)
        if isinstance(ready, str):
            outcome.left[ready] += 1
            return None
        sent_identities.add(identity)
        outcome.sent[dead_letter.details.topic] += 1
        return ready

    def _type_of(self, topic: str) -> Topic[Any] | None:
        declared = self._topics.get(topic)
        return declared if declared is not None and declared.schema is not None else None

    def _prepare(self, dead_letter: DeadLetterRecord, topic_id: str) -> _RedriveRecord | str:
        """The record to send, or why it must stay."""
        target = self._origins[dead_letter.details.topic]
        if target is None or (dead_letter.details.original_size and self._fix is None):
            truncated = f"only a part of its {dead_letter.details.original_size} bytes was kept"
            return truncated if target is not None else f"its topic {dead_letter.details.topic} is not there any more"
        raw = value = dead_letter.record.raw
        if self._fix is not None and raw is not None:
            value = self._fix(dead_letter, value_to_json(self._admin.connection.registry, raw))
            if value is None:
                return SKIPPED_BY_FIX
        key, header = dead_letter.record.key, None
        declared = self._type_of(dead_letter.details.topic)
        if value is None:
            if key is None or (declared is not None and not declared.compact):
                return "it has no value, which only a record with a key in a compacted topic may be without"
        elif declared is not None and declared.schema is not None:
            wire = wire_format_of(declared, self._admin.connection.registry)
            try:
                if declared.registered and not is_framed(value):
                    # A fix gets and returns JSON; a source that could not make a record of its input also left JSON.
                    value = wire.pack(value)
                event = wire.decode(value)
            except (RecordUnreadableError, EventInvalidError) as error:
                return reason_pattern(f"still not a {declared.schema.name}", str(error.fields["reason"]))
            if value != raw:
                # What the fix returned is an event of the type: it gets the type's name and key.
                header = declared.schema.header
                if declared.schema.key_field is not None:
                    key = _as_bytes(declared.schema.key_of(event))
        ready = _RedriveRecord(dead_letter, topic_id, key, value, _headers(dead_letter, header))
        limit = _max_message_bytes(target.config)
        if ready.size > limit:
            return f"it is larger than {target.name} takes (max.message.bytes={limit})"
        return ready


def _send(tx: Transaction, sending: _RedriveRecord) -> None:
    tx.send_soon(sending.letter.details.topic, sending.value, key=sending.key, headers=sending.headers)


def _headers(dead_letter: DeadLetterRecord, schema: tuple[str, bytes] | None) -> tuple[tuple[str, bytes | None], ...]:
    """The record's own headers, with the type of what the fix returned, and the position of its dead letter."""
    replaced = {REDRIVEN_HEADER} if schema is None else {REDRIVEN_HEADER, SCHEMA_HEADER}
    own = [header for header in dead_letter.details.headers if header[0] not in replaced]
    record = dead_letter.record
    letter_position = f"{record.topic}/{record.partition}/{record.offset}".encode()
    return (*own, *([] if schema is None else [schema]), (REDRIVEN_HEADER, letter_position))


def _as_bytes(key: str | bytes | None) -> bytes | None:
    return key.encode() if isinstance(key, str) else key


def _max_message_bytes(config: Mapping[str, Any]) -> int:
    setting = config.get("max.message.bytes")
    return int(setting.value) if setting is not None else _LARGEST_BATCH
