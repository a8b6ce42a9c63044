"""The alert engine: reads watched topics, evaluates rules, and commits the results in one transaction with the offsets.

So after any crash the state topic and the offsets to resume from match. `AlertLog` is all it needs of Kafka;
`KafkaAlertLog` is the real one. The sender, in its own threads, calls `due` and `save_deliveries`.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from riverrun.alerts.channels.contract import AlertMessage, DeliveryStatus
from riverrun.alerts.incidents import IncidentEvent, IncidentTracker
from riverrun.alerts.notifications import Notifier
from riverrun.alerts.rows import RejectedRowError, RowReader, WatchedRow
from riverrun.alerts.rules import Rule
from riverrun.alerts.state_topic import (
    AlertChange,
    AlertInstance,
    AlertRecord,
    AlertState,
    DeliveryReportRecord,
    PartitionPosition,
    build_alert_state,
    encode_tombstone,
    encode_upsert,
    new_state_metadata,
)
from riverrun.errors import TransactionError

_LOG = logging.getLogger("riverrun.alerts")
# How often changes that nobody waits for are committed: instances that did not fire, and offsets.
_COMMIT_MS = 1000
_SWEEP_MS = 60_000

PartitionKey = tuple[str, int]


@dataclass(frozen=True)
class InputRecord:
    """A record of a watched topic. `record_time` is its Kafka timestamp."""

    topic: str
    partition: int
    offset: int
    record_time: int
    value: bytes | None
    identity: str = ""


@dataclass(frozen=True)
class PollResult:
    """What was read: records, the partitions that have more, what others wrote to the state topic, and each partition's
    next offset. Transaction markers, which are not records, may follow the last record."""

    records: Sequence[InputRecord] = ()
    lagging: frozenset[PartitionKey] = frozenset()
    state_changes: Sequence[AlertChange] = ()
    next_offsets: Mapping[PartitionKey, int] = field(default_factory=dict)


class AlertLog(Protocol):
    """Kafka, as the engine sees it."""

    def restore(self) -> Iterable[AlertChange]:
        """Read all records of the state topic. From here on, an earlier process is fenced and cannot write to it."""

    def seek(self, positions: Mapping[PartitionKey, PartitionPosition]) -> Iterable[PartitionPosition]:
        """Start reading at these positions, and at the end of partitions without one. Returns where that is."""

    def poll(self) -> PollResult:
        """Return what arrived within a short wait."""

    def commit(self, changes: Sequence[AlertChange]) -> None:
        """Write these changes and commit the offsets of all that was read: both or none. Raises when that is not certain."""

    def append(self, changes: Sequence[AlertChange]) -> None:
        """Write the sender's changes at once. May be called from other threads."""


@dataclass
class EvaluationCounts:
    """Counts since the process started. A rejected row does not fit its table: the store has it as a dead letter."""

    rows: int = 0
    duplicates: int = 0
    rejected_rows: int = 0
    reject_reasons: dict[str, int] = field(default_factory=dict)


