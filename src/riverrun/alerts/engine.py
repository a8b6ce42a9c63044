"""The alert process: reads what rules watch, judges it, and keeps what came of it in one transaction with how far it read.

So after any crash the ledger and the place to go on from are of one moment. `Log` is all it needs of Kafka; `KafkaLog` is
the real one. The sender, in threads of its own, asks `due` and says `moved`.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from riverrun.alerts.channels.contract import Delivery, Message
from riverrun.alerts.episodes import Effect, Tracker
from riverrun.alerts.ledger import (
    Change,
    Episode,
    Ledger,
    Position,
    Record,
    Reported,
    folded,
    forgotten,
    kept,
    new_meta,
)
from riverrun.alerts.manners import Desk
from riverrun.alerts.rows import MisfitError, RowReader, Seen
from riverrun.alerts.rules import Rule
from riverrun.errors import TransactionError

_LOG = logging.getLogger("riverrun.alerts")
# What nobody waits for is kept this often: episodes that did not fire, and how far we are.
_COMMIT_MS = 1000
_SWEEP_MS = 60_000

Place = tuple[str, int]


@dataclass(frozen=True)
class Incoming:
    """A record of a watched topic. `recorded` is Kafka's time of it."""

    topic: str
    partition: int
    offset: int
    recorded: int
    value: bytes | None
    identity: str = ""


@dataclass(frozen=True)
class Arrived:
    """What came: records, the partitions of which there is more, what others wrote into the ledger, and the offset to read
    next of each partition. Behind the last record there may be marks of transactions, which are no records."""

    records: Sequence[Incoming] = ()
    behind: frozenset[Place] = frozenset()
    told: Sequence[Change] = ()
    next: Mapping[Place, int] = field(default_factory=dict)


class Log(Protocol):
    """Kafka, as the engine sees it."""

    def restore(self) -> Iterable[Change]:
        """All records of the ledger. From here on no other process can write to it as we do."""

    def begin(self, positions: Mapping[Place, Position]) -> Iterable[Position]:
        """Begin to read behind these positions, and at the end of what has none. Gives where that is."""

    def read(self) -> Arrived:
        """What came within a moment."""

    def commit(self, changes: Sequence[Change]) -> None:
        """Keep these changes, and that all that was read is done: both or none. Raises when it is not sure that it did."""

    def note(self, changes: Sequence[Change]) -> None:
        """Keep these changes of the sender, now. May be called from other threads."""


@dataclass
class Counts:
    """Since this process began. A misfit is a record that is no row of its table: the store has it as a dead letter."""

    rows: int = 0
    again: int = 0
    misfits: int = 0
    reasons: dict[str, int] = field(default_factory=dict)


