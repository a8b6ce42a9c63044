"""One part of a source, from its last position into its topic, exactly once.

A life begins with taking over the part's transactional id, which ends whatever an earlier holder had begun, and then reading
the position. When anything fails, nobody knows what is committed: the life is over, and the next one asks. What was read is
sent, checked, in one transaction with the position behind it.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from riverrun.connectors.ledger import Change, Kept, ledger_of, mark_change, position_change, read_ledger
from riverrun.connectors.shaping import Shaped, Shaper
from riverrun.connectors.standing import Standing, now_ms
from riverrun.connectors.trying import Pauses, Reminder, is_final
from riverrun.errors import FencedError, RiverrunError
from riverrun.kafka.admin.admin import Admin
from riverrun.kafka.connection import Connection
from riverrun.kafka.consumer.dead_letter import DeadLetters
from riverrun.kafka.producer.producer import Producer
from riverrun.model.connector import Items, Position, Reader, Source
from riverrun.model.topic import Topic

_LOG = logging.getLogger("riverrun.connectors")

# Open only while its records are on their way: after a crash, readers wait for it this long, or until the next life.
TRANSACTION_SECONDS = 15.0
# A transaction has at most about so many records and bytes; a `read` is never divided.
MOST_RECORDS = 10_000
MOST_BYTES = 4 << 20
# How long an item waits for company when nothing else is there, and how long a flow that does not end is gathered.
LINGER_SECONDS = 0.02
MOST_SECONDS = 0.2
IDLE_SECONDS = 0.05
LAG_SECONDS = 0.5
MOST_POSITION_TEXT = 2000
_NO_LIMIT = 1_048_588

_encode = msgspec.json.Encoder(order="deterministic").encode


@dataclass(frozen=True)
class Feed:
    """A source and the topic it fills. `name` is the connector's."""

    app: str
    name: str
    topic: Topic[Any]
    source: Source

    def transactional_id(self, part: str) -> str:
        return f"riverrun.connectors.{self.app}.{self.name}.{part}"

    @property
    def group(self) -> str:
        """Who its dead letters say that they are from."""
        return f"{self.app}.{self.name}"


@dataclass
class Gathered:
    """What goes into one transaction."""

    records: list[Shaped] = field(default_factory=list)
    dead: int = 0
    size: int = 0
    position: Position = None
    marks: dict[str, Any] = field(default_factory=dict)
    reads: int = 0
    last: bool = False
    # Why the reader could not be read any further; raised when the rest is committed.
    failure: Exception | None = None

    def add(self, items: Items, shaper: Shaper) -> None:
        for item in items.items:
            shaped, is_dead = shaper.shape(item)
            self.records.append(shaped)
            self.dead += is_dead
            self.size += shaped.size
        self.position = items.position
        self.marks |= items.marks or {}
        self.last = self.last or items.last
        self.reads += 1

    @property
    def full(self) -> bool:
        return len(self.records) >= MOST_RECORDS or self.size >= MOST_BYTES or self.last


