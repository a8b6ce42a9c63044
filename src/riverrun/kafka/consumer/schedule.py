"""Which record may be handled next, and up to where everything is done: the pure part of parallel handling.

No threads, no Kafka, no clock of its own: callers hold one lock around it and say what time it is. Records wait in lanes; in
a lane one record is handled at a time, in order. A lane is a partition, a key of a partition, or a single record, as `order`
says. Offsets are committable up to the first record of a partition that is not done, whatever is done behind it.
"""

import heapq
import itertools
from collections import deque
from collections.abc import Collection, Mapping
from typing import Any, Generic, Literal, TypeVar

from riverrun.kafka.consumer.record import Record
from riverrun.model.state import Place

V = TypeVar("V")

Order = Literal["partition", "key", "none"]


class Work(Generic[V]):
    """One record on its way through a handler."""

    __slots__ = ("attempts", "done", "lane", "next_offset", "partition", "record", "running", "size")

    def __init__(self, record: Record[V], lane: "_Lane[V]") -> None:
        self.record = record
        self.lane = lane
        self.partition = lane.partition
        self.next_offset = record.offset + 1
        self.size = record.size
        self.attempts = 0
        self.running = False
        self.done = False

    @property
    def abandoned(self) -> bool:
        """Whether its partition was taken from us meanwhile: how it ends is nobody's business here any more."""
        return self.partition.closed


