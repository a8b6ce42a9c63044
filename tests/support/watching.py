"""Rules over a small table, rows at given times, and a log in memory that can die at any commit."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from riverrun.alerts.channels.contract import DeliveryStatus
from riverrun.alerts.engine import AlertEngine, InputRecord, PartitionKey, PollResult
from riverrun.alerts.incidents import IncidentEvent, IncidentFired, IncidentTracker
from riverrun.alerts.lookup import LookupTable
from riverrun.alerts.rows import WatchedRow
from riverrun.alerts.rules import Rule, build_rule
from riverrun.alerts.state_topic import AlertChange, PartitionPosition
from riverrun.model.alert import build_alert
from riverrun.model.pipeline import SourceLine
from riverrun.model.table import Column, TableSpec

MINUTE = 60_000
# Noon in Dublin's winter: its clock is UTC's.
NOON = int(datetime(2026, 1, 15, 12, tzinfo=UTC).timestamp() * 1000)
TOPIC = "house_now"


def table(**changes: Any) -> TableSpec:
    columns = (
        Column("house_id", "text", ("house_id",)),
        Column("load_kw", "double", ("load_kw",)),
        Column("phone", "text", ("phone",)),
        Column("readings", "bigint", ("readings",)),
        Column("paid", "decimal(10,2)", ("paid",)),
        Column("known", "boolean", ("known",)),
        Column("at", "timestamp", ("at",)),
    )
    return TableSpec(
        **{"name": TOPIC, "topic": TOPIC, "columns": columns, "key": ("house_id",), "time": "at", **changes}
    )


def rule(
    name: str = "overload",
    *,
    over: TableSpec | None = None,
    lookups: Mapping[str, LookupTable] | None = None,
    **options: Any,
) -> Rule:
    """A rule that fires above 2 kW, unless it is told otherwise."""
    given: dict[str, Any] = {"to": "phone", "text": "House {house_id} draws {load_kw:.1f} kW.", **options}
    if "silent" not in given:
        given.setdefault("when", "load_kw > 2.0")
    return build_rule(build_alert(name, TOPIC, SourceLine("meters.py", 7), given), over or table(), lookups or {})


def seen(
    minute: float, load: float | None = 1.0, house: str = "h1", *, offset: int = 0, identity: str = ""
) -> WatchedRow:
    """A row of a house, so many minutes after noon."""
    at = NOON + round(minute * MINUTE)
    row = {
        "house_id": house, "load_kw": load, "phone": f"+353{house}", "readings": 1, "paid": None, "known": True,
        "at": datetime.fromtimestamp(at / 1000, UTC),
    }  # fmt: skip
    return WatchedRow(TOPIC, 0, offset, at, at, row, identity)


def told(effects: Iterable[IncidentEvent]) -> list[tuple[str, str, int]]:
    return [
        ("fire" if isinstance(effect, IncidentFired) else "resolve", effect.key, effect.number) for effect in effects
    ]


def run(tracker: IncidentTracker, rows: Iterable[WatchedRow]) -> list[tuple[str, str, int]]:
    return told(effect for row in rows for effect in tracker.evaluate(row))


def record(
    offset: int, minute: float, load: float, house: str = "h1", *, partition: int = 0, recorded: int = -1
) -> InputRecord:
    at = NOON + round(minute * MINUTE)
    moment = datetime.fromtimestamp(at / 1000, UTC).isoformat()
    value = {"house_id": house, "load_kw": load, "phone": f"+353{house}", "at": moment}
    return InputRecord(TOPIC, partition, offset, at if recorded < 0 else recorded, json.dumps(value).encode())


class CrashError(Exception):
    """The process was killed here."""


@dataclass
class MemoryLog:
    """A cluster in memory. `crashes` names the commits and notes at which the process dies, by their number: "before" it is
    kept, or "after"."""

    records: list[InputRecord] = field(default_factory=list)
    changes: list[AlertChange] = field(default_factory=list)
    crashes: dict[int, str] = field(default_factory=dict)
    most: int = 10
    state_changes: list[AlertChange] = field(default_factory=list)
    steps: int = 0
    next_offsets: dict[PartitionKey, int] = field(default_factory=dict)

    def restore(self) -> Iterable[AlertChange]:
        return list(self.changes)

    def seek(self, positions: Mapping[PartitionKey, PartitionPosition]) -> Iterable[PartitionPosition]:
        places = sorted({(each.topic, each.partition) for each in self.records})
        self.next_offsets = {place: positions[place].offset if place in positions else 0 for place in places}
        return [
            PartitionPosition(topic=topic, partition=partition, offset=offset)
            for (topic, partition), offset in self.next_offsets.items()
        ]

    def poll(self) -> PollResult:
        waiting = [each for each in self.records if each.offset >= self.next_offsets[each.topic, each.partition]]
        found = waiting[: self.most]
        for each in found:
            self.next_offsets[each.topic, each.partition] = each.offset + 1
        behind = frozenset((each.topic, each.partition) for each in waiting[self.most :])
        said, self.state_changes = self.state_changes, []
        return PollResult(found, behind, said)

    def commit(self, changes: Sequence[AlertChange]) -> None:
        self._append(changes)

    def append(self, changes: Sequence[AlertChange]) -> None:
        self._append(changes)

    def _append(self, changes: Sequence[AlertChange]) -> None:
        self.steps += 1
        crash = self.crashes.get(self.steps, "")
        if crash == "before":
            raise CrashError
        self.changes += changes
        if crash:
            raise CrashError


@dataclass
class Gateway:
    """What a provider took, by message id, and how often. `crashes` names the requests after which we are killed."""

    taken: dict[str, int] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    crashes: set[int] = field(default_factory=set)
    requests: int = 0

    def send_due(self, engine: AlertEngine, now: int) -> None:
        """As the sender does: `trying` is kept first, and who finds it asks before sending again."""
        while due := engine.due(now):
            for message, delivery in due:
                if delivery.state != "trying":
                    engine.save_deliveries({message.id: DeliveryStatus(state="trying", tries=delivery.tries + 1)})
                if delivery.state != "trying" or message.id not in self.taken:
                    self.requests += 1
                    self.taken[message.id] = self.taken.get(message.id, 0) + 1
                    self.texts[message.id] = message.text
                    if self.requests in self.crashes:
                        raise CrashError
                engine.save_deliveries({message.id: DeliveryStatus(state="sent", tries=1)})
