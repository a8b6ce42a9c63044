"""Handling many records at a time: what is in flight, what is slow, what failed, and what can be committed.

One thread reads (`Engine.read`); a crew handles: threads (`worker`) or tasks (`aio`).

Memory is bounded: at most `max_in_flight` records and about `max_in_flight_mb` of keys and values are in flight (the last
fetch may go over by the difference between its largest record and the average), and the client fetches at most `prefetch_mb`
ahead. When handlers are slow, nothing more is taken; when that lasts, the partitions are paused, so that the group sees a
consumer that lives. One partition cannot keep the others from their part of the room: it gives back what it has beyond its
own, and is read again when it has done enough.
"""

import logging
import threading
import time
from collections.abc import Callable, Collection
from typing import Any, Generic, TypeVar

from riverrun.errors import CommitError, HandlerError, RegistryError
from riverrun.kafka.consumer.dead_letter import DeadLetters
from riverrun.kafka.consumer.options import ConsumerOptions, Counts
from riverrun.kafka.consumer.record import Decoding, Record
from riverrun.kafka.consumer.run_options import RunOptions
from riverrun.kafka.consumer.schedule import Progress, Schedule, Work
from riverrun.kafka.consumer.subscription import Fetched, Subscription
from riverrun.model.state import Place

V = TypeVar("V")
log = logging.getLogger("riverrun.kafka.consumer")

_CHUNK = 500
_FEW = 50
_TURN_SECONDS = 0.1
# How long there may be no room before partitions are paused. Not at once: pausing drops what was fetched ahead.
_PATIENCE_SECONDS = 0.5


