"""The status of a table in Druid, derived from its supervisor, its tasks and Kafka."""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from riverrun.errors import KafkaError, StoreError
from riverrun.kafka.admin.admin import Admin
from riverrun.kafka.admin.timestamps import first_timestamps
from riverrun.kafka.connection import Connection
from riverrun.model.cluster_state import TopicPartition
from riverrun.store.contract import TableHealth
from riverrun.store.druid.client import DruidClient

# A task that waits this long for a slot will not get one by itself.
PENDING_SECONDS = 30.0
# A topic written in transactions ends with markers, which nobody reads: lag this small is checked for them.
_MAX_MARKER_LAG = 1000
# How many ended tasks are searched for records they could not read.
_MAX_ENDED_TASKS = 20
_BAD_COUNTS = ("unparseable", "processedWithError")

# Text in a Druid error → what it means and what to do.
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
class SupervisorStatus:
    """What a supervisor alone says about a table."""

    state: TableHealth
    detail: str = ""
    positions: Mapping[int, int] = field(default_factory=dict)


@dataclass
class SupervisorMonitor:
    """Follows one table from check to check: its earlier state tells a start from a setback."""

    datasource: str
    topic: str
    client: DruidClient
    connection: Connection
    high_positions: dict[int, int] = field(default_factory=dict)
    updated: float = 0.0
    _reports: dict[str, tuple[int, str]] = field(default_factory=dict)
    _admin: Admin | None = None

    def check(self) -> tuple[SupervisorStatus, int]:
        """State and positions, and the lag in offsets: -1 when Kafka does not say."""
        payload = self.client.supervisor_status(self.datasource)
        status = read_status(payload, self.high_positions, now=time.time())
        if payload is not None and status.state != "following" and not _offsets(payload.get("activeTasks")):
            status = self._explain_missing_tasks(status)
        lag = self._lag(status.positions)
        ahead = {
            partition: offset
            for partition, offset in status.positions.items()
            if offset > self.high_positions.get(partition, 0)
        }
        if ahead:
            self.high_positions |= ahead
            self.updated = time.time()
        if status.state == "following" and lag > 0:
            status = SupervisorStatus("behind", status.detail, status.positions)
        bad = self._bad_records()
        if bad:
            status = SupervisorStatus(
                status.state, "; ".join(text for text in (status.detail, bad) if text), status.positions
            )
        return status, lag

    def _explain_missing_tasks(self, status: SupervisorStatus) -> SupervisorStatus:
        """Why no task reads."""
        waiting = [
            *self.client.tasks(self.datasource, state="pending"),
            *self.client.tasks(self.datasource, state="waiting"),
        ]
        oldest = min((_unix_seconds(task.get("createdTime")) for task in waiting), default=0.0)
        if oldest and time.time() - oldest > PENDING_SECONDS:
            return SupervisorStatus(
                "failing",
                f"its task waits for a free slot since {time.time() - oldest:.0f} s: Druid runs as many tasks as it may "
                "(druid.worker.capacity; a table needs one, and a second while it publishes)",
                status.positions,
            )
        ended = self.client.tasks(self.datasource, state="complete", limit=3)
        failed = [task for task in ended if task.get("statusCode") == "FAILED"]
        if failed and status.state == "failing":
            return SupervisorStatus(
                "failing",
                f"{status.detail}; its last task: {explain_errors([failed[0].get('errorMsg')])}",
                status.positions,
            )
        if status.state == "behind" and ended:
            return SupervisorStatus("settling", "its next task is starting", status.positions)
        return status

    def _lag(self, positions: Mapping[int, int]) -> int:
        try:
            admin = self._admin = self._admin or Admin(self.connection)
            state = admin.topics([self.topic], config=False).get(self.topic)
            if state is None:
                return -1
            partitions = [TopicPartition(self.topic, partition.partition) for partition in state.partitions]
            ends = admin.offsets(partitions, "latest", committed_only=True)
            starts = admin.offsets(partitions, "earliest")
            remaining = {
                topic_partition: end - max(starts[topic_partition], positions.get(topic_partition.partition, 0))
                for topic_partition, end in ends.items()
                if end > max(starts[topic_partition], positions.get(topic_partition.partition, 0))
            }
            near = {
                topic_partition: ends[topic_partition] - count
                for topic_partition, count in remaining.items()
                if count <= _MAX_MARKER_LAG
            }
            readable = first_timestamps(self.connection, near)
            return sum(
                count
                for topic_partition, count in remaining.items()
                if topic_partition not in near or topic_partition in readable
            )
        except KafkaError:
            return -1

    def _bad_records(self) -> str:
        """A sentence about records that tasks skipped: running tasks, and the last ones that ended."""
        try:
            count = sum(
                _bad_count(supervisor_stat)
                for supervisor_stat in self.client.supervisor_stats(self.datasource).values()
            )
            samples = [
                text for parse_error in self.client.parse_errors(self.datasource) if (text := _sample(parse_error))
            ]
            for task in self.client.tasks(self.datasource, state="complete", limit=_MAX_ENDED_TASKS):
                more, sample = self._task_errors(str(task["id"]))
                count += more
                samples += [sample] if sample else []
        except StoreError:
            return ""
        if not count:
            return ""
        last = f" (such as {samples[0]})" if samples else ""
        return f"{count} records could not be read and are not in the table{last}"

    def _task_errors(self, task: str) -> tuple[int, str]:
        if task not in self._reports:
            report = self.client.task_report(task)
            self._reports[task] = _read_report(report or {})
        return self._reports[task]


