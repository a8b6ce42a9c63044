"""What each node of the pipeline picture shows: its state in one word, how much flows, how far behind it is.

Figures come from what was seen of the run, the cluster and the store at one moment, and from the moments before: a flow is
how a count grew over the last seconds.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from riverrun.kafka.counting import RecordCount
from riverrun.model.progress import PipelineProgress, StreamProgress, unix_seconds
from riverrun.model.shape import Node, Shape
from riverrun.store.contract import Standing

State = Literal["running", "waiting", "failed", "stopped", ""]

# A flow is an average of this long: longer than a micro-batch, shorter than patience.
WINDOW_SECONDS = 10.0
# Of a stream, of so many batches at least: rows come out at the end of each.
BATCHES = 3
# Without a record for so long, something waits.
QUIET_SECONDS = 15.0
MOST_ERROR = 2000


@dataclass(frozen=True)
class TopicSeen:
    """A topic: sums of the first and the next offsets of its partitions, and how many records they are (`kafka.counting`);
    without a count, all offsets are taken for records."""

    first: int
    end: int
    partitions: int
    trouble: str = ""
    count: RecordCount | None = None

    @property
    def share(self) -> float:
        """The part of its offsets that are records."""
        return self.count.share if self.count is not None else 1.0


@dataclass(frozen=True)
class Seen:
    """One moment. `topics` has None for a topic that is not made yet, and nothing for one that could not be asked for."""

    at: float
    pipeline: Mapping[str, Any] | None = None
    progress: PipelineProgress | None = None
    topics: Mapping[str, TopicSeen | None] = field(default_factory=dict)
    standings: Mapping[str, Standing] = field(default_factory=dict)
    troubles: tuple[str, ...] = ()

    @property
    def runs(self) -> bool:
        return self.pipeline is not None and self.pipeline["state"] in ("running", "starting")

    @property
    def streams(self) -> dict[str, StreamProgress]:
        return {each.name: each for each in self.progress.streams} if self.progress else {}


class Rates:
    """How fast counts grow."""

    def __init__(self) -> None:
        self._seen: dict[str, deque[tuple[float, int]]] = {}

    def of(self, key: str, at: float, count: int, window: float = WINDOW_SECONDS) -> float | None:
        """A second, over the last `window` seconds; None while there is nothing to compare with."""
        seen = self._seen.setdefault(key, deque())
        if seen and (seen[-1][1] > count or at - seen[-1][0] > WINDOW_SECONDS):
            # It counts anew, or nobody has looked for a while.
            seen.clear()
        seen.append((at, count))
        while at - seen[0][0] > window:
            seen.popleft()
        first_at, first = seen[0]
        return _short((count - first) / (at - first_at)) if at > first_at else None


class Figures:
    """Of all nodes; call it about once a second."""

    def __init__(self) -> None:
        self._rates = Rates()

    def of(self, shape: Shape, seen: Seen, viewers: Mapping[str, int]) -> dict[str, dict[str, Any]]:
        made: dict[str, dict[str, Any]] = {}
        for node in shape.nodes:
            if node.kind == "stream":
                made[node.id] = self._stream(node, seen)
        writers = {each.of: each for each in shape.nodes if each.kind == "stream"}
        for node in shape.nodes:
            if node.kind == "topic":
                made[node.id] = self._topic(node, seen, writers.get(node.name), made)
        for node in shape.nodes:
            if node.kind == "table":
                made[node.id] = self._table(node, seen, made)
            elif node.kind in ("source", "lookup"):
                made[node.id] = _outside(node, made)
            elif node.kind == "dashboard":
                made[node.id] = _dashboard(viewers.get(node.name, 0))
        return made

    def _stream(self, node: Node, seen: Seen) -> dict[str, Any]:
        found = seen.streams.get(node.name)
        if found is None:
            state, word = _not_there(seen)
            return {"state": state, "word": word}
        moves = seen.runs and found.phase == "running"
        # Spark's real-time mode tells of a long batch when it is over; then its own averages are the better ones.
        counted = self._rates.of(
            node.id, seen.at, found.account.out, max(WINDOW_SECONDS, BATCHES * found.batch_ms / 1000)
        )
        out = _short(found.rows_out_per_second) if found.speed == "real-time" else counted
        state, word = _stream_state(found, seen)
        return {
            "state": state,
            "word": word,
            "in": _short(found.rows_in_per_second) if moves else 0.0,
            "out": out if moves else 0.0,
            "lag": found.lag if found.lag >= 0 else None,
            "dead": found.account.dead,
            "speed": found.speed,
            "batch": found.batch,
            "batch_ms": found.batch_ms,
            "state_rows": found.state_rows,
            "state_bytes": found.state_bytes,
            "watermark": _ms(found.watermark),
            "last": _ms(found.last_record_at),
            "restarts": found.restarts,
            "error": found.error[:MOST_ERROR],
            "replaying": found.replaying,
            "account": {**asdict(found.account), "closes": found.account.closes},
        }

    def _topic(
        self, node: Node, seen: Seen, writer: Node | None, made: Mapping[str, Mapping[str, Any]]
    ) -> dict[str, Any]:
        if node.name not in seen.topics:
            return {"state": "stopped", "word": "not reached"}
        found = seen.topics[node.name]
        if found is None:
            return {"state": "stopped", "word": "not made yet"}
        grown = self._rates.of(node.id, seen.at, found.end)
        rate = None if grown is None else _short(grown * found.share)
        stream = seen.streams.get(writer.name) if writer is not None else None
        if writer is not None and stream is not None and seen.runs and stream.speed != "real-time":
            # The share of records among offsets is an estimate; the stream knows its rows.
            rate = made[writer.id]["out"]
        state: State = "failed" if found.trouble else "running" if rate else "waiting"
        return {
            "state": state,
            "word": found.trouble or state,
            "in": rate,
            "out": rate,
            "records": found.count.records if found.count is not None else found.end - found.first,
            "about": found.count is None or not found.count.exact,
            "partitions": found.partitions,
        }

    def _table(self, node: Node, seen: Seen, made: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        found = seen.standings.get(node.name)
        if found is None:
            return {"state": "stopped", "word": "no table yet"}
        rate = self._rates.of(node.id, seen.at, sum(found.positions.values()))
        topic = made.get(f"topic:{node.of}", {})
        if found.lag == 0 and topic.get("out") is not None:
            rate = topic["out"]
        state, word = _table_state(found, rate)
        return {
            "state": state,
            "word": word,
            "in": rate,
            "lag": found.lag if found.lag >= 0 else None,
            "rows": found.rows,
            "bytes": found.bytes if found.bytes >= 0 else None,
            "newest": round(found.newest * 1000) or None,
            "updated": round(found.updated * 1000) or None,
            "detail": found.detail[:MOST_ERROR],
        }


def _not_there(seen: Seen) -> tuple[State, str]:
    """A stream that the run does not tell of."""
    if seen.pipeline is None:
        return "stopped", "not run yet"
    words = {"starting": "starting", "running": "not chosen", "died": "died"}
    state: State = "waiting" if seen.pipeline["state"] == "starting" else "stopped"
    return state, words.get(str(seen.pipeline["state"]), "stopped")


def _stream_state(stream: StreamProgress, seen: Seen) -> tuple[State, str]:
    if stream.phase == "failed":
        return "failed", "failed"
    if not seen.runs or stream.phase in ("stopped", "finished"):
        return "stopped", "finished" if stream.phase == "finished" else "stopped"
    if stream.phase != "running":
        return "waiting", stream.phase
    age = stream.age_seconds(seen.at)
    busy = stream.rows_in_per_second > 0 or stream.lag > 0 or (age is not None and age < QUIET_SECONDS)
    return ("running", "running") if busy else ("waiting", "waiting")


def _table_state(table: Standing, rate: float | None) -> tuple[State, str]:
    if table.state == "failing":
        return "failed", "failing"
    if table.state == "settling":
        return "waiting", "settling"
    if table.state == "behind" and table.lag > 0:
        return "running", "behind"
    return ("running", "running") if rate else ("waiting", "waiting")


def _outside(node: Node, made: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Who writes a topic, as far as the topic tells; of a file nothing moves."""
    topic = made.get(f"topic:{node.of}") if node.of else None
    if topic is None:
        return {"state": "", "word": ""}
    rate = topic.get("in")
    return {"state": "running" if rate else "waiting", "word": "writing" if rate else "silent", "out": rate}


def _dashboard(viewers: int) -> dict[str, Any]:
    state: State = "running" if viewers else "waiting"
    return {"state": state, "word": "live" if viewers else "idle", "viewers": viewers}


def _ms(text: str) -> int | None:
    at = unix_seconds(text)
    return round(at * 1000) if at else None


def _short(rate: float) -> float:
    """Three digits: what nobody sees is not sent."""
    return float(f"{rate:.3g}") if rate == rate and rate > 0 else 0.0  # noqa: PLR0124  -- NaN is not itself