class Engine(Generic[V]):
    """One `run`. The reading thread calls `read` and then `finish`; the crew calls the rest."""

    def __init__(
        self,
        *,
        reading: Subscription,
        decoding: Decoding[V],
        consumer: ConsumerOptions,
        options: RunOptions,
        dead_letters: DeadLetters,
        stopping: threading.Event,
        counts: Counts,
        tick: Callable[[float], None],
    ) -> None:
        self.options = options
        self.dead_letters = dead_letters
        self.counts = counts
        # After `finish`: where to read on, of partitions that had records in hand.
        self.unfinished: dict[Place, int] = {}
        # Told when a record may be ready; for crews that do not wait in `take`.
        self.on_ready: Callable[[], None] = lambda: None
        self._reading = reading
        self._commits = reading.commits
        self._decoding = decoding
        self._consumer = consumer
        self._retry = options.retries
        self._stopping = stopping
        self._tick = tick
        self._schedule: Schedule[V] = Schedule(options.order)
        self._schedule.open(reading.owned)
        lock = threading.Lock()
        self._ready = threading.Condition(lock)
        self._changed = threading.Condition(lock)
        self._error: BaseException | None = None
        # No more is read, and what need not be finished is not begun; then: go home.
        self._winding_up = False
        self._dismissed = False
        self._average = 0.0
        self._full_since: float | None = None
        # The partitions paused because nothing has room; None when they are not.
        self._halted: set[Place] | None = None
        # Partitions that hold more than their part, since when; those that gave back for it, and are paused.
        self._greedy: dict[Place, float] = {}
        self._stalled: set[Place] = set()
        self._commit_at = time.monotonic() + consumer.commit_interval_seconds
        self._most_bytes = round(options.max_in_flight_mb * 1024 * 1024)

    # --- for the crew -------------------------------------------------------------------------------------------------

    def take(self) -> Work[V] | None:
        """The next record to handle; waits for one. None: go home."""
        with self._ready:
            while not self._dismissed:
                now = time.monotonic()
                if (work := self._schedule.take(now)) is not None:
                    if self._schedule.has_ready:
                        self._ready.notify()
                    return work
                due = self._schedule.next_due()
                self._ready.wait(None if due is None else max(0.0, due - now))
            return None

    def take_now(self) -> Work[V] | None:
        """The next record to handle, if there is one now."""
        with self._ready:
            return None if self._dismissed else self._schedule.take(time.monotonic())

    def seconds_to_due(self) -> float | None:
        """How long until a record is to be tried again; None when none is."""
        with self._ready:
            due = self._schedule.next_due()
        return None if due is None else max(0.0, due - time.monotonic())

    def read_value(self, work: Work[V]) -> Exception | None:
        """Read the record's value before its handler is called; why that cannot be done.

        RecordUnreadableError is about the record. All else, as a registry that does not answer, is treated like an error of
        the handler: it may be over at the next attempt.
        """
        try:
            if not work.record.deleted:
                _ = work.record.value
        except Exception as error:  # noqa: BLE001  -- judged
            return error
        return None

    def succeeded(self, work: Work[V]) -> None:
        with self._changed:
            self.counts.handled += 1
            self._finish(work)

    def judge(self, work: Work[V], error: Exception, *, unreadable: bool) -> bool:
        """A handler raised, or the record cannot be read. True: write a dead letter, then call `buried`."""
        with self._changed:
            self.counts.failed += 1
            if work.abandoned or self._winding_up:
                # Whoever has the partition next will try.
                self._put_back(work)
                return False
            wait = None if unreadable else self._retry.wait_after(work.attempts, error)
            if wait is not None:
                self.counts.retried += 1
                self._schedule.again(work, time.monotonic() + wait)
                self._ready.notify()
                self._changed.notify_all()
                self.on_ready()
                return False
            policy = self.options.unreadable if unreadable else self.options.on_error
            if policy == "dead-letter":
                return True
            if policy == "skip":
                self.counts.skipped += 1
                self._finish(work)
            else:
                self._put_back(work)
        if policy == "skip":
            log.warning("Skipped %s: %s: %s", work.record, type(error).__name__, error)
        else:
            self.give_up(error if unreadable else handler_error(work, error))
        return False

    def buried(self, work: Work[V], problem: Exception | None) -> None:
        """The dead letter is written; or, when there was a problem, it is not, and all must stop."""
        with self._changed:
            if problem is None:
                self.counts.dead += 1
                self._finish(work)
                return
            self._put_back(work)
        self.give_up(problem)

    def put_back(self, work: Work[V]) -> None:
        """A handler was interrupted: its record is not done."""
        with self._changed:
            self._put_back(work)

    def give_up(self, error: BaseException) -> None:
        """Stop for this reason; the first one counts."""
        with self._changed:
            if self._error is None:
                self._error = error
            self._changed.notify_all()

    def _finish(self, work: Work[V]) -> None:
        self._schedule.finish(work, time.monotonic())
        if self._schedule.has_ready:
            self._ready.notify()
            self.on_ready()
        self._changed.notify_all()

    def _put_back(self, work: Work[V]) -> None:
        self._schedule.put_back(work)
        self._changed.notify_all()

    # --- reading ------------------------------------------------------------------------------------------------------

    def read(self) -> None:
        """Read until it is to end. Errors of the cluster are raised."""
        if "dead-letter" in (self.options.on_error, self.options.unreadable):
            self.dead_letters.prepare(self._reading.choice.names)
        while not self._over():
            now = time.monotonic()
            self._tick(now)
            self._commit_if_due(now)
            if (most := self._room()) > 0:
                self._full_since = None
                self._take_in(self._reading.fetch(most, self._patience()))
            else:
                self._wait_for_room(now)
            self._relieve(now)

    def _over(self) -> bool:
        with self._changed:
            if self._stopping.is_set() or self._error is not None:
                return True
            return not self._consumer.follow and self._reading.at_end and not self._schedule.records

    def _patience(self) -> float:
        # With a commit per record, what was done meanwhile should not wait for the next record to come.
        return 0.01 if self._consumer.commit == "record" else _TURN_SECONDS

    def _room(self) -> int:
        """How many records may be fetched now."""
        with self._changed:
            if self._halted is not None:
                return 0
            records = self.options.max_in_flight - self._schedule.records
            free = self._most_bytes - self._schedule.bytes
            part, _ = self._part()
        if records <= 0 or free <= 0:
            return 0
        if not self._average:
            return min(records, 8)
        # A fetch often brings records of one partition only; it should not be much more than its part.
        return min(records, max(_FEW, min(_CHUNK, part)), max(1, int(free / self._average)))

    def _take_in(self, fetched: Fetched) -> None:
        if fetched.messages and self._consumer.delivery == "at-most-once" and self._reading.choice.group:
            self._commits.put(self._reading.positions)
            self._await_commits()
        records: list[Record[V]] = [Record(each, self._decoding) for each in fetched.messages]
        with self._changed:
            before = self._schedule.bytes
            self._schedule.add(records, time.monotonic())
            if records:
                size = (self._schedule.bytes - before) / len(records)
                self._average = max(1.0, size, 0.9 * self._average)
            for place, offset in fetched.ends.items():
                if (progress := self._schedule.partitions.get(place)) is not None:
                    progress.ended_at(offset)
            if self._schedule.has_ready:
                self._ready.notify(len(records))
        if records:
            self.on_ready()

    # --- slow handlers ------------------------------------------------------------------------------------------------

    def _wait_for_room(self, now: float) -> None:
        """Nothing may be taken now: wait for handlers, and after a while look after the group meanwhile."""
        if self._full_since is None:
            self._full_since = now
        if self._halted is None and now - self._full_since > _PATIENCE_SECONDS:
            self._halted = set(self._reading.owned) - self._reading.paused
            self._reading.pause(self._halted)
        if self._halted is not None:
            # Paused partitions bring no records; this is for the group and the errors.
            self._take_in(self._reading.fetch(1, 0.0))
        with self._changed:
            if not self._well_below():
                self._changed.wait(_TURN_SECONDS / 2)
            resume = self._halted is not None and self._well_below()
        if resume and self._halted is not None:
            self._reading.resume(self._halted - self._stalled)
            self._halted = self._full_since = None

    def _well_below(self) -> bool:
        return (
            self._schedule.records <= self.options.max_in_flight * 3 // 4
            and self._schedule.bytes <= self._most_bytes * 3 // 4
        )

    def _relieve(self, now: float) -> None:
        """Share the room: a partition that holds more than its part, while another with records to read has next to
        nothing, gives back what it has beyond it, and is not read until half of its part is done."""
        with self._changed:
            held = self._schedule.partitions
            count, size = self._part()
            done = [place for place in self._stalled if place not in held or _fits(held[place], count / 2, size / 2)]
            over = [place for place, each in held.items() if not _fits(each, count, size)]
            self._greedy = {place: self._greedy.get(place, now) for place in over if place not in self._stalled}
            returned: dict[Place, int | None] = {}
            if len(held) > 1 and self._hungry(count, size):
                for place, since in self._greedy.items():
                    if now - since > _PATIENCE_SECONDS:
                        returned[place] = held[place].give_back(count, size)
        for place in done:
            self._stalled.discard(place)
            if self._halted is None:
                self._reading.resume([place])
            else:
                self._halted.add(place)
        for place, offset in returned.items():
            self._stalled.add(place)
            self._reading.pause([place])
            if offset is not None:
                self._reading.move({place: offset})

    def _part(self) -> tuple[int, int]:
        """Records and bytes a partition may have in flight when others want theirs."""
        count = max(1, len(self._schedule.partitions))
        return max(1, self.options.max_in_flight // count), max(1, self._most_bytes // count)

    def _hungry(self, count: int, size: int) -> bool:
        """Whether a partition has records to read and no room for them."""
        full = self._schedule.records > self.options.max_in_flight / 2 or self._schedule.bytes > self._most_bytes / 2
        # Those that are paused because nothing has room are the very ones that want some.
        idle = self._reading.at_tail | (self._reading.paused - (self._halted or set()))
        return full and any(
            _fits(each, count / 4, size / 4) for place, each in self._schedule.partitions.items() if place not in idle
        )

    # --- commits, and partitions that come and go ---------------------------------------------------------------------

    @property
    def in_flight(self) -> tuple[int, int]:
        """Records and bytes."""
        with self._changed:
            return self._schedule.records, self._schedule.bytes

    def committable(self, places: Collection[Place] | None = None) -> dict[Place, int]:
        with self._changed:
            return self._schedule.committable(places)

    @property
    def _may_commit(self) -> bool:
        return bool(self._reading.choice.group) and self._consumer.delivery == "at-least-once"

    def _await_commits(self) -> None:
        room = max(1, self._room())
        self._commits.await_with(lambda: self._reading.serve(room), self._reading.timeout)

    def _commit_if_due(self, now: float) -> None:
        mode = self._consumer.commit
        if not self._may_commit or mode == "manual" or (mode == "interval" and now < self._commit_at):
            return
        self._commit_at = now + self._consumer.commit_interval_seconds
        self._commits.put(self.committable())
        if self._consumer.waits_for_commit:
            self._await_commits()

    def assigned(self, places: list[Place]) -> None:
        with self._changed:
            self._schedule.open(places)
        if self._halted is not None:
            self._halted.update(places)
            self._reading.pause(places)

    def moved(self, place: Place, offset: int) -> None:
        """A partition goes on elsewhere: what is in hand of it does not count, and up to there nothing is left to do."""
        with self._changed:
            if place in self._schedule.partitions:
                self._schedule.close([place])
                self._schedule.open([place])
                self._schedule.partitions[place].ended_at(offset)
            self._changed.notify_all()

    def revoked(self, places: list[Place]) -> None:
        """Finish what was begun of these partitions and what is in front of it, drop the rest, commit what is done."""
        limit = min(self.options.stop_seconds, self._consumer.max_poll_seconds / 2)
        self._settle(places, limit)
        self._commits.release(places)
        self._close(places)

    def lost(self, places: list[Place]) -> None:
        self._close(places)

    def _close(self, places: list[Place]) -> None:
        with self._changed:
            self._schedule.close(places)
            self._changed.notify_all()
        if self._halted is not None:
            self._halted.difference_update(places)
        self._stalled.difference_update(places)

    def _settle(self, places: Collection[Place], seconds: float) -> None:
        end = time.monotonic() + seconds
        with self._changed:
            self._schedule.wind_up(places)
            while (rest := self._schedule.unfinished(places)) and (left := end - time.monotonic()) > 0:
                self._changed.wait(left)
            offsets = self._schedule.committable(places)
        if rest:
            log.warning("%d records were still being handled after %g s; they will be handled again.", rest, seconds)
        if self._may_commit and self._consumer.commit != "manual":
            self._commits.put(offsets)

    def finish(self, *, hurry: bool = False) -> None:
        """No more records: wait for handlers, commit what is done, and raise why it ended, if that was an error."""
        with self._changed:
            self._winding_up = True
            self._dismissed = hurry
            first = {
                place: each.in_hand[0].next_offset - 1
                for place, each in self._schedule.partitions.items()
                if each.in_hand
            }
        self._settle(list(self._schedule.partitions), 0.0 if hurry else self.options.stop_seconds)
        with self._changed:
            self._dismissed = True
            self._ready.notify_all()
        self.on_ready()
        try:
            self._await_commits()
        except CommitError as error:
            # Logged; leaving tries once more, and raises it.
            log.debug("%s", error)
        done = self.committable()
        self.unfinished = {place: max(offset, done.get(place, offset)) for place, offset in first.items()}
        if self._error is not None:
            raise self._error


def _fits(partition: Progress[Any], count: float, size: float) -> bool:
    return len(partition.in_hand) <= count and partition.bytes <= size


def handler_error(work: Work[Any], error: Exception) -> HandlerError:
    record = work.record
    tried = f"after {work.attempts} attempt{'s' if work.attempts != 1 else ''}"
    what, then = f"The handler failed on {record} {tried}", "correct the handler"
    if isinstance(error, RegistryError):
        what, then = f"{record} could not be handled {tried}", "start again when the registry can be asked"
    failure = HandlerError(
        what,
        found=f"{type(error).__name__}: {error}",
        hint=f"Nothing from this record on was committed; {then}, or give on_error='dead-letter' or 'skip'",
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
        attempts=work.attempts,
    )
    failure.__cause__ = error
    return failure