class RuleEvaluator:
    """Evaluates records by all rules. Uses no clock and no Kafka."""

    def __init__(self, rules: Iterable[Rule], state: AlertState) -> None:
        self.counts = EvaluationCounts()
        self._readers: dict[str, list[tuple[RowReader, list[IncidentTracker]]]] = {}
        self._positions = dict(state.positions)
        self._moved_partitions: set[PartitionKey] = set()
        instances: dict[str, list[AlertInstance]] = {}
        for instance in state.episodes.values():
            instances.setdefault(instance.rule, []).append(instance)
        for rule in rules:
            tracker = IncidentTracker(rule, instances.get(rule.name, ()))
            readers = self._readers.setdefault(rule.table.topic, [])
            shared_trackers = next((trackers for reader, trackers in readers if reader.table == rule.table), None)
            if shared_trackers is None:
                readers.append((RowReader(rule.table), [tracker]))
            else:
                shared_trackers.append(tracker)
            instances.pop(rule.name, None)
        # Instances of rules that no longer exist.
        self._orphans = [instance for rule_instances in instances.values() for instance in rule_instances]
        self._swept_at: int | None = None
        self._orphan_changes: list[AlertChange] = []

    def start(self, positions: Iterable[PartitionPosition]) -> None:
        """Set where reading starts, for partitions that have no position yet."""
        for position in positions:
            self._positions[position.topic, position.partition] = position
            self._moved_partitions.add((position.topic, position.partition))

    @property
    def positions(self) -> Mapping[PartitionKey, PartitionPosition]:
        return self._positions

    def advance_positions(self, offsets: Mapping[PartitionKey, int]) -> None:
        """Note that all records before these offsets were given to `evaluate`."""
        for partition, offset in offsets.items():
            position = self._positions.get(partition)
            if position is not None and offset > position.offset:
                self._positions[partition] = msgspec.structs.replace(position, offset=offset)
                self._moved_partitions.add(partition)

    def evaluate(self, records: Sequence[InputRecord], lagging: Iterable[PartitionKey] = ()) -> Iterator[IncidentEvent]:
        """Evaluate records, and yield what fired or resolved."""
        for _, effects in self.evaluate_timed(records, lagging):
            yield from effects

    def evaluate_timed(
        self, records: Sequence[InputRecord], lagging: Iterable[PartitionKey] = ()
    ) -> Iterator[tuple[int, list[IncidentEvent]]]:
        """Evaluate records in the order they were written, as far as their partitions tell. Yields each record's Kafka
        timestamp and its events."""
        # A partition also lags while records of it wait in this batch.
        remaining = Counter((record.topic, record.partition) for record in records)
        remaining.update(lagging)
        for record in _order_by_time(records):
            partition = record.topic, record.partition
            remaining[partition] -= 1
            if not remaining[partition]:
                del remaining[partition]
            position = self._positions.get(partition)
            if position is not None and record.offset < position.offset:
                self.counts.duplicates += 1
                continue
            topic_id = position.topic_id if position is not None else ""
            self._positions[partition] = PartitionPosition(
                topic=record.topic, partition=record.partition, offset=record.offset + 1, topic_id=topic_id
            )
            self._moved_partitions.add(partition)
            if record.value is not None:
                yield record.record_time, list(self._evaluate_record(record, remaining))

    def _evaluate_record(self, record: InputRecord, lagging: Iterable[PartitionKey]) -> Iterator[IncidentEvent]:
        lagging_partitions = [partition for topic, partition in lagging if topic == record.topic]
        for reader, trackers in self._readers.get(record.topic, ()):
            try:
                row = reader.read(
                    record.partition, record.offset, record.record_time, record.value or b"", record.identity
                )
            except RejectedRowError as error:
                self.counts.rejected_rows += 1
                reason = str(error).partition(":")[0]
                self.counts.reject_reasons[reason] = self.counts.reject_reasons.get(reason, 0) + 1
                continue
            self.counts.rows += 1
            for tracker in trackers:
                yield from tracker.evaluate(row)
                yield from tracker.advance_clock(row, lagging_partitions)

    def advance_time(self, topic: str, to: int) -> Iterator[tuple[int, list[IncidentEvent]]]:
        """Advance a topic's clock to `to` without rows. Yields each moment at which keys became absent, and the events of
        it."""
        trackers = [tracker for _, table_trackers in self._readers[topic] for tracker in table_trackers]
        at = -1
        while at < to:
            at = max(at + 1, min([to, *(tracker.next_due for tracker in trackers)]))
            row = WatchedRow(topic, 0, 0, at, at, {})
            for tracker in trackers:
                tracker.clock.advance_to(at)
            yield at, [effect for tracker in trackers for effect in tracker.fire_absences(tracker.clock.now(), row)]

    def sweep(self, now: int, incidents: Iterable[tuple[str, str, int]]) -> list[IncidentEvent]:
        """Remove keys without recent rows, once a minute. `incidents` are those that are still kept."""
        if self._swept_at is not None and now - self._swept_at < _SWEEP_MS:
            return []
        self._swept_at = now
        with_incidents = {(rule, key) for rule, key, _ in incidents}
        self._retire_orphans(with_incidents)
        trackers = [
            tracker for readers in self._readers.values() for _, table_trackers in readers for tracker in table_trackers
        ]
        return [effect for tracker in trackers for effect in tracker.sweep(now, with_incidents)]

    def _retire_orphans(self, with_incidents: Container[tuple[str, str]]) -> None:
        """Clear instances of removed rules. A rule that returns while it has incidents keeps counting."""
        for orphan in self._orphans:
            if (orphan.rule, orphan.key) not in with_incidents:
                self._orphan_changes.append(encode_tombstone(orphan))
            elif orphan.state != "quiet":
                orphan.state, orphan.since = "quiet", -1
                self._orphan_changes.append(encode_upsert(orphan))
        self._orphans = [orphan for orphan in self._orphans if (orphan.rule, orphan.key) in with_incidents]

    def drain(self) -> list[AlertChange]:
        """Return the records to write since the last call."""
        changed: list[AlertRecord] = [self._positions[partition] for partition in sorted(self._moved_partitions)]
        removed: list[AlertRecord] = []
        self._moved_partitions.clear()
        for readers in self._readers.values():
            for _, trackers in readers:
                for tracker in trackers:
                    changed += tracker.drain_changed()
                    removed += tracker.drain_removed()
        # A key that was removed and came back stays.
        changes = dict(map(encode_tombstone, removed)) | dict(map(encode_upsert, changed)) | dict(self._orphan_changes)
        self._orphan_changes = []
        return list(changes.items())


