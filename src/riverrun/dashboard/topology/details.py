"""The details of a node of the pipeline topology: partitions, lag, records, dead letters; and re-driving those.

Everything that comes from records is untrusted and of any size: it leaves here as short text, with control characters
written as escapes.
"""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from riverrun.errors import NotRunningError, RiverrunError, UsageError
from riverrun.kafka.admin.admin import Admin
from riverrun.kafka.connection import Connection
from riverrun.kafka.dead_letters.newest import read_newest_dead_letters
from riverrun.kafka.dead_letters.reader import DEAD_LETTER_SUFFIX, DeadLetterRecord, DeadLetterSelector
from riverrun.kafka.dead_letters.redrive import Redrive
from riverrun.kafka.reading.newest_records import read_newest_records
from riverrun.model.cluster_state import TopicPartition
from riverrun.model.record import RawRecord, safe_text
from riverrun.model.topic import Topic
from riverrun.model.topology import PipelineTopology, TopologyNode
from riverrun.store.contract import Store

MAX_RECORDS = 50
MAX_VALUE = 4000
MAX_KEY = 200
MAX_HEADERS = 20
MAX_HEX = 256
# How many dead letters are scanned, shown, and re-driven at once.
MAX_LETTERS = 5000
SHOWN_LETTERS = 50
MAX_REASONS = 20
MAX_REDRIVEN = 10_000
# Settings of a topic that are shown even when they have their default.
_SETTINGS = ("retention.ms", "retention.bytes", "cleanup.policy", "max.message.bytes", "min.insync.replicas")

Sizes = Callable[[], Mapping[str, int] | None]


@dataclass(frozen=True)
class DeadLetterFilter:
    """Selects dead letters of a topic: by reason, or one by its partition and offset."""

    reason: str = ""
    partition: int | None = None
    offset: int | None = None

    @property
    def selection(self) -> DeadLetterSelector:
        return DeadLetterSelector(self.reason, (), self.partition, self.offset)


