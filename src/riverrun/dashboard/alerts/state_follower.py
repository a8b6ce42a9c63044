"""Follows the state topic of alerts in a thread, which starts with the first viewer.

It waits for a topic that does not exist yet, and for brokers that are gone; meanwhile the last state stays visible. A
recreated topic is read from its beginning.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol, TypeVar

from riverrun.alerts.kafka_log import AlertStatePublisher
from riverrun.alerts.state_topic import AlertChange, AlertInstance, AlertState, PartitionPosition, alerts_topic_name
from riverrun.errors import RiverrunError, TopicNotFoundError
from riverrun.kafka.admin.admin import Admin
from riverrun.kafka.compacted_topic import ensure_compacted_topic
from riverrun.kafka.connection import Connection
from riverrun.kafka.reading.partition_reader import PartitionReader, resolve_offset_ranges
from riverrun.model.cluster_state import TopicPartition
from riverrun.model.positions import EARLIEST

# The least time between two polls of end offsets, and between two retries.
POLL_SECONDS = 2.0
RETRY_SECONDS, MAX_RETRY_SECONDS = 1.0, 10.0
CLOSE_SECONDS = 1.0

_LOG = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(frozen=True)
class FollowerStatus:
    """The status of following. `version` counts the changes that a page may show."""

    version: int = 0
    ready: bool = False
    topic_exists: bool = False
    error: str = ""


@dataclass(frozen=True)
class AlertLag:
    """How many offsets (records and transaction markers) are not evaluated yet, and since when (Unix milliseconds) the first
    of them is known to wait."""

    offsets: int
    since: int


class AlertStateSource(Protocol):
    """What the page needs of the alert state. All methods may be called from any thread."""

    def start(self, on_change: Callable[[], None]) -> None:
        """Start following; later calls do nothing."""

    def status(self) -> FollowerStatus: ...

    def read(self, view: Callable[[AlertState], T]) -> T:
        """Return `view` of the state, which does not change meanwhile."""

    def lag(self) -> AlertLag | None:
        """The lag of the rules behind the watched topics; None when there is none, or it is unknown."""

    def publish(self, changes: Sequence[AlertChange]) -> None:
        """Write user actions to the state topic."""

    def close(self) -> None: ...


class AlertStateFollower:
    """Follows the state topic of an app's alerts in Kafka."""

    def __init__(self, connection: Connection, app: str) -> None:
        self._connection = connection
        self._topic = alerts_topic_name(app)
        self._lock = threading.Lock()
        self._ledger = AlertState()
        self._status = FollowerStatus()
        self._on_change: Callable[[], None] = lambda: None
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._end_offsets = EndOffsets(connection)
        self._publisher = AlertStatePublisher(connection, app)
        self._lag_tracker = LagTracker()

    # --- for the page ---

    def start(self, on_change: Callable[[], None]) -> None:
        with self._lock:
            if self._thread is not None or self._stop.is_set():
                return
            self._on_change = on_change
            self._thread = threading.Thread(target=self._run, name="riverrun-alerts-page", daemon=True)
        self._thread.start()

    def status(self) -> FollowerStatus:
        return self._status

    def read(self, view: Callable[[AlertState], T]) -> T:
        with self._lock:
            return view(self._ledger)

    def lag(self) -> AlertLag | None:
        positions = self.read(lambda state: dict(state.positions))
        return self._lag_tracker.lag_of(positions, self._end_offsets.latest({topic for topic, _ in positions}))

    def publish(self, changes: Sequence[AlertChange]) -> None:
        if not self._status.topic_exists:
            ensure_compacted_topic(Admin(self._connection), self._topic)
        self._publisher.publish(changes)

    def close(self) -> None:
        self._stop.set()
        self._end_offsets.close()
        self._publisher.close()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(CLOSE_SECONDS)

    # --- following ---

    def _run(self) -> None:
        wait = RETRY_SECONDS
        while not self._stop.is_set():
            try:
                self._follow()
                continue
            except TopicNotFoundError:
                self._replace_state(AlertState(), topic_exists=False)
                last_error = ""
            except RiverrunError as error:
                last_error = str(error)
            except Exception as error:  # noqa: BLE001  -- the page shows it, and it is tried again
                _LOG.exception("following the alerts failed")
                last_error = f"Alerts cannot be followed: {type(error).__name__}: {error}"
            wait = min(2 * wait, MAX_RETRY_SECONDS) if self._status.error else RETRY_SECONDS
            self._report_error(last_error)
            self._stop.wait(wait)

    def _follow(self) -> None:
        """Read the topic from its beginning and follow it, until `close` or a failure."""
        admin = Admin(self._connection)
        topic = admin.topics([self._topic], config=False).get(self._topic)
        if topic is None:
            self._replace_state(AlertState(), topic_exists=False)
            while not self._stop.wait(RETRY_SECONDS) and self._topic not in admin.topics([self._topic], config=False):
                pass
            return
        # The last state stays visible until the topic is read completely again.
        state, current = AlertState(), False
        partition_spans = resolve_offset_ranges(admin, [self._topic], start=EARLIEST, follow=True)
        recreated = threading.Event()
        polled_at = time.monotonic()
        with PartitionReader(
            self._connection,
            partition_spans,
            on_gone=lambda *_: recreated.set(),
            on_truncated=lambda _: recreated.set(),
            on_unreachable=self._report_error,
        ) as reader:
            for batch in reader:
                if self._stop.is_set() or recreated.is_set():
                    return
                with self._lock:
                    records = [state.apply_change(record.key() or b"", record.value()) for record in batch]
                if not current and not reader.behind:
                    current = True
                    self._replace_state(state)
                elif current and any(not isinstance(record, PartitionPosition | AlertInstance) for record in records):
                    self._replace_state(state)
                if not batch and time.monotonic() - polled_at > MAX_RETRY_SECONDS:
                    polled_at = time.monotonic()
                    if self._was_recreated(admin, topic.topic_id):
                        return

    def _was_recreated(self, admin: Admin, topic_id: str) -> bool:
        # The reader reports brokers that do not answer.
        with contextlib.suppress(RiverrunError):
            topic = admin.topics([self._topic], config=False).get(self._topic)
            return topic is None or topic.topic_id != topic_id
        return False

    def _replace_state(self, state: AlertState, *, topic_exists: bool = True) -> None:
        with self._lock:
            self._ledger = state
        self._set_status(FollowerStatus(self._status.version + 1, ready=True, topic_exists=topic_exists))

    def _report_error(self, error: str) -> None:
        before = self._status
        if error != before.error:
            self._set_status(FollowerStatus(before.version + 1, before.ready, before.topic_exists, error))

    def _set_status(self, status: FollowerStatus) -> None:
        self._status = status
        self._on_change()


