"""The engine's log in Kafka: the compacted topic `APP.alerts`, and the topics that rules watch, read committed.

One process at a time: who restores takes over the transactional ids, and from then on the process before gets
ProducerFencedError at its next step, before it can write or send anything. Where to go on from is in the ledger, in the
transaction that keeps what came of the rows; the offsets of the group `APP.alerts` are committed with it, for `riverrun
groups` to show the lag. To move those sends nothing again.
"""

import contextlib
import json
import logging
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Self

from riverrun.alerts.engine import InputRecord, PollResult
from riverrun.alerts.engine import PartitionKey as AnyPlace
from riverrun.alerts.state_topic import (
    AlertChange,
    AlertState,
    PartitionPosition,
    WatchedTable,
    alerts_topic_name,
    encode_tombstone,
    encode_upsert,
)
from riverrun.errors import DeclarationError, KafkaError, OffsetOutOfRangeError, RecordUnreadableError
from riverrun.kafka.admin.admin import Admin
from riverrun.kafka.compacted_topic import ensure_compacted_topic
from riverrun.kafka.connection import Connection
from riverrun.kafka.producer.producer import Producer
from riverrun.kafka.reading.bulk_reader import RECORD_ID_HEADER
from riverrun.kafka.reading.partition_reader import OffsetRange, PartitionReader, resolve_offset_ranges
from riverrun.model.cluster_state import TopicPartition
from riverrun.model.positions import EARLIEST
from riverrun.model.record import RawRecord
from riverrun.model.table import TableSpec, table_from_dict

_LOG = logging.getLogger("riverrun.alerts")
_EXTERNAL_KEY_PREFIXES = (b'["silence"', b'["ack"', b'["report"')
_POLL_SECONDS = 0.02
_TOPIC_ID_CHECK_SECONDS = 2.0
_TOPIC_ID_WAIT_SECONDS = 0.3
_TRANSACTION_SECONDS = 10.0