def _order_by_time(records: Sequence[InputRecord]) -> Sequence[InputRecord]:
    """Sort by Kafka timestamp across partitions, and by offset within each."""
    newest: dict[PartitionKey, int] = {}
    marked = []
    for record in records:
        partition = record.topic, record.partition
        newest[partition] = max(newest.get(partition, -1), record.record_time)
        marked.append((newest[partition], partition, record.offset, record))
    marked.sort(key=lambda mark: mark[:3])
    return [record for *_, record in marked]


class AlertEngine:
    """One run of the alert process. When `step` or `save_deliveries` raises, it is unusable: make a new one, which restores
    from the state topic."""

    def __init__(
        self,
        rules: Sequence[Rule],
        log: AlertLog,
        *,
        clock: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        on_new: Callable[[], None] = lambda: None,
        on_reports: Callable[[Sequence[DeliveryReportRecord]], None] = lambda _: None,
    ) -> None:
        self._log = log
        self._on_reports = on_reports
        self._clock = clock
        self._on_new = on_new
        self._lock = threading.Lock()
        state = build_alert_state(log.restore())
        # Changes for the next commit, besides those of the evaluator and the notifier.
        self._extra_changes: list[AlertChange] = []
        # Delivery reports that came while no process was running.
        self._reports = list(state.reports.values())
        if not state.namespace:
            meta = new_state_metadata()
            state.put(meta)
            self._extra_changes = [encode_upsert(meta)]
        self.namespace = state.namespace
        self.evaluator = RuleEvaluator(rules, state)
        self.notifier = Notifier(rules, state)
        # The evaluator owns the instances now, and removes them.
        state.episodes.clear()
        self._committed_at = 0
        self._failed = False
        # Positions are committed before the first row, or a crash would lose where reading started.
        self.evaluator.start(log.seek(self.evaluator.positions))
        self._commit(clock())

    def step(self) -> int:
        """Poll, evaluate and commit once. Returns the number of records."""
        polled = self._log.poll()
        now = self._clock()
        with self._lock:
            for key, value in polled.state_changes:
                self._apply_external_change(key, value)
            for effect in self.evaluator.sweep(now, self.notifier.state.incidents):
                self.notifier.handle(effect, now)
            for effect in self.evaluator.evaluate(polled.records, polled.lagging):
                self.notifier.handle(effect, now)
            self.evaluator.advance_positions(polled.next_offsets)
            self.notifier.tick(now)
            commit_due = self.notifier.changed or now - self._committed_at >= _COMMIT_MS
        self._process_reports()
        if commit_due:
            self._commit(now)
        return len(polled.records)

    def _apply_external_change(self, key: bytes, value: bytes | None) -> None:
        if value is None:
            self.notifier.state.apply_change(key, None)
        elif isinstance(record := AlertState().apply_change(key, value), DeliveryReportRecord):
            self._reports.append(record)
        elif record is not None:
            self.notifier.apply_user_action(record)

    def _process_reports(self) -> None:
        """Merge delivery reports into the delivery statuses, and remove the reports."""
        reports, self._reports = self._reports, []
        if reports:
            self._on_reports(reports)
            self._extra_changes += [encode_tombstone(report) for report in reports]

    def _commit(self, now: int) -> None:
        with self._lock:
            changes = [*self._extra_changes, *self.evaluator.drain(), *self.notifier.drain()]
        self._committed_at = now
        if not changes:
            return
        try:
            self._log.commit(changes)
        except BaseException:
            self._failed = True
            raise
        self._extra_changes = []
        with self._lock:
            new = self.notifier.mark_committed()
        if new:
            self._on_new()

    def close(self) -> None:
        """Commit what is still uncommitted."""
        self._commit(self._clock())

    # --- for the sender ---

    def due(self, now: int) -> list[tuple[AlertMessage, DeliveryStatus]]:
        """Messages to send, oldest first: only those committed to the state topic."""
        with self._lock:
            return [] if self._failed else self.notifier.due(now)

    def find_by_provider_id(self, provider_id: str) -> tuple[str, DeliveryStatus] | None:
        """The id and delivery status of the message that the provider knows by this id."""
        with self._lock:
            return self.notifier.find_by_provider_id(provider_id)

    def save_deliveries(self, changes: Mapping[str, DeliveryStatus]) -> None:
        """Save delivery statuses. Returns when they are durable."""
        with self._lock:
            if self._failed:
                raise TransactionError("What the state topic has is not known any more", hint="Begin anew from it")
            records = self.notifier.encode_deliveries(changes)
        try:
            self._log.append(records)
        except BaseException:
            self._failed = True
            raise
        with self._lock:
            self.notifier.apply_deliveries(changes)
