"""The engine's log in Kafka: the compacted topic `APP.alerts`, and the topics that rules watch, read committed.

One process at a time: who restores takes over the transactional ids, and from then on the process before gets FencedError at
its next step, before it can write or send anything. Where to go on from is in the ledger, in the transaction that keeps what
came of the rows; the offsets of the group `APP.alerts` are committed with it, for `riverrun groups` to show the lag. To move
those sends nothing again.
"""

import contextlib
import logging
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Self

from riverrun.alerts.engine import Arrived, Incoming
from riverrun.alerts.engine import Place as AnyPlace
from riverrun.alerts.ledger import Change, Position, ledger_of
from riverrun.errors import TopicExistsError
from riverrun.kafka.admin.admin import Admin
from riverrun.kafka.bulk import IDENTITY
from riverrun.kafka.connection import Connection
from riverrun.kafka.consumer.reader import Reader, Span, spans
from riverrun.kafka.producer.producer import Producer
from riverrun.model.record import RawRecord
from riverrun.model.state import Place
from riverrun.model.when import EARLIEST

_LOG = logging.getLogger("riverrun.alerts")
_FROM_PEOPLE = (b'["silence"', b'["ack"')
_TURN_SECONDS = 0.02
_TRANSACTION_SECONDS = 10.0


class KafkaLog:
    """Use it in a `with`. `note` may be called from other threads; the rest is for one."""

    def __init__(self, connection: Connection, app: str, topics: Collection[str]) -> None:
        self._connection = connection
        self._ledger = ledger_of(app)
        self._topics = sorted(topics)
        self._admin = Admin(connection)
        self._writer = self._producer("")
        self._noter = self._producer(".sent")
        self._noting = threading.Lock()
        self._reader: Reader | None = None
        self._batches: Iterator[list[RawRecord]] = iter(())
        # Follows the ledger, for what people write there.
        self._listener: Reader | None = None
        self._said: Iterator[list[RawRecord]] = iter(())

    def _producer(self, ending: str) -> Producer:
        name = f"{self._ledger}{ending}"
        return Producer(self._connection, transactional_id=name, transaction_timeout_seconds=_TRANSACTION_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for reader in filter(None, (self._reader, self._listener)):
            reader.client.close()
        self._reader = self._listener = None
        self._noter.close()
        self._writer.close()

    def restore(self) -> Iterable[Change]:
        if self._ledger not in self._admin.topics([self._ledger], config=False):
            with contextlib.suppress(TopicExistsError):
                self._admin.create_topic(self._ledger, partitions=1, replicas=0, config={"cleanup.policy": "compact"})
        # Before the ledger is read: this ends what an earlier process left open, so that nothing of it can still appear.
        for producer in (self._writer, self._noter):
            with producer.transaction():
                pass
        whole = spans(self._admin, [self._ledger], start=EARLIEST)
        with Reader(self._connection, whole) as reader:
            found = [(each.key() or b"", each.value()) for batch in reader for each in batch]
        follow = {place: Span(each.end or 0, None) for place, each in whole.items()}
        self._listener = Reader(self._connection, follow, turn_seconds=0.0)
        self._said = iter(self._listener)
        return found

    def begin(self, positions: Mapping[AnyPlace, Position]) -> Iterable[Position]:
        topics = {name: self._admin.topic(name) for name in self._topics}
        ids = {name: each.topic_id for name, each in topics.items()}
        places = [place for each in topics.values() for place in each.places]
        known = {Place(*place): each for place, each in positions.items()}
        # Of a topic we have read before, what has no place is new, and all of it is: a partition, or the topic itself.
        read = {place.topic for place in known}
        ends = self._admin.offsets(places, "latest", committed_only=True)
        starts: dict[Place, int] = {}
        for place in places:
            before = known.get(place)
            if before is not None and before.topic_id == ids[place.topic]:
                starts[place] = before.offset
            else:
                starts[place] = 0 if place.topic in read else ends[place]
        self._reader = Reader(
            self._connection,
            {place: Span(start, None) for place, start in starts.items()},
            group=self._ledger,
            turn_seconds=_TURN_SECONDS,
            on_gone=_gone,
            on_trouble=_trouble,
        )
        self._batches = iter(self._reader)
        return [
            Position(topic=place.topic, partition=place.partition, offset=start, topic_id=ids[place.topic])
            for place, start in starts.items()
        ]

    def read(self) -> Arrived:
        records = [incoming(each) for each in next(self._batches, [])]
        behind = frozenset(self._reader.behind) if self._reader is not None else frozenset()
        said = [(each.key() or b"", each.value()) for each in next(self._said, [])]
        return Arrived(records, behind, [each for each in said if each[0].startswith(_FROM_PEOPLE)])

    def commit(self, changes: Sequence[Change]) -> None:
        with self._writer.transaction() as transaction:
            for key, value in changes:
                transaction.send_soon(self._ledger, value, key=key)
            if self._reader is not None:
                transaction.commit_offsets(self._reader.client)

    def note(self, changes: Sequence[Change]) -> None:
        with self._noting, self._noter.transaction() as transaction:
            for key, value in changes:
                transaction.send_soon(self._ledger, value, key=key)


def _gone(place: Place, first: int, count: int) -> None:
    _LOG.warning(
        "%d records of %s from offset %d on were removed by retention before alerts had read them", count, place, first
    )


def _trouble(text: str) -> None:
    _LOG.warning("Alerts wait: %s", text) if text else _LOG.warning("Alerts go on: the brokers answer again")


def tell(connection: Connection, app: str, changes: Sequence[Change]) -> None:
    """Write what somebody said, a silence or an acknowledgement, into the ledger of a process that may or may not run."""
    with Producer(connection) as producer:
        for key, value in changes:
            producer.send(ledger_of(app), value, key=key)


def incoming(record: RawRecord) -> Incoming:
    """A record as the engine takes it."""
    identity = next((value for name, value in record.headers() or () if name == IDENTITY), None)
    return Incoming(
        record.topic() or "",
        record.partition() or 0,
        record.offset() or 0,
        record.timestamp()[1],
        record.value(),
        identity.decode(errors="replace") if isinstance(identity, bytes) else "",
    )