class KafkaAlertLog:
    """Use it in a `with`. `append` may be called from other threads; the rest is for one."""

    def __init__(self, connection: Connection, app: str, topics: Collection[str]) -> None:
        self._connection = connection
        self._state_topic = alerts_topic_name(app)
        self._topics = sorted(topics)
        self._admin = Admin(connection)
        self._commit_producer = self._producer("")
        self._append_producer = self._producer(".sent")
        self._append_lock = threading.Lock()
        self._reader: PartitionReader | None = None
        self._batches: Iterator[list[RawRecord]] = iter(())
        # Follows the ledger, for what people write there.
        self._state_reader: PartitionReader | None = None
        self._state_batches: Iterator[list[RawRecord]] = iter(())
        # Which topics are read: one that is made again has another id.
        self._topic_ids: dict[str, str] = {}
        self._current_topic_ids: dict[str, str] = {}
        self._topic_ids_checked_at = 0.0
        self._topic_ids_thread: threading.Thread | None = None

    def _producer(self, ending: str) -> Producer:
        name = f"{self._state_topic}{ending}"
        return Producer(self._connection, transactional_id=name, transaction_timeout_seconds=_TRANSACTION_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._admin.cancel()
        for reader in filter(None, (self._reader, self._state_reader)):
            reader.client.close()
        self._reader = self._state_reader = None
        self._append_producer.close()
        self._commit_producer.close()

    def restore(self) -> Iterable[AlertChange]:
        ensure_compacted_topic(self._admin, self._state_topic)
        # Before the ledger is read: this ends what an earlier process left open, so that nothing of it can still appear.
        for producer in (self._commit_producer, self._append_producer):
            with producer.transaction():
                pass
        whole = resolve_offset_ranges(self._admin, [self._state_topic], start=EARLIEST)
        with PartitionReader(self._connection, whole) as reader:
            changes = [(each.key() or b"", each.value()) for batch in reader for each in batch]
        follow = {partition: OffsetRange(each.end or 0, None) for partition, each in whole.items()}
        self._state_reader = PartitionReader(self._connection, follow, poll_seconds=0.0)
        self._state_batches = iter(self._state_reader)
        return changes

    def seek(self, positions: Mapping[AnyPlace, PartitionPosition]) -> Iterable[PartitionPosition]:
        topics = {name: self._admin.topic(name) for name in self._topics}
        ids = {name: each.topic_id for name, each in topics.items()}
        partitions = [partition for topic in topics.values() for partition in topic.topic_partitions]
        known = {TopicPartition(*partition): each for partition, each in positions.items()}
        # Of a topic we have read before, what has no place is new, and all of it is: a partition, or the topic itself.
        known_topics = {partition.topic for partition in known}
        ends = self._admin.offsets(partitions, "latest", committed_only=True)
        starts: dict[TopicPartition, int] = {}
        for partition in partitions:
            previous = known.get(partition)
            if (
                previous is not None
                and previous.topic_id == ids[partition.topic]
                and previous.offset <= ends[partition]
            ):
                starts[partition] = previous.offset
            else:
                # Also where the log has lost its end: rows that are judged once more send nothing again.
                starts[partition] = 0 if partition.topic in known_topics else ends[partition]
        self._topic_ids, self._topic_ids_checked_at = ids, time.monotonic()
        self._reader = PartitionReader(
            self._connection,
            {partition: OffsetRange(start, None) for partition, start in starts.items()},
            group=self._state_topic,
            poll_seconds=_POLL_SECONDS,
            on_gone=_log_expired_records,
            on_unreachable=_log_broker_trouble,
        )
        self._batches = iter(self._reader)
        return [
            PartitionPosition(
                topic=partition.topic, partition=partition.partition, offset=start, topic_id=ids[partition.topic]
            )
            for partition, start in starts.items()
        ]

    def _check_topics(self) -> None:
        """OffsetOutOfRangeError when a topic is another one by now: its offsets would be taken for those of the old one. The
        next life begins at its first record. Asked for by a thread: without Kafka the answer takes as long as a request may,
        and neither what is due nor the end of the process waits for it."""
        asking = self._topic_ids_thread is not None and self._topic_ids_thread.is_alive()
        if not asking and time.monotonic() - self._topic_ids_checked_at >= _TOPIC_ID_CHECK_SECONDS:
            self._topic_ids_checked_at = time.monotonic()
            self._topic_ids_thread = threading.Thread(
                target=self._fetch_topic_ids, name="alerts-topic-ids", daemon=True
            )
            self._topic_ids_thread.start()
            # Kafka answers within milliseconds: then it is known before more is read.
            self._topic_ids_thread.join(_TOPIC_ID_WAIT_SECONDS)
        for name, topic_id in self._current_topic_ids.items():
            if topic_id != self._topic_ids.get(name, topic_id):
                raise OffsetOutOfRangeError(
                    f"The topic {name} was deleted and made again while alerts read it", topic=name
                )

    def _fetch_topic_ids(self) -> None:
        # The reader says what is wrong with the cluster.
        with contextlib.suppress(KafkaError):
            now = self._admin.topics(self._topics, config=False)
            self._current_topic_ids = {name: state.topic_id for name, state in now.items()}

    def poll(self) -> PollResult:
        self._check_topics()
        records = [to_input_record(each) for each in next(self._batches, [])]
        lagging = frozenset(self._reader.behind) if self._reader is not None else frozenset()
        changes = [(each.key() or b"", each.value()) for each in next(self._state_batches, [])]
        next_offsets = self._reader.positions if self._reader is not None else {}
        external_changes = [each for each in changes if each[0].startswith(_EXTERNAL_KEY_PREFIXES)]
        return PollResult(
            records, lagging, external_changes, {(each.topic, each.partition): at for each, at in next_offsets.items()}
        )

    def commit(self, changes: Sequence[AlertChange]) -> None:
        with self._commit_producer.transaction() as transaction:
            for key, value in changes:
                transaction.send_soon(self._state_topic, value, key=key)
            if self._reader is not None:
                transaction.commit_offsets(self._reader.client, self._reader.positions)

    def append(self, changes: Sequence[AlertChange]) -> None:
        with self._append_lock, self._append_producer.transaction() as transaction:
            for key, value in changes:
                transaction.send_soon(self._state_topic, value, key=key)


def _log_expired_records(partition: TopicPartition, first: int, count: int) -> None:
    _LOG.warning(
        "%d records of %s from offset %d on were removed by retention before alerts had read them",
        count,
        partition,
        first,
    )


def _log_broker_trouble(text: str) -> None:
    _LOG.warning("Alerts wait: %s", text) if text else _LOG.warning("Alerts go on: the brokers answer again")


def publish_changes(connection: Connection, app: str, changes: Sequence[AlertChange]) -> None:
    """Write what somebody said, a silence or an acknowledgement, into the ledger of a process that may or may not run."""
    with Producer(connection) as producer:
        for key, value in changes:
            producer.send(alerts_topic_name(app), value, key=key)


class AlertStatePublisher:
    """`publish_changes`, for who has something to say again and again; from any thread."""

    def __init__(self, connection: Connection, app: str) -> None:
        self._connection = connection
        self._topic = alerts_topic_name(app)
        self._producer_lock = threading.Lock()
        self._producer: Producer | None = None

    def publish(self, changes: Sequence[AlertChange]) -> None:
        """Returns when the ledger has it."""
        with self._producer_lock:
            if self._producer is None:
                self._producer = Producer(self._connection)
        futures = [self._producer.send_soon(self._topic, value, key=key) for key, value in changes]
        for future in futures:
            future.result()

    def close(self) -> None:
        if self._producer is not None:
            self._producer.close()


def publish_watched_tables(connection: Connection, app: str, tables: Mapping[str, TableSpec]) -> None:
    """Tell the alert process what there is to watch now."""
    admin = Admin(connection)
    ensure_compacted_topic(admin, alerts_topic_name(app))
    before = read_alert_state(connection, app).tables
    now = {name: WatchedTable(name=name, spec=json.loads(json.dumps(each.as_dict()))) for name, each in tables.items()}
    changes = [encode_upsert(each) for name, each in now.items() if before.get(name) != each]
    changes += [encode_tombstone(each) for name, each in before.items() if name not in now]
    publish_changes(connection, app, changes)


def read_alert_state(connection: Connection, app: str) -> AlertState:
    """All there is in the ledger now; empty before there is one."""
    admin, topic = Admin(connection), alerts_topic_name(app)
    state = AlertState()
    if topic not in admin.topics([topic], config=False):
        return state
    with PartitionReader(connection, resolve_offset_ranges(admin, [topic], start=EARLIEST)) as reader:
        for batch in reader:
            for each in batch:
                state.apply_change(each.key() or b"", each.value())
    return state


def decode_tables(state: AlertState) -> dict[str, TableSpec]:
    """What can be watched, by name."""
    try:
        return {name: table_from_dict(each.spec) for name, each in state.tables.items()}
    except (ValueError, KeyError, TypeError, DeclarationError) as error:
        raise RecordUnreadableError(
            "What alerts can watch cannot be read",
            found=str(error),
            hint="A newer riverrun may have written it: use that one",
        ) from error


def to_input_record(record: RawRecord) -> InputRecord:
    """A record as the engine takes it."""
    identity = next((value for name, value in record.headers() or () if name == RECORD_ID_HEADER), None)
    return InputRecord(
        record.topic() or "",
        record.partition() or 0,
        record.offset() or 0,
        record.timestamp()[1],
        record.value(),
        identity.decode(errors="replace") if isinstance(identity, bytes) else "",
    )