class EndOffsets:
    """The end offsets of topics, fetched in a thread of its own, so that brokers that do not answer block nobody."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._admin: Admin | None = None
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="riverrun-alerts-ends")
        self._pending: Future[Mapping[TopicPartition, tuple[int, str]]] | None = None
        self._latest: Mapping[TopicPartition, tuple[int, str]] = {}
        self._fetched_at = -POLL_SECONDS

    def latest(self, topics: set[str]) -> Mapping[TopicPartition, tuple[int, str]]:
        """The end offset of each partition and its topic's id, as last fetched."""
        if self._pending is not None and self._pending.done():
            with contextlib.suppress(RiverrunError):
                self._latest = self._pending.result()
            self._pending = None
        now = time.monotonic()
        if self._pending is None and topics and now - self._fetched_at >= POLL_SECONDS:
            self._fetched_at = now
            with contextlib.suppress(RuntimeError):  # closed meanwhile
                self._pending = self._pool.submit(self._fetch, topics)
        return self._latest

    def _fetch(self, topics: set[str]) -> Mapping[TopicPartition, tuple[int, str]]:
        if self._admin is None:
            self._admin = Admin(self._connection)
        topic_states = self._admin.topics(topics, config=False)
        partitions = [partition for topic_state in topic_states.values() for partition in topic_state.topic_partitions]
        ends = self._admin.offsets(partitions, "latest", committed_only=True)
        return {partition: (end, topic_states[partition.topic].topic_id) for partition, end in ends.items()}

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


class LagTracker:
    """Tracks since when a position is behind the end of its partition. Positions are committed once a second, so records
    written since the last poll are not late; those that were there then and are still not evaluated are."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._targets: dict[TopicPartition, tuple[int, int]] = {}

    def lag_of(
        self, positions: Mapping[tuple[str, int], PartitionPosition], ends: Mapping[TopicPartition, tuple[int, str]]
    ) -> AlertLag | None:
        now = round(self._clock() * 1000)
        offsets, since = 0, now
        targets: dict[TopicPartition, tuple[int, int]] = {}
        for (topic, partition), position in positions.items():
            topic_partition = TopicPartition(topic, partition)
            end, topic_id = ends.get(topic_partition, (0, ""))
            remaining = end - position.offset
            if remaining <= 0 or position.topic_id not in ("", topic_id):
                continue
            target, since_ms = self._targets.get(topic_partition, (end, now))
            targets[topic_partition] = (end, now) if position.offset >= target else (target, since_ms)
            offsets += remaining
            since = min(since, targets[topic_partition][1])
        self._targets = targets
        return AlertLag(offsets, since) if offsets else None
