"""The buffer of a plain loop: records fetched ahead, the delivered record or batch, and what is done."""

from collections import deque
from collections.abc import Collection, Mapping
from typing import NamedTuple

from confluent_kafka import Message

from riverrun.kafka.consumer.subscription import FetchedRecords
from riverrun.model.cluster_state import TopicPartition


class _PartitionEnd(NamedTuple):
    """Marks the end of a partition: up to this offset there is nothing more to read."""

    topic_partition: TopicPartition
    offset: int


class FetchBuffer:
    """Records move from buffered to delivered to done. Nothing becomes done that was not delivered."""

    def __init__(self) -> None:
        # The next offset to commit, of each partition of which anything was done.
        self.done: dict[TopicPartition, int] = {}
        self._buffered: deque[Message | _PartitionEnd] = deque()
        self._count = 0
        self._delivered: list[Message] = []
        # The positions of the partitions when what was delivered is done: of one record, or of a batch.
        self._delivered_position: tuple[tuple[str, int], int] | None = None
        self._delivered_positions: dict[TopicPartition, int] | None = None

    def __len__(self) -> int:
        """How many records are buffered."""
        return self._count

    def put(self, fetched: FetchedRecords) -> None:
        """Add records to deliver later. An end counts once everything before it is done."""
        self._buffered.extend(fetched.messages)
        self._count += len(fetched.messages)
        self._buffered.extend(_PartitionEnd(partition, offset) for partition, offset in fetched.ends.items())
        if not self.has_delivered:
            self._mark_ends_done()

    @property
    def has_delivered(self) -> bool:
        """Whether a record or batch was delivered and is not done yet."""
        return self._delivered_position is not None or self._delivered_positions is not None

    def _mark_ends_done(self) -> None:
        buffered = self._buffered
        while buffered and type(buffered[0]) is _PartitionEnd:
            end: _PartitionEnd = buffered.popleft()  # type: ignore[assignment]
            self._mark_end_done(end)

    def _mark_end_done(self, end: _PartitionEnd) -> None:
        self.done[end.topic_partition] = max(self.done.get(end.topic_partition, -1), end.offset)

    def take_one(self) -> Message | None:
        """Deliver the next record; None when none is buffered."""
        self._mark_ends_done()
        if not self._buffered:
            return None
        self._count -= 1
        message: Message = self._buffered.popleft()  # type: ignore[assignment]
        self._delivered = [message]
        self._delivered_position = (message.topic(), message.partition()), message.offset() + 1  # type: ignore[assignment,operator]
        return message

    def take_batch(self, max_records: int, positions: Mapping[TopicPartition, int]) -> list[Message]:
        """Up to `max_records` records, now in hand. `positions` says where the partitions stand when all that is ahead is
        done."""
        if self._count <= max_records:
            taken = [item for item in self._buffered if type(item) is not _PartitionEnd]
            self._buffered.clear()
            self._delivered_positions = dict(positions)
        else:
            taken = []
            self._delivered_positions = {}
            while self._buffered and len(taken) < max_records:
                item = self._buffered.popleft()
                if isinstance(item, _PartitionEnd):
                    self._delivered_positions[item.topic_partition] = max(
                        self._delivered_positions.get(item.topic_partition, -1), item.offset
                    )
                else:
                    taken.append(item)
                    self._delivered_positions[TopicPartition(item.topic(), item.partition())] = item.offset() + 1  # type: ignore[arg-type,operator]
        self._delivered = taken  # type: ignore[assignment]
        self._count -= len(taken)
        return self._delivered

    def mark_done(self) -> int:
        """Mark what was delivered as done; returns how many records that were."""
        if self._delivered_position is not None:
            key, offset = self._delivered_position
            # A plain tuple finds the same entry as a TopicPartition, and costs half as much.
            self.done[key] = offset  # type: ignore[index]
            self._delivered_position = None
            self._mark_ends_done()
            return 1
        if self._delivered_positions is not None:
            self.done.update(self._delivered_positions)
            self._delivered_positions = None
            self._mark_ends_done()
            return len(self._delivered)
        return 0

    def delivered_positions(self) -> dict[TopicPartition, int]:
        """The positions of the delivered partitions when they are done."""
        # Another thread may commit while this one marks it done.
        if (position := self._delivered_position) is not None:
            return {TopicPartition(*position[0]): position[1]}
        return dict(self._delivered_positions or {})

    def return_delivered(self) -> None:
        """Put what was delivered back into the buffer. Records of partitions that were revoked meanwhile are dropped."""
        ours = self.delivered_positions()
        returned = [message for message in self._delivered if (message.topic(), message.partition()) in ours]
        self._buffered.extendleft(reversed(returned))
        self._count += len(returned)
        self._delivered_position = self._delivered_positions = None

    def drop_buffered(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Drop the buffered records of these partitions; returns the first dropped offset of each."""
        first: dict[TopicPartition, int] = {}
        kept: deque[Message | _PartitionEnd] = deque()
        for item in self._buffered:
            if isinstance(item, _PartitionEnd):
                partition = item.topic_partition
            else:
                partition = TopicPartition(item.topic(), item.partition())  # type: ignore[arg-type]
            if partition not in partitions:
                kept.append(item)
            elif not isinstance(item, _PartitionEnd):
                first.setdefault(partition, item.offset())  # type: ignore[arg-type]
        self._buffered = kept
        self._count = sum(not isinstance(item, _PartitionEnd) for item in kept)
        return first

    def first_buffered(self) -> dict[TopicPartition, int]:
        """The offset of the first buffered record of each partition that has one."""
        first: dict[TopicPartition, int] = {}
        for item in self._buffered:
            if not isinstance(item, _PartitionEnd):
                first.setdefault(TopicPartition(item.topic(), item.partition()), item.offset())  # type: ignore[arg-type]
        return first

    def forget(self, partitions: Collection[TopicPartition]) -> None:
        """Forget partitions that are not ours any more, or are read from another offset."""
        self.drop_buffered(partitions)
        for partition in partitions:
            self.done.pop(partition, None)
            if self._delivered_positions is not None:
                self._delivered_positions.pop(partition, None)
        if self._delivered_position is not None and self._delivered_position[0] in partitions:
            self._delivered_position = None
