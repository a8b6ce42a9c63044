"""What a plain loop has in hand: records fetched ahead, the record or batch that was given out, and what is done."""

from collections import deque
from collections.abc import Collection, Mapping
from typing import NamedTuple

from confluent_kafka import Message

from riverrun.kafka.consumer.subscription import Fetched
from riverrun.model.state import Place


class _End(NamedTuple):
    """Behind the last record of a partition: up to here there is nothing more to read."""

    place: Place
    offset: int


class Hand:
    """Records move from `ahead` to in hand to done. Nothing becomes done that was not given out."""

    def __init__(self) -> None:
        # The next offset to commit, of each partition of which anything was done.
        self.done: dict[Place, int] = {}
        self._ahead: deque[Message | _End] = deque()
        self._count = 0
        self._given: list[Message] = []
        # Where the partitions stand when what was given out is done: of one record, or of a batch.
        self._one: tuple[tuple[str, int], int] | None = None
        self._many: dict[Place, int] | None = None

    def __len__(self) -> int:
        """How many records are ahead."""
        return self._count

    def put(self, fetched: Fetched) -> None:
        """Records to give out later. An end counts once all before it is done."""
        self._ahead.extend(fetched.messages)
        self._count += len(fetched.messages)
        self._ahead.extend(_End(place, offset) for place, offset in fetched.ends.items())
        if not self.busy:
            self._pass_ends()

    @property
    def busy(self) -> bool:
        """Whether a record or batch was given out and is not done yet."""
        return self._one is not None or self._many is not None

    def _pass_ends(self) -> None:
        ahead = self._ahead
        while ahead and type(ahead[0]) is _End:
            end: _End = ahead.popleft()  # type: ignore[assignment]
            self._pass(end)

    def _pass(self, end: _End) -> None:
        self.done[end.place] = max(self.done.get(end.place, -1), end.offset)

    def take_one(self) -> Message | None:
        """The next record, now in hand; None when there is none ahead."""
        self._pass_ends()
        if not self._ahead:
            return None
        self._count -= 1
        message: Message = self._ahead.popleft()  # type: ignore[assignment]
        self._given = [message]
        self._one = (message.topic(), message.partition()), message.offset() + 1  # type: ignore[assignment,operator]
        return message

    def take_many(self, most: int, positions: Mapping[Place, int]) -> list[Message]:
        """Up to `most` records, now in hand. `positions` says where the partitions stand when all that is ahead is done."""
        if self._count <= most:
            taken = [each for each in self._ahead if type(each) is not _End]
            self._ahead.clear()
            self._many = dict(positions)
        else:
            taken = []
            self._many = {}
            while self._ahead and len(taken) < most:
                each = self._ahead.popleft()
                if isinstance(each, _End):
                    self._many[each.place] = max(self._many.get(each.place, -1), each.offset)
                else:
                    taken.append(each)
                    self._many[Place(each.topic(), each.partition())] = each.offset() + 1  # type: ignore[arg-type,operator]
        self._given = taken  # type: ignore[assignment]
        self._count -= len(taken)
        return self._given

    def settle(self) -> int:
        """What is in hand is done: how many records that were."""
        if self._one is not None:
            key, offset = self._one
            # A plain tuple finds the same entry as a Place, and costs half as much.
            self.done[key] = offset  # type: ignore[index]
            self._one = None
            self._pass_ends()
            return 1
        if self._many is not None:
            self.done.update(self._many)
            self._many = None
            self._pass_ends()
            return len(self._given)
        return 0

    def in_hand(self) -> dict[Place, int]:
        """Where the partitions of what is in hand stand when it is done."""
        # Another thread may commit while this one settles.
        if (one := self._one) is not None:
            return {Place(*one[0]): one[1]}
        return dict(self._many or {})

    def put_back(self) -> None:
        """What is in hand was not given out after all. What is of partitions that went meanwhile is dropped."""
        ours = self.in_hand()
        again = [each for each in self._given if (each.topic(), each.partition()) in ours]
        self._ahead.extendleft(reversed(again))
        self._count += len(again)
        self._one = self._many = None

    def drop_ahead(self, places: Collection[Place]) -> dict[Place, int]:
        """Drop the records ahead of these partitions; the first offset dropped of each."""
        first: dict[Place, int] = {}
        kept: deque[Message | _End] = deque()
        for each in self._ahead:
            place = each.place if isinstance(each, _End) else Place(each.topic(), each.partition())  # type: ignore[arg-type]
            if place not in places:
                kept.append(each)
            elif not isinstance(each, _End):
                first.setdefault(place, each.offset())  # type: ignore[arg-type]
        self._ahead = kept
        self._count = sum(not isinstance(each, _End) for each in kept)
        return first

    def first_ahead(self) -> dict[Place, int]:
        """The offset of the first record ahead of each partition that has one."""
        first: dict[Place, int] = {}
        for each in self._ahead:
            if not isinstance(each, _End):
                first.setdefault(Place(each.topic(), each.partition()), each.offset())  # type: ignore[arg-type]
        return first

    def forget(self, places: Collection[Place]) -> None:
        """These partitions are not ours any more, or are read from elsewhere: nothing of them counts."""
        self.drop_ahead(places)
        for place in places:
            self.done.pop(place, None)
            if self._many is not None:
                self._many.pop(place, None)
        if self._one is not None and self._one[0] in places:
            self._one = None
