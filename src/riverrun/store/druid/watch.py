"""Where a table stands in Druid, told from what its supervisor, its tasks and Kafka say."""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from riverrun.errors import KafkaError, StoreError
from riverrun.kafka.admin.admin import Admin
from riverrun.kafka.admin.peek import first_timestamps
from riverrun.kafka.connection import Connection
from riverrun.model.state import Place
from riverrun.store.contract import State
from riverrun.store.druid.client import DruidClient

# A task that waits this long for a slot will not get one by itself.
PENDING_SECONDS = 30.0
# The end of a topic that is written in transactions is their markers, which nobody reads: looked for where lag is small.
_MARKERS = 1000
# How many tasks that ended are looked at for records they could not read.
_TASKS = 20
_BAD_COUNTS = ("unparseable", "processedWithError")

# What stands in an error of Druid's → what it means and what to do.
_REASONS = (
    (("OffsetOutOfRange", "not available", "no longer available", "offsets are missing"),
     "records were removed from the topic before they were read (retention); nothing more is read. "
     "`riverrun tables remove` and apply the table again, to read what is left"),
    (("UnknownTopicOrPartition", "is not found", "No partitions found"), "its topic is not there"),
    (("SaslAuthentication", "Authentication"), "Kafka refuses Druid's login; set druid.kafka_properties"),
    (("TopicAuthorization", "GroupAuthorization"), "Kafka does not let Druid read the topic"),
    (("TimeoutException", "Timeout expired", "Connection to node", "bootstrap.servers", "No resolvable bootstrap"),
     "Druid does not reach Kafka; set druid.kafka_servers to the brokers as Druid reaches them"),
    (("ClassNotFound", "could not be found", "InstantiationException"), "Druid lacks a class that its spec names"),
    (("ParseException", "parse exceptions", "Unparseable"), "its records cannot be read"),
    (("metadata",), "its offsets in Druid's metadata store do not fit what its tasks have read"),
    (("OutOfMemory", "heap space"), "Druid's indexer has too little memory (heap or direct); restart it with more"),
    (("No space left",), "the disk is full"),
)  # fmt: skip


@dataclass(frozen=True)
class Seen:
    """What is told of a table from its supervisor alone."""

    state: State
    detail: str = ""
    positions: Mapping[int, int] = field(default_factory=dict)


@dataclass
class Watch:
    """Follows one table from look to look: what it has had already tells a start from a setback."""

    datasource: str
    topic: str
    client: DruidClient
    connection: Connection
    high: dict[int, int] = field(default_factory=dict)
    updated: float = 0.0
    _reports: dict[str, tuple[int, str]] = field(default_factory=dict)
    _admin: Admin | None = None

    def look(self) -> tuple[Seen, int]:
        """State and positions, and the lag in offsets: -1 when Kafka does not say."""
        payload = self.client.supervisor_status(self.datasource)
        seen = told(payload, self.high, now=time.time())
        if payload is not None and seen.state != "following" and not _offsets(payload.get("activeTasks")):
            seen = self._tasks_missing(seen)
        lag = self._lag(seen.positions)
        ahead = {part: at for part, at in seen.positions.items() if at > self.high.get(part, 0)}
        if ahead:
            self.high |= ahead
            self.updated = time.time()
        if seen.state == "following" and lag > 0:
            seen = Seen("behind", seen.detail, seen.positions)
        bad = self._bad_records()
        if bad:
            seen = Seen(seen.state, "; ".join(each for each in (seen.detail, bad) if each), seen.positions)
        return seen, lag

    def _tasks_missing(self, seen: Seen) -> Seen:
        """Why no task reads."""
        waiting = [
            *self.client.tasks(self.datasource, state="pending"),
            *self.client.tasks(self.datasource, state="waiting"),
        ]
        oldest = min((_unix(each.get("createdTime")) for each in waiting), default=0.0)
        if oldest and time.time() - oldest > PENDING_SECONDS:
            return Seen(
                "failing",
                f"its task waits for a free slot since {time.time() - oldest:.0f} s: Druid runs as many tasks as it may "
                "(druid.worker.capacity; a table needs one, and a second while it publishes)",
                seen.positions,
            )
        ended = self.client.tasks(self.datasource, state="complete", most=3)
        failed = [each for each in ended if each.get("statusCode") == "FAILED"]
        if failed and seen.state == "failing":
            return Seen(
                "failing", f"{seen.detail}; its last task: {explain([failed[0].get('errorMsg')])}", seen.positions
            )
        if seen.state == "behind" and ended:
            return Seen("settling", "its next task is starting", seen.positions)
        return seen

    def _lag(self, positions: Mapping[int, int]) -> int:
        try:
            admin = self._admin = self._admin or Admin(self.connection)
            state = admin.topics([self.topic], config=False).get(self.topic)
            if state is None:
                return -1
            places = [Place(self.topic, each.partition) for each in state.partitions]
            ends = admin.offsets(places, "latest", committed_only=True)
            begins = admin.offsets(places, "earliest")
            left = {
                place: end - max(begins[place], positions.get(place.partition, 0))
                for place, end in ends.items()
                if end > max(begins[place], positions.get(place.partition, 0))
            }
            near = {place: ends[place] - many for place, many in left.items() if many <= _MARKERS}
            readable = first_timestamps(self.connection, near)
            return sum(many for place, many in left.items() if place not in near or place in readable)
        except KafkaError:
            return -1

    def _bad_records(self) -> str:
        """Records that tasks passed over, as words: those of running tasks, and of the last ones that ended."""
        try:
            count = sum(_bad(each) for each in self.client.supervisor_stats(self.datasource).values())
            samples = [text for each in self.client.parse_errors(self.datasource) if (text := _sample(each))]
            for task in self.client.tasks(self.datasource, state="complete", most=_TASKS):
                more, sample = self._reported(str(task["id"]))
                count += more
                samples += [sample] if sample else []
        except StoreError:
            return ""
        if not count:
            return ""
        last = f" (such as {samples[0]})" if samples else ""
        return f"{count} records could not be read and are not in the table{last}"

    def _reported(self, task: str) -> tuple[int, str]:
        if task not in self._reports:
            report = self.client.task_report(task)
            self._reports[task] = _of_report(report or {})
        return self._reports[task]