class Watch:
    """Judges records by all rules. No clock, no Kafka."""

    def __init__(self, rules: Iterable[Rule], ledger: Ledger) -> None:
        self.counts = Counts()
        self._readers: dict[str, list[tuple[RowReader, list[Tracker]]]] = {}
        self._positions = dict(ledger.positions)
        self._moved: set[Place] = set()
        episodes: dict[str, list[Episode]] = {}
        for each in ledger.episodes.values():
            episodes.setdefault(each.rule, []).append(each)
        for rule in rules:
            tracker = Tracker(rule, episodes.get(rule.name, ()))
            readers = self._readers.setdefault(rule.table.topic, [])
            same = next((trackers for reader, trackers in readers if reader.table == rule.table), None)
            if same is None:
                readers.append((RowReader(rule.table), [tracker]))
            else:
                same.append(tracker)
            episodes.pop(rule.name, None)
        # Of rules that are gone.
        self._orphans = [each for several in episodes.values() for each in several]
        self._swept: int | None = None
        self._sorted_out: list[Change] = []

    def start(self, positions: Iterable[Position]) -> None:
        """Where reading begins, of partitions that have no place yet."""
        for each in positions:
            self._positions[each.topic, each.partition] = each
            self._moved.add((each.topic, each.partition))

    @property
    def positions(self) -> Mapping[Place, Position]:
        return self._positions

    def reached(self, offsets: Mapping[Place, int]) -> None:
        """All before these offsets was given to `take`."""
        for place, offset in offsets.items():
            position = self._positions.get(place)
            if position is not None and offset > position.offset:
                self._positions[place] = msgspec.structs.replace(position, offset=offset)
                self._moved.add(place)

    def take(self, records: Sequence[Incoming], behind: Iterable[Place] = ()) -> Iterator[Effect]:
        """Judge records."""
        for _, effects in self.timed(records, behind):
            yield from effects

    def timed(self, records: Sequence[Incoming], behind: Iterable[Place] = ()) -> Iterator[tuple[int, list[Effect]]]:
        """Judge records, in the order in which they were written as far as their partitions tell: Kafka's time of each, and
        what came of it."""
        # A partition is behind, too, while records of it wait in this batch.
        left = Counter((each.topic, each.partition) for each in records)
        left.update(behind)
        for record in _merged(records):
            place = record.topic, record.partition
            left[place] -= 1
            if not left[place]:
                del left[place]
            position = self._positions.get(place)
            if position is not None and record.offset < position.offset:
                self.counts.again += 1
                continue
            topic_id = position.topic_id if position is not None else ""
            self._positions[place] = Position(
                topic=record.topic, partition=record.partition, offset=record.offset + 1, topic_id=topic_id
            )
            self._moved.add(place)
            if record.value is not None:
                yield record.recorded, list(self._judged(record, left))

    def _judged(self, record: Incoming, behind: Iterable[Place]) -> Iterator[Effect]:
        late = [partition for topic, partition in behind if topic == record.topic]
        for reader, trackers in self._readers.get(record.topic, ()):
            try:
                seen = reader.read(
                    record.partition, record.offset, record.recorded, record.value or b"", record.identity
                )
            except MisfitError as error:
                self.counts.misfits += 1
                reason = str(error).partition(":")[0]
                self.counts.reasons[reason] = self.counts.reasons.get(reason, 0) + 1
                continue
            self.counts.rows += 1
            for tracker in trackers:
                yield from tracker.take(seen)
                yield from tracker.follow(seen, late)

    def advance(self, topic: str, to: int) -> Iterator[tuple[int, list[Effect]]]:
        """The time of a topic moves as if rows of nobody's came until then: each moment at which a key was silent for too
        long, and what came of it."""
        trackers = [each for _, several in self._readers[topic] for each in several]
        at = -1
        while at < to:
            at = max(at + 1, min([to, *(each.next_due for each in trackers)]))
            by = Seen(topic, 0, 0, at, at, {})
            for each in trackers:
                each.clock.reach(at)
            yield at, [effect for each in trackers for effect in each.pass_time(each.clock.now(), by)]

    def sweep(self, now: int, cases: Iterable[tuple[str, str, int]]) -> list[Effect]:
        """Forget keys that nobody hears of any more, once a minute. `cases` are those that are not forgotten."""
        if self._swept is not None and now - self._swept < _SWEEP_MS:
            return []
        self._swept = now
        told = {(rule, key) for rule, key, _ in cases}
        self._sort_out(told)
        trackers = [tracker for readers in self._readers.values() for _, several in readers for tracker in several]
        return [effect for tracker in trackers for effect in tracker.sweep(now, told)]

    def _sort_out(self, told: Container[tuple[str, str]]) -> None:
        """A rule that is gone holds of nobody. It counts on if it comes back while there are cases of it."""
        for each in self._orphans:
            if (each.rule, each.key) not in told:
                self._sorted_out.append(forgotten(each))
            elif each.state != "quiet":
                each.state, each.since = "quiet", -1
                self._sorted_out.append(kept(each))
        self._orphans = [each for each in self._orphans if (each.rule, each.key) in told]

    def drain(self) -> list[Change]:
        """What has to be kept since the last call."""
        found: list[Record] = [self._positions[place] for place in sorted(self._moved)]
        gone: list[Record] = []
        self._moved.clear()
        for readers in self._readers.values():
            for _, trackers in readers:
                for tracker in trackers:
                    found += tracker.drain()
                    gone += tracker.forgotten()
        # A key that was forgotten and came back is kept.
        changes = dict(map(forgotten, gone)) | dict(map(kept, found)) | dict(self._sorted_out)
        self._sorted_out = []
        return list(changes.items())


