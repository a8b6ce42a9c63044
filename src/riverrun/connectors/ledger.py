"""The connectors' ledger: the compacted topic `APP.connectors`, with the position and the marks of each part, how each
connector stands, and which process runs them.

The trap is in reading it. A reader of committed records stops at the first transaction that is still open, whoever's it is,
and would take an older position for the newest. So it is read up to the end of the log as it was when the read began, and
what is open there is waited for: it ends when its own process commits it, when somebody takes its id over, or when the
cluster gives it up.
"""

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from riverrun.connectors.standing import Standing
from riverrun.errors import BrokerUnreachableError, RecordUnreadableError
from riverrun.kafka.admin.admin import Admin
from riverrun.kafka.connection import Connection
from riverrun.kafka.consumer.reader import Reader, Span
from riverrun.kafka.ledger import make_compacted
from riverrun.kafka.producer.producer import Producer
from riverrun.model.record import RawRecord

# The cluster gives an open transaction up after its timeout, and looks every 10 s by default.
SETTLE_SECONDS = 60.0

_encode = msgspec.json.Encoder(order="deterministic").encode
Change = tuple[bytes, bytes | None]


class Kept(msgspec.Struct):
    """Where a part stands, and what it has committed in all its lives."""

    position: Any
    records: int = 0
    dead: int = 0
    at: int = 0


class Life(msgspec.Struct):
    """The process that runs the connectors. `at` is when it last said so; `ended` when it ended in order."""

    id: str
    pid: int
    host: str
    begun: int
    at: int
    ended: int = 0


@dataclass
class Ledger:
    """All that is known."""

    positions: dict[tuple[str, str], Kept] = field(default_factory=dict)
    marks: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    standings: dict[tuple[str, str, str], Standing] = field(default_factory=dict)
    life: Life | None = None
    # The id of the process that began last. Whoever finds itself without its ids and not in here has been replaced.
    holder: str = ""

    def take(self, key: bytes, value: bytes | None) -> None:
        """One record of the topic. Kinds that a newer riverrun may write are passed over."""
        try:
            match msgspec.json.decode(key):
                case ["position", str(name), str(part)]:
                    _keep(self.positions, (name, part), value, Kept)
                case ["mark", str(name), str(part), str(mark)]:
                    _keep(self.marks.setdefault((name, part), {}), mark, value, Any)
                case ["standing", str(kind), str(name), str(part)]:
                    _keep(self.standings, (kind, name, part), value, Standing)
                case ["life"]:
                    self.life = msgspec.json.decode(value, type=Life) if value else None
                case ["holder"]:
                    self.holder = msgspec.json.decode(value or b'""', type=str)
        except msgspec.MsgspecError as error:
            raise RecordUnreadableError(
                "A record of the connectors' ledger cannot be read",
                found=f"{key!r}: {error}",
                hint="A newer riverrun may have written it: use that one",
            ) from error


def _keep(into: dict[Any, Any], key: Any, value: bytes | None, kind: Any) -> None:
    if value is None:
        into.pop(key, None)
    else:
        into[key] = msgspec.json.decode(value, type=kind)


def ledger_of(app: str) -> str:
    """The name of an app's ledger."""
    return f"{app}.connectors"


def position_change(name: str, part: str, kept: Kept | None) -> Change:
    """None forgets it: the part begins anew."""
    return _encode(["position", name, part]), None if kept is None else _encode(kept)


def mark_change(name: str, part: str, mark: str, value: Any) -> Change:
    return _encode(["mark", name, part, mark]), None if value is None else _encode(value)


def standing_change(standing: Standing, *, gone: bool = False) -> Change:
    return _encode(["standing", standing.kind, standing.name, standing.part]), None if gone else _encode(standing)


def life_change(life: Life) -> Change:
    return _encode(["life"]), _encode(life)


def holder_change(life: Life) -> Change:
    return _encode(["holder"]), _encode(life.id)


def forget(connection: Connection, app: str, places: Iterable[tuple[str, str]], known: Ledger) -> None:
    """Forget the positions and the marks of these parts. For when no process runs them."""
    changes: list[Change] = []
    for name, part in places:
        changes.append(position_change(name, part, None))
        changes += [mark_change(name, part, mark, None) for mark in known.marks.get((name, part), {})]
    with Producer(connection) as producer:
        for key, value in changes:
            producer.send(ledger_of(app), value, key=key)


def make_ledger(connection: Connection, app: str) -> None:
    """The topic, where it is not there yet."""
    make_compacted(Admin(connection), ledger_of(app))


def read_ledger(connection: Connection, app: str, *, settled: bool = True, seconds: float = SETTLE_SECONDS) -> Ledger:
    """All there is in the ledger now; empty before there is one. Who only shows it need not wait until it is `settled`."""
    topic = ledger_of(app)
    found = Ledger()
    for record in _records(connection, topic, settled=settled, seconds=seconds):
        found.take(record.key() or b"", record.value())
    return found


def _records(connection: Connection, topic: str, *, settled: bool, seconds: float) -> Iterator[RawRecord]:
    admin = Admin(connection)
    state = admin.topics([topic], config=False).get(topic)
    if state is None:
        return
    ends: Mapping[Any, int] = admin.offsets(state.places, "latest", committed_only=not settled)
    starts = admin.offsets(state.places, "earliest")
    deadline = time.monotonic() + seconds
    with Reader(
        connection, {place: Span(starts[place], ends[place]) for place in state.places}, turn_seconds=0.05
    ) as reader:
        for batch in reader:
            yield from batch
            if not batch and time.monotonic() > deadline:
                raise BrokerUnreachableError(
                    f"The end of {topic} did not become readable within {seconds:g} s",
                    hint="A transaction is open in it: another process may have hung; it is tried again",
                    topic=topic,
                )