class NodeDetails:
    """Reads details of a topology's nodes, and of no other topic of the cluster. May be called by several threads."""

    def __init__(
        self,
        connection: Connection | None,
        store: Store,
        *,
        topics: Mapping[str, Topic[Any]] | None = None,
        groups: Callable[[str], str] = str,
        sizes: Sizes = lambda: None,
    ) -> None:
        """`topics` are those declared with their types, `groups` returns a stream's group, `sizes` bytes on disk."""
        self._connection = connection
        self._store = store
        self._topics = topics or {}
        self._groups = groups
        self._sizes = sizes
        self._created_admin: Admin | None = None
        self._admin_lock = threading.Lock()
        self._redrive_lock = threading.Lock()

    @property
    def _admin(self) -> Admin:
        if self._connection is None:
            raise NotRunningError("There is no cluster to ask", hint="Start one with `riverrun up`")
        with self._admin_lock:
            if self._created_admin is None:
                self._created_admin = Admin(self._connection)
            return self._created_admin

    def of(self, topology: PipelineTopology, kind: str, name: str) -> dict[str, Any]:
        """The details of a node. UsageError when there is none of that name."""
        node = _require(topology, kind, name)
        details: dict[str, Any] = {"id": node.id, "at": round(time.time() * 1000)}
        match node.kind:
            case "topic":
                details |= self._topic(node)
            case "stream":
                details |= self._stream(topology, node)
            case "table":
                details |= self._table(node)
        return details

    # --- nodes ---

    def _topic(self, node: TopologyNode) -> dict[str, Any]:
        admin = self._admin
        dead_topic = f"{node.name}{DEAD_LETTER_SUFFIX}"
        topic_states = admin.topics([node.name, dead_topic])
        if node.name not in topic_states:
            return {"missing": True}
        state = topic_states[node.name]
        dead_partitions = topic_states[dead_topic].topic_partitions if dead_topic in topic_states else []
        partitions = [*state.topic_partitions, *dead_partitions]
        first, end = admin.offsets(partitions, "earliest"), admin.offsets(partitions, "latest")
        declared = self._topics.get(node.name)
        schema = declared.schema if declared is not None else None
        sizes = self._sizes() or {}
        return {
            "event": f"{schema.name}, version {schema.version}" if schema is not None else "",
            "replicas": state.replicas,
            "bytes": sizes.get(node.name),
            "dead": sum(end[partition] - first[partition] for partition in dead_partitions),
            "partitions": [
                {
                    "partition": partition.partition,
                    "leader": partition.leader,
                    "in_sync": f"{len(partition.in_sync)} of {len(partition.replicas)}",
                    "first": first[TopicPartition(node.name, partition.partition)],
                    "end": end[TopicPartition(node.name, partition.partition)],
                }
                for partition in state.partitions
            ],
            "config": [
                {"name": name, "value": value.value, "origin": value.origin}
                for name, value in sorted(state.config.items())
                if value.origin == "topic" or name in _SETTINGS
            ],
        }

    def _stream(self, topology: PipelineTopology, node: TopologyNode) -> dict[str, Any]:
        admin = self._admin
        inputs = topology.inputs(node, "topic")
        group = self._groups(node.name)
        topic_states = admin.topics([*inputs, *(f"{topic}{DEAD_LETTER_SUFFIX}" for topic in inputs)], config=False)
        partitions = [
            partition for topic in inputs if topic in topic_states for partition in topic_states[topic].topic_partitions
        ]
        ends = admin.offsets(partitions, "latest", committed_only=True)
        committed = admin.committed_offsets(group)
        has_dead_letters = {topic: f"{topic}{DEAD_LETTER_SUFFIX}" in topic_states for topic in inputs}
        return {
            "group": group,
            "output": node.topic,
            "partitions": [
                {
                    "place": str(partition),
                    "position": committed.get(partition),
                    "end": ends[partition],
                    "lag": max(0, ends[partition] - committed[partition]) if partition in committed else None,
                }
                for partition in partitions
            ],
            "dead_of": [topic for topic, has_letters in has_dead_letters.items() if has_letters],
        }

    def _table(self, node: TopologyNode) -> dict[str, Any]:
        spec = self._store.tables.get(node.name)
        if spec is None:
            return {"missing": True}
        status = next(
            (status_row for status_row in self._store.table_statuses() if status_row.table == node.name), None
        )
        positions = dict(status.positions) if status is not None else {}
        partitions = {number: TopicPartition(spec.topic, number) for number in sorted(positions)}
        ends: dict[TopicPartition, int] = {}
        if self._connection is not None:
            try:
                ends = self._admin.offsets(list(partitions.values()), "latest", committed_only=True)
            except RiverrunError:
                # The table's own positions are useful without the ends.
                ends = {}
        return {
            "topic": spec.topic,
            "key": list(spec.key),
            "upserts": spec.upserts,
            "time": spec.time,
            "retention_ms": spec.retention_ms,
            "columns": [{"name": column.name, "type": column.type} for column in spec.columns],
            "partitions": [
                {"place": str(partition), "position": positions[number], "end": ends.get(partition)}
                for number, partition in partitions.items()
            ],
        }

    # --- records ---

    def records(self, topology: PipelineTopology, topic: str, count: int) -> dict[str, Any]:
        """The newest records of a topic."""
        _require(topology, "topic", topic)
        if not 1 <= count <= MAX_RECORDS:
            raise UsageError(f"count is {count}", expected=f"1 to {MAX_RECORDS}")
        newest = read_newest_records(self._admin, topic, count)
        return {"topic": topic, "whole": newest.complete, "records": [_record(record) for record in newest.records]}

    # --- dead letters ---

    def dead_letters(self, topology: PipelineTopology, topic: str, reason: str = "") -> dict[str, Any]:
        """The newest dead letters of a topic, and their reasons."""
        dead_topic = self._dead_topic(topology, topic)
        if not dead_topic:
            return {"topic": topic, "total": 0, "looked": 0, "waiting": 0, "reasons": [], "letters": []}
        newest = read_newest_dead_letters(
            self._admin, dead_topic, max_scanned=MAX_LETTERS, limit=SHOWN_LETTERS, reason=reason
        )
        return {
            "topic": topic,
            "total": newest.total,
            "looked": newest.scanned,
            "waiting": newest.summary.count.waiting,
            "reasons": [
                {**reason_row, "reason": _text(reason_row["reason"])}
                for reason_row in newest.summary.reason_rows()[:MAX_REASONS]
            ],
            "letters": [_letter(letter, redriven) for letter, redriven in newest.letters],
        }

    def redrive(
        self, topology: PipelineTopology, topic: str, letter_filter: DeadLetterFilter, *, dry_run: bool
    ) -> dict[str, Any]:
        """Send dead letters back to their topics, each once (kafka/dead_letters/redrive.py), or plan that as a dry run."""
        dead_topic = self._dead_topic(topology, topic)
        if not dead_topic:
            raise UsageError(f"Nothing of {topic} is dead")
        if not self._redrive_lock.acquire(blocking=False):
            raise UsageError("A re-drive is under way", hint="Try again when it is done")
        try:
            redrive = Redrive(
                self._admin, dead_topic, selector=letter_filter.selection, limit=MAX_REDRIVEN, topics=self._topics
            )
            outcome = redrive.plan() if dry_run else redrive.run()
            return {
                "topic": topic,
                "dry_run": dry_run,
                "checked": redrive.checks_types,
                "most": outcome.sent_count >= MAX_REDRIVEN,
                **outcome.as_dict(),
            }
        finally:
            self._redrive_lock.release()

    def _dead_topic(self, topology: PipelineTopology, topic: str) -> str:
        _require(topology, "topic", topic)
        dead_topic = f"{topic}{DEAD_LETTER_SUFFIX}"
        return dead_topic if dead_topic in self._admin.topics([dead_topic], config=False) else ""


