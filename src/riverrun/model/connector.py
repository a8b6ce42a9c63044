"""What a pipeline file says of connectors: where a topic's records come from, and where rows go. Declaring does nothing.

A connector is a frozen dataclass whose fields are its options, each declared once with `option`: the reference page is
made from them. What runs it is in `connectors/<system>/`, and is looked for only when it is run.
"""

from dataclasses import MISSING, dataclass, field
from typing import Any

from riverrun.model.pipeline import Line


def option(default: Any = MISSING, *, help: str, example: str = "", secret: bool = False) -> Any:  # noqa: A002
    """A field of a connector. Without a default it has to be given. A secret is a reference ("env:NAME", "file:PATH")."""
    return field(default=default, metadata={"help": help, "example": example, "secret": secret})


@dataclass(frozen=True)
class Source:
    """Where records of a topic come from."""


@dataclass(frozen=True)
class Sink:
    """Where rows of a stream, or records of a topic, go to besides."""


@dataclass(frozen=True)
class Fed:
    """A topic and one of its sources. The name is the connector's: its place, its log and its figures go by it."""

    name: str
    topic: str
    source: Source
    line: Line


@dataclass(frozen=True)
class Drained:
    """A stream or a topic, and a sink of its rows."""

    name: str
    of: str
    sink: Sink
    line: Line
