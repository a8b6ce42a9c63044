"""The ledger of alerts as it is now: a thread that follows its topic, begun when somebody looks for the first time.

A topic that is not there yet is waited for, brokers that go away are waited for too, and what was read stays to be seen
meanwhile. A topic that was made anew is read anew.
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

# So long at least between two looks at the ends of topics, and between two tries.
POLL_SECONDS = 2.0
RETRY_SECONDS, MAX_RETRY_SECONDS = 1.0, 10.0
CLOSE_SECONDS = 1.0

_LOG = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(frozen=True)
class FollowerStatus:
    """How the following goes. `version` counts the changes that a page may show. `topic_exists`: the topic is there."""

    version: int = 0
    ready: bool = False
    topic_exists: bool = False
    error: str = ""


@dataclass(frozen=True)
class AlertLag:
    """How many offsets (records, and markers of transactions) wait to be judged, and since when (Unix milliseconds) the
    first of them is known to."""

    offsets: int
    since: int


class AlertStateSource(Protocol):
    """What the page needs of the ledger. All of it may be called from any thread."""

    def start(self, on_change: Callable[[], None]) -> None:
        """Begin to follow; once."""

    def status(self) -> FollowerStatus: ...

    def read(self, view: Callable[[AlertState], T]) -> T:
        """What `view` makes of the ledger, which does not change meanwhile."""

    def lag(self) -> AlertLag | None:
        """How far the rules are behind what they watch; None when they are not, or nobody knows."""

    def publish(self, changes: Sequence[AlertChange]) -> None:
        """Write into the ledger what somebody said."""

    def close(self) -> None: ...


class AlertStateFollower:
    """Follows the ledger of an app in Kafka."""

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
        positions = self.read(lambda ledger: dict(ledger.positions))
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
            except Exception as error:  # noqa: BLE001  -- the page says so, and it is tried again
                _LOG.exception("following the alerts failed")
                last_error = f"Alerts cannot be followed: {type(error).__name__}: {error}"
            wait = min(2 * wait, MAX_RETRY_SECONDS) if self._status.error else RETRY_SECONDS
            self._report_error(last_error)
            self._stop.wait(wait)

    def _follow(self) -> None:
        """Read from the beginning and go on, until we are to end or something breaks."""
        admin = Admin(self._connection)
        topic = admin.topics([self._topic], config=False).get(self._topic)
        if topic is None:
            self._replace_state(AlertState(), topic_exists=False)
            while not self._stop.wait(RETRY_SECONDS) and self._topic not in admin.topics([self._topic], config=False):
                pass
            return
        # What was known stays to be seen until all of it is read again.
        ledger, current = AlertState(), False
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
                    records = [ledger.apply_change(record.key() or b"", record.value()) for record in batch]
                if not current and not reader.behind:
                    current = True
                    self._replace_state(ledger)
                elif current and any(not isinstance(record, PartitionPosition | AlertInstance) for record in records):
                    self._replace_state(ledger)
                if not batch and time.monotonic() - polled_at > MAX_RETRY_SECONDS:
                    polled_at = time.monotonic()
                    if self._was_recreated(admin, topic.topic_id):
                        return

    def _was_recreated(self, admin: Admin, topic_id: str) -> bool:
        # Brokers that do not answer are the reader's to tell of.
        with contextlib.suppress(RiverrunError):
            now = admin.topics([self._topic], config=False).get(self._topic)
            return now is None or now.topic_id != topic_id
        return False

    def _replace_state(self, ledger: AlertState, *, topic_exists: bool = True) -> None:
        with self._lock:
            self._ledger = ledger
        self._set_status(FollowerStatus(self._status.version + 1, ready=True, topic_exists=topic_exists))

    def _report_error(self, error: str) -> None:
        before = self._status
        if error != before.error:
            self._set_status(FollowerStatus(before.version + 1, before.ready, before.topic_exists, error))

    def _set_status(self, status: FollowerStatus) -> None:
        self._status = status
        self._on_change()


class EndOffsets:
    """The ends of topics, asked for in a thread of its own: brokers that do not answer hold nobody up."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._admin: Admin | None = None
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="riverrun-alerts-ends")
        self._pending: Future[Mapping[TopicPartition, tuple[int, str]]] | None = None
        self._latest: Mapping[TopicPartition, tuple[int, str]] = {}
        self._fetched_at = -POLL_SECONDS

    def latest(self, topics: set[str]) -> Mapping[TopicPartition, tuple[int, str]]:
        """The end of each partition and its topic's id, as they were last heard."""
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
        places = [place for topic_state in topic_states.values() for place in topic_state.topic_partitions]
        ends = self._admin.offsets(places, "latest", committed_only=True)
        return {place: (end, topic_states[place.topic].topic_id) for place, end in ends.items()}

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


class LagTracker:
    """Since when a position is behind the end of its partition. Positions are kept once a second, so what was written since
    the last look is not late; what was there then and is still not judged, is."""

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
            place = TopicPartition(topic, partition)
            end, topic_id = ends.get(place, (0, ""))
            remaining = end - position.offset
            if remaining <= 0 or position.topic_id not in ("", topic_id):
                continue
            target, since_ms = self._targets.get(place, (end, now))
            targets[place] = (end, now) if position.offset >= target else (target, since_ms)
            offsets += remaining
            since = min(since, targets[place][1])
        self._targets = targets
        return AlertLag(offsets, since) if offsets else None
