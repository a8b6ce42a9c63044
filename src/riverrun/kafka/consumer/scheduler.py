"""Which record may be handled next, and up to which offset everything is done: the pure part of parallel handling.

No threads, no Kafka, no clock of its own: callers hold one lock around it and pass the time. Records wait in queues; of a
queue one record is handled at a time, in order. There is a queue per partition, per key of a partition, or per record, as
`order` says. Offsets are committable up to the first record of a partition that is not done, whatever is done behind it.
"""

import heapq
import itertools
from collections import deque
from collections.abc import Collection, Mapping
from typing import Any, Generic, Literal, TypeVar

from riverrun.kafka.consumer.record import Record
from riverrun.model.cluster_state import TopicPartition

V = TypeVar("V")

Order = Literal["partition", "key", "none"]


class WorkItem(Generic[V]):
    """One record on its way through a handler."""

    __slots__ = ("attempts", "done", "next_offset", "partition", "queue", "record", "running", "size")

    def __init__(self, record: Record[V], queue: "_RecordQueue[V]") -> None:
        self.record = record
        self.queue = queue
        self.partition = queue.partition
        self.next_offset = record.offset + 1
        self.size = record.size
        self.attempts = 0
        self.running = False
        self.done = False

    @property
    def revoked(self) -> bool:
        """Whether its partition was revoked meanwhile: its outcome does not matter here any more."""
        return self.partition.closed


class PartitionProgress(Generic[V]):
    """One partition while it is assigned: the records in flight, in order, and up to which offset all are done."""

    def __init__(self, partition: TopicPartition) -> None:
        self.topic_partition = partition
        self.in_flight: deque[WorkItem[V]] = deque()
        self.bytes = 0
        self.running = 0
        self.closed = False
        # Whether it is about to be revoked: nothing is retried.
        self.draining = False
        # The next offset to commit; None until there is one.
        self.committable_offset: int | None = None
        # When a record was last finished or, with none before it, added.
        self.progressed_at = 0.0
        self.queues: dict[Any, _RecordQueue[V]] = {}
        self._end_offset = -1

    def add(self, work: WorkItem[V], now: float) -> None:
        if not self.in_flight:
            self.progressed_at = now
        self.in_flight.append(work)
        self.bytes += work.size

    def finish(self, work: WorkItem[V], now: float) -> None:
        """Mark a record done, and advance over all that are done from the front."""
        work.done = True
        self.progressed_at = now
        in_flight = self.in_flight
        while in_flight and in_flight[0].done:
            first = in_flight.popleft()
            self.bytes -= first.size
            self.committable_offset = first.next_offset
        if not in_flight:
            self.mark_end(self._end_offset)

    def mark_end(self, offset: int) -> None:
        """The partition has no more records before `offset`: past the last one there may be transaction markers."""
        self._end_offset = offset
        if not self.in_flight and offset > (-1 if self.committable_offset is None else self.committable_offset):
            self.committable_offset = offset

    def drop_unstarted(self, count: int, size: int) -> int | None:
        """Drop the newest records that were not started, down to this count and size, except the first one.

        Returns the offset to read from again; None when nothing was dropped.
        """
        offset = None
        while (len(self.in_flight) > count or self.bytes > size) and len(self.in_flight) > 1:
            last = self.in_flight[-1]
            if last.attempts:
                break
            self.in_flight.pop()
            self.bytes -= last.size
            last.queue.waiting.pop()
            self.remove_if_empty(last.queue)
            offset = last.next_offset - 1
        if offset is not None:
            self._end_offset = -1
        return offset

    def drain(self) -> None:
        """Drop the records that were not started, except those in front of one that is done or being handled: with them
        done, that one can be committed, and the next consumer does not handle it again. A record that failed is not retried,
        and ends that: what is behind it cannot be committed any more.
        """
        self.draining = True
        in_flight = self.in_flight
        end = 0
        for index, item in enumerate(in_flight):
            if item.running or item.done:
                end = index + 1
            elif item.attempts:
                break
        to_finish = set(itertools.islice(in_flight, end))
        for queue in list(self.queues.values()):
            queue.waiting = deque(item for item in queue.waiting if item.running or item in to_finish)
            self.remove_if_empty(queue)
        while len(in_flight) > end and not in_flight[-1].running:
            in_flight.pop()
        self.bytes = sum(item.size for item in in_flight)
        self._end_offset = -1

    def remove_if_empty(self, queue: "_RecordQueue[V]") -> None:
        if not queue.waiting and self.queues.get(queue.key) is queue:
            del self.queues[queue.key]


class _RecordQueue(Generic[V]):
    """Records that must be handled in order. The first one is being handled or waits for its retry."""

    __slots__ = ("key", "partition", "waiting")

    def __init__(self, partition: PartitionProgress[V], key: Any) -> None:
        self.partition = partition
        self.key = key
        self.waiting: deque[WorkItem[V]] = deque()


