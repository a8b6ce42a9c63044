"""What a click on a node of the pipeline picture shows: partitions, lag, records, dead letters; and sending those back.

Everything that comes from records is hostile and without bounds: it leaves here as short text, with what steers a screen
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
from riverrun.kafka.dead_letters.letter import ENDING, Letter, Selection
from riverrun.kafka.dead_letters.newest import newest_letters
from riverrun.kafka.dead_letters.redrive import Redrive
from riverrun.kafka.peeking import peek
from riverrun.model.record import RawRecord, safe_text
from riverrun.model.shape import Node, Shape
from riverrun.model.state import Place
from riverrun.model.topic import Topic
from riverrun.store.contract import Store

MOST_RECORDS = 50
MOST_VALUE = 4000
MOST_KEY = 200
MOST_HEADERS = 20
MOST_HEX = 256
# Letters that are gone through, shown, and sent back at once.
MOST_LETTERS = 5000
SHOWN_LETTERS = 50
MOST_REASONS = 20
MOST_REDRIVEN = 10_000
# Settings of a topic that are worth a line even where nobody has set them.
_SETTINGS = ("retention.ms", "retention.bytes", "cleanup.policy", "max.message.bytes", "min.insync.replicas")

Sizes = Callable[[], Mapping[str, int] | None]


@dataclass(frozen=True)
class Choice:
    """Which dead letters of a topic are meant: of a reason, or one by its place."""

    reason: str = ""
    partition: int | None = None
    offset: int | None = None

    @property
    def selection(self) -> Selection:
        return Selection(self.reason, (), self.partition, self.offset)


class Details:
    """Answers for the nodes of a shape and for no other topic of the cluster. May be called by several threads."""

    def __init__(
        self,
        connection: Connection | None,
        store: Store,
        *,
        topics: Mapping[str, Topic[Any]] | None = None,
        groups: Callable[[str], str] = str,
        sizes: Sizes = lambda: None,
    ) -> None:
        """`topics` are those declared with their types, `groups` gives a stream's consumer group, `sizes` bytes on disk."""
        self._connection = connection
        self._store = store
        self._topics = topics or {}
        self._groups = groups
        self._sizes = sizes
        self._made: Admin | None = None
        self._making = threading.Lock()
        self._redriving = threading.Lock()

    @property
    def _admin(self) -> Admin:
        if self._connection is None:
            raise NotRunningError("There is no cluster to ask", hint="Start one with `riverrun up`")
        with self._making:
            if self._made is None:
                self._made = Admin(self._connection)
            return self._made

    def of(self, shape: Shape, kind: str, name: str) -> dict[str, Any]:
        """What is known of a node. UsageError when there is none of that name."""
        node = _require(shape, kind, name)
        found: dict[str, Any] = {"id": node.id, "at": round(time.time() * 1000)}
        match node.kind:
            case "topic":
                found |= self._topic(node)
            case "stream":
                found |= self._stream(shape, node)
            case "table":
                found |= self._table(node)
        return found

    # --- nodes ---

    def _topic(self, node: Node) -> dict[str, Any]:
        admin = self._admin
        dead = f"{node.name}{ENDING}"
        there = admin.topics([node.name, dead])
        if node.name not in there:
            return {"missing": True}
        state = there[node.name]
        letters = there[dead].places if dead in there else []
        places = [*state.places, *letters]
        first, end = admin.offsets(places, "earliest"), admin.offsets(places, "latest")
        declared = self._topics.get(node.name)
        schema = declared.schema if declared is not None else None
        sizes = self._sizes() or {}
        return {
            "event": f"{schema.name}, version {schema.version}" if schema is not None else "",
            "replicas": state.replicas,
            "bytes": sizes.get(node.name),
            "dead": sum(end[place] - first[place] for place in letters),
            "partitions": [
                {
                    "partition": each.partition,
                    "leader": each.leader,
                    "in_sync": f"{len(each.in_sync)} of {len(each.replicas)}",
                    "first": first[Place(node.name, each.partition)],
                    "end": end[Place(node.name, each.partition)],
                }
                for each in state.partitions
            ],
            "config": [
                {"name": name, "value": value.value, "origin": value.origin}
                for name, value in sorted(state.config.items())
                if value.origin == "topic" or name in _SETTINGS
            ],
        }

    def _stream(self, shape: Shape, node: Node) -> dict[str, Any]:
        admin = self._admin
        inputs = shape.inputs(node, "topic")
        group = self._groups(node.name)
        there = admin.topics([*inputs, *(f"{each}{ENDING}" for each in inputs)], config=False)
        places = [place for each in inputs if each in there for place in there[each].places]
        ends = admin.offsets(places, "latest", committed_only=True)
        committed = admin.committed(group)
        letters = {each: f"{each}{ENDING}" in there for each in inputs}
        return {
            "group": group,
            "output": node.of,
            "partitions": [
                {
                    "place": str(place),
                    "position": committed.get(place),
                    "end": ends[place],
                    "lag": max(0, ends[place] - committed[place]) if place in committed else None,
                }
                for place in places
            ],
            "dead_of": [each for each, some in letters.items() if some],
        }

    def _table(self, node: Node) -> dict[str, Any]:
        spec = self._store.tables.get(node.name)
        if spec is None:
            return {"missing": True}
        standing = next((each for each in self._store.standing() if each.table == node.name), None)
        positions = dict(standing.positions) if standing is not None else {}
        places = {part: Place(spec.topic, part) for part in sorted(positions)}
        ends: dict[Place, int] = {}
        if self._connection is not None:
            try:
                ends = self._admin.offsets(list(places.values()), "latest", committed_only=True)
            except RiverrunError:
                # What the table has is of use without it.
                ends = {}
        return {
            "topic": spec.topic,
            "key": list(spec.key),
            "upserts": spec.upserts,
            "time": spec.time,
            "retention_ms": spec.retention_ms,
            "columns": [{"name": each.name, "type": each.type} for each in spec.columns],
            "partitions": [
                {"place": str(place), "position": positions[part], "end": ends.get(place)}
                for part, place in places.items()
            ],
        }

    # --- records ---

    def records(self, shape: Shape, topic: str, count: int) -> dict[str, Any]:
        """The newest records of a topic."""
        _require(shape, "topic", topic)
        if not 1 <= count <= MOST_RECORDS:
            raise UsageError(f"count is {count}", expected=f"1 to {MOST_RECORDS}")
        found = peek(self._admin, topic, count)
        return {"topic": topic, "whole": found.whole, "records": [_record(each) for each in found.records]}

    # --- dead letters ---

    def dead(self, shape: Shape, topic: str, reason: str = "") -> dict[str, Any]:
        """The newest dead letters of a topic, and why they died."""
        dead = self._dead_topic(shape, topic)
        if not dead:
            return {"topic": topic, "total": 0, "looked": 0, "waiting": 0, "reasons": [], "letters": []}
        found = newest_letters(self._admin, dead, most=MOST_LETTERS, limit=SHOWN_LETTERS, reason=reason)
        return {
            "topic": topic,
            "total": found.total,
            "looked": found.looked,
            "waiting": found.summary.count.waiting,
            "reasons": [
                {**each, "reason": _text(each["reason"])} for each in found.summary.reason_rows()[:MOST_REASONS]
            ],
            "letters": [_letter(letter, redriven) for letter, redriven in found.letters],
        }

    def redrive(self, shape: Shape, topic: str, choice: Choice, *, dry_run: bool) -> dict[str, Any]:
        """Send dead letters back to their topics, each once (kafka/dead_letters/redrive.py), or tell what that would do."""
        dead = self._dead_topic(shape, topic)
        if not dead:
            raise UsageError(f"Nothing of {topic} is dead")
        if not self._redriving.acquire(blocking=False):
            raise UsageError("A re-drive is under way", hint="Try again when it is done")
        try:
            work = Redrive(self._admin, dead, selection=choice.selection, limit=MOST_REDRIVEN, topics=self._topics)
            outcome = work.plan() if dry_run else work.run()
            return {
                "topic": topic,
                "dry_run": dry_run,
                "checked": work.typed,
                "most": outcome.sent_count >= MOST_REDRIVEN,
                **outcome.as_dict(),
            }
        finally:
            self._redriving.release()

    def _dead_topic(self, shape: Shape, topic: str) -> str:
        _require(shape, "topic", topic)
        dead = f"{topic}{ENDING}"
        return dead if dead in self._admin.topics([dead], config=False) else ""


