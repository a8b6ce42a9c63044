"""The engine's `AlertLog` in Kafka: the compacted topic `APP.alerts`, and the watched topics, read committed.

One process at a time: `restore` takes over the transactional ids, and from then on the previous process gets
ProducerFencedError at its next step, before it can write or send anything. The offsets to resume from are in the state
topic, in the same transaction as the results; the offsets of the group `APP.alerts` are committed with it, so that
`riverrun groups` shows the lag. Resetting those does not send anything again.
"""

import contextlib
import json
import logging
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Self

from riverrun.alerts.engine import InputRecord, PartitionKey, PollResult
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
    """Use it in a `with`. `append` may be called from other threads, the other methods from one thread only."""

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
        # Follows the state topic, for what people write there.
        self._state_reader: PartitionReader | None = None
        self._state_batches: Iterator[list[RawRecord]] = iter(())
        # Ids of the topics being read: a recreated topic has another id.
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
        # Before reading: this ends what an earlier process left open, so that nothing of it can still appear.
        for producer in (self._commit_producer, self._append_producer):
            with producer.transaction():
                pass
        whole = resolve_offset_ranges(self._admin, [self._state_topic], start=EARLIEST)
        with PartitionReader(self._connection, whole) as reader:
            changes = [(record.key() or b"", record.value()) for batch in reader for record in batch]
        follow = {partition: OffsetRange(span.end or 0, None) for partition, span in whole.items()}
        self._state_reader = PartitionReader(self._connection, follow, poll_seconds=0.0)
        self._state_batches = iter(self._state_reader)
        return changes

    def seek(self, positions: Mapping[PartitionKey, PartitionPosition]) -> Iterable[PartitionPosition]:
        topics = {name: self._admin.topic(name) for name in self._topics}
        ids = {name: topic.topic_id for name, topic in topics.items()}
        partitions = [partition for topic in topics.values() for partition in topic.topic_partitions]
        known = {TopicPartition(*partition): position for partition, position in positions.items()}
        # In a topic we have read before, a partition without a position is new, and is read from its first record.
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
                # Also where the log lost its end: rows that are evaluated twice send nothing again.
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
        """Raise OffsetOutOfRangeError when a topic was recreated: its offsets would be taken for those of the old one. The
        next run starts at its first record. A thread fetches the ids: without Kafka the answer takes a whole request
        timeout, and neither due work nor the process's end waits for it."""
        fetching = self._topic_ids_thread is not None and self._topic_ids_thread.is_alive()
        if not fetching and time.monotonic() - self._topic_ids_checked_at >= _TOPIC_ID_CHECK_SECONDS:
            self._topic_ids_checked_at = time.monotonic()
            self._topic_ids_thread = threading.Thread(
                target=self._fetch_topic_ids, name="alerts-topic-ids", daemon=True
            )
            self._topic_ids_thread.start()
            # Kafka normally answers within milliseconds: then the ids are known before more is read.
            self._topic_ids_thread.join(_TOPIC_ID_WAIT_SECONDS)
        for name, topic_id in self._current_topic_ids.items():
            if topic_id != self._topic_ids.get(name, topic_id):
                raise OffsetOutOfRangeError(
                    f"The topic {name} was deleted and made again while alerts read it", topic=name
                )

    def _fetch_topic_ids(self) -> None:
        # The reader reports problems with the cluster.
        with contextlib.suppress(KafkaError):
            topics = self._admin.topics(self._topics, config=False)
            self._current_topic_ids = {name: topic.topic_id for name, topic in topics.items()}

    def poll(self) -> PollResult:
        self._check_topics()
        records = [to_input_record(record) for record in next(self._batches, [])]
        lagging = frozenset(self._reader.behind) if self._reader is not None else frozenset()
        changes = [(record.key() or b"", record.value()) for record in next(self._state_batches, [])]
        next_offsets = self._reader.positions if self._reader is not None else {}
        external_changes = [change for change in changes if change[0].startswith(_EXTERNAL_KEY_PREFIXES)]
        return PollResult(
            records,
            lagging,
            external_changes,
            {(partition.topic, partition.partition): offset for partition, offset in next_offsets.items()},
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
    """Write a silence or an acknowledgement to the state topic, whether or not the alert process runs."""
    with Producer(connection) as producer:
        for key, value in changes:
            producer.send(alerts_topic_name(app), value, key=key)


class AlertStatePublisher:
    """`publish_changes` for repeated use, with one producer; from any thread."""

    def __init__(self, connection: Connection, app: str) -> None:
        self._connection = connection
        self._topic = alerts_topic_name(app)
        self._producer_lock = threading.Lock()
        self._producer: Producer | None = None

    def publish(self, changes: Sequence[AlertChange]) -> None:
        """Returns when the state topic has the changes."""
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
    """Write the tables that rules can watch now, for the alert process."""
    admin = Admin(connection)
    ensure_compacted_topic(admin, alerts_topic_name(app))
    before = read_alert_state(connection, app).tables
    now = {name: WatchedTable(name=name, spec=json.loads(json.dumps(spec.as_dict()))) for name, spec in tables.items()}
    changes = [encode_upsert(table) for name, table in now.items() if before.get(name) != table]
    changes += [encode_tombstone(table) for name, table in before.items() if name not in now]
    publish_changes(connection, app, changes)


def read_alert_state(connection: Connection, app: str) -> AlertState:
    """Read the whole state topic; an empty state when there is no topic yet."""
    admin, topic = Admin(connection), alerts_topic_name(app)
    state = AlertState()
    if topic not in admin.topics([topic], config=False):
        return state
    with PartitionReader(connection, resolve_offset_ranges(admin, [topic], start=EARLIEST)) as reader:
        for batch in reader:
            for record in batch:
                state.apply_change(record.key() or b"", record.value())
    return state


def decode_tables(state: AlertState) -> dict[str, TableSpec]:
    """The tables that rules can watch, by name."""
    try:
        return {name: table_from_dict(table.spec) for name, table in state.tables.items()}
    except (ValueError, KeyError, TypeError, DeclarationError) as error:
        raise RecordUnreadableError(
            "What alerts can watch cannot be read",
            found=str(error),
            hint="A newer riverrun may have written it: use that one",
        ) from error


def to_input_record(record: RawRecord) -> InputRecord:
    """Convert a Kafka record to the engine's `InputRecord`."""
    identity = next((value for name, value in record.headers() or () if name == RECORD_ID_HEADER), None)
    return InputRecord(
        record.topic() or "",
        record.partition() or 0,
        record.offset() or 0,
        record.timestamp()[1],
        record.value(),
        identity.decode(errors="replace") if isinstance(identity, bytes) else "",
    )