class WorkScheduler(Generic[V]):
    """All records in flight of all partitions."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._partitions: dict[TopicPartition, PartitionProgress[V]] = {}
        self._ready: deque[_RecordQueue[V]] = deque()
        self._retries: list[tuple[float, int, _RecordQueue[V]]] = []
        self._number = itertools.count()
        # Of partitions that were revoked while a handler was running.
        self._revoked_running = 0
        self._revoked_running_bytes = 0

    # --- partitions are assigned and revoked --------------------------------------------------------------------------

    def open(self, partitions: Collection[TopicPartition]) -> None:
        for partition in partitions:
            self._partitions[partition] = PartitionProgress(partition)

    def drain(self, partitions: Collection[TopicPartition]) -> None:
        """These partitions are revoked soon: drop what need not be finished first."""
        for partition in partitions:
            if (progress := self._partitions.get(partition)) is not None:
                progress.drain()

    def close(self, partitions: Collection[TopicPartition]) -> None:
        """These partitions are not ours any more."""
        for partition in partitions:
            if (progress := self._partitions.pop(partition, None)) is not None:
                progress.closed = True
                running = [item for item in progress.in_flight if item.running]
                self._revoked_running += len(running)
                self._revoked_running_bytes += sum(item.size for item in running)

    @property
    def partitions(self) -> Mapping[TopicPartition, PartitionProgress[V]]:
        return self._partitions

    # --- records are added and finished -------------------------------------------------------------------------------

    def add(self, records: Collection[Record[V]], now: float) -> None:
        """Add records, in the order they were read. Those of partitions that are not ours are left out."""
        for record in records:
            # A plain tuple finds the same entry as a TopicPartition, and costs half as much.
            progress = self._partitions.get((record.topic, record.partition))  # type: ignore[call-overload]
            if progress is None:
                continue
            queue = self._queue_for(progress, record)
            work = WorkItem(record, queue)
            progress.add(work, now)
            queue.waiting.append(work)
            if len(queue.waiting) == 1:
                self._ready.append(queue)

    def _queue_for(self, progress: PartitionProgress[V], record: Record[V]) -> _RecordQueue[V]:
        key: Any = None
        if self._order == "none" or (self._order == "key" and record.key is None):
            key = record.offset
        elif self._order == "key":
            key = record.key
        queue = progress.queues.get(key)
        if queue is None:
            queue = progress.queues[key] = _RecordQueue(progress, key)
        return queue

    def take(self, now: float) -> WorkItem[V] | None:
        """The next record to handle; None when there is none now."""
        while self._retries and self._retries[0][0] <= now:
            self._ready.append(heapq.heappop(self._retries)[2])
        while self._ready:
            queue = self._ready.popleft()
            if queue.partition.closed or not queue.waiting:
                queue.partition.remove_if_empty(queue)
                continue
            work = queue.waiting[0]
            if work.running:
                continue
            work.running = True
            work.attempts += 1
            queue.partition.running += 1
            return work
        return None

    def next_due(self) -> float | None:
        """When the next retry is due."""
        return self._retries[0][0] if self._retries else None

    @property
    def has_ready(self) -> bool:
        return bool(self._ready)

    def finish(self, work: WorkItem[V], now: float) -> None:
        """This record is done, one way or the other."""
        if not self._stop_running(work):
            return
        queue = work.queue
        queue.waiting.popleft()
        work.partition.finish(work, now)
        if queue.waiting:
            self._ready.append(queue)
        else:
            queue.partition.remove_if_empty(queue)

    def retry_at(self, work: WorkItem[V], at: float) -> None:
        """Retry this record at a time; its queue waits, the others continue. Not in a partition that is revoked soon."""
        if self.release(work) and not work.partition.draining:
            heapq.heappush(self._retries, (at, next(self._number), work.queue))

    def release(self, work: WorkItem[V]) -> bool:
        """This record is not being handled any more: it is not done, and is not taken again. Whether it is still ours."""
        still_assigned = self._stop_running(work)
        if still_assigned and work.partition.draining:
            work.partition.drain()
        return still_assigned

    def _stop_running(self, work: WorkItem[V]) -> bool:
        """Stop counting it as running; returns whether the record's partition is still ours."""
        work.running = False
        work.partition.running -= 1
        if work.revoked:
            self._revoked_running -= 1
            self._revoked_running_bytes -= work.size
            return False
        return True

    # --- counts -------------------------------------------------------------------------------------------------------

    @property
    def records(self) -> int:
        """Records in flight: waiting, being handled, or done behind one that is not."""
        return self._revoked_running + sum(len(progress.in_flight) for progress in self._partitions.values())

    @property
    def bytes(self) -> int:
        return self._revoked_running_bytes + sum(progress.bytes for progress in self._partitions.values())

    def running(self, partitions: Collection[TopicPartition] | None = None) -> int:
        """Records that are being handled now, of these partitions or of all."""
        if partitions is None:
            return sum(progress.running for progress in self._partitions.values()) + self._revoked_running
        return sum(progress.running for partition, progress in self._partitions.items() if partition in partitions)

    def unfinished(self, partitions: Collection[TopicPartition]) -> int:
        """Records of these draining partitions that are to be finished before."""
        draining = [
            progress
            for partition, progress in self._partitions.items()
            if partition in partitions and progress.draining
        ]
        return sum(len(queue.waiting) for progress in draining for queue in progress.queues.values())

    def committable(self, partitions: Collection[TopicPartition] | None = None) -> dict[TopicPartition, int]:
        """The offset up to which everything is done, of these partitions or of all."""
        return {
            partition: progress.committable_offset
            for partition, progress in self._partitions.items()
            if progress.committable_offset is not None and (partitions is None or partition in partitions)
        }
