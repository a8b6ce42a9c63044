"""Handle many records at a time: what is in flight, what is slow, what failed, and what can be committed.

One thread reads (`ParallelRunner.read`); workers handle: threads (`worker_threads`) or tasks (`aio`).

Memory is bounded: at most `max_in_flight` records and about `max_in_flight_mb` of keys and values are in flight (the last
fetch may go over by the difference between its largest record and the average), and the client fetches at most `prefetch_mb`
ahead. When handlers are slow, nothing more is fetched; when that lasts, the partitions are paused, so that the group sees a
live consumer. One partition cannot take the others' share of the capacity: it gives back what it has beyond its own, and is
read again when it has done enough.
"""

import logging
import threading
import time
from collections.abc import Callable, Collection
from typing import Any, Generic, TypeVar

from riverrun.errors import CommitError, HandlerError, RegistryError
from riverrun.kafka.consumer.dead_letter import DeadLetterProducer
from riverrun.kafka.consumer.options import ConsumerCounts, ConsumerOptions
from riverrun.kafka.consumer.record import Record, RecordDecoder
from riverrun.kafka.consumer.run_options import RunOptions
from riverrun.kafka.consumer.scheduler import PartitionProgress, WorkItem, WorkScheduler
from riverrun.kafka.consumer.subscription import FetchedRecords, Subscription
from riverrun.model.cluster_state import TopicPartition

V = TypeVar("V")
log = logging.getLogger("riverrun.kafka.consumer")

_MAX_FETCH = 500
_MIN_FETCH = 50
_POLL_SECONDS = 0.1
# How long capacity may be full before partitions are paused. Not at once: pausing drops what was fetched ahead.
_PAUSE_AFTER_SECONDS = 0.5