def _require(topology: PipelineTopology, kind: str, name: str) -> TopologyNode:
    node = topology.find(kind, name)
    if node is None:
        raise UsageError(f"There is no {kind} {name!r} in the pipeline")
    return node


# --- text ---


def _text(text: str, max_length: int = MAX_VALUE) -> str:
    return safe_text(text[:max_length].encode(errors="replace")).decode()


def display_value(value: bytes | str | None, max_length: int = MAX_VALUE) -> dict[str, Any] | None:
    """The first bytes of a record for a page: as text, or hexadecimal when they are not text."""
    if value is None:
        return None
    raw = value.encode() if isinstance(value, str) else value
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        return {"hex": raw[:MAX_HEX].hex(" "), "bytes": len(raw), "cut": len(raw) > MAX_HEX}
    return {"text": _text(text, max_length), "bytes": len(raw), "cut": len(text) > max_length}


def _headers(headers: Any) -> list[dict[str, Any]]:
    return [
        {"name": _text(name, MAX_KEY), "value": display_value(value, MAX_KEY)}
        for name, value in list(headers or ())[:MAX_HEADERS]
    ]


def _record(record: RawRecord) -> dict[str, Any]:
    timestamp = record.timestamp()[1]
    return {
        "place": f"{record.topic()}[{record.partition()}]@{record.offset()}",
        "at": timestamp if timestamp >= 0 else None,
        "key": display_value(record.key(), MAX_KEY),
        "value": display_value(record.value()),
        "headers": _headers(record.headers()),
        "bytes": len(record.value() or b"") + len(record.key() or b""),
    }


def _letter(letter: DeadLetterRecord, redriven: bool) -> dict[str, Any]:
    details, record = letter.details, letter.record
    return {
        "place": _text(str(record)),
        "partition": record.partition,
        "offset": record.offset,
        "from": _text(letter.origin),
        "at": round(details.at.timestamp() * 1000),
        "reason": _text(letter.reason_pattern),
        "error": _text(details.error, MAX_KEY),
        "message": _text(details.message),
        "group": _text(details.group, MAX_KEY),
        "attempts": details.attempts,
        "redriven": redriven,
        "key": display_value(record.key, MAX_KEY),
        "value": display_value(record.raw),
        "headers": _headers(details.headers),
    }