def _require(shape: Shape, kind: str, name: str) -> Node:
    found = shape.find(kind, name)
    if found is None:
        raise UsageError(f"There is no {kind} {name!r} in the pipeline")
    return found


# --- text ---


def _text(text: str, most: int = MOST_VALUE) -> str:
    return safe_text(text[:most].encode(errors="replace")).decode()


def shown(value: bytes | str | None, most: int = MOST_VALUE) -> dict[str, Any] | None:
    """Bytes of a record as a page may have them: text, or hexadecimal where they are none; the first of them."""
    if value is None:
        return None
    raw = value.encode() if isinstance(value, str) else value
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        return {"hex": raw[:MOST_HEX].hex(" "), "bytes": len(raw), "cut": len(raw) > MOST_HEX}
    return {"text": _text(text, most), "bytes": len(raw), "cut": len(text) > most}


def _headers(headers: Any) -> list[dict[str, Any]]:
    return [
        {"name": _text(name, MOST_KEY), "value": shown(value, MOST_KEY)}
        for name, value in list(headers or ())[:MOST_HEADERS]
    ]


def _record(record: RawRecord) -> dict[str, Any]:
    stamp = record.timestamp()[1]
    return {
        "place": f"{record.topic()}[{record.partition()}]@{record.offset()}",
        "at": stamp if stamp >= 0 else None,
        "key": shown(record.key(), MOST_KEY),
        "value": shown(record.value()),
        "headers": _headers(record.headers()),
        "bytes": len(record.value() or b"") + len(record.key() or b""),
    }


def _letter(letter: Letter, redriven: bool) -> dict[str, Any]:
    told, record = letter.told, letter.record
    return {
        "place": _text(str(record)),
        "partition": record.partition,
        "offset": record.offset,
        "from": _text(letter.came_from),
        "at": round(told.at.timestamp() * 1000),
        "reason": _text(letter.pattern),
        "error": _text(told.error, MOST_KEY),
        "message": _text(told.message),
        "group": _text(told.group, MOST_KEY),
        "attempts": told.attempts,
        "redriven": redriven,
        "key": shown(record.key, MOST_KEY),
        "value": shown(record.raw),
        "headers": _headers(told.headers),
    }
