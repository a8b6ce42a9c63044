"""The metrics of each node of the pipeline topology: its state in one word, its rates, its lag.

They come from a snapshot of the run, the cluster and the store, and from the snapshots before it: a rate is the growth of a
count over the last seconds.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from riverrun.kafka.reading.record_counter import RecordCount
from riverrun.model.progress import PipelineProgress, StreamProgress, unix_seconds
from riverrun.model.topology import PipelineTopology, TopologyNode
from riverrun.store.contract import TableStatus

NodeState = Literal["running", "waiting", "failed", "stopped", ""]

# A rate is an average over this long: longer than a micro-batch, short enough to feel live.
WINDOW_SECONDS = 10.0
# Without a record for so long, something waits.
QUIET_SECONDS = 15.0
MAX_ERROR = 2000


@dataclass(frozen=True)
class TopicSnapshot:
    """A topic: sums of the first and the next offsets of its partitions, and how many of them are records
    (`record_counter`); without a count, all offsets are taken for records."""

    first: int
    end: int
    partitions: int
    error: str = ""
    count: RecordCount | None = None

    @property
    def record_share(self) -> float:
        """The share of its offsets that are records."""
        return self.count.share if self.count is not None else 1.0


@dataclass(frozen=True)
class PipelineSnapshot:
    """The state at one moment. `topics` has None for a topic that does not exist yet, and no entry for one not reached."""

    at: float
    pipeline: Mapping[str, Any] | None = None
    progress: PipelineProgress | None = None
    topics: Mapping[str, TopicSnapshot | None] = field(default_factory=dict)
    table_statuses: Mapping[str, TableStatus] = field(default_factory=dict)
    errors: tuple[str, ...] = ()

    @property
    def runs(self) -> bool:
        return self.pipeline is not None and self.pipeline["state"] in ("running", "starting")

    @property
    def streams(self) -> dict[str, StreamProgress]:
        return {stream.name: stream for stream in self.progress.streams} if self.progress else {}


class RateTracker:
    """Computes how fast counts grow."""

    def __init__(self) -> None:
        self._samples: dict[str, deque[tuple[float, int]]] = {}

    def rate_of(self, key: str, at: float, count: int) -> float | None:
        """A second, over the last WINDOW_SECONDS; None while there is nothing to compare with."""
        samples = self._samples.setdefault(key, deque())
        if samples and (samples[-1][1] > count or at - samples[-1][0] > WINDOW_SECONDS):
            # The count was reset, or there was no viewer for a while.
            samples.clear()
        samples.append((at, count))
        while at - samples[0][0] > WINDOW_SECONDS:
            samples.popleft()
        first_at, first = samples[0]
        return _three_digits((count - first) / (at - first_at)) if at > first_at else None


class NodeMetrics:
    """Computes the metrics of all nodes; call it about once a second."""

    def __init__(self) -> None:
        self._rates = RateTracker()

    def metrics_of(
        self, topology: PipelineTopology, snapshot: PipelineSnapshot, viewers: Mapping[str, int]
    ) -> dict[str, dict[str, Any]]:
        metrics: dict[str, dict[str, Any]] = {}
        for node in topology.nodes:
            if node.kind == "stream":
                metrics[node.id] = self._stream(node, snapshot)
        writers = {stream_node.topic: stream_node for stream_node in topology.nodes if stream_node.kind == "stream"}
        for node in topology.nodes:
            if node.kind == "topic":
                metrics[node.id] = self._topic(node, snapshot, writers.get(node.name), metrics)
        for node in topology.nodes:
            if node.kind == "table":
                metrics[node.id] = self._table(node, snapshot, metrics)
            elif node.kind in ("source", "lookup"):
                metrics[node.id] = _source_metrics(node, metrics)
            elif node.kind == "dashboard":
                metrics[node.id] = _dashboard_metrics(viewers.get(node.name, 0))
        return metrics

    def _stream(self, node: TopologyNode, snapshot: PipelineSnapshot) -> dict[str, Any]:
        progress = snapshot.streams.get(node.name)
        if progress is None:
            state, word = _missing_stream_state(snapshot)
            return {"state": state, "word": word}
        moves = snapshot.runs and progress.phase == "running"
        state, word = _stream_state(progress, snapshot)
        return {
            "state": state,
            "word": word,
            "in": _three_digits(progress.rows_in_per_second) if moves else 0.0,
            "out": _three_digits(progress.rows_out_per_second) if moves else 0.0,
            "lag": progress.lag if progress.lag >= 0 else None,
            "dead": progress.record_counts.dead_letters,
            "speed": progress.speed,
            "batch": progress.batch,
            "batch_ms": progress.batch_ms,
            "state_rows": progress.state_rows,
            "state_bytes": progress.state_bytes,
            "watermark": _ms(progress.watermark),
            "last": _ms(progress.last_record_at),
            "restarts": progress.restarts,
            "error": progress.error[:MAX_ERROR],
            "replaying": progress.replaying,
            "account": {**asdict(progress.record_counts), "closes": progress.record_counts.balanced},
        }

    def _topic(
        self,
        node: TopologyNode,
        snapshot: PipelineSnapshot,
        writer: TopologyNode | None,
        metrics: Mapping[str, Mapping[str, Any]],
    ) -> dict[str, Any]:
        if node.name not in snapshot.topics:
            return {"state": "stopped", "word": "not reached"}
        topic = snapshot.topics[node.name]
        if topic is None:
            return {"state": "stopped", "word": "not made yet"}
        offset_rate = self._rates.rate_of(node.id, snapshot.at, topic.end)
        rate = None if offset_rate is None else _three_digits(offset_rate * topic.record_share)
        stream = snapshot.streams.get(writer.name) if writer is not None else None
        if writer is not None and stream is not None and snapshot.runs and stream.speed != "real-time":
            # The share of records among offsets is an estimate; the stream counts its rows exactly.
            rate = metrics[writer.id]["out"]
        state: NodeState = "failed" if topic.error else "running" if rate else "waiting"
        return {
            "state": state,
            "word": topic.error or state,
            "in": rate,
            "out": rate,
            "records": topic.count.records if topic.count is not None else topic.end - topic.first,
            "about": topic.count is None or not topic.count.exact,
            "partitions": topic.partitions,
        }

    def _table(
        self, node: TopologyNode, snapshot: PipelineSnapshot, metrics: Mapping[str, Mapping[str, Any]]
    ) -> dict[str, Any]:
        status = snapshot.table_statuses.get(node.name)
        if status is None:
            return {"state": "stopped", "word": "no table yet"}
        rate = self._rates.rate_of(node.id, snapshot.at, sum(status.positions.values()))
        topic = metrics.get(f"topic:{node.topic}", {})
        if status.lag == 0 and topic.get("out") is not None:
            rate = topic["out"]
        state, word = _table_state(status, rate)
        return {
            "state": state,
            "word": word,
            "in": rate,
            "lag": status.lag if status.lag >= 0 else None,
            "rows": status.rows,
            "bytes": status.bytes if status.bytes >= 0 else None,
            "newest": round(status.newest * 1000) or None,
            "updated": round(status.updated * 1000) or None,
            "detail": status.detail[:MAX_ERROR],
        }


def _missing_stream_state(snapshot: PipelineSnapshot) -> tuple[NodeState, str]:
    """The state of a stream that the run does not report."""
    if snapshot.pipeline is None:
        return "stopped", "not run yet"
    words = {"starting": "starting", "running": "not chosen", "died": "died"}
    state: NodeState = "waiting" if snapshot.pipeline["state"] == "starting" else "stopped"
    return state, words.get(str(snapshot.pipeline["state"]), "stopped")


def _stream_state(stream: StreamProgress, snapshot: PipelineSnapshot) -> tuple[NodeState, str]:
    if stream.phase == "failed":
        return "failed", "failed"
    if not snapshot.runs or stream.phase in ("stopped", "finished"):
        return "stopped", "finished" if stream.phase == "finished" else "stopped"
    if stream.phase != "running":
        return "waiting", stream.phase
    age = stream.age_seconds(snapshot.at)
    busy = stream.rows_in_per_second > 0 or stream.lag > 0 or (age is not None and age < QUIET_SECONDS)
    return ("running", "running") if busy else ("waiting", "waiting")


def _table_state(table: TableStatus, rate: float | None) -> tuple[NodeState, str]:
    if table.state == "failing":
        return "failed", "failing"
    if table.state == "settling":
        return "waiting", "settling"
    if table.state == "behind" and table.lag > 0:
        return "running", "behind"
    return ("running", "running") if rate else ("waiting", "waiting")


def _source_metrics(node: TopologyNode, metrics: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The metrics of a source, taken from its topic; a file has none."""
    topic = metrics.get(f"topic:{node.topic}") if node.topic else None
    if topic is None:
        return {"state": "", "word": ""}
    rate = topic.get("in")
    return {"state": "running" if rate else "waiting", "word": "writing" if rate else "silent", "out": rate}


def _dashboard_metrics(viewers: int) -> dict[str, Any]:
    state: NodeState = "running" if viewers else "waiting"
    return {"state": state, "word": "live" if viewers else "idle", "viewers": viewers}


def _ms(text: str) -> int | None:
    at = unix_seconds(text)
    return round(at * 1000) if at else None


def _three_digits(rate: float) -> float:
    """Round a rate to three digits, so that invisible changes are not sent."""
    return float(f"{rate:.3g}") if rate == rate and rate > 0 else 0.0  # noqa: PLR0124  -- NaN is not itself
