"""The contract between connectors and the process that runs them.

A source is read in parts. For each part the runtime opens a `Reader` behind the last committed position, calls `read` again
and again, and commits what it returned together with the position after it in one Kafka transaction; then it calls
`acknowledged`. Opening a part takes over its transactional id first, so a process that was thought dead can commit nothing
more, and only then reads the position: so that is the truth.

A source that is pushed to (MQTT) is a reader all the same: what comes in goes through an `Inbox`, whose `put` waits while it
is full. One that answers its callers by itself (HTTP) is a `Service`.

A built-in connector is declared in `riverrun.model.connectors`, and names its implementation by `factory = "module:name"`.
That is called with the declaration and its `ConnectorContext`, and returns a `Source` or `Sink` that keeps the contract. For
a service it is called once for all sources of its class: with the list of `SourceBinding` and the `ConnectorContext`.
"""

import importlib
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from riverrun.config.secret import Secret, resolve_secret
from riverrun.config.spec import Settings
from riverrun.errors import DeclarationError
from riverrun.model.connector import (
    FailedRecord,
    Item,
    Items,
    Position,
    Reader,
    Sink,
    SinkBinding,
    Source,
    SourceBinding,
)

if TYPE_CHECKING:
    from riverrun.app import App
    from riverrun.connectors.status import ConnectorStatus
    from riverrun.kafka.connection import Connection

__all__ = [
    "ConnectorContext",
    "FailedRecord",
    "Item",
    "Items",
    "Position",
    "Reader",
    "Service",
    "Sink",
    "SinkBinding",
    "Source",
    "SourceBinding",
    "create_service",
    "create_sink",
    "create_source",
]


def _ignore_notice(_text: str) -> None:
    """Drop the notice."""


@dataclass(frozen=True)
class ConnectorContext:
    """What a built-in connector can use of the process it runs in. `pipeline_folder` is the pipeline file's: relative paths
    begin there; `project_root` is the project's, where those of secrets do. `notice` takes a sentence for people."""

    app: "App"
    connection: "Connection"
    pipeline_folder: Path
    project_root: Path
    notice: Callable[[str], None] = _ignore_notice
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    # Set when the process is to end. A reader or sink that waits by itself checks it.
    stop: threading.Event = field(default_factory=threading.Event)
    settings: Settings = field(default_factory=Settings)

    def secret(self, reference: str, what: str) -> Secret:
        """The secret that an option refers to; `what` names the option for people. ConfigError when it is missing."""
        return resolve_secret(reference, what, self.project_root, self.environ)


class Service(Protocol):
    """A source that is called instead of read, and writes records into topics by itself. It must not acknowledge a record
    before all in-sync replicas have it."""

    def run(self, stop: threading.Event, statuses: "Mapping[str, ConnectorStatus]") -> None:
        """Serve until `stop`, then finish what was started. Updates the status of each of its sources, by their names. An
        exception ends it; it is created and run again after a pause."""


def create_source(binding: SourceBinding, context: ConnectorContext) -> Source:
    """The implementation of a declared source: itself, or what its `factory` returns."""
    source = binding.source
    created: Source = _load_factory(source.factory)(source, context) if source.factory else source
    if type(created).open is Source.open and type(created).open_with_marks is Source.open_with_marks:
        raise DeclarationError(
            f"{binding.line}: the source {type(created).__name__} of {binding.name} cannot be opened",
            expected="a method open(part, position) that gives a riverrun.Reader",
            hint="docs/own-connector.md shows one",
        )
    return created


def create_sink(binding: SinkBinding, context: ConnectorContext) -> Sink:
    """The implementation of a declared sink."""
    sink = binding.sink
    created: Sink = _load_factory(sink.factory)(sink, context) if sink.factory else sink
    if type(created).write is Sink.write:
        raise DeclarationError(
            f"{binding.line}: the sink {type(created).__name__} of {binding.name} cannot be written to",
            expected="a method write(records)",
            hint="docs/own-connector.md shows one",
        )
    return created


def create_service(bindings: Sequence[SourceBinding], context: ConnectorContext) -> Service:
    """The service of these sources, all of one class."""
    service: Service = _load_factory(bindings[0].source.factory)(bindings, context)
    return service


def _load_factory(reference: str) -> Callable[..., Any]:
    module, _, name = reference.partition(":")
    factory: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return factory
