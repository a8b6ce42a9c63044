"""The shape of a pipeline: what there is and what flows where, as plain values that a process without Spark can read."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

# Who writes a topic from outside, a topic, a stream, what streams look things up in, a table of the store, a dashboard.
Kind = Literal["source", "topic", "stream", "lookup", "table", "dashboard"]
KINDS: tuple[str, ...] = get_args(Kind)


@dataclass(frozen=True)
class Node:
    """One thing of a pipeline. `title` is what people call it where that is not its name, `about` a few words more, `of` the
    topic it stands for, writes or is made of."""

    kind: Kind
    name: str
    title: str = ""
    about: str = ""
    of: str = ""

    @property
    def id(self) -> str:
        return f"{self.kind}:{self.name}"


@dataclass(frozen=True)
class Shape:
    """All nodes, and between their ids the ways that records go."""

    nodes: tuple[Node, ...] = ()
    edges: tuple[tuple[str, str], ...] = ()

    def find(self, kind: str, name: str) -> Node | None:
        return next((each for each in self.nodes if each.kind == kind and each.name == name), None)

    def names(self, kind: Kind) -> list[str]:
        return [each.name for each in self.nodes if each.kind == kind]

    def inputs(self, node: Node, kind: Kind) -> list[str]:
        """The names of what flows into a node."""
        return [from_.removeprefix(f"{kind}:") for from_, to in self.edges if to == node.id and from_.startswith(kind)]

    def as_dict(self) -> dict[str, Any]:
        return {
            "nodes": [{"id": each.id, **asdict(each)} for each in self.nodes],
            "edges": [list(each) for each in self.edges],
        }


def shape_from(content: Mapping[str, Any]) -> Shape | None:
    """The shape that `as_dict` gave; None for what is no such thing. Names it does not know are left out."""
    try:
        nodes = tuple(
            Node(**{name: str(value) for name, value in each.items() if name in Node.__dataclass_fields__})  # type: ignore[arg-type]
            for each in content["nodes"]
            if each["kind"] in KINDS
        )
        known = {each.id for each in nodes}
        edges = tuple((str(a), str(b)) for a, b in content["edges"] if a in known and b in known)
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
    return Shape(nodes, edges) if nodes else None
