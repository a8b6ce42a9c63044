"""Send dead letters back to the topics they came from, each once, whatever happens on the way.

First everything is gone through without sending: the user's fix is tried on each letter, each value is checked with its
topic's type, and what would happen is counted. Then it is done, in transactions of some hundred letters, each with the
entries of the ledger (ledger.py) that say so. A process killed at any moment leaves whole transactions behind: the next run
takes over its transactional id, which ends what was under way, reads the ledger, and goes on with the rest. Two at a time
cannot be: the later one takes over.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

from riverrun.errors import EventInvalidError, FencedError, RecordUnreadableError
from riverrun.kafka.admin.admin import Admin
from riverrun.kafka.consumer.reader import Span
from riverrun.kafka.dead_letters.fix import Fix
from riverrun.kafka.dead_letters.ledger import Redriven, entry_for, identity_of, make_ledger, read_ledger
from riverrun.kafka.dead_letters.letter import Letter, Origins, Selection, count_of, pattern_of, read_letters
from riverrun.kafka.producer.producer import Producer
from riverrun.kafka.producer.transaction import Transaction
from riverrun.kafka.registry.opening import open_value
from riverrun.kafka.registry.wire import wire_of
from riverrun.model.event import SCHEMA_HEADER
from riverrun.model.framing import is_framed
from riverrun.model.state import Place
from riverrun.model.topic import Topic

# The header of a record that was sent back: which letter it was, as topic/partition/offset.
REDRIVEN = "riverrun.redriven"

LEFT_BY_FIX = "the fix left it"

_CHUNK_LETTERS = 500
_CHUNK_BYTES = 8_000_000
_TRANSACTION_SECONDS = 30
# What Kafka adds to a record that is alone in its batch, at most.
_FRAME_BYTES = 200
_LARGEST_BATCH = 1_000_000

Progress = Callable[[int, int], None]


@dataclass
class Outcome:
    """What a re-drive did, or would do. `sent` is by topic, `left` by reason; `doubles` are letters of a record that another
    letter had brought back; `before` were re-driven earlier; `passed` were not chosen; `other` are no letters."""

    sent: Counter[str] = field(default_factory=Counter)
    left: Counter[str] = field(default_factory=Counter)
    doubles: int = 0
    before: int = 0
    passed: int = 0
    other: int = 0
    gone: int = 0

    @property
    def sent_count(self) -> int:
        return self.sent.total()

    @property
    def left_count(self) -> int:
        return self.left.total()

    def rows(self, sent: str = "sent") -> list[dict[str, Any]]:
        """One row for each thing that happened to letters."""
        found: list[dict[str, Any]] = [
            {"letters": count, "outcome": sent, "detail": f"to {topic}"} for topic, count in self.sent.most_common()
        ]
        found += [{"letters": count, "outcome": "left", "detail": why} for why, count in self.left.most_common()]
        rest = (
            (self.doubles, sent, "with another letter of the same record"),
            (self.before, "re-driven before", ""),
            (self.passed, "not chosen", ""),
            (self.other, "no dead letter", ""),
        )
        return found + [{"letters": count, "outcome": what, "detail": why} for count, what, why in rest if count]

    def as_dict(self) -> dict[str, Any]:
        return {
            "sent": dict(self.sent),
            "left": dict(self.left),
            "doubles": self.doubles,
            "redriven_before": self.before,
            "not_chosen": self.passed,
            "no_letters": self.other,
            "gone": self.gone,
        }


@dataclass(frozen=True)
class _Sending:
    """A letter as it goes back, with the id of the topic it goes to. Without `send`, only its ledger entry is written."""

    letter: Letter
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
    """One re-drive of one dead-letter topic: `plan` first, then `run`. What dies meanwhile is not part of it, so a record
    that dies again is not sent again by the same re-drive."""

    def __init__(
        self,
        admin: Admin,
        dead: str,
        *,
        selection: Selection | None = None,
        limit: int | None = None,
        fix: Fix | None = None,
        topics: Mapping[str, Topic[Any]] | None = None,
    ) -> None:
        self._admin = admin
        self._dead = dead
        self._selection = selection or Selection()
        self._limit = limit
        self._fix = fix
        self._topics = topics or {}
        self._origins = Origins(admin)
        self._gone = 0
        # What the transactions committed so far did; true at any moment, also when `run` raises.
        self.done = Outcome()

    @cached_property
    def where(self) -> dict[Place, Span]:
        """What is looked at: fixed by whoever asks first."""
        return self._selection.spans(self._admin, self._dead)

    @property
    def typed(self) -> bool:
        """Whether values are checked with a type before they are sent; known after `plan`."""
        return any(self._type_of(each.name) is not None for each in self._origins.there())

    def plan(self, on_progress: Progress = lambda _done, _all: None) -> Outcome:
        """What `run` would do; HandlerError when the fix fails on a letter. Sends nothing."""
        found = Outcome()
        for _ in self._decide(read_ledger(self._admin, self._dead), found, on_progress):
            pass
        return found

    def run(self, on_progress: Progress = lambda _done, _all: None) -> Outcome:
        """Send. What `done` says stays done when this raises, and the next re-drive goes on from there."""
        ledger = make_ledger(self._admin, self._dead)
        limits = [_limit_of(each.config) for each in self._origins.there()]
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
                self._send_all(producer, ledger, on_progress)
            except FencedError as error:
                raise FencedError(
                    f"Another re-drive of {self._dead} took over",
                    found=error.found,
                    hint="Let that one end. What this one had sent is noted, and not sent again",
                    topic=self._dead,
                ) from error
        return self.done

    def _send_all(self, producer: Producer, ledger: str, on_progress: Progress) -> None:
        # Before the ledger is read: this ends what an earlier process left open, so that nothing of it can still appear.
        producer._core.join_transactions()
        redriven = read_ledger(self._admin, self._dead)
        now = datetime.now(UTC).isoformat(timespec="seconds")
        seen = Outcome()
        chunk: list[_Sending] = []
        size = 0
        for each in self._decide(redriven, seen, on_progress):
            chunk.append(each)
            size += each.size
            if len(chunk) >= _CHUNK_LETTERS or size >= _CHUNK_BYTES:
                self._commit(producer, ledger, chunk, now)
                chunk, size = [], 0
        if chunk:
            self._commit(producer, ledger, chunk, now)
        sent, doubles = self.done.sent, self.done.doubles
        self.done = seen
        self.done.sent, self.done.doubles = sent, doubles
        if self._selection.whole and self._limit is None:
            self._forget(producer, ledger, redriven)

    def _commit(self, producer: Producer, ledger: str, chunk: list[_Sending], now: str) -> None:
        with producer.transaction() as tx:
            for each in chunk:
                if each.send:
                    _send(tx, each)
                key, value = entry_for(each.letter, each.topic_id, now)
                tx.send_soon(ledger, value, key=key)
        for each in chunk:
            if each.send:
                self.done.sent[each.letter.told.topic] += 1
            else:
                self.done.doubles += 1

    def _forget(self, producer: Producer, ledger: str, redriven: Redriven) -> None:
        """Take the entries back whose letters retention has removed, so that the ledger does not grow for ever."""
        keys = list(redriven.gone({place: span.start for place, span in self.where.items()}))
        for start in range(0, len(keys), _CHUNK_LETTERS):
            with producer.transaction() as tx:
                for key in keys[start : start + _CHUNK_LETTERS]:
                    tx.send_soon(ledger, None, key=key)

    # --- which letters, and as what -----------------------------------------------------------------------------------

    def _decide(self, redriven: Redriven, found: Outcome, on_progress: Progress) -> Iterator[_Sending]:
        """What is to be sent or noted, counted in `found`. Ends early when the limit is reached."""
        total = count_of(self.where)
        brought: set[bytes] = set()
        self._gone = 0
        for number, letter in enumerate(
            read_letters(self._admin.connection, self.where, on_gone=self._count_gone), start=1
        ):
            if letter is None:
                found.other += 1
            else:
                decided = self._look_at(letter, redriven, brought, found)
                if decided is not None:
                    yield decided
            on_progress(number, total)
            if self._limit is not None and found.sent_count >= self._limit:
                break
        found.gone = self._gone

    def _count_gone(self, _place: Place, _first: int, count: int) -> None:
        self._gone += count

    def _look_at(self, letter: Letter, redriven: Redriven, brought: set[bytes], found: Outcome) -> _Sending | None:
        topic_id = self._origins.topic_id(letter.told.topic)
        if redriven.has_letter(letter):
            found.before += 1
            return None
        identity = identity_of(letter, topic_id)
        if identity in brought or redriven.has_record(letter, topic_id):
            # Noted even where it was not chosen: its own entry must outlive that of the letter which brought it back.
            found.doubles += 1
            return _Sending(letter, topic_id, send=False)
        if not self._selection.takes(letter):
            found.passed += 1
            return None
        ready = self._prepare(letter, topic_id)
        if isinstance(ready, str):
            found.left[ready] += 1
            return None
        brought.add(identity)
        found.sent[letter.told.topic] += 1
        return ready

    def _type_of(self, topic: str) -> Topic[Any] | None:
        declared = self._topics.get(topic)
        return declared if declared is not None and declared.schema is not None else None

    def _prepare(self, letter: Letter, topic_id: str) -> _Sending | str:
        """The record to send, or why it must stay."""
        target = self._origins[letter.told.topic]
        if target is None or (letter.told.cut and self._fix is None):
            cut = f"only a part of its {letter.told.cut} bytes was kept"
            return cut if target is not None else f"its topic {letter.told.topic} is not there any more"
        raw = value = letter.record.raw
        if self._fix is not None and raw is not None:
            value = self._fix(letter, open_value(self._admin.connection.registry, raw))
            if value is None:
                return LEFT_BY_FIX
        key, header = letter.record.key, None
        declared = self._type_of(letter.told.topic)
        if value is None:
            if key is None or (declared is not None and not declared.compact):
                return "it has no value, which only a record with a key in a compacted topic may be without"
        elif declared is not None and declared.schema is not None:
            wire = wire_of(declared, self._admin.connection.registry)
            try:
                if declared.registered and not is_framed(value):
                    # A fix sees and gives JSON; so does a source that could not make a record of what it got.
                    value = wire.pack(value)
                event = wire.decode(value)
            except (RecordUnreadableError, EventInvalidError) as error:
                return pattern_of(f"still not a {declared.schema.name}", str(error.fields["reason"]))
            if value != raw:
                # What the fix made is an event of the type: it has the type's name and key.
                header = declared.schema.header
                if declared.schema.key_field is not None:
                    key = _as_bytes(declared.schema.key_of(event))
        ready = _Sending(letter, topic_id, key, value, _headers(letter, header))
        limit = _limit_of(target.config)
        if ready.size > limit:
            return f"it is larger than {target.name} takes (max.message.bytes={limit})"
        return ready


def _send(tx: Transaction, each: _Sending) -> None:
    tx.send_soon(each.letter.told.topic, each.value, key=each.key, headers=each.headers)


def _headers(letter: Letter, schema: tuple[str, bytes] | None) -> tuple[tuple[str, bytes | None], ...]:
    """The record's own headers, with the type of what the fix made, and the letter it was."""
    replaced = {REDRIVEN} if schema is None else {REDRIVEN, SCHEMA_HEADER}
    own = [each for each in letter.told.headers if each[0] not in replaced]
    record = letter.record
    mark = f"{record.topic}/{record.partition}/{record.offset}".encode()
    return (*own, *([] if schema is None else [schema]), (REDRIVEN, mark))


def _as_bytes(key: str | bytes | None) -> bytes | None:
    return key.encode() if isinstance(key, str) else key


def _limit_of(config: Mapping[str, Any]) -> int:
    found = config.get("max.message.bytes")
    return int(found.value) if found is not None else _LARGEST_BATCH
