"""Tracks the incidents of one rule: from rows to "fired" and "resolved", for each key.

    quiet ──when──▶ pending ──for as long as `lasting`, and after the cooldown──▶ firing ──clear──▶ quiet
              └── no longer holds ──▶ quiet

All times are event times, so the same rows give the same incidents whenever they are read. A row that is older than the
newest of its key changes nothing. Absence is measured by the clock of the whole topic (`advance_clock`). Only `sweep`,
which removes keys, uses the wall clock.
"""

import heapq
from collections.abc import Container, Iterable
from dataclasses import dataclass
from typing import Any

from riverrun.alerts.rows import WatchedRow, row_from_json, row_to_json
from riverrun.alerts.rules import Rule
from riverrun.alerts.state_topic import AlertInstance

# Beyond this many keys, those that never fired are evicted: whoever writes the events chooses the keys.
MAX_IDLE_KEYS = 100_000
NEVER = 2**62
# Incidents resolved this long ago are removed, and so are keys without rows: at most `MAX_SWEPT` at a time.
RETENTION_MS = 30 * 86_400_000
MAX_SWEPT = 5000
_MAX_RECENT_IDS = 32
# How exactly the newest event time of a key is saved: for absence, to an eighth of the time it may be silent; otherwise to
# the age at which a message expires. More exactly would write a record to the state topic for every row.
_SLACK_DIVISOR = 8
_HOUR_MS = 3_600_000
_DAY_MS = 86_400_000


@dataclass(frozen=True)
class IncidentFired:
    """An incident began at this row. `since` is when the condition began to hold."""

    rule: str
    key: str
    number: int
    since: int
    event_time: int
    record_time: int
    record_location: str
    row: dict[str, Any]


@dataclass(frozen=True)
class IncidentResolved:
    """An incident ended at this row."""

    rule: str
    key: str
    number: int
    event_time: int
    record_time: int
    row: dict[str, Any]


@dataclass(frozen=True)
class IncidentExpired:
    """An incident is given up: its key has had no row for so long that its state is unknown."""

    rule: str
    key: str
    number: int


IncidentEvent = IncidentFired | IncidentResolved | IncidentExpired


