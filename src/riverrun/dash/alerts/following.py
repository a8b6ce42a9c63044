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

from riverrun.alerts.kafka_log import Teller
from riverrun.alerts.ledger import Change, Episode, Ledger, Position, ledger_of
from riverrun.errors import RiverrunError, TopicNotFoundError
from riverrun.kafka.admin.admin import Admin
from riverrun.kafka.connection import Connection
from riverrun.kafka.consumer.reader import Reader, spans
from riverrun.kafka.ledger import make_compacted
from riverrun.model.state import Place
from riverrun.model.when import EARLIEST

# So long at least between two looks at the ends of topics, and between two tries.
LOOK_SECONDS = 2.0
WAIT_SECONDS, MOST_WAIT_SECONDS = 1.0, 10.0
CLOSE_SECONDS = 1.0

_LOG = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(frozen=True)
class Standing:
    """How the following goes. `version` counts the changes that a page may show. `there`: the topic is."""

    version: int = 0
    ready: bool = False
    there: bool = False
    trouble: str = ""


@dataclass(frozen=True)
class Behind:
    """How many offsets (records, and markers of transactions) wait to be judged, and since when (Unix milliseconds) the
    first of them is known to."""

    offsets: int
    since: int


class Following(Protocol):
    """What the page needs of the ledger. All of it may be called from any thread."""

    def start(self, on_change: Callable[[], None]) -> None:
        """Begin to follow; once."""

    def standing(self) -> Standing: ...

    def look(self, at: Callable[[Ledger], T]) -> T:
        """What `at` makes of the ledger, which does not change meanwhile."""

    def behind(self) -> Behind | None:
        """How far the rules are behind what they watch; None when they are not, or nobody knows."""

    def tell(self, changes: Sequence[Change]) -> None:
        """Write into the ledger what somebody said."""

    def close(self) -> None: ...


class Follower:
    """Follows the ledger of an app in Kafka."""

    def __init__(self, connection: Connection, app: str) -> None:
        self._connection = connection
        self._topic = ledger_of(app)
        self._lock = threading.Lock()
        self._ledger = Ledger()
        self._standing = Standing()
        self._on_change: Callable[[], None] = lambda: None
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._ends = Ends(connection)
        self._teller = Teller(connection, app)
        self._late = Lateness()

    # --- for the page ---

    def start(self, on_change: Callable[[], None]) -> None:
        with self._lock:
            if self._thread is not None or self._stop.is_set():
                return
            self._on_change = on_change
            self._thread = threading.Thread(target=self._run, name="riverrun-alerts-page", daemon=True)
        self._thread.start()

    def standing(self) -> Standing:
        return self._standing

    def look(self, at: Callable[[Ledger], T]) -> T:
        with self._lock:
            return at(self._ledger)

    def behind(self) -> Behind | None:
        positions = self.look(lambda ledger: dict(ledger.positions))
        return self._late.of(positions, self._ends.known({topic for topic, _ in positions}))

    def tell(self, changes: Sequence[Change]) -> None:
        if not self._standing.there:
            make_compacted(Admin(self._connection), self._topic)
        self._teller.tell(changes)

    def close(self) -> None:
        self._stop.set()
        self._ends.close()
        self._teller.close()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(CLOSE_SECONDS)

    # --- following ---

    def _run(self) -> None:
        wait = WAIT_SECONDS
        while not self._stop.is_set():
            try:
                self._follow()
                continue
            except TopicNotFoundError:
                self._show(Ledger(), there=False)
                trouble = ""
            except RiverrunError as error:
                trouble = str(error)
            except Exception as error:  # noqa: BLE001  -- the page says so, and it is tried again
                _LOG.exception("following the alerts failed")
                trouble = f"Alerts cannot be followed: {type(error).__name__}: {error}"
            wait = min(2 * wait, MOST_WAIT_SECONDS) if self._standing.trouble else WAIT_SECONDS
            self._say(trouble)
            self._stop.wait(wait)

    def _follow(self) -> None:
        """Read from the beginning and go on, until we are to end or something breaks."""
        admin = Admin(self._connection)
        topic = admin.topics([self._topic], config=False).get(self._topic)
        if topic is None:
            self._show(Ledger(), there=False)
            while not self._stop.wait(WAIT_SECONDS) and self._topic not in admin.topics([self._topic], config=False):
                pass
            return
        # What was known stays to be seen until all of it is read again.
        ledger, current = Ledger(), False
        whole = spans(admin, [self._topic], start=EARLIEST, follow=True)
        anew = threading.Event()
        looked = time.monotonic()
        with Reader(
            self._connection,
            whole,
            on_gone=lambda *_: anew.set(),
            on_cut=lambda _: anew.set(),
            on_trouble=self._say,
        ) as reader:
            for batch in reader:
                if self._stop.is_set() or anew.is_set():
                    return
                with self._lock:
                    records = [ledger.take(each.key() or b"", each.value()) for each in batch]
                if not current and not reader.behind:
                    current = True
                    self._show(ledger)
                elif current and any(not isinstance(each, Position | Episode) for each in records):
                    self._show(ledger)
                if not batch and time.monotonic() - looked > MOST_WAIT_SECONDS:
                    looked = time.monotonic()
                    if self._was_made_anew(admin, topic.topic_id):
                        return

    def _was_made_anew(self, admin: Admin, topic_id: str) -> bool:
        # Brokers that do not answer are the reader's to tell of.
        with contextlib.suppress(RiverrunError):
            now = admin.topics([self._topic], config=False).get(self._topic)
            return now is None or now.topic_id != topic_id
        return False

    def _show(self, ledger: Ledger, *, there: bool = True) -> None:
        with self._lock:
            self._ledger = ledger
        self._move(Standing(self._standing.version + 1, ready=True, there=there))

    def _say(self, trouble: str) -> None:
        before = self._standing
        if trouble != before.trouble:
            self._move(Standing(before.version + 1, before.ready, before.there, trouble))

    def _move(self, standing: Standing) -> None:
        self._standing = standing
        self._on_change()