def read_status(
    payload: Mapping[str, Any] | None, high_positions: Mapping[int, int], *, now: float
) -> SupervisorStatus:
    """State, reason and positions from a supervisor's status. `high_positions` are the furthest positions seen before."""
    if payload is None:
        return SupervisorStatus(
            "failing", "its supervisor is gone from Druid: somebody terminated it; apply the table again"
        )
    tasks = [*(payload.get("activeTasks") or []), *(payload.get("publishingTasks") or [])]
    current = _offsets(tasks)
    positions = current or _offsets(tasks, "startingOffsets")
    errors = [error.get("message") or error.get("exceptionClass") for error in payload.get("recentErrors") or []]
    state, detailed = str(payload.get("state") or ""), str(payload.get("detailedState") or "")
    if payload.get("suspended"):
        return SupervisorStatus("failing", "it is suspended: somebody asked Druid for that; resume it there", positions)
    if "UNHEALTHY" in state or detailed in ("UNABLE_TO_CONNECT_TO_STREAM", "LOST_CONTACT_WITH_STREAM"):
        return SupervisorStatus("failing", explain_errors(errors, detailed), positions)
    lost = sum(
        offset - current.get(partition, 0)
        for partition, offset in high_positions.items()
        if current.get(partition, 0) < offset
    )
    if not current:
        return SupervisorStatus("settling" if high_positions else "behind", "its task is starting", positions)
    if lost > 0:
        detail = f"after a failure {lost} records are read again; figures are too low until then"
        return SupervisorStatus("settling", detail, positions)
    fresh = [
        error
        for error in payload.get("recentErrors") or []
        if now - _unix_seconds(error.get("timestamp")) < PENDING_SECONDS
    ]
    return SupervisorStatus("following", explain_errors(errors) if fresh else "", positions)


def explain_errors(errors: Iterable[Any], otherwise: str = "") -> str:
    """The newest Druid error explained, with its own text."""
    messages = [" ".join(str(error).split()) for error in errors if error]
    if not messages:
        return otherwise.lower().replace("_", " ")
    text = messages[-1]
    reason = next((words for signs, words in _REASONS if any(sign.lower() in text.lower() for sign in signs)), "")
    return f"{reason} (Druid: {text[:300]})" if reason else f"Druid says: {text[:300]}"


def _offsets(tasks: Any, name: str = "currentOffsets") -> dict[int, int]:
    """The furthest offset of every partition. Partitions are numbers, or `topic:number`."""
    offsets: dict[int, int] = {}
    for task in tasks or []:
        for partition, offset in (task.get(name) or {}).items():
            number = int(str(partition).rpartition(":")[2])
            offsets[number] = max(offsets.get(number, 0), int(offset))
    return offsets


def _bad_count(counts: Mapping[str, Any]) -> int:
    return sum(int(counts.get(name) or 0) for name in _BAD_COUNTS)


def _sample(error: Mapping[str, Any]) -> str:
    text = " ".join(str(error.get("input") or "").split())
    why = next((str(detail) for detail in error.get("details") or []), "")
    return f"{text[:120]}: {why[:200]}" if text else why[:200]


def _read_report(report: Mapping[str, Any]) -> tuple[int, str]:
    payload = ((report.get("ingestionStatsAndErrors") or {}).get("payload")) or {}
    counts = (payload.get("rowStats") or {}).get("buildSegments") or {}
    events = (payload.get("unparseableEvents") or {}).get("buildSegments") or []
    samples = [event for event in events if isinstance(event, dict)]
    return _bad_count(counts), _sample(samples[0]) if samples else ""


def _unix_seconds(text: Any) -> float:
    try:
        return datetime.fromisoformat(str(text)).timestamp()
    except ValueError:
        return 0.0