class Progress(Generic[V]):
    """One partition for as long as it is ours: the records in hand, in order, and up to where all are done."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.in_hand: deque[Work[V]] = deque()
        self.bytes = 0
        self.running = 0
        self.closed = False
        # Whether it is about to go: nothing is tried again.
        self.leaving = False
        # The next offset to commit; None until there is something to say.
        self.done_to: int | None = None
        # When a record was last finished or, with none before it, taken in.
        self.moved_at = 0.0
        self.lanes: dict[Any, _Lane[V]] = {}
        self._end = -1

    def add(self, work: Work[V], now: float) -> None:
        if not self.in_hand:
            self.moved_at = now
        self.in_hand.append(work)
        self.bytes += work.size

    def finish(self, work: Work[V], now: float) -> None:
        """Mark a record done, and move on over all that are done from the front."""
        work.done = True
        self.moved_at = now
        in_hand = self.in_hand
        while in_hand and in_hand[0].done:
            first = in_hand.popleft()
            self.bytes -= first.size
            self.done_to = first.next_offset
        if not in_hand:
            self.ended_at(self._end)

    def ended_at(self, offset: int) -> None:
        """The partition has no more records before `offset`: past the last one there may be markers of transactions."""
        self._end = offset
        if not self.in_hand and offset > (-1 if self.done_to is None else self.done_to):
            self.done_to = offset

    def give_back(self, count: int, size: int) -> int | None:
        """Forget the newest records that nobody began, down to this count and size, but for the first one.

        Gives the offset to read from again; None when there was nothing to forget.
        """
        offset = None
        while (len(self.in_hand) > count or self.bytes > size) and len(self.in_hand) > 1:
            last = self.in_hand[-1]
            if last.attempts:
                break
            self.in_hand.pop()
            self.bytes -= last.size
            last.lane.waiting.pop()
            self.forget_empty(last.lane)
            offset = last.next_offset - 1
        if offset is not None:
            self._end = -1
        return offset

    def wind_up(self) -> None:
        """Forget the records that nobody began, but for those in front of one that is done or being handled: with them
        done, that one can be committed, and is not handled again by whoever is next. A record that failed is not tried
        again, and ends that: what is behind it cannot be committed any more.
        """
        self.leaving = True
        in_hand = self.in_hand
        end = 0
        for index, each in enumerate(in_hand):
            if each.running or each.done:
                end = index + 1
            elif each.attempts:
                break
        wanted = set(itertools.islice(in_hand, end))
        for lane in list(self.lanes.values()):
            lane.waiting = deque(each for each in lane.waiting if each.running or each in wanted)
            self.forget_empty(lane)
        while len(in_hand) > end and not in_hand[-1].running:
            in_hand.pop()
        self.bytes = sum(each.size for each in in_hand)
        self._end = -1

    def forget_empty(self, lane: "_Lane[V]") -> None:
        if not lane.waiting and self.lanes.get(lane.key) is lane:
            del self.lanes[lane.key]


class _Lane(Generic[V]):
    """Records that must follow each other. The first one is the one that is handled or waits to be tried again."""

    __slots__ = ("key", "partition", "waiting")

    def __init__(self, partition: Progress[V], key: Any) -> None:
        self.partition = partition
        self.key = key
        self.waiting: deque[Work[V]] = deque()


class Schedule(Generic[V]):
    """All records in hand of all partitions."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._partitions: dict[Place, Progress[V]] = {}
        self._ready: deque[_Lane[V]] = deque()
        self._later: list[tuple[float, int, _Lane[V]]] = []
        self._number = itertools.count()
        # Of partitions that were taken from us while a handler was at work.
        self._stray = 0
        self._stray_bytes = 0

    # --- partitions come and go ---------------------------------------------------------------------------------------

    def open(self, places: Collection[Place]) -> None:
        for place in places:
            self._partitions[place] = Progress(place)

    def wind_up(self, places: Collection[Place]) -> None:
        """These partitions go soon: forget what need not be finished first."""
        for place in places:
            if (progress := self._partitions.get(place)) is not None:
                progress.wind_up()

    def close(self, places: Collection[Place]) -> None:
        """These partitions are not ours any more."""
        for place in places:
            if (progress := self._partitions.pop(place, None)) is not None:
                progress.closed = True
                running = [each for each in progress.in_hand if each.running]
                self._stray += len(running)
                self._stray_bytes += sum(each.size for each in running)

    @property
    def partitions(self) -> Mapping[Place, Progress[V]]:
        return self._partitions

    # --- records come and go ------------------------------------------------------------------------------------------

    def add(self, records: Collection[Record[V]], now: float) -> None:
        """Take in records, in the order they were read. Those of partitions that are not ours are left out."""
        for record in records:
            # A plain tuple finds the same entry as a Place, and costs half as much.
            progress = self._partitions.get((record.topic, record.partition))  # type: ignore[call-overload]
            if progress is None:
                continue
            lane = self._lane_of(progress, record)
            work = Work(record, lane)
            progress.add(work, now)
            lane.waiting.append(work)
            if len(lane.waiting) == 1:
                self._ready.append(lane)

    def _lane_of(self, progress: Progress[V], record: Record[V]) -> _Lane[V]:
        key: Any = None
        if self._order == "none" or (self._order == "key" and record.key is None):
            key = record.offset
        elif self._order == "key":
            key = record.key
        lane = progress.lanes.get(key)
        if lane is None:
            lane = progress.lanes[key] = _Lane(progress, key)
        return lane

    def take(self, now: float) -> Work[V] | None:
        """The next record to handle; None when there is none now."""
        while self._later and self._later[0][0] <= now:
            self._ready.append(heapq.heappop(self._later)[2])
        while self._ready:
            lane = self._ready.popleft()
            if lane.partition.closed or not lane.waiting:
                lane.partition.forget_empty(lane)
                continue
            work = lane.waiting[0]
            if work.running:
                continue
            work.running = True
            work.attempts += 1
            lane.partition.running += 1
            return work
        return None

    def next_due(self) -> float | None:
        """When the next record that waits to be tried again is due."""
        return self._later[0][0] if self._later else None

    @property
    def has_ready(self) -> bool:
        return bool(self._ready)

    def finish(self, work: Work[V], now: float) -> None:
        """This record is done, one way or the other."""
        if not self._put_down(work):
            return
        lane = work.lane
        lane.waiting.popleft()
        work.partition.finish(work, now)
        if lane.waiting:
            self._ready.append(lane)
        else:
            lane.partition.forget_empty(lane)

    def again(self, work: Work[V], at: float) -> None:
        """Try this record again at a time; its lane waits, the others go on. Not in a partition that goes soon."""
        if self.put_back(work) and not work.partition.leaving:
            heapq.heappush(self._later, (at, next(self._number), work.lane))

    def put_back(self, work: Work[V]) -> bool:
        """Nobody handles this record after all: it is not done, and is not given out again. Whether it is still ours."""
        ours = self._put_down(work)
        if ours and work.partition.leaving:
            work.partition.wind_up()
        return ours

    def _put_down(self, work: Work[V]) -> bool:
        """Whether the record's partition is still ours."""
        work.running = False
        work.partition.running -= 1
        if work.abandoned:
            self._stray -= 1
            self._stray_bytes -= work.size
            return False
        return True

    # --- counts -------------------------------------------------------------------------------------------------------

    @property
    def records(self) -> int:
        """Records in hand: waiting, being handled, or done behind one that is not."""
        return self._stray + sum(len(each.in_hand) for each in self._partitions.values())

    @property
    def bytes(self) -> int:
        return self._stray_bytes + sum(each.bytes for each in self._partitions.values())

    def running(self, places: Collection[Place] | None = None) -> int:
        """Records a handler has now, of these partitions or of all."""
        if places is None:
            return sum(each.running for each in self._partitions.values()) + self._stray
        return sum(each.running for place, each in self._partitions.items() if place in places)

    def unfinished(self, places: Collection[Place]) -> int:
        """Records of these partitions, which go soon, that are to be finished before."""
        leaving = [each for place, each in self._partitions.items() if place in places and each.leaving]
        return sum(len(lane.waiting) for each in leaving for lane in each.lanes.values())

    def committable(self, places: Collection[Place] | None = None) -> dict[Place, int]:
        """Up to where everything is done, of these partitions or of all."""
        return {
            place: each.done_to
            for place, each in self._partitions.items()
            if each.done_to is not None and (places is None or place in places)
        }
