"""Connectors that a pipeline file declares: where a topic's records come from, and where rows go. Declaring does
nothing.

A built-in connector is a frozen dataclass whose fields are its options, each declared once with `option`: the reference
page is made from them. The code that runs it is in `connectors/<system>/`, and is imported only when it runs
(`factory`).

Your own source or sink is a subclass of `Source` or `Sink` with the methods of the contract below;
docs/own-connector.md has one of each. `riverrun.testing.SourceSuite` tests a source against every sentence of the
contract.
"""

import time as clock
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import msgspec

from riverrun.model.pipeline import SourceLine

if TYPE_CHECKING:
    from riverrun.model.topic import Topic

# The position of a source: anything that JSON can carry. Only the source knows what it means.
Position = Any


def option(default: Any = MISSING, *, help: str, example: str = "", secret: bool = False) -> Any:  # noqa: A002
    """A field of a connector. Without a default it has to be given. A secret is a reference ("env:NAME", "file:PATH")."""
    return field(default=default, metadata={"help": help, "example": example, "secret": secret})


class Item(msgspec.Struct, frozen=True):
    """One thing that a source has read, and that becomes a record.

    `value` is an event of the topic's class, a mapping, bytes or text (JSON, where the topic has an event class), or
    None, which deletes its key in a compacted topic. What does not fit the topic's event class goes to its dead letters
    with the reason, and the source goes on. `key` is the event's own where it is not given. `time` becomes Kafka's
    timestamp; leave it out unless it is recent, because retention goes by it.

    `loose` says that the fields of a mapping are text (as in CSV) and are converted to the event class's types.
    `problem` sends the item to the dead letters with this text: for what the source itself could not parse. `location`
    tells people where it was read, such as `app.log@1024`.
    """

    value: Any
    key: str | bytes | None = None
    headers: Mapping[str, str | bytes | None] | None = None
    time: datetime | int | None = None
    loose: bool = False
    problem: str = ""
    location: str = ""


class Items(msgspec.Struct, frozen=True):
    """What one `read` gives: items (or plain values), and the position *after* the last of them.

    Be careful of off-by-one: a reader that is opened with this position must give the item that follows, not the last of
    these again. `marks` are facts by name that are kept besides the position, in the same transaction (None forgets one):
    for a source that remembers many small things, such as the files it is done with. With `last` the part is over.
    """

    items: Sequence[Any]
    position: Position = None
    marks: Mapping[str, Any] | None = None
    last: bool = False


class Reader:
    """Reads one part of a source. One thread calls it, except `close`, which may come from another.

    `close` is not guaranteed to be called: a process can be killed at any moment, and what matters must follow from the
    position alone.
    """

    def read(self) -> Items | None:
        """The items there are now: some thousand or a few MiB at most. None: nothing yet. Must not block for long (50
        ms): what was read before is committed only when this returns.

        What you return is not safe before `acknowledged`: do not delete it, do not confirm it to anybody. An exception
        means that the part is closed, and opened again at its last committed position with backoff; raise
        ConnectorRefusedError when that cannot help.
        """
        raise NotImplementedError

    def wait(self, seconds: float) -> None:
        """Wait until there may be something to read, at most this long. A source that is notified of new items can
        return early."""
        clock.sleep(min(seconds, 0.02))

    def acknowledged(self, position: Position) -> None:
        """Everything up to this position is in Kafka, on all in-sync replicas, and visible. Several `read`s may be
        acknowledged by one call. It may be missing after a crash: then `open` with that position says the same."""

    def lag(self) -> int | None:
        """How much was not read yet, in `Source.lag_unit`; None where that is unknown."""
        return None

    def close(self) -> None:
        """Release everything. May be called twice, and at any time."""


class Source:
    """Where records of a topic come from.

    Each item is in the topic exactly once, whatever is killed, if the reader keeps its side: opened with a position, it
    gives what follows it, in the same order. Records and position are committed in one transaction.
    """

    # "module:name" of the code that runs a built-in one; it is called with the declaration and its `ConnectorContext`.
    factory: ClassVar[str] = ""
    # The app's connector process reads it ("reader") or hosts it ("service"), or Kafka Connect runs it ("connect").
    runs_as: ClassVar[Literal["reader", "service", "connect"]] = "reader"
    # Whether positions are kept. A source that is pushed to and cannot go back (MQTT) has none: it acknowledges
    # instead.
    resumable: ClassVar[bool] = True
    lag_unit: ClassVar[str] = "records"
    # Whether a part that ended (`Items.last`) starts again when `parts` names it again.
    reopens_finished: ClassVar[bool] = False

    def check(self, topic: "Topic[Any]") -> None:
        """Raise DeclarationError when it cannot fill this topic. Called when it is declared, so that nothing has to
        run."""

    def parts(self) -> Sequence[str]:
        """Names of what can be read in parallel, such as partitions or files. Called again every few seconds: a new
        part is opened. A name must mean the same thing after a restart, since the position is stored under it."""
        return ("all",)

    def open(self, part: str, position: Position) -> Reader:
        """Read a part from after this position; None: from its beginning, nothing was ever read.

        Raise PositionUnknownError for a position that no longer exists: starting anywhere else would silently lose
        items or bring them twice.
        """
        raise NotImplementedError

    def open_with_marks(self, part: str, position: Position, marks: Mapping[str, Any]) -> Reader:  # noqa: ARG002
        """The same for a source that keeps marks."""
        return self.open(part, position)


class FailedRecord(msgspec.Struct, frozen=True):
    """A record that a sink did not write, and why. With `retry` it is retried, `after_seconds` from now at the
    earliest; without, it goes to the dead letters."""

    record: Any
    reason: str
    retry: bool = False
    after_seconds: float = 0.0


class Sink:
    """Where rows of a stream, or records of a topic, are written besides Kafka. At least once: see `write`."""

    factory: ClassVar[str] = ""
    runs_as: ClassVar[Literal["writer", "connect"]] = "writer"
    # How many records `write` gets at most, and how long a batch waits for them.
    batch: ClassVar[int] = 500
    batch_seconds: ClassVar[float] = 0.05
    # How often records are retried after an exception of an unknown kind. RetryLaterError has no limit.
    retries: ClassVar[int] = 4

    def open(self) -> None:
        """Connect, where that is needed. Called before the first `write` and again after a failure."""

    def write(self, records: Sequence[Any]) -> "Iterable[FailedRecord] | None":
        """Write these records, and return when they are safe: then they are committed, and never passed again.

        The trap: after a crash between the two, the same records come again. Make writing them twice harmless, by their
        key or by their topic, partition and offset (`str(record)`, such as `readings[2]@41`, is the same each time).

        Return those that were not written as `FailedRecord`, or raise. RetryLaterError: the target is unavailable, all
        of them are retried for as long as it takes. ConnectorRefusedError: these can never be written; of several, each
        is retried alone, and those that fail alone go to the dead letters. Anything else is retried a few times, then
        treated the same.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Release everything. May be called twice, and is not guaranteed to be called."""


@dataclass(frozen=True)
class SourceBinding:
    """A topic and one of its sources. The name is the connector's: its position, its log and its metrics go by it."""

    name: str
    topic: str
    source: Source
    line: SourceLine


@dataclass(frozen=True)
class SinkBinding:
    """A stream or a topic, and a sink of its rows."""

    name: str
    upstream: str
    sink: Sink
    line: SourceLine