class ParallelRunner(Generic[V]):
    """One `run`. The reading thread calls `read` and then `finish`; the workers call the rest."""

    def __init__(
        self,
        *,
        subscription: Subscription,
        decoder: RecordDecoder[V],
        consumer: ConsumerOptions,
        options: RunOptions,
        dead_letters: DeadLetterProducer,
        stopping: threading.Event,
        counts: ConsumerCounts,
        tick: Callable[[float], None],
    ) -> None:
        self.options = options
        self.dead_letters = dead_letters
        self.counts = counts
        # After `finish`: where to continue reading, of partitions that had records in flight.
        self.resume_offsets: dict[TopicPartition, int] = {}
        # Called when a record may be ready; for workers that do not wait in `take`.
        self.on_ready: Callable[[], None] = lambda: None
        self._subscription = subscription
        self._committer = subscription.committer
        self._decoder = decoder
        self._consumer = consumer
        self._retry = options.retry_policy
        self._stopping = stopping
        self._tick = tick
        self._scheduler: WorkScheduler[V] = WorkScheduler(options.order)
        self._scheduler.open(subscription.assignment)
        lock = threading.Lock()
        self._ready = threading.Condition(lock)
        self._changed = threading.Condition(lock)
        self._error: BaseException | None = None
        # Draining: no more is read, and what need not be finished is not started. Dismissed: the workers end.
        self._draining = False
        self._dismissed = False
        self._average_bytes = 0.0
        self._full_since: float | None = None
        # The partitions paused because the capacity is full; None when they are not.
        self._paused_while_full: set[TopicPartition] | None = None
        # Partitions that hold more than their share, since when; those that gave records back for it, and are paused.
        self._over_share_since: dict[TopicPartition, float] = {}
        self._throttled: set[TopicPartition] = set()
        self._commit_at = time.monotonic() + consumer.commit_interval_seconds
        self._max_bytes = round(options.max_in_flight_mb * 1024 * 1024)

    # --- for the workers ----------------------------------------------------------------------------------------------

    def take(self) -> WorkItem[V] | None:
        """The next record to handle; waits for one. None: the worker ends."""
        with self._ready:
            while not self._dismissed:
                now = time.monotonic()
                if (work := self._scheduler.take(now)) is not None:
                    if self._scheduler.has_ready:
                        self._ready.notify()
                    return work
                due = self._scheduler.next_due()
                self._ready.wait(None if due is None else max(0.0, due - now))
            return None

    def take_now(self) -> WorkItem[V] | None:
        """The next record to handle, if there is one now."""
        with self._ready:
            return None if self._dismissed else self._scheduler.take(time.monotonic())

    def seconds_to_due(self) -> float | None:
        """How long until a record is retried; None when none is."""
        with self._ready:
            due = self._scheduler.next_due()
        return None if due is None else max(0.0, due - time.monotonic())

    def read_value(self, work: WorkItem[V]) -> Exception | None:
        """Decode the record's value before its handler is called; returns the error if that fails.

        RecordUnreadableError is about the record. Any other error, such as a registry that does not answer, is treated like
        an error of the handler: it may be over at the next attempt.
        """
        try:
            if not work.record.deleted:
                _ = work.record.value
        except Exception as error:  # noqa: BLE001  -- handled by the caller
            return error
        return None

    def succeeded(self, work: WorkItem[V]) -> None:
        with self._changed:
            self.counts.handled += 1
            self._finish(work)

    def handle_failure(self, work: WorkItem[V], error: Exception, *, unreadable: bool) -> bool:
        """A handler raised, or the record cannot be read. True: write a dead letter, then call `dead_letter_written`."""
        with self._changed:
            self.counts.failed += 1
            if work.revoked or self._draining:
                # The next consumer of the partition will try.
                self._release(work)
                return False
            wait = None if unreadable else self._retry.wait_after(work.attempts, error)
            if wait is not None:
                self.counts.retried += 1
                self._scheduler.retry_at(work, time.monotonic() + wait)
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
                self._release(work)
        if policy == "skip":
            log.warning("Skipped %s: %s: %s", work.record, type(error).__name__, error)
        else:
            self.fail(error if unreadable else handler_error(work, error))
        return False

    def dead_letter_written(self, work: WorkItem[V], problem: Exception | None) -> None:
        """The dead letter is written; or, with a problem, it is not, and the run must stop."""
        with self._changed:
            if problem is None:
                self.counts.dead += 1
                self._finish(work)
                return
            self._release(work)
        self.fail(problem)

    def release(self, work: WorkItem[V]) -> None:
        """A handler was interrupted: its record is not done."""
        with self._changed:
            self._release(work)

    def fail(self, error: BaseException) -> None:
        """Stop for this reason; the first one counts."""
        with self._changed:
            if self._error is None:
                self._error = error
            self._changed.notify_all()

    def _finish(self, work: WorkItem[V]) -> None:
        self._scheduler.finish(work, time.monotonic())
        if self._scheduler.has_ready:
            self._ready.notify()
            self.on_ready()
        self._changed.notify_all()

    def _release(self, work: WorkItem[V]) -> None:
        self._scheduler.release(work)
        self._changed.notify_all()

    # --- reading ------------------------------------------------------------------------------------------------------

    def read(self) -> None:
        """Read until it should stop. Errors of the cluster are raised."""
        if "dead-letter" in (self.options.on_error, self.options.unreadable):
            self.dead_letters.prepare(self._subscription.selection.names)
        while not self._should_stop():
            now = time.monotonic()
            self._tick(now)
            self._commit_if_due(now)
            if (max_records := self._capacity()) > 0:
                self._full_since = None
                self._enqueue(self._subscription.fetch(max_records, self._fetch_seconds()))
            else:
                self._wait_for_capacity(now)
            self._share_capacity(now)

    def _should_stop(self) -> bool:
        with self._changed:
            if self._stopping.is_set() or self._error is not None:
                return True
            return not self._consumer.follow and self._subscription.at_end and not self._scheduler.records

    def _fetch_seconds(self) -> float:
        # With a commit per record, what was done meanwhile should not wait for the next record.
        return 0.01 if self._consumer.commit == "record" else _POLL_SECONDS

    def _capacity(self) -> int:
        """How many records may be fetched now."""
        with self._changed:
            if self._paused_while_full is not None:
                return 0
            records = self.options.max_in_flight - self._scheduler.records
            free = self._max_bytes - self._scheduler.bytes
            fair_share, _ = self._fair_share()
        if records <= 0 or free <= 0:
            return 0
        if not self._average_bytes:
            return min(records, 8)
        # A fetch often brings records of one partition only; it should not be much more than its share.
        return min(records, max(_MIN_FETCH, min(_MAX_FETCH, fair_share)), max(1, int(free / self._average_bytes)))

    def _enqueue(self, fetched: FetchedRecords) -> None:
        if fetched.messages and self._consumer.delivery == "at-most-once" and self._subscription.selection.group:
            self._committer.put(self._subscription.positions)
            self._await_commits()
        records: list[Record[V]] = [Record(message, self._decoder) for message in fetched.messages]
        with self._changed:
            before = self._scheduler.bytes
            self._scheduler.add(records, time.monotonic())
            if records:
                size = (self._scheduler.bytes - before) / len(records)
                self._average_bytes = max(1.0, size, 0.9 * self._average_bytes)
            for partition, offset in fetched.ends.items():
                if (progress := self._scheduler.partitions.get(partition)) is not None:
                    progress.mark_end(offset)
            if self._scheduler.has_ready:
                self._ready.notify(len(records))
        if records:
            self.on_ready()

    # --- slow handlers ------------------------------------------------------------------------------------------------

    def _wait_for_capacity(self, now: float) -> None:
        """Nothing may be fetched now: wait for handlers, and after a while serve the group meanwhile."""
        if self._full_since is None:
            self._full_since = now
        if self._paused_while_full is None and now - self._full_since > _PAUSE_AFTER_SECONDS:
            self._paused_while_full = set(self._subscription.assignment) - self._subscription.paused
            self._subscription.pause(self._paused_while_full)
        if self._paused_while_full is not None:
            # Paused partitions bring no records; this is for the group and the errors.
            self._enqueue(self._subscription.fetch(1, 0.0))
        with self._changed:
            if not self._below_resume_level():
                self._changed.wait(_POLL_SECONDS / 2)
            resume = self._paused_while_full is not None and self._below_resume_level()
        if resume and self._paused_while_full is not None:
            self._subscription.resume(self._paused_while_full - self._throttled)
            self._paused_while_full = self._full_since = None

    def _below_resume_level(self) -> bool:
        return (
            self._scheduler.records <= self.options.max_in_flight * 3 // 4
            and self._scheduler.bytes <= self._max_bytes * 3 // 4
        )

    def _share_capacity(self, now: float) -> None:
        """Share the capacity: a partition that holds more than its share, while another with records to read has next to
        nothing, gives back what it has beyond it, and is not read until half of its share is done."""
        with self._changed:
            in_flight = self._scheduler.partitions
            count, size = self._fair_share()
            recovered = [
                partition
                for partition in self._throttled
                if partition not in in_flight or _within_limits(in_flight[partition], count / 2, size / 2)
            ]
            over_share = [
                partition for partition, progress in in_flight.items() if not _within_limits(progress, count, size)
            ]
            self._over_share_since = {
                partition: self._over_share_since.get(partition, now)
                for partition in over_share
                if partition not in self._throttled
            }
            returned: dict[TopicPartition, int | None] = {}
            if len(in_flight) > 1 and self._has_starved_partition(count, size):
                for partition, since in self._over_share_since.items():
                    if now - since > _PAUSE_AFTER_SECONDS:
                        returned[partition] = in_flight[partition].drop_unstarted(count, size)
        for partition in recovered:
            self._throttled.discard(partition)
            if self._paused_while_full is None:
                self._subscription.resume([partition])
            else:
                self._paused_while_full.add(partition)
        for partition, offset in returned.items():
            self._throttled.add(partition)
            self._subscription.pause([partition])
            if offset is not None:
                self._subscription.seek({partition: offset})

    def _fair_share(self) -> tuple[int, int]:
        """Records and bytes a partition may have in flight when others need theirs."""
        count = max(1, len(self._scheduler.partitions))
        return max(1, self.options.max_in_flight // count), max(1, self._max_bytes // count)

    def _has_starved_partition(self, count: int, size: int) -> bool:
        """Whether a partition has records to read and no capacity for them."""
        full = self._scheduler.records > self.options.max_in_flight / 2 or self._scheduler.bytes > self._max_bytes / 2
        # Those that are paused because the capacity is full are the very ones that need some.
        idle = self._subscription.at_log_end | (self._subscription.paused - (self._paused_while_full or set()))
        return full and any(
            _within_limits(progress, count / 4, size / 4)
            for partition, progress in self._scheduler.partitions.items()
            if partition not in idle
        )

    # --- commits and rebalancing --------------------------------------------------------------------------------------

    @property
    def in_flight(self) -> tuple[int, int]:
        """Records and bytes in flight."""
        with self._changed:
            return self._scheduler.records, self._scheduler.bytes

    def committable(self, partitions: Collection[TopicPartition] | None = None) -> dict[TopicPartition, int]:
        with self._changed:
            return self._scheduler.committable(partitions)

    @property
    def _may_commit(self) -> bool:
        return bool(self._subscription.selection.group) and self._consumer.delivery == "at-least-once"

    def _await_commits(self) -> None:
        capacity = max(1, self._capacity())
        self._committer.wait_polling(lambda: self._subscription.keep_alive(capacity), self._subscription.timeout)

    def _commit_if_due(self, now: float) -> None:
        mode = self._consumer.commit
        if not self._may_commit or mode == "manual" or (mode == "interval" and now < self._commit_at):
            return
        self._commit_at = now + self._consumer.commit_interval_seconds
        self._committer.put(self.committable())
        if self._consumer.waits_for_commit:
            self._await_commits()

    def assigned(self, partitions: list[TopicPartition]) -> None:
        with self._changed:
            self._scheduler.open(partitions)
        if self._paused_while_full is not None:
            self._paused_while_full.update(partitions)
            self._subscription.pause(partitions)

    def moved(self, partition: TopicPartition, offset: int) -> None:
        """A partition continues at another offset: its records in flight do not count, and everything before is done."""
        with self._changed:
            if partition in self._scheduler.partitions:
                self._scheduler.close([partition])
                self._scheduler.open([partition])
                self._scheduler.partitions[partition].mark_end(offset)
            self._changed.notify_all()

    def revoked(self, partitions: list[TopicPartition]) -> None:
        """Finish what was started of these partitions and what is in front of it, drop the rest, commit what is done."""
        limit = min(self.options.stop_seconds, self._consumer.max_poll_seconds / 2)
        self._drain_partitions(partitions, limit)
        self._committer.release(partitions)
        self._close_partitions(partitions)

    def lost(self, partitions: list[TopicPartition]) -> None:
        self._close_partitions(partitions)

    def _close_partitions(self, partitions: list[TopicPartition]) -> None:
        with self._changed:
            self._scheduler.close(partitions)
            self._changed.notify_all()
        if self._paused_while_full is not None:
            self._paused_while_full.difference_update(partitions)
        self._throttled.difference_update(partitions)

    def _drain_partitions(self, partitions: Collection[TopicPartition], seconds: float) -> None:
        end = time.monotonic() + seconds
        with self._changed:
            self._scheduler.drain(partitions)
            while (rest := self._scheduler.unfinished(partitions)) and (left := end - time.monotonic()) > 0:
                self._changed.wait(left)
            offsets = self._scheduler.committable(partitions)
        if rest:
            log.warning("%d records were still being handled after %g s; they will be handled again.", rest, seconds)
        if self._may_commit and self._consumer.commit != "manual":
            self._committer.put(offsets)

    def finish(self, *, hurry: bool = False) -> None:
        """No more records: wait for handlers, commit what is done, and raise the error that ended it, if any."""
        with self._changed:
            self._draining = True
            self._dismissed = hurry
            first = {
                partition: progress.in_flight[0].next_offset - 1
                for partition, progress in self._scheduler.partitions.items()
                if progress.in_flight
            }
        self._drain_partitions(list(self._scheduler.partitions), 0.0 if hurry else self.options.stop_seconds)
        with self._changed:
            self._dismissed = True
            self._ready.notify_all()
        self.on_ready()
        try:
            self._await_commits()
        except CommitError as error:
            # Logged; closing tries once more, and raises it.
            log.debug("%s", error)
        done = self.committable()
        self.resume_offsets = {
            partition: max(offset, done.get(partition, offset)) for partition, offset in first.items()
        }
        if self._error is not None:
            raise self._error


def _within_limits(partition: PartitionProgress[Any], count: float, size: float) -> bool:
    return len(partition.in_flight) <= count and partition.bytes <= size


def handler_error(work: WorkItem[Any], error: Exception) -> HandlerError:
    record = work.record
    tried = f"after {work.attempts} attempt{'s' if work.attempts != 1 else ''}"
    message, advice = f"The handler failed on {record} {tried}", "correct the handler"
    if isinstance(error, RegistryError):
        message, advice = f"{record} could not be handled {tried}", "start again when the registry can be asked"
    failure = HandlerError(
        message,
        found=f"{type(error).__name__}: {error}",
        hint=f"Nothing from this record on was committed; {advice}, or give on_error='dead-letter' or 'skip'",
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
        attempts=work.attempts,
    )
    failure.__cause__ = error
    return failure
