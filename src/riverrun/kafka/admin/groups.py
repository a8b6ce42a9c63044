"""Consumer groups: who reads what, and how far behind, in offsets (as Kafka counts lag) and in seconds.

Lag in seconds is the age of the oldest record the group has not read. It is unknown (None) where that record cannot be
read: nothing committed, or removed by retention.
"""

import time
from collections.abc import Iterable
from dataclasses import dataclass

from riverrun.errors import GroupLiveError
from riverrun.kafka.admin.admin import Admin
from riverrun.kafka.admin.peek import first_timestamps
from riverrun.model.state import GroupState, Member, Place


@dataclass(frozen=True)
class PartitionLag:
    """One partition of a group. `committed` is None where the group has committed nothing yet: then it is behind by all
    the partition has."""

    place: Place
    committed: int | None
    earliest: int
    end: int
    lag_seconds: float | None
    member: Member | None

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
        return sorted({each.place.topic for each in self.partitions})

    @property
    def lag(self) -> int | None:
        return sum(each.lag for each in self.partitions) if self.partitions else None

    @property
    def lag_seconds(self) -> float | None:
        """The age of the oldest unread record; None when it is unknown for a partition that is behind."""
        behind = [each.lag_seconds for each in self.partitions if each.lag]
        if any(each is None for each in behind):
            return None
        if not behind:
            return 0.0 if self.lag is not None else None
        return max(each for each in behind if each is not None)


def group_lags(admin: Admin, names: Iterable[str] | None = None, *, seconds: bool = True) -> list[GroupLag]:
    """The lag of these groups (of all by default) that exist. `seconds` costs a read of one record per partition behind."""
    groups = admin.groups(names)
    committed = {name: admin.committed(name) for name in groups}
    assigned = {
        name: {place: member for member in group.members for place in member.assignment}
        for name, group in groups.items()
    }
    places = {place for name in groups for place in (*committed[name], *assigned[name])}
    # A group keeps the offsets of a topic that was deleted for a while; there is nothing to be behind of any more.
    existing = {
        place for topic in admin.topics({p.topic for p in places}, config=False).values() for place in topic.places
    }
    # A partition without a commit counts too: what is in it has not been read, as far as anybody can tell.
    topics = {name: {place.topic for place in (*committed[name], *assigned[name])} for name in groups}
    places = existing
    earliest = admin.offsets(places, "earliest")
    ends = admin.offsets(places, "latest")
    stands = {
        name: {place: committed[name].get(place, earliest[place]) for place in places if place.topic in topics[name]}
        for name in groups
    }
    ages = _ages(admin, stands, ends, earliest) if seconds else {}
    found = []
    for name, group in groups.items():
        mine = sorted(place for place in places if place.topic in topics[name])
        found.append(
            GroupLag(
                group,
                tuple(
                    PartitionLag(
                        place=place,
                        committed=committed[name].get(place),
                        earliest=earliest[place],
                        end=ends[place],
                        lag_seconds=ages.get((place, committed[name].get(place, earliest[place]))),
                        member=assigned[name].get(place),
                    )
                    for place in mine
                ),
            )
        )
    return found


def _ages(
    admin: Admin,
    stands: dict[str, dict[Place, int]],
    ends: dict[Place, int],
    earliest: dict[Place, int],
) -> dict[tuple[Place, int], float]:
    """Seconds behind at each (partition, offset) a group stands at. Groups that stand at different offsets of one
    partition take turns, because a reader has one position in it."""
    ages: dict[tuple[Place, int], float] = {}
    turns: list[dict[Place, int]] = []
    for place, offset in {(place, offset) for offsets in stands.values() for place, offset in offsets.items()}:
        if place not in ends:
            continue
        if offset >= ends[place]:
            ages[place, offset] = 0.0
        elif offset >= earliest[place]:
            turn = next((each for each in turns if place not in each), None)
            if turn is None:
                turns.append(turn := {})
            turn[place] = offset
    for turn in turns:
        stamps = first_timestamps(admin.connection, turn)
        now = time.time()
        ages |= {(place, turn[place]): max(0.0, now - stamp / 1000) for place, stamp in stamps.items()}
    return ages


def require_idle(group: GroupState) -> None:
    """GroupLiveError, with the names of its members, when the group has some."""
    if not group.live:
        return
    members = [f"{member.client_id} on {member.host}" for member in group.members]
    raise GroupLiveError(
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
