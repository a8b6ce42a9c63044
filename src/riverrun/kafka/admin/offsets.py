"""Move the committed offsets of a group that is not running: first a plan that can be shown, then the commit."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from riverrun.errors import UsageError
from riverrun.kafka.admin.admin import Admin
from riverrun.kafka.admin.groups import require_idle
from riverrun.model.state import Place
from riverrun.model.when import Position


@dataclass(frozen=True)
class Target:
    """Where to move to. `number` is the offset, the milliseconds since 1970, or the shift (negative: back)."""

    kind: Literal["earliest", "latest", "offset", "time", "shift"]
    number: int = 0


@dataclass(frozen=True)
class Move:
    """One partition's move. `before` is None where nothing was committed; `after` is None where it is left alone."""

    place: Place
    before: int | None
    after: int | None
    first: int = 0
    note: str = ""

    @property
    def again(self) -> int:
        """Offsets that the group will read again: records, and markers of transactions."""
        return max(0, self.before - self.after) if self.before is not None and self.after is not None else 0

    @property
    def skipped(self) -> int:
        """Offsets that are there and that the group will never read."""
        if self.before is None or self.after is None:
            return 0
        return max(0, self.after - max(self.before, self.first))

    def row(self) -> dict[str, Any]:
        return {
            "topic": self.place.topic,
            "partition": self.place.partition,
            "from": self.before,
            "to": self.after,
            "read_again": self.again,
            "skipped": self.skipped,
            "note": self.note,
        }


def plan_moves(
    target: Target,
    *,
    committed: Mapping[Place, int],
    earliest: Mapping[Place, int],
    latest: Mapping[Place, int],
    at_time: Mapping[Place, int] | None = None,
) -> list[Move]:
    """The move of every partition in `earliest`. An offset outside of what the partition has is moved to its nearest
    end, and the note says so."""
    moves = []
    for place in sorted(earliest):
        first, end, before = earliest[place], latest[place], committed.get(place)
        wanted = _wanted(target, first, end, before, (at_time or {}).get(place, end))
        if wanted is None:
            moves.append(Move(place, None, None, first, "nothing committed to shift from"))
        else:
            after = min(max(wanted, first), end)
            moves.append(Move(place, before, after, first, _note(wanted, after)))
    return moves


def _wanted(target: Target, first: int, end: int, before: int | None, at_time: int) -> int | None:
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


def _note(wanted: int, after: int) -> str:
    if wanted == after:
        return ""
    return f"{wanted} is {'gone' if wanted < after else 'not written yet'}: {after} is the nearest there is"


@dataclass(frozen=True)
class Plan:
    """What `move` would do to a group. `new` when the group does not exist yet."""

    group: str
    new: bool
    moves: tuple[Move, ...]

    @property
    def skipped(self) -> int:
        return sum(each.skipped for each in self.moves)

    @property
    def again(self) -> int:
        return sum(each.again for each in self.moves)

    @property
    def changes(self) -> dict[Place, int]:
        return {each.place: each.after for each in self.moves if each.after is not None and each.after != each.before}


def plan(
    admin: Admin, group: str, target: Target, *, topics: Collection[str] = (), partitions: Collection[int] = ()
) -> Plan:
    """What moving would do. Without `topics`: all that the group has committed in. GroupLiveError while it has members."""
    state = admin.groups([group]).get(group)
    if state is None and not topics:
        raise admin.no_group(group)
    if state is not None:
        require_idle(state)
    if partitions and len(topics) != 1:
        raise UsageError("Partitions belong to one topic", hint="Name it with --topic")
    committed = admin.committed(group) if state is not None else {}
    if not topics and not committed:
        raise UsageError(f"The group {group} has committed nothing", hint="Say where with --topic", group=group)
    places = _chosen(admin, topics, partitions) if topics else list(committed)
    if not topics:
        there = {
            place for each in admin.topics({p.topic for p in places}, config=False).values() for place in each.places
        }
        places = [place for place in places if place in there]
    return Plan(
        group,
        new=state is None,
        moves=tuple(
            plan_moves(
                target,
                committed=committed,
                earliest=admin.offsets(places, "earliest"),
                latest=admin.offsets(places, "latest"),
                at_time=admin.offsets(places, target.number) if target.kind == "time" else None,
            )
        ),
    )


def _chosen(admin: Admin, topics: Collection[str], partitions: Collection[int]) -> list[Place]:
    places = [place for name in topics for place in admin.topic(name).places]
    if not partitions:
        return places
    unknown = sorted(set(partitions) - {place.partition for place in places})
    if unknown:
        raise UsageError(
            f"{next(iter(topics))} has no partition {', '.join(map(str, unknown))}",
            expected=f"0 to {len(places) - 1}",
        )
    return [place for place in places if place.partition in partitions]


def apply(admin: Admin, moves: Plan) -> None:
    """Commit the plan. A group that came to life since is refused by the cluster."""
    if moves.changes:
        admin.commit(moves.group, moves.changes)


def offsets_at(admin: Admin, places: Collection[Place], position: Position) -> dict[Place, int]:
    """The offset of a position in each partition, within what readers of committed records find there."""
    earliest = admin.offsets(places, "earliest")
    latest = admin.offsets(places, "latest", committed_only=True)
    match position.kind:
        case "earliest":
            return earliest
        case "latest":
            return latest
        case "offset":
            return {place: min(max(position.number, earliest[place]), latest[place]) for place in places}
        case "last":
            return {place: max(earliest[place], latest[place] - position.number) for place in places}
        case "time":
            found = admin.offsets(places, position.number)
            return {place: min(found[place], latest[place]) for place in places}