class PartRunner(threading.Thread):
    """Runs one part until `stop`, or until it is over. `fenced` is told when somebody else has its id."""

    def __init__(
        self,
        connection: Connection,
        feed: Feed,
        part: str,
        standing: Standing,
        stop: threading.Event,
        *,
        fenced: Callable[[FencedError], None] = lambda _error: None,
        notice: Callable[[str], None] = _LOG.warning,
    ) -> None:
        super().__init__(name=standing.who, daemon=True)
        self._connection = connection
        self._feed = feed
        self._part = part
        self._standing = standing
        self._halt = stop
        self._fenced = fenced
        self._notice = notice
        self._pauses = Pauses()
        self._reminder = Reminder()
        self._lag_at = 0.0
        # Whether its reader said that there is no more.
        self.finished = False

    def run(self) -> None:
        standing = self._standing
        while not self._halt.is_set():
            standing.become("starting", standing.error)
            try:
                self._live()
                self.finished = not self._halt.is_set()
                standing.become("finished" if self.finished else "stopped")
                return
            except FencedError as error:
                standing.become("retrying", str(error))
                self._fenced(error)
                self._rest(error)
            except Exception as error:  # noqa: BLE001  -- a source is anybody's code: whatever it raises is told and tried again
                if is_final(error):
                    standing.become("failed", _words(error))
                    self._notice(f"{standing.who} has failed, and is not tried again: {_words(error)}")
                    return
                standing.become("retrying", _words(error))
                self._rest(error)
        standing.become("stopped", standing.error)

    def _rest(self, error: Exception) -> None:
        pause = self._pauses.next()
        _LOG.debug("%s failed", self._standing.who, exc_info=error)
        if self._reminder.due(_words(error)):
            self._notice(f"{self._standing.who} is tried again in {pause:g} s: {_words(error)}")
        self._halt.wait(pause)

    def _live(self) -> None:
        feed = self._feed
        dead_letters = DeadLetters(self._connection, feed.group)
        dead_letters.prepare([feed.topic.name])
        shaper, limits = self._shaper(dead_letters)
        producer = Producer(
            self._connection,
            transactional_id=feed.transactional_id(self._part),
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
            ledger = read_ledger(self._connection, feed.app)
            kept = ledger.positions.get((feed.name, self._part)) or Kept(None)
            self._standing.records, self._standing.dead = kept.records, kept.dead
            self._standing.position = _position_text(kept.position)
            marks = ledger.marks.get((feed.name, self._part), {})
            position = kept.position if feed.source.remembers else None
            reader = feed.source.open_with(self._part, position, marks)
            try:
                self._pump(producer, reader, shaper, position)
            finally:
                reader.close()
        finally:
            with contextlib.suppress(RiverrunError):
                producer.close(1.0)

    def _shaper(self, dead_letters: DeadLetters) -> tuple[Shaper, tuple[int, int]]:
        feed = self._feed
        dead_topic = dead_letters.topic_for(feed.topic.name)
        limit, dead_limit = self._limit_of(feed.topic.name), self._limit_of(dead_topic)
        shaper = Shaper(
            feed.topic,
            dead_topic,
            group=feed.group,
            limit=limit,
            dead_limit=dead_limit,
            registry=self._connection.registry,
        )
        return shaper, (limit, dead_limit)

    def _limit_of(self, topic: str) -> int:
        """How large a record of a topic may be."""
        config = Admin(self._connection).topic(topic).config.get("max.message.bytes")
        return int(config.value) if config is not None else _NO_LIMIT

    def _pump(self, producer: Producer, reader: Reader, shaper: Shaper, position: Position) -> None:
        while not self._halt.is_set():
            gathered = self._gather(reader, shaper)
            if gathered is None:
                continue
            if gathered.records or gathered.marks or gathered.position != position:
                self._commit(producer, gathered)
                position = gathered.position
                self._pauses.reset()
                self._reminder.reset()
            reader.acknowledged(gathered.position)
            if gathered.failure is not None:
                raise gathered.failure
            if gathered.last:
                return

    def _gather(self, reader: Reader, shaper: Shaper) -> Gathered | None:
        """What the reader has, until it has no more, there is enough, or it has waited long enough. None: nothing."""
        first = reader.read()
        self._look_at_lag(reader)
        if first is None:
            self._standing.become("waiting")
            reader.wait(IDLE_SECONDS)
            return None
        self._standing.become("running")
        began = time.monotonic()
        gathered = Gathered()
        gathered.add(first, shaper)
        while not gathered.full and not self._halt.is_set():
            waited = time.monotonic() - began
            if waited >= MOST_SECONDS:
                break
            try:
                more = reader.read()
            except Exception as error:  # noqa: BLE001  -- what it gave before is good, and may be nowhere else
                gathered.failure = error
                break
            if more is not None:
                gathered.add(more, shaper)
            elif waited >= LINGER_SECONDS:
                break
            else:
                reader.wait(LINGER_SECONDS - waited)
        return gathered

    def _commit(self, producer: Producer, gathered: Gathered) -> None:
        standing, ledger = self._standing, ledger_of(self._feed.app)
        records, dead = standing.records + len(gathered.records), standing.dead + gathered.dead
        with producer.transaction() as transaction:
            send = transaction.send_soon
            for topic, data, key, headers, when in gathered.records:
                send(topic, data, key=key, headers=headers, timestamp=when)
            for key, value in self._changes(gathered, records, dead):
                send(ledger, value, key=key)
        standing.records, standing.dead, standing.committed_ms = records, dead, now_ms()
        standing.position = _position_text(gathered.position)

    def _changes(self, gathered: Gathered, records: int, dead: int) -> list[Change]:
        feed = self._feed
        kept = Kept(gathered.position if feed.source.remembers else None, records, dead, now_ms())
        changes = [position_change(feed.name, self._part, kept)]
        return changes + [mark_change(feed.name, self._part, mark, value) for mark, value in gathered.marks.items()]

    def _look_at_lag(self, reader: Reader) -> None:
        now = time.monotonic()
        if now - self._lag_at >= LAG_SECONDS:
            self._lag_at = now
            self._standing.lag, self._standing.lag_unit = reader.lag(), self._feed.source.lag_unit


def _words(error: Exception) -> str:
    return str(error) if isinstance(error, RiverrunError) else f"{type(error).__name__}: {error}"


def _position_text(position: Position) -> str:
    text: str = _encode(position).decode() if position is not None else ""
    return text if len(text) <= MOST_POSITION_TEXT else f"{text[:MOST_POSITION_TEXT]}…"
