"""Consumer groups: which topics they read, and their lag, in offsets (as Kafka counts it) and in seconds.

Lag in seconds is the age of the oldest record the group has not read. It is unknown (None) if that record cannot be read:
nothing committed, or removed by retention.
"""

import time
from collections.abc import Iterable
from dataclasses import dataclass

from riverrun.errors import GroupNotEmptyError
from riverrun.kafka.admin.admin import Admin
from riverrun.kafka.admin.timestamps import first_timestamps
from riverrun.model.cluster_state import GroupMember, GroupState, TopicPartition


@dataclass(frozen=True)
class PartitionLag:
    """One partition of a group. `committed` is None if the group has committed nothing yet: then its lag is the whole
    partition."""

    topic_partition: TopicPartition
    committed: int | None
    earliest: int
    end: int
    lag_seconds: float | None
    member: GroupMember | None

    @property
    def lag(self) -> int:
        return max(0, self.end - (self.earliest if self.committed is None else self.committed))


@dataclass(frozen=True)
class GroupLag:
    """A group and its partitions: all of the topics it committed in, and those its members read."""

    group: GroupState
    partitions: tuple[PartitionLag, ...]

    @property
    def topics(self) -> list[str]:
        return sorted({partition.topic_partition.topic for partition in self.partitions})

    @property
    def lag(self) -> int | None:
        return sum(partition.lag for partition in self.partitions) if self.partitions else None

    @property
    def lag_seconds(self) -> float | None:
        """The age of the oldest unread record; None when it is unknown for a partition with lag."""
        lags = [partition.lag_seconds for partition in self.partitions if partition.lag]
        if any(seconds is None for seconds in lags):
            return None
        if not lags:
            return 0.0 if self.lag is not None else None
        return max(seconds for seconds in lags if seconds is not None)


def group_lags(admin: Admin, names: Iterable[str] | None = None, *, seconds: bool = True) -> list[GroupLag]:
    """The lag of these groups (default: all), if they exist. `seconds` costs a read of one record per partition with lag."""
    groups = admin.groups(names)
    committed = {name: admin.committed_offsets(name) for name in groups}
    assigned = {
        name: {partition: member for member in group.members for partition in member.assignment}
        for name, group in groups.items()
    }
    partitions = {partition for name in groups for partition in (*committed[name], *assigned[name])}
    # A group keeps the offsets of a deleted topic for a while; it has no lag there any more.
    existing = {
        partition
        for topic in admin.topics({p.topic for p in partitions}, config=False).values()
        for partition in topic.topic_partitions
    }
    # A partition without a commit counts too: as far as anybody can tell, it has not been read.
    topics = {name: {partition.topic for partition in (*committed[name], *assigned[name])} for name in groups}
    partitions = existing
    earliest = admin.offsets(partitions, "earliest")
    ends = admin.offsets(partitions, "latest")
    positions = {
        name: {
            partition: committed[name].get(partition, earliest[partition])
            for partition in partitions
            if partition.topic in topics[name]
        }
        for name in groups
    }
    ages = _lag_seconds_at(admin, positions, ends, earliest) if seconds else {}
    lags = []
    for name, group in groups.items():
        own_partitions = sorted(partition for partition in partitions if partition.topic in topics[name])
        lags.append(
            GroupLag(
                group,
                tuple(
                    PartitionLag(
                        topic_partition=partition,
                        committed=committed[name].get(partition),
                        earliest=earliest[partition],
                        end=ends[partition],
                        lag_seconds=ages.get((partition, committed[name].get(partition, earliest[partition]))),
                        member=assigned[name].get(partition),
                    )
                    for partition in own_partitions
                ),
            )
        )
    return lags


def _lag_seconds_at(
    admin: Admin,
    positions: dict[str, dict[TopicPartition, int]],
    ends: dict[TopicPartition, int],
    earliest: dict[TopicPartition, int],
) -> dict[tuple[TopicPartition, int], float]:
    """Lag in seconds at each (partition, offset) of a group. Groups at different offsets of one partition are read in
    separate rounds, because a reader has one position in it."""
    ages: dict[tuple[TopicPartition, int], float] = {}
    rounds: list[dict[TopicPartition, int]] = []
    for partition, offset in {
        (partition, offset) for offsets in positions.values() for partition, offset in offsets.items()
    }:
        if partition not in ends:
            continue
        if offset >= ends[partition]:
            ages[partition, offset] = 0.0
        elif offset >= earliest[partition]:
            round_positions = next(
                (offsets_of_round for offsets_of_round in rounds if partition not in offsets_of_round), None
            )
            if round_positions is None:
                rounds.append(round_positions := {})
            round_positions[partition] = offset
    for round_positions in rounds:
        stamps = first_timestamps(admin.connection, round_positions)
        now = time.time()
        ages |= {
            (partition, round_positions[partition]): max(0.0, now - stamp / 1000) for partition, stamp in stamps.items()
        }
    return ages


def require_idle(group: GroupState) -> None:
    """GroupNotEmptyError, with the names of its members, when the group has some."""
    if not group.live:
        return
    members = [f"{member.client_id} on {member.host}" for member in group.members]
    raise GroupNotEmptyError(
        f"The group {group.name} is live ({group.state}) and cannot be changed under its members",
        found=", ".join(members[:5]) + (f" and {len(members) - 5} more" if len(members) > 5 else ""),
        hint="Stop its consumers first; a member that was killed is forgotten after its session timeout (45 s by default)",
        group=group.name,
        members=len(members),
    )


def delete_group(admin: Admin, name: str) -> None:
    """Delete a group that has no members, with its offsets."""
    require_idle(admin.group(name))
    admin.delete_group(name)
