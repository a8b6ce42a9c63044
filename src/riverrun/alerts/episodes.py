"""Episodes: from rows to «it began» and «it is over», for one rule, by its key.

    quiet ──when──▶ pending ──for as long as `lasting`, and after the cooldown──▶ firing ──clear──▶ quiet
              └── no longer holds ──▶ quiet

All times are the rows' own, so the same rows give the same episodes whenever they are read. A row that is older than the
newest of its key changes nothing. `follow` is what silence is told by: the clock of the whole topic. Only `sweep`, which
forgets keys, is by our own.
"""

import heapq
from collections.abc import Container, Iterable
from dataclasses import dataclass
from typing import Any

from riverrun.alerts.ledger import Episode
from riverrun.alerts.rows import Seen, packed, unpacked
from riverrun.alerts.rules import Rule

# Keys of which nothing ever fired are forgotten beyond so many: whoever writes the events chooses the keys.
MOST_IDLE_KEYS = 100_000
NEVER = 2**62
# What was over for so long is forgotten, and so is a key without rows: so many at a time.
KEEP_MS = 30 * 86_400_000
MOST_SWEPT = 5000
_RECENT = 32
# How exactly the newest time of a key is kept: for absence, an eighth of the time it may be silent; else as long as a
# message may be old. Less would mean a record in the ledger for every row.
_PARTS = 8
_HOUR_MS = 3_600_000
_DAY_MS = 86_400_000


@dataclass(frozen=True)
class Fire:
    """An episode began at this row: `since` is when the condition began to hold."""

    rule: str
    key: str
    number: int
    since: int
    at: int
    recorded: int
    place: str
    row: dict[str, Any]


@dataclass(frozen=True)
class Resolve:
    """An episode is over at this row."""

    rule: str
    key: str
    number: int
    at: int
    recorded: int
    row: dict[str, Any]


@dataclass(frozen=True)
class Lapse:
    """An episode is given up: its key has had no row for so long that nobody can tell how it stands."""

    rule: str
    key: str
    number: int


Effect = Fire | Resolve | Lapse