class Ends:
    """The ends of topics, asked for in a thread of its own: brokers that do not answer hold nobody up."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._admin: Admin | None = None
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="riverrun-alerts-ends")
        self._asked: Future[Mapping[Place, tuple[int, str]]] | None = None
        self._known: Mapping[Place, tuple[int, str]] = {}
        self._at = -LOOK_SECONDS

    def known(self, topics: set[str]) -> Mapping[Place, tuple[int, str]]:
        """The end of each partition and its topic's id, as they were last heard."""
        if self._asked is not None and self._asked.done():
            with contextlib.suppress(RiverrunError):
                self._known = self._asked.result()
            self._asked = None
        now = time.monotonic()
        if self._asked is None and topics and now - self._at >= LOOK_SECONDS:
            self._at = now
            with contextlib.suppress(RuntimeError):  # closed meanwhile
                self._asked = self._pool.submit(self._ask, topics)
        return self._known

    def _ask(self, topics: set[str]) -> Mapping[Place, tuple[int, str]]:
        if self._admin is None:
            self._admin = Admin(self._connection)
        found = self._admin.topics(topics, config=False)
        places = [place for each in found.values() for place in each.places]
        ends = self._admin.offsets(places, "latest", committed_only=True)
        return {place: (end, found[place.topic].topic_id) for place, end in ends.items()}

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


class Lateness:
    """Since when a position is behind the end of its partition. Positions are kept once a second, so what was written since
    the last look is not late; what was there then and is still not judged, is."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._goals: dict[Place, tuple[int, int]] = {}

    def of(self, positions: Mapping[tuple[str, int], Position], ends: Mapping[Place, tuple[int, str]]) -> Behind | None:
        now = round(self._clock() * 1000)
        offsets, since = 0, now
        goals: dict[Place, tuple[int, int]] = {}
        for (topic, partition), position in positions.items():
            place = Place(topic, partition)
            end, topic_id = ends.get(place, (0, ""))
            left = end - position.offset
            if left <= 0 or position.topic_id not in ("", topic_id):
                continue
            goal, begun = self._goals.get(place, (end, now))
            goals[place] = (end, now) if position.offset >= goal else (goal, begun)
            offsets += left
            since = min(since, goals[place][1])
        self._goals = goals
        return Behind(offsets, since) if offsets else None