class IncidentTracker:
    """The alert instances of one rule, by key. `drain_changed` returns those to save."""

    def __init__(self, rule: Rule, episodes: Iterable[AlertInstance] = ()) -> None:
        self.rule = rule
        self._alert = rule.alert
        self._instances: dict[str, AlertInstance] = {instance.key: instance for instance in episodes}
        self._changed: set[str] = set()
        self._idle_limit = MAX_IDLE_KEYS
        self._stale_after_ms = self._alert.expires_ms if self._alert.expires_ms > 0 else _HOUR_MS
        self._save_interval_ms = (
            max(self._alert.silent_ms // _SLACK_DIVISOR, 1) if self._alert.silent_ms >= 0 else self._stale_after_ms
        )
        self._removed: list[AlertInstance] = []
        # A row may be half of `silent` ahead of the others: keys that send that often do not become absent by it.
        self.clock = TopicClock(max(self._alert.silent_ms, 0) // 2)
        self._topic_time = -1
        self._swept_at = -1
        self._saved_times = {key: instance.last_event_time for key, instance in self._instances.items()}
        # For these keys a newer row may have been read than was saved.
        self._restored_keys = set(self._instances)
        absent = self._instances.values() if self._alert.silent_ms >= 0 else ()
        self._due = [(self._absent_at(instance), instance.key) for instance in absent if instance.state != "firing"]
        heapq.heapify(self._due)

    def __len__(self) -> int:
        return len(self._instances)

    def instance(self, key: str) -> AlertInstance | None:
        return self._instances.get(key)

    def drain_changed(self) -> list[AlertInstance]:
        """Return the instances to save: those that changed since the last call."""
        changed = [self._instances[key] for key in self._changed if key in self._instances]
        self._changed.clear()
        return changed

    def drain_removed(self) -> list[AlertInstance]:
        """Return the instances that were removed since the last call."""
        removed, self._removed = self._removed, []
        return removed

    def evaluate(self, row: WatchedRow) -> list[IncidentEvent]:
        """Evaluate a row, and return what fired or resolved."""
        key = self.rule.key_of(row.values)
        state = self._instances.get(key)
        if state is None:
            self._evict_idle()
            state = self._instances[key] = AlertInstance(rule=self.rule.name, key=key)
            if self._alert.silent_ms >= 0:
                heapq.heappush(self._due, (row.event_time + self._alert.silent_ms, key))
        arrived_at = max(self._swept_at, row.record_time)
        if arrived_at - state.last_seen >= _DAY_MS:
            state.last_seen = arrived_at
            self._changed.add(key)
        if self._alert.every_row:
            return self._evaluate_every_row(state, row)
        if row.event_time < state.last_event_time:
            return []
        state.last_event_time = row.event_time
        if self._alert.silent_ms >= 0:
            return self._evaluate_absence(state, row)
        return self._evaluate_condition(state, row)

    def _evaluate_condition(self, state: AlertInstance, row: WatchedRow) -> list[IncidentEvent]:
        if state.state == "firing":
            self._changed.add(state.key)
            if not self.rule.is_over(row.values):
                return []
            return [self._resolve(state, row)]
        if not self.rule.holds(row.values):
            if state.state == "pending":
                state.state, state.since = "quiet", -1
                self._save(state)
            else:
                self._save_if_due(state)
            return []
        self._changed.add(state.key)
        if state.state == "quiet":
            state.state, state.since = "pending", row.event_time
        if row.event_time - state.since < self._alert.lasting_ms or not self._cooldown_passed(state, row.event_time):
            return []
        return [self._fire(state, row, "firing")]

    def _evaluate_every_row(self, state: AlertInstance, row: WatchedRow) -> list[IncidentEvent]:
        again = row.identity and row.identity in state.recent_ids
        # Rows may be out of order here; but one that is far behind its key's newest is history written again.
        old = row.event_time < state.last_event_time - self._stale_after_ms
        revised = self.rule.table.upserts and row.event_time <= state.last_event_time
        state.last_event_time = max(state.last_event_time, row.event_time)
        if again or old or revised or not self._cooldown_passed(state, row.event_time):
            return []
        if row.identity:
            state.recent_ids = [*state.recent_ids[-_MAX_RECENT_IDS + 1 :], row.identity]
        self._changed.add(state.key)
        state.since = row.event_time
        return [self._fire(state, row, "quiet")]

    def _cooldown_passed(self, state: AlertInstance, at: int) -> bool:
        return not self._alert.cooldown_ms or state.last_fired < 0 or at - state.last_fired >= self._alert.cooldown_ms

    def _fire(self, state: AlertInstance, row: WatchedRow, new_state: Any) -> IncidentFired:
        state.state, state.number = new_state, state.number + 1
        state.last_fired = max(state.last_fired, row.event_time)
        return IncidentFired(
            state.rule, state.key, state.number, state.since, row.event_time, row.record_time, str(row), dict(row.values)
        )  # fmt: skip

    def _resolve(self, state: AlertInstance, row: WatchedRow) -> IncidentResolved:
        state.state, state.since = "quiet", -1
        return IncidentResolved(state.rule, state.key, state.number, row.event_time, row.record_time, dict(row.values))

    # --- absence ---

    def _evaluate_absence(self, state: AlertInstance, row: WatchedRow) -> list[IncidentEvent]:
        self._restored_keys.discard(state.key)
        # A late row counts from its arrival. Otherwise a key later than `silent` would be absent again at once.
        state.last_arrival = max(row.event_time, self._topic_time)
        state.row = row_to_json(row.values)
        if state.state == "firing":
            heapq.heappush(self._due, (self._absent_at(state), state.key))
            self._save(state)
            return [self._resolve(state, row)]
        self._save_if_due(state)
        return []

    def _save_if_due(self, state: AlertInstance) -> None:
        saved = self._saved_times.get(state.key)
        if saved is None or state.last_event_time - saved >= self._save_interval_ms:
            self._save(state)

    def _save(self, state: AlertInstance) -> None:
        self._saved_times[state.key] = state.last_event_time
        self._changed.add(state.key)

    def _absent_at(self, state: AlertInstance) -> int:
        extra = self._save_interval_ms if state.key in self._restored_keys else 0
        return max(state.last_event_time, state.last_arrival) + max(self._alert.silent_ms, 0) + extra

    def advance_clock(self, row: WatchedRow, lagging: Iterable[int] = ()) -> list[IncidentEvent]:
        """Advance the topic's clock to this row, held back by `lagging` partitions, and fire for absent keys."""
        if self._alert.silent_ms < 0:
            return []
        self.clock.observe(row, self.rule.key_of(row.values))
        return self.fire_absences(self.clock.now(lagging), row)

    def fire_absences(self, clock: int, row: WatchedRow) -> list[IncidentEvent]:
        """Fire for the keys that are absent now that the topic's clock shows `clock`, because of this row."""
        events: list[IncidentEvent] = []
        if self._alert.silent_ms < 0:
            return events
        self._topic_time = clock
        while self._due and self._due[0][0] <= clock:
            _, key = heapq.heappop(self._due)
            state = self._instances.get(key)
            if state is None or state.state == "firing":
                continue
            if (absent_at := self._absent_at(state)) > clock:
                heapq.heappush(self._due, (absent_at, key))
                continue
            if not self._cooldown_passed(state, clock):
                heapq.heappush(self._due, (state.last_fired + self._alert.cooldown_ms, key))
                continue
            state.since = state.last_event_time
            state.state, state.number, state.last_fired = "firing", state.number + 1, clock
            self._save(state)
            events.append(
                IncidentFired(
                    state.rule, key, state.number, state.since, clock, row.record_time, str(row), self._last_row(state)
                )
            )
        return events

    @property
    def next_due(self) -> int:
        """When the next key may become absent, by the topic's clock; `NEVER` when no key is awaited."""
        return self._due[0][0] if self._due else NEVER

    def _last_row(self, state: AlertInstance) -> dict[str, Any]:
        return row_from_json(self.rule.table.columns, state.row)

    # --- removing keys ---

    def sweep(
        self, now: int, with_incidents: Container[tuple[str, str]], retention_ms: int = RETENTION_MS
    ) -> list[IncidentEvent]:
        """Remove the keys that had no row for `retention_ms`. A key that has an incident (`with_incidents`: rule and key)
        stays: it would count from one again, and its next message would be taken for one already sent."""
        self._swept_at = now
        events: list[IncidentEvent] = []
        expired_keys: list[str] = []
        for key, state in self._instances.items():
            if state.last_seen < 0:
                state.last_seen = now
                self._changed.add(key)
            if state.last_seen >= now - retention_ms:
                continue
            if (state.rule, key) not in with_incidents:
                expired_keys.append(key)
            elif state.state == "firing":
                events.append(IncidentExpired(state.rule, key, state.number))
                # An absent key stays firing: its next row resolves it.
                if self._alert.silent_ms < 0:
                    state.state, state.since = "quiet", -1
                    self._save(state)
        for key in expired_keys[:MAX_SWEPT]:
            self._remove(key)
        return events

    def _evict_idle(self) -> None:
        if len(self._instances) < self._idle_limit or self._alert.silent_ms >= 0:
            return
        idle = [key for key, instance in self._instances.items() if not instance.number and instance.state == "quiet"]
        for key in idle[: len(idle) // 2]:
            self._remove(key)
        self._idle_limit = max(MAX_IDLE_KEYS, 2 * len(self._instances))

    def _remove(self, key: str) -> None:
        self._removed.append(self._instances.pop(key))
        self._saved_times.pop(key, None)
        self._changed.discard(key)
        self._restored_keys.discard(key)


class TopicClock:
    """The clock of a topic: the newest event time of all its partitions; while a partition lags, not later than what was
    read of that one. Otherwise reading one partition ahead of another would make the other's keys absent.

    One wrong device clock must not move it. A row that is ahead by more than `max_leap_ms`, plus what has passed since by
    Kafka's timestamps, counts only when the next row is ahead too and has another key. Event time may run faster than
    Kafka's, as in history and in a sped-up demo: by small steps, or with all keys at once.
    """

    def __init__(self, max_leap_ms: int) -> None:
        self._max_leap_ms = max_leap_ms
        self._newest: dict[int, int] = {}
        self._now = -1
        # Event time and Kafka timestamp of the newest row. Before the first row, both clocks show the same.
        self._newest_mark = (0, 0)
        # The same for a row that is too far ahead, and its key.
        self._suspect: tuple[tuple[int, int], str] | None = None

    def observe(self, row: WatchedRow, key: str) -> None:
        mark = (row.event_time, row.record_time)
        if self._too_far(mark) and self._suspect is not None and self._suspect[1] != key:
            self._newest_mark = min(self._suspect[0], mark)
        if self._too_far(mark):
            self._suspect = (mark, key)
            return
        self._suspect = None
        self._newest_mark = max(self._newest_mark, mark)
        self._newest[row.partition] = max(self._newest.get(row.partition, -1), row.event_time)

    def _too_far(self, mark: tuple[int, int]) -> bool:
        (event_time, record_time), (newest_event_time, newest_record_time) = mark, self._newest_mark
        return event_time - newest_event_time > self._max_leap_ms + max(record_time - newest_record_time, 0)

    def advance_to(self, at: int) -> None:
        """Move the clock to `at`, without a row."""
        self._newest_mark = max(self._newest_mark, (at, at))

    def now(self, lagging: Iterable[int] = ()) -> int:
        """The time now; never earlier than at the last call."""
        lagging_times = [self._newest.get(partition, -1) for partition in lagging]
        self._now = max(self._now, min([*lagging_times, self._newest_mark[0]]))
        return self._now