def told(payload: Mapping[str, Any] | None, high: Mapping[int, int], *, now: float) -> Seen:
    """State, reason and positions from a supervisor's status. `high` are the furthest positions seen before."""
    if payload is None:
        return Seen("failing", "its supervisor is gone from Druid: somebody terminated it; apply the table again")
    tasks = [*(payload.get("activeTasks") or []), *(payload.get("publishingTasks") or [])]
    have = _offsets(tasks)
    positions = have or _offsets(tasks, "startingOffsets")
    errors = [each.get("message") or each.get("exceptionClass") for each in payload.get("recentErrors") or []]
    state, detailed = str(payload.get("state") or ""), str(payload.get("detailedState") or "")
    if payload.get("suspended"):
        return Seen("failing", "it is suspended: somebody asked Druid for that; resume it there", positions)
    if "UNHEALTHY" in state or detailed in ("UNABLE_TO_CONNECT_TO_STREAM", "LOST_CONTACT_WITH_STREAM"):
        return Seen("failing", explain(errors, detailed), positions)
    lost = sum(at - have.get(part, 0) for part, at in high.items() if have.get(part, 0) < at)
    if not have:
        return Seen("settling" if high else "behind", "its task is starting", positions)
    if lost > 0:
        detail = f"after a failure {lost} records are read again; figures are too low until then"
        return Seen("settling", detail, positions)
    fresh = [each for each in payload.get("recentErrors") or [] if now - _unix(each.get("timestamp")) < PENDING_SECONDS]
    return Seen("following", explain(errors) if fresh else "", positions)


def explain(errors: Iterable[Any], otherwise: str = "") -> str:
    """The newest error of Druid's in words, with its own."""
    said = [" ".join(str(each).split()) for each in errors if each]
    if not said:
        return otherwise.lower().replace("_", " ")
    text = said[-1]
    reason = next((words for signs, words in _REASONS if any(sign.lower() in text.lower() for sign in signs)), "")
    return f"{reason} (Druid: {text[:300]})" if reason else f"Druid says: {text[:300]}"


def _offsets(tasks: Any, name: str = "currentOffsets") -> dict[int, int]:
    """The furthest offset of every partition. Partitions are numbers, or `topic:number`."""
    found: dict[int, int] = {}
    for each in tasks or []:
        for part, at in (each.get(name) or {}).items():
            number = int(str(part).rpartition(":")[2])
            found[number] = max(found.get(number, 0), int(at))
    return found


def _bad(counts: Mapping[str, Any]) -> int:
    return sum(int(counts.get(each) or 0) for each in _BAD_COUNTS)


def _sample(error: Mapping[str, Any]) -> str:
    text = " ".join(str(error.get("input") or "").split())
    why = next((str(each) for each in error.get("details") or []), "")
    return f"{text[:120]}: {why[:200]}" if text else why[:200]


def _of_report(report: Mapping[str, Any]) -> tuple[int, str]:
    payload = ((report.get("ingestionStatsAndErrors") or {}).get("payload")) or {}
    counts = (payload.get("rowStats") or {}).get("buildSegments") or {}
    events = (payload.get("unparseableEvents") or {}).get("buildSegments") or []
    samples = [each for each in events if isinstance(each, dict)]
    return _bad(counts), _sample(samples[0]) if samples else ""


def _unix(text: Any) -> float:
    try:
        return datetime.fromisoformat(str(text)).timestamp()
    except ValueError:
        return 0.0
