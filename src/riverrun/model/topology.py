"""The topology of a pipeline: its nodes and edges, as plain values that a process without Spark can read."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

# An outside writer of a topic, a topic, a stream, a lookup table of streams, a table of the store, a dashboard.
TopologyNodeKind = Literal["source", "topic", "stream", "lookup", "table", "dashboard"]
TOPOLOGY_NODE_KINDS: tuple[str, ...] = get_args(TopologyNodeKind)


@dataclass(frozen=True)
class TopologyNode:
    """One node of a pipeline. `title` is its display name where that differs from its name, `about` a short
    description, `topic` the one it represents, writes or is made of."""

    kind: TopologyNodeKind
    name: str
    title: str = ""
    about: str = ""
    topic: str = ""

    @property
    def id(self) -> str:
        return f"{self.kind}:{self.name}"


@dataclass(frozen=True)
class PipelineTopology:
    """All nodes, and the edges between their ids along which records flow."""

    nodes: tuple[TopologyNode, ...] = ()
    edges: tuple[tuple[str, str], ...] = ()

    def find(self, kind: str, name: str) -> TopologyNode | None:
        return next((node for node in self.nodes if node.kind == kind and node.name == name), None)

    def names(self, kind: TopologyNodeKind) -> list[str]:
        return [node.name for node in self.nodes if node.kind == kind]

    def inputs(self, node: TopologyNode, kind: TopologyNodeKind) -> list[str]:
        """The names of what flows into a node."""
        return [from_.removeprefix(f"{kind}:") for from_, to in self.edges if to == node.id and from_.startswith(kind)]

    def as_dict(self) -> dict[str, Any]:
        return {
            "nodes": [{"id": node.id, **asdict(node)} for node in self.nodes],
            "edges": [list(edge) for edge in self.edges],
        }


def _known_fields(node: Mapping[str, Any]) -> dict[str, Any]:
    return {name: str(value) for name, value in node.items() if name in TopologyNode.__dataclass_fields__}


def topology_from_dict(content: Mapping[str, Any]) -> PipelineTopology | None:
    """The topology that `as_dict` returned; None for anything else. Names it does not know are ignored."""
    try:
        nodes = tuple(
            TopologyNode(**_known_fields(node)) for node in content["nodes"] if node["kind"] in TOPOLOGY_NODE_KINDS
        )
        known = {node.id for node in nodes}
        edges = tuple((str(a), str(b)) for a, b in content["edges"] if a in known and b in known)
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
    return PipelineTopology(nodes, edges) if nodes else None
