"""The engine's log in Kafka: the compacted topic `APP.alerts`, and the topics that rules watch, read committed.

One process at a time: who restores takes over the transactional ids, and from then on the process before gets FencedError at
its next step, before it can write or send anything. Where to go on from is in the ledger, in the transaction that keeps what
came of the rows; the offsets of the group `APP.alerts` are committed with it, for `riverrun groups` to show the lag. To move
those sends nothing again.
"""

import contextlib
import json
import logging
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Self

from riverrun.alerts.engine import Arrived, Incoming
from riverrun.alerts.engine import Place as AnyPlace
from riverrun.alerts.ledger import Change, Ledger, Position, Watched, forgotten, kept, ledger_of
from riverrun.errors import DeclarationError, KafkaError, OffsetGoneError, RecordUnreadableError
from riverrun.kafka.admin.admin import Admin
from riverrun.kafka.bulk import IDENTITY
from riverrun.kafka.connection import Connection
from riverrun.kafka.consumer.reader import Reader, Span, spans
from riverrun.kafka.ledger import make_compacted
from riverrun.kafka.producer.producer import Producer
from riverrun.model.record import RawRecord
from riverrun.model.state import Place
from riverrun.model.table import TableSpec, table_from
from riverrun.model.when import EARLIEST

_LOG = logging.getLogger("riverrun.alerts")
_FROM_OTHERS = (b'["silence"', b'["ack"', b'["report"')
_TURN_SECONDS = 0.02
_IDS_SECONDS = 2.0
_ANSWER_SECONDS = 0.3
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
        # Which topics are read: one that is made again has another id.
        self._ids: dict[str, str] = {}
        self._ids_now: dict[str, str] = {}
        self._ids_asked = 0.0
        self._asking: threading.Thread | None = None

    def _producer(self, ending: str) -> Producer:
        name = f"{self._ledger}{ending}"
        return Producer(self._connection, transactional_id=name, transaction_timeout_seconds=_TRANSACTION_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._admin.give_up()
        for reader in filter(None, (self._reader, self._listener)):
            reader.client.close()
        self._reader = self._listener = None
        self._noter.close()
        self._writer.close()

    def restore(self) -> Iterable[Change]:
        make_compacted(self._admin, self._ledger)
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
            if before is not None and before.topic_id == ids[place.topic] and before.offset <= ends[place]:
                starts[place] = before.offset
            else:
                # Also where the log has lost its end: rows that are judged once more send nothing again.
                starts[place] = 0 if place.topic in read else ends[place]
        self._ids, self._ids_asked = ids, time.monotonic()
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

    def _check_topics(self) -> None:
        """OffsetGoneError when a topic is another one by now: its offsets would be taken for those of the old one. The next
        life begins at its first record. Asked for by a thread: without Kafka the answer takes as long as a request may, and
        neither what is due nor the end of the process waits for it."""
        asking = self._asking is not None and self._asking.is_alive()
        if not asking and time.monotonic() - self._ids_asked >= _IDS_SECONDS:
            self._ids_asked = time.monotonic()
            self._asking = threading.Thread(target=self._ask_ids, name="alerts-topic-ids", daemon=True)
            self._asking.start()
            # Kafka answers within milliseconds: then it is known before more is read.
            self._asking.join(_ANSWER_SECONDS)
        for name, topic_id in self._ids_now.items():
            if topic_id != self._ids.get(name, topic_id):
                raise OffsetGoneError(f"The topic {name} was deleted and made again while alerts read it", topic=name)

    def _ask_ids(self) -> None:
        # The reader says what is wrong with the cluster.
        with contextlib.suppress(KafkaError):
            now = self._admin.topics(self._topics, config=False)
            self._ids_now = {name: state.topic_id for name, state in now.items()}

    def read(self) -> Arrived:
        self._check_topics()
        records = [incoming(each) for each in next(self._batches, [])]
        behind = frozenset(self._reader.behind) if self._reader is not None else frozenset()
        said = [(each.key() or b"", each.value()) for each in next(self._said, [])]
        following = self._reader.next if self._reader is not None else {}
        heard = [each for each in said if each[0].startswith(_FROM_OTHERS)]
        return Arrived(records, behind, heard, {(each.topic, each.partition): at for each, at in following.items()})

    def commit(self, changes: Sequence[Change]) -> None:
        with self._writer.transaction() as transaction:
            for key, value in changes:
                transaction.send_soon(self._ledger, value, key=key)
            if self._reader is not None:
                transaction.commit_offsets(self._reader.client, self._reader.next)

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


class Teller:
    """`tell`, for who has something to say again and again; from any thread."""

    def __init__(self, connection: Connection, app: str) -> None:
        self._connection = connection
        self._topic = ledger_of(app)
        self._making = threading.Lock()
        self._producer: Producer | None = None

    def tell(self, changes: Sequence[Change]) -> None:
        """Returns when the ledger has it."""
        with self._making:
            if self._producer is None:
                self._producer = Producer(self._connection)
        waiting = [self._producer.send_soon(self._topic, value, key=key) for key, value in changes]
        for each in waiting:
            each.result()

    def close(self) -> None:
        if self._producer is not None:
            self._producer.close()


def tell_tables(connection: Connection, app: str, tables: Mapping[str, TableSpec]) -> None:
    """Tell the alert process what there is to watch now."""
    admin = Admin(connection)
    make_compacted(admin, ledger_of(app))
    before = read_ledger(connection, app).tables
    now = {name: Watched(name=name, spec=json.loads(json.dumps(each.as_dict()))) for name, each in tables.items()}
    changes = [kept(each) for name, each in now.items() if before.get(name) != each]
    changes += [forgotten(each) for name, each in before.items() if name not in now]
    tell(connection, app, changes)


def read_ledger(connection: Connection, app: str) -> Ledger:
    """All there is in the ledger now; empty before there is one."""
    admin, topic = Admin(connection), ledger_of(app)
    ledger = Ledger()
    if topic not in admin.topics([topic], config=False):
        return ledger
    with Reader(connection, spans(admin, [topic], start=EARLIEST)) as reader:
        for batch in reader:
            for each in batch:
                ledger.take(each.key() or b"", each.value())
    return ledger


def tables_in(ledger: Ledger) -> dict[str, TableSpec]:
    """What can be watched, by name."""
    try:
        return {name: table_from(each.spec) for name, each in ledger.tables.items()}
    except (ValueError, KeyError, TypeError, DeclarationError) as error:
        raise RecordUnreadableError(
            "What alerts can watch cannot be read",
            found=str(error),
            hint="A newer riverrun may have written it: use that one",
        ) from error


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
