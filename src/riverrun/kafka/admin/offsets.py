"""Move the committed offsets of a group that is not running: first a plan that can be shown, then the commit."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from riverrun.errors import UsageError
from riverrun.kafka.admin.admin import Admin
from riverrun.kafka.admin.groups import require_idle
from riverrun.model.cluster_state import TopicPartition
from riverrun.model.positions import OffsetSpec


@dataclass(frozen=True)
class OffsetTarget:
    """Where to move to. `number` is the offset, the milliseconds since 1970, or the shift (negative: back)."""

    kind: Literal["earliest", "latest", "offset", "time", "shift"]
    number: int = 0


@dataclass(frozen=True)
class OffsetMove:
    """One partition's move. `before` is None if nothing was committed; `after` is None if it is left alone."""

    topic_partition: TopicPartition
    before: int | None
    after: int | None
    first: int = 0
    note: str = ""

    @property
    def reread(self) -> int:
        """Offsets that the group will read again: records, and transaction markers."""
        return max(0, self.before - self.after) if self.before is not None and self.after is not None else 0

    @property
    def skipped(self) -> int:
        """Offsets that exist and that the group will never read."""
        if self.before is None or self.after is None:
            return 0
        return max(0, self.after - max(self.before, self.first))

    def row(self) -> dict[str, Any]:
        return {
            "topic": self.topic_partition.topic,
            "partition": self.topic_partition.partition,
            "from": self.before,
            "to": self.after,
            "read_again": self.reread,
            "skipped": self.skipped,
            "note": self.note,
        }


def plan_partition_moves(
    target: OffsetTarget,
    *,
    committed: Mapping[TopicPartition, int],
    earliest: Mapping[TopicPartition, int],
    latest: Mapping[TopicPartition, int],
    at_time: Mapping[TopicPartition, int] | None = None,
) -> list[OffsetMove]:
    """The move of every partition in `earliest`. An offset outside of the partition's range is moved to its nearest end, and
    the note says so."""
    moves = []
    for partition in sorted(earliest):
        first, end, before = earliest[partition], latest[partition], committed.get(partition)
        requested = _target_offset(target, first, end, before, (at_time or {}).get(partition, end))
        if requested is None:
            moves.append(OffsetMove(partition, None, None, first, "nothing committed to shift from"))
        else:
            after = min(max(requested, first), end)
            moves.append(OffsetMove(partition, before, after, first, _note(requested, after)))
    return moves


def _target_offset(target: OffsetTarget, first: int, end: int, before: int | None, at_time: int) -> int | None:
    match target.kind:
        case "earliest":
            return first
        case "latest":
            return end
        case "offset":
            return target.number
        case "time":
            return at_time
        case "shift":
            return None if before is None else before + target.number


def _note(requested: int, nearest: int) -> str:
    if requested == nearest:
        return ""
    return f"{requested} is {'gone' if requested < nearest else 'not written yet'}: {nearest} is the nearest there is"


@dataclass(frozen=True)
class OffsetMovePlan:
    """What `apply_offset_moves` would do to a group. `new` when the group does not exist yet."""

    group: str
    new: bool
    moves: tuple[OffsetMove, ...]

    @property
    def skipped(self) -> int:
        return sum(move.skipped for move in self.moves)

    @property
    def reread(self) -> int:
        return sum(move.reread for move in self.moves)

    @property
    def changes(self) -> dict[TopicPartition, int]:
        return {
            move.topic_partition: move.after
            for move in self.moves
            if move.after is not None and move.after != move.before
        }


def plan_offset_moves(
    admin: Admin, group: str, target: OffsetTarget, *, topics: Collection[str] = (), partitions: Collection[int] = ()
) -> OffsetMovePlan:
    """Plan a move. Without `topics`: all that the group has committed in. GroupNotEmptyError while it has members."""
    state = admin.groups([group]).get(group)
    if state is None and not topics:
        raise admin.group_not_found(group)
    if state is not None:
        require_idle(state)
    if partitions and len(topics) != 1:
        raise UsageError("Partitions belong to one topic", hint="Name it with --topic")
    committed = admin.committed_offsets(group) if state is not None else {}
    if not topics and not committed:
        raise UsageError(f"The group {group} has committed nothing", hint="Say where with --topic", group=group)
    topic_partitions = _select_partitions(admin, topics, partitions) if topics else list(committed)
    if not topics:
        existing = {
            partition
            for state_of_topic in admin.topics({p.topic for p in topic_partitions}, config=False).values()
            for partition in state_of_topic.topic_partitions
        }
        topic_partitions = [partition for partition in topic_partitions if partition in existing]
    return OffsetMovePlan(
        group,
        new=state is None,
        moves=tuple(
            plan_partition_moves(
                target,
                committed=committed,
                earliest=admin.offsets(topic_partitions, "earliest"),
                latest=admin.offsets(topic_partitions, "latest"),
                at_time=admin.offsets(topic_partitions, target.number) if target.kind == "time" else None,
            )
        ),
    )


def _select_partitions(admin: Admin, topics: Collection[str], partitions: Collection[int]) -> list[TopicPartition]:
    topic_partitions = [topic_partition for name in topics for topic_partition in admin.topic(name).topic_partitions]
    if not partitions:
        return topic_partitions
    unknown = sorted(set(partitions) - {topic_partition.partition for topic_partition in topic_partitions})
    if unknown:
        raise UsageError(
            f"{next(iter(topics))} has no partition {', '.join(map(str, unknown))}",
            expected=f"0 to {len(topic_partitions) - 1}",
        )
    return [topic_partition for topic_partition in topic_partitions if topic_partition.partition in partitions]


def apply_offset_moves(admin: Admin, move_plan: OffsetMovePlan) -> None:
    """Commit the plan. If the group has members again, the cluster refuses it."""
    if move_plan.changes:
        admin.alter_group_offsets(move_plan.group, move_plan.changes)


def offsets_at(admin: Admin, partitions: Collection[TopicPartition], position: OffsetSpec) -> dict[TopicPartition, int]:
    """The offset of a position in each partition, within what readers of committed records can read."""
    earliest = admin.offsets(partitions, "earliest")
    latest = admin.offsets(partitions, "latest", committed_only=True)
    match position.kind:
        case "earliest":
            return earliest
        case "latest":
            return latest
        case "offset":
            return {
                partition: min(max(position.number, earliest[partition]), latest[partition]) for partition in partitions
            }
        case "last":
            return {
                partition: max(earliest[partition], latest[partition] - position.number) for partition in partitions
            }
        case "time":
            at_time = admin.offsets(partitions, position.number)
            return {partition: min(at_time[partition], latest[partition]) for partition in partitions}
