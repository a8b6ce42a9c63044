"""The pipeline topology, live: read once a second for all viewers, and not at all without viewers."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from riverrun.dashboard.live.broadcast import Broadcast
from riverrun.dashboard.topology.details import DeadLetterFilter, NodeDetails
from riverrun.dashboard.topology.node_metrics import NodeMetrics, PipelineSnapshot
from riverrun.model.topology import PipelineTopology

POLL_SECONDS = 1.0
# What a page gets of the pipeline.
_PIPELINE_FIELDS = ("state", "file", "started_at", "ended_at", "detail")


class SnapshotReader(Protocol):
    """Reads the topology and its state; both methods are called in a thread, one at a time."""

    def read(self, topics: Sequence[str]) -> PipelineSnapshot: ...

    def topology(self) -> tuple[PipelineTopology | None, bool]: ...

    def close(self) -> None: ...


class TopologyBroadcast(Broadcast):
    """The topology of one app's pipeline. Used in one event loop; `declared` is that of the pipeline file, if there is one,
    and `viewers` returns the number of viewers of each dashboard."""

    def __init__(
        self,
        app: str,
        reader: SnapshotReader,
        details: NodeDetails,
        *,
        declared: PipelineTopology | None = None,
        viewers: Callable[[], Mapping[str, int]] = dict,
        poll_seconds: float = POLL_SECONDS,
    ) -> None:
        super().__init__("picture")
        self.app = app
        self.topology = declared or PipelineTopology()
        self._reader = reader
        self._details = details
        self._declared = declared
        self._dashboard_viewers = viewers
        self._poll_seconds = poll_seconds
        self._metrics = NodeMetrics()

    # --- live ---

    async def _read_state(self) -> dict[str, Any]:
        viewers = dict(self._dashboard_viewers())
        run = asyncio.get_running_loop().run_in_executor
        topology, snapshot = await run(self._read_pool, self._read_snapshot)
        self.topology = topology
        pipeline = (
            {name: snapshot.pipeline.get(name, "") for name in _PIPELINE_FIELDS}
            if snapshot.pipeline is not None
            else None
        )
        return {
            "app": self.app,
            "shape": topology.as_dict(),
            "pipeline": pipeline,
            "troubles": list(snapshot.errors),
            "nodes": self._metrics.metrics_of(topology, snapshot, viewers),
        }

    def _read_snapshot(self) -> tuple[PipelineTopology, PipelineSnapshot]:
        last_topology, is_running = self._reader.topology()
        # A running pipeline is shown as it runs; otherwise as the file declares it now, and without a file as it ran last.
        topology = (
            last_topology if is_running and last_topology is not None else self._declared or last_topology
        ) or PipelineTopology()
        return topology, self._reader.read(topology.names("topic"))

    def _diff(self, before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
        return diff_topology(before, now)

    async def _wait_for_next(self, seconds_taken: float) -> None:
        await asyncio.sleep(max(0.05, self._poll_seconds - seconds_taken))

    # --- details ---

    async def details_of(self, kind: str, name: str) -> dict[str, Any]:
        topology = await self._known_topology()
        return await self._run_in_pool(lambda: self._details.of(topology, kind, name))

    async def records(self, topic: str, count: int) -> dict[str, Any]:
        topology = await self._known_topology()
        return await self._run_in_pool(lambda: self._details.records(topology, topic, count))

    async def dead_letters(self, topic: str, reason: str) -> dict[str, Any]:
        topology = await self._known_topology()
        return await self._run_in_pool(lambda: self._details.dead_letters(topology, topic, reason))

    async def redrive(self, topic: str, letter_filter: DeadLetterFilter, *, dry_run: bool) -> dict[str, Any]:
        topology = await self._known_topology()
        return await self._run_in_pool(lambda: self._details.redrive(topology, topic, letter_filter, dry_run=dry_run))

    async def _known_topology(self) -> PipelineTopology:
        if not self.ready.is_set():
            await self.refresh()
            if not self._viewers:
                self.ready.clear()
        return self.topology

    def close(self) -> None:
        super().close()
        self._reader.close()


def diff_topology(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """The update for a page: of nodes, the metrics that changed; a removed metric is None."""
    change = {name: value for name, value in now.items() if name != "nodes" and before.get(name) != value}
    old: Mapping[str, Mapping[str, Any]] = before.get("nodes", {})
    nodes = {}
    for id_, metrics in now["nodes"].items():
        old_metrics = old.get(id_, {})
        changed = {name: value for name, value in metrics.items() if old_metrics.get(name, ...) != value}
        changed |= {name: None for name in old_metrics if name not in metrics}
        if changed:
            nodes[id_] = changed
    if nodes:
        change["nodes"] = nodes
    return change
