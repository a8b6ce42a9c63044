"""The connectors' state topic: the compacted topic `APP.connectors`, with the position and the marks of each part, the
status of each connector, and which process runs them.

Reading it needs care. A reader of committed records stops at the first open transaction, whoever's it is, and would take an
older position for the newest. So it is read up to the end of the log as of the start of the read, and open transactions are
waited for: one ends when its own process commits it, when another process takes over its id, or when it times out in the
cluster.
"""

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from riverrun.connectors.status import ConnectorStatus
from riverrun.errors import BrokerUnreachableError, RecordUnreadableError
from riverrun.kafka.admin.admin import Admin
from riverrun.kafka.compacted_topic import ensure_compacted_topic
from riverrun.kafka.connection import Connection
from riverrun.kafka.producer.producer import Producer
from riverrun.kafka.reading.partition_reader import OffsetRange, PartitionReader
from riverrun.model.record import RawRecord

# The cluster aborts an open transaction after its timeout, and checks every 10 s by default.
OPEN_TRANSACTION_SECONDS = 60.0

_encode = msgspec.json.Encoder(order="deterministic").encode
StateRecord = tuple[bytes, bytes | None]


class CommittedPosition(msgspec.Struct):
    """The position of a part, and what it has committed in all its runs."""

    position: Any
    records: int = 0
    dead_letters: int = 0
    committed_ms: int = 0


class ConnectorLease(msgspec.Struct):
    """The process that runs the connectors. `renewed_ms` is when it last said so; `ended_ms` when it ended in order."""

    id: str
    pid: int
    host: str
    started_ms: int
    renewed_ms: int
    ended_ms: int = 0


@dataclass
class ConnectorStateSnapshot:
    """The content of the state topic."""

    positions: dict[tuple[str, str], CommittedPosition] = field(default_factory=dict)
    marks: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    statuses: dict[tuple[str, str, str], ConnectorStatus] = field(default_factory=dict)
    lease: ConnectorLease | None = None
    # The id of the process that started last. A process that lost its transactional ids and is not this one was replaced.
    lease_holder: str = ""

    def apply(self, key: bytes, value: bytes | None) -> None:
        """Apply one record of the topic. Kinds that a newer riverrun may write are ignored."""
        try:
            match msgspec.json.decode(key):
                case ["position", str(name), str(part)]:
                    _apply_value(self.positions, (name, part), value, CommittedPosition)
                case ["mark", str(name), str(part), str(mark)]:
                    _apply_value(self.marks.setdefault((name, part), {}), mark, value, Any)
                case ["standing", str(kind), str(name), str(part)]:
                    _apply_value(self.statuses, (kind, name, part), value, ConnectorStatus)
                case ["life"]:
                    self.lease = msgspec.json.decode(value, type=ConnectorLease) if value else None
                case ["holder"]:
                    self.lease_holder = msgspec.json.decode(value or b'""', type=str)
        except msgspec.MsgspecError as error:
            raise RecordUnreadableError(
                "A record of the connectors' state topic cannot be read",
                found=f"{key!r}: {error}",
                hint="A newer riverrun may have written it: use that one",
            ) from error


def _apply_value(entries: dict[Any, Any], key: Any, value: bytes | None, value_type: Any) -> None:
    if value is None:
        entries.pop(key, None)
    else:
        entries[key] = msgspec.json.decode(value, type=value_type)


def state_topic_name(app: str) -> str:
    """The name of an app's state topic."""
    return f"{app}.connectors"


def position_record(name: str, part: str, committed: CommittedPosition | None) -> StateRecord:
    """None deletes it: the part starts from the beginning."""
    return _encode(["position", name, part]), None if committed is None else _encode(committed)


def mark_record(name: str, part: str, mark: str, value: Any) -> StateRecord:
    return _encode(["mark", name, part, mark]), None if value is None else _encode(value)


def status_record(status: ConnectorStatus, *, delete: bool = False) -> StateRecord:
    return _encode(["standing", status.kind, status.name, status.part]), None if delete else _encode(status)


def lease_record(lease: ConnectorLease) -> StateRecord:
    return _encode(["life"]), _encode(lease)


def lease_holder_record(lease: ConnectorLease) -> StateRecord:
    return _encode(["holder"]), _encode(lease.id)


def forget_positions(
    connection: Connection, app: str, parts: Iterable[tuple[str, str]], snapshot: ConnectorStateSnapshot
) -> None:
    """Delete the positions and the marks of these parts. For when no process runs them."""
    records: list[StateRecord] = []
    for name, part in parts:
        records.append(position_record(name, part, None))
        records += [mark_record(name, part, mark, None) for mark in snapshot.marks.get((name, part), {})]
    with Producer(connection) as producer:
        for key, value in records:
            producer.send(state_topic_name(app), value, key=key)


def create_state_topic(connection: Connection, app: str) -> None:
    """Create the topic if it does not exist."""
    ensure_compacted_topic(Admin(connection), state_topic_name(app))


def read_connector_state(
    connection: Connection, app: str, *, wait_for_transactions: bool = True, seconds: float = OPEN_TRANSACTION_SECONDS
) -> ConnectorStateSnapshot:
    """All there is in the ledger now; empty before there is one. Who only shows it need not `wait_for_transactions`."""
    topic = state_topic_name(app)
    snapshot = ConnectorStateSnapshot()
    for record in _records(connection, topic, wait_for_transactions=wait_for_transactions, seconds=seconds):
        snapshot.apply(record.key() or b"", record.value())
    return snapshot


def _records(connection: Connection, topic: str, *, wait_for_transactions: bool, seconds: float) -> Iterator[RawRecord]:
    admin = Admin(connection)
    state = admin.topics([topic], config=False).get(topic)
    if state is None:
        return
    ends: Mapping[Any, int] = admin.offsets(state.topic_partitions, "latest", committed_only=not wait_for_transactions)
    starts = admin.offsets(state.topic_partitions, "earliest")
    deadline = time.monotonic() + seconds
    with PartitionReader(
        connection,
        {partition: OffsetRange(starts[partition], ends[partition]) for partition in state.topic_partitions},
        poll_seconds=0.05,
    ) as reader:
        for batch in reader:
            yield from batch
            if not batch and time.monotonic() > deadline:
                raise BrokerUnreachableError(
                    f"The end of {topic} did not become readable within {seconds:g} s",
                    hint="A transaction is open in it: another process may have hung; it is tried again",
                    topic=topic,
                )