class Tracker:
    """The episodes of one rule. `drain` gives what has to be kept of them."""

    def __init__(self, rule: Rule, episodes: Iterable[Episode] = ()) -> None:
        self.rule = rule
        self._alert = rule.alert
        self._states: dict[str, Episode] = {each.key: each for each in episodes}
        self._changed: set[str] = set()
        self._room = MOST_IDLE_KEYS
        self._stale = self._alert.expires_ms if self._alert.expires_ms > 0 else _HOUR_MS
        self._slack = max(self._alert.silent_ms // _PARTS, 1) if self._alert.silent_ms >= 0 else self._stale
        self._gone: list[Episode] = []
        # A row may be half of `silent` ahead of the others: whoever is heard that often is not made silent by it.
        self.clock = TopicClock(max(self._alert.silent_ms, 0) // 2)
        self._passed = -1
        self._swept = -1
        self._kept = {key: each.time for key, each in self._states.items()}
        # Of these a newer row may have been read than is kept.
        self._unsure = set(self._states)
        absent = self._states.values() if self._alert.silent_ms >= 0 else ()
        self._due = [(self._silent_at(each), each.key) for each in absent if each.state != "firing"]
        heapq.heapify(self._due)

    def __len__(self) -> int:
        return len(self._states)

    def state(self, key: str) -> Episode | None:
        return self._states.get(key)

    def drain(self) -> list[Episode]:
        """The episodes that changed since the last call, so that it has to be kept."""
        found = [self._states[key] for key in self._changed if key in self._states]
        self._changed.clear()
        return found

    def forgotten(self) -> list[Episode]:
        """The episodes that need not be kept any more."""
        found, self._gone = self._gone, []
        return found

    def take(self, seen: Seen) -> list[Effect]:
        """Judge a row."""
        key = self.rule.key_of(seen.row)
        state = self._states.get(key)
        if state is None:
            self._make_room()
            state = self._states[key] = Episode(rule=self.rule.name, key=key)
            if self._alert.silent_ms >= 0:
                heapq.heappush(self._due, (seen.at + self._alert.silent_ms, key))
        came = max(self._swept, seen.recorded)
        if came - state.read >= _DAY_MS:
            state.read = came
            self._changed.add(key)
        if self._alert.every_row:
            return self._every(state, seen)
        if seen.at < state.time:
            return []
        state.time = seen.at
        if self._alert.silent_ms >= 0:
            return self._heard(state, seen)
        return self._judged(state, seen)

    def _judged(self, state: Episode, seen: Seen) -> list[Effect]:
        if state.state == "firing":
            self._changed.add(state.key)
            if not self.rule.is_over(seen.row):
                return []
            return [self._resolve(state, seen)]
        if not self.rule.holds(seen.row):
            if state.state == "pending":
                state.state, state.since = "quiet", -1
                self._keep(state)
            else:
                self._keep_now_and_then(state)
            return []
        self._changed.add(state.key)
        if state.state == "quiet":
            state.state, state.since = "pending", seen.at
        if seen.at - state.since < self._alert.lasting_ms or not self._cooled(state, seen.at):
            return []
        return [self._fire(state, seen, "firing")]

    def _every(self, state: Episode, seen: Seen) -> list[Effect]:
        again = seen.identity and seen.identity in state.recent
        # Order is not everything here; but what is long past for its key is history that somebody writes again.
        old = seen.at < state.time - self._stale
        revised = self.rule.table.upserts and seen.at <= state.time
        state.time = max(state.time, seen.at)
        if again or old or revised or not self._cooled(state, seen.at):
            return []
        if seen.identity:
            state.recent = [*state.recent[-_RECENT + 1 :], seen.identity]
        self._changed.add(state.key)
        state.since = seen.at
        return [self._fire(state, seen, "quiet")]

    def _cooled(self, state: Episode, at: int) -> bool:
        return not self._alert.cooldown_ms or state.fired < 0 or at - state.fired >= self._alert.cooldown_ms

    def _fire(self, state: Episode, seen: Seen, after: Any) -> Fire:
        state.state, state.number = after, state.number + 1
        state.fired = max(state.fired, seen.at)
        return Fire(
            state.rule, state.key, state.number, state.since, seen.at, seen.recorded, str(seen), dict(seen.row)
        )  # fmt: skip

    def _resolve(self, state: Episode, seen: Seen) -> Resolve:
        state.state, state.since = "quiet", -1
        return Resolve(state.rule, state.key, state.number, seen.at, seen.recorded, dict(seen.row))

    # --- absence ---

    def _heard(self, state: Episode, seen: Seen) -> list[Effect]:
        self._unsure.discard(state.key)
        # A row that is late counts from when it came. Else who is later than `silent` would be silent again at once.
        state.heard = max(seen.at, self._passed)
        state.row = packed(seen.row)
        if state.state == "firing":
            heapq.heappush(self._due, (self._silent_at(state), state.key))
            self._keep(state)
            return [self._resolve(state, seen)]
        self._keep_now_and_then(state)
        return []

    def _keep_now_and_then(self, state: Episode) -> None:
        kept = self._kept.get(state.key)
        if kept is None or state.time - kept >= self._slack:
            self._keep(state)

    def _keep(self, state: Episode) -> None:
        self._kept[state.key] = state.time
        self._changed.add(state.key)

    def _silent_at(self, state: Episode) -> int:
        extra = self._slack if state.key in self._unsure else 0
        return max(state.time, state.heard) + max(self._alert.silent_ms, 0) + extra

    def follow(self, seen: Seen, behind: Iterable[int] = ()) -> list[Effect]:
        """The topic's time moves with this row, unless partitions are `behind`: who has been silent for too long?"""
        if self._alert.silent_ms < 0:
            return []
        self.clock.saw(seen, self.rule.key_of(seen.row))
        return self.pass_time(self.clock.now(behind), seen)

    def pass_time(self, clock: int, by: Seen) -> list[Effect]:
        """The topic's time is now `clock`, because of this row: who has been silent for too long?"""
        found: list[Effect] = []
        if self._alert.silent_ms < 0:
            return found
        self._passed = clock
        while self._due and self._due[0][0] <= clock:
            _, key = heapq.heappop(self._due)
            state = self._states.get(key)
            if state is None or state.state == "firing":
                continue
            if (at := self._silent_at(state)) > clock:
                heapq.heappush(self._due, (at, key))
                continue
            if not self._cooled(state, clock):
                heapq.heappush(self._due, (state.fired + self._alert.cooldown_ms, key))
                continue
            state.since = state.time
            state.state, state.number, state.fired = "firing", state.number + 1, clock
            self._keep(state)
            found.append(
                Fire(state.rule, key, state.number, state.since, clock, by.recorded, str(by), self._last_row(state))
            )
        return found

    @property
    def next_due(self) -> int:
        """When the next key may be silent for too long, by the topic's clock; never, where none is waited for."""
        return self._due[0][0] if self._due else NEVER

    def _last_row(self, state: Episode) -> dict[str, Any]:
        return unpacked(self.rule.table.columns, state.row)

    # --- forgetting ---

    def sweep(self, now: int, told: Container[tuple[str, str]], keep_ms: int = KEEP_MS) -> list[Effect]:
        """Give up the keys of which no row came for `keep_ms`. While a key has a case (`told`: rule and key), it is not
        forgotten: it would count from one again, and its next message would be taken for one that was sent."""
        self._swept = now
        found: list[Effect] = []
        gone: list[str] = []
        for key, state in self._states.items():
            if state.read < 0:
                state.read = now
                self._changed.add(key)
            if state.read >= now - keep_ms:
                continue
            if (state.rule, key) not in told:
                gone.append(key)
            elif state.state == "firing":
                found.append(Lapse(state.rule, key, state.number))
                # Who is silent stays so: the next row ends it.
                if self._alert.silent_ms < 0:
                    state.state, state.since = "quiet", -1
                    self._keep(state)
        for key in gone[:MOST_SWEPT]:
            self._forget(key)
        return found

    def _make_room(self) -> None:
        if len(self._states) < self._room or self._alert.silent_ms >= 0:
            return
        idle = [key for key, each in self._states.items() if not each.number and each.state == "quiet"]
        for key in idle[: len(idle) // 2]:
            self._forget(key)
        self._room = max(MOST_IDLE_KEYS, 2 * len(self._states))

    def _forget(self, key: str) -> None:
        self._gone.append(self._states.pop(key))
        self._kept.pop(key, None)
        self._changed.discard(key)
        self._unsure.discard(key)


class TopicClock:
    """The time of a topic: the newest event time of all its partitions; but while a partition is behind, not later than
    what was read of that one. Otherwise reading one partition ahead of another would make its keys silent.

    One wrong clock must not move it. A row that is ahead of it by more than `leap`, besides what has passed since then by
    Kafka's clock, counts only when the next row is too, and is another key's. Event time may run faster than Kafka's, as in
    history and in a demo that is sped up: by small steps, or with all keys at once.
    """

    def __init__(self, leap: int) -> None:
        self._leap = leap
        self._newest: dict[int, int] = {}
        self._now = -1
        # The time of the newest row, and Kafka's of it. Before the first one, both clocks show the same.
        self._top = (0, 0)
        # The same of a row that is too far ahead, and its key.
        self._ahead: tuple[tuple[int, int], str] | None = None

    def saw(self, row: Seen, key: str) -> None:
        mark = (row.at, row.recorded)
        if self._too_far(mark) and self._ahead is not None and self._ahead[1] != key:
            self._top = min(self._ahead[0], mark)
        if self._too_far(mark):
            self._ahead = (mark, key)
            return
        self._ahead = None
        self._top = max(self._top, mark)
        self._newest[row.partition] = max(self._newest.get(row.partition, -1), row.at)

    def _too_far(self, mark: tuple[int, int]) -> bool:
        (at, recorded), (top, then) = mark, self._top
        return at - top > self._leap + max(recorded - then, 0)

    def reach(self, at: int) -> None:
        """It is so late, whoever is heard."""
        self._top = max(self._top, (at, at))

    def now(self, behind: Iterable[int] = ()) -> int:
        """Never earlier than what it said before."""
        held = [self._newest.get(each, -1) for each in behind]
        self._now = max(self._now, min([*held, self._top[0]]))
        return self._now