def _merged(records: Sequence[Incoming]) -> Sequence[Incoming]:
    """By Kafka's time across partitions, and within each as they lie."""
    newest: dict[Place, int] = {}
    marked = []
    for each in records:
        place = each.topic, each.partition
        newest[place] = max(newest.get(place, -1), each.recorded)
        marked.append((newest[place], place, each.offset, each))
    marked.sort(key=lambda mark: mark[:3])
    return [each for *_, each in marked]


class Engine:
    """One life of the alert process. When `step` or `moved` raises, it is over: make a new one, from the ledger."""

    def __init__(
        self,
        rules: Sequence[Rule],
        log: Log,
        *,
        clock: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        on_new: Callable[[], None] = lambda: None,
        on_reports: Callable[[Sequence[Reported]], None] = lambda _: None,
    ) -> None:
        self._log = log
        self._on_reports = on_reports
        self._clock = clock
        self._on_new = on_new
        self._lock = threading.Lock()
        ledger = folded(log.restore())
        # What is to be kept with the next commit besides what was decided.
        self._besides: list[Change] = []
        # What providers said while nobody was there to hear it.
        self._reports = list(ledger.reports.values())
        if not ledger.namespace:
            meta = new_meta()
            ledger.put(meta)
            self._besides = [kept(meta)]
        self.namespace = ledger.namespace
        self.watch = Watch(rules, ledger)
        self.desk = Desk(rules, ledger)
        # The watch has them now, and forgets them.
        ledger.episodes.clear()
        self._kept_at = 0
        self._failed = False
        # A place to go on from is kept before the first row, or a crash would forget where we began.
        self.watch.start(log.begin(self.watch.positions))
        self._commit(clock())

    def step(self) -> int:
        """One turn: read, judge, keep. How many records there were."""
        arrived = self._log.read()
        now = self._clock()
        with self._lock:
            for key, value in arrived.told:
                self._told(key, value)
            for effect in self.watch.sweep(now, self.desk.ledger.cases):
                self.desk.take(effect, now)
            for effect in self.watch.take(arrived.records, arrived.behind):
                self.desk.take(effect, now)
            self.watch.reached(arrived.next)
            self.desk.tick(now)
            wanted = self.desk.changed or now - self._kept_at >= _COMMIT_MS
        self._hear()
        if wanted:
            self._commit(now)
        return len(arrived.records)

    def _told(self, key: bytes, value: bytes | None) -> None:
        if value is None:
            self.desk.ledger.take(key, None)
        elif isinstance(record := Ledger().take(key, value), Reported):
            self._reports.append(record)
        elif record is not None:
            self.desk.told(record)

    def _hear(self) -> None:
        """Reports become part of where messages stand, and then nobody needs them any more."""
        reports, self._reports = self._reports, []
        if reports:
            self._on_reports(reports)
            self._besides += [forgotten(each) for each in reports]

    def _commit(self, now: int) -> None:
        with self._lock:
            changes = [*self._besides, *self.watch.drain(), *self.desk.drain()]
        self._kept_at = now
        if not changes:
            return
        try:
            self._log.commit(changes)
        except BaseException:
            self._failed = True
            raise
        self._besides = []
        with self._lock:
            new = self.desk.published()
        if new:
            self._on_new()

    def close(self) -> None:
        """Keep what nobody waited for."""
        self._commit(self._clock())

    # --- for the sender ---

    def due(self, now: int) -> list[tuple[Message, Delivery]]:
        """Messages to send, oldest first: only what the ledger has."""
        with self._lock:
            return [] if self._failed else self.desk.due(now)

    def find(self, provider_id: str) -> tuple[str, Delivery] | None:
        """The message that a provider knows by this id, and where it stands."""
        with self._lock:
            return self.desk.find(provider_id)

    def moved(self, changes: Mapping[str, Delivery]) -> None:
        """Keep where messages stand now. It returns when that survives a crash."""
        with self._lock:
            if self._failed:
                raise TransactionError("What the ledger has is not known any more", hint="Begin anew from it")
            records = self.desk.moving(changes)
        try:
            self._log.note(records)
        except BaseException:
            self._failed = True
            raise
        with self._lock:
            self.desk.moved(changes)
