"""Follows the topics of all tables: one thread reads, one writes what has come meanwhile.

The writer takes whatever is there as soon as it is free. So a batch is small and at once while little comes, and large while
the store is behind; the reader stops when a batch waits already, and with it the client's queue, which is bounded.
"""

import threading
import time
from collections.abc import Callable, Iterable, Mapping

import duckdb

from riverrun.errors import KafkaError, RiverrunError, StoreError
from riverrun.kafka.bulk import Block, BulkReader, Ends
from riverrun.kafka.connection import Connection
from riverrun.model.state import Place
from riverrun.store.catalog import Catalog
from riverrun.store.embedded.session import Session
from riverrun.store.embedded.state import NOT_READ, TableState, save
from riverrun.store.embedded.writing import Writer

MOST_ROWS = 50_000
MOST_BYTES = 32 << 20
# A batch of this many rows need not wait for more of them.
_SMALL_ROWS = 10_000
# How often partitions are looked for, and the catalog while nothing comes.
_LOOK_SECONDS = 2.0
_IDLE_SECONDS = 1.0
# A write is followed by this many times as much rest, within bounds, so that questions have their share of the machine and
# many small batches become one; not while the store is behind.
_REST, _LEAST_REST_SECONDS, _MOST_REST_SECONDS = 1.0, 0.04, 0.1
_STOP_SECONDS = 30.0


class Ingest:
    """`declare` makes the tables what the catalog says. `states` is shared with the store, changed only under `lock`."""

    def __init__(
        self,
        connection: Connection,
        database: Session,
        states: dict[str, TableState],
        lock: threading.RLock,
        *,
        name: str,
        catalog: Catalog | None,
        declare: Callable[[Catalog], None],
        upkeep: Callable[[], None],
        notice: Callable[[str], None],
    ) -> None:
        self._connection = connection
        self._database = database
        self._states = states
        self._lock = lock
        self._name = name
        self._catalog = catalog
        self._declare = declare
        self._upkeep = upkeep
        self._notice = notice
        # Brings tables on to what a replay has made.
        self.switch: Callable[[], None] = lambda: None
        self._ends = Ends(connection)
        self._stopping = threading.Event()
        self._handed = threading.Condition()
        self._pending = Block()
        self._turn = 0
        # The id and the number of partitions of each topic that Kafka was asked for last; 0 of those that do not exist.
        self._found: dict[str, tuple[str, int]] = {}
        self._reader_trouble = self._writer_trouble = ""
        self._threads = [
            threading.Thread(target=self._read, name="store-reader", daemon=True),
            threading.Thread(target=self._write, name="store-writer", daemon=True),
        ]

    @property
    def trouble(self) -> str:
        """Why nothing may be coming; empty when all is well."""
        return self._writer_trouble or self._reader_trouble

    def places(self, topic: str) -> list[Place] | None:
        """The partitions of a topic: none when it does not exist; None when Kafka was not asked for it yet."""
        found = self._found.get(topic)
        return None if found is None else [Place(topic, partition) for partition in range(found[1])]

    def ends(self, places: list[Place]) -> dict[Place, int] | None:
        """Where partitions end for readers of committed records; None when the cluster does not answer."""
        return self._ends.ends(places) if places else {}

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stopping.set()
        with self._handed:
            self._handed.notify_all()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(_STOP_SECONDS)

    # --- the reader ---------------------------------------------------------------------------------------------------

    def _read(self) -> None:
        reader = BulkReader(self._connection, self._name)
        looked = -_LOOK_SECONDS
        try:
            while not self._stopping.is_set():
                try:
                    if _waiting(list(self._states.values())) or time.monotonic() - looked >= _LOOK_SECONDS:
                        self._choose(reader)
                        looked = time.monotonic()
                    self._hand_over(reader.read(MOST_ROWS, MOST_BYTES, 0.1))
                    self._reader_trouble = reader.trouble
                except Exception as error:  # noqa: BLE001  -- a reader that is gone would be silence
                    self._reader_trouble = _said(error)
                    self._stopping.wait(_IDLE_SECONDS)
        finally:
            reader.close()

    def _hand_over(self, block: Block) -> None:
        if not block:
            return
        with self._handed:
            self._handed.wait_for(self._has_room)
            self._pending.extend(block)
            self._handed.notify_all()

    def _has_room(self) -> bool:
        waits = self._pending.rows >= MOST_ROWS // 2 or self._pending.bytes >= MOST_BYTES // 2
        return self._stopping.is_set() or not waits

    def _choose(self, reader: BulkReader) -> None:
        """Read what the tables need: all partitions of their topics that there are."""
        states = list(self._states.values())
        topics = {each.spec.topic for each in states}
        there = self._ends.partitions(topics)
        found = self._found = {topic: there.get(topic, ("", 0)) for topic in topics}
        for state in states:
            if found.get(state.spec.topic, ("", 0))[0] not in ("", state.topic_id):
                self._of_another_topic(state, found)
        # Not those that the writer has added since, or brought on to another topic: Kafka was not asked for theirs.
        waiting = _waiting([each for each in states if each.spec.topic in found])
        if waiting:
            with self._handed:
                # Blocks of two turns must not meet: the writer knows one turn for all it takes.
                if not self._handed.wait_for(lambda: not self._pending or self._stopping.is_set(), _LOOK_SECONDS):
                    return
                self._turn += 1
            for state in waiting:
                state.turn = self._turn
        wanted: dict[Place, int] = {}
        for state in states:
            for partition in range(found.get(state.spec.topic, ("", 0))[1]) if state.turn <= self._turn else ():
                place = Place(state.spec.topic, partition)
                position = state.positions.get(partition, 0)
                wanted[place] = min(wanted.get(place, position), position)
        again = {each.spec.topic for each in waiting}
        reader.follow(wanted, again=[place for place in wanted if place.topic in again])

    def _of_another_topic(self, state: TableState, found: Mapping[str, tuple[str, int]]) -> None:
        """The topic was deleted and made anew: its offsets begin anew, and so does the table, which keeps its rows."""
        with self._lock:
            # The writer may have brought the table on to another topic since, or put another in its place.
            topic_id, _ = found.get(state.spec.topic, ("", 0))
            if topic_id in ("", state.topic_id) or self._states.get(state.spec.name) is not state:
                return
            if state.topic_id:
                self._notice(
                    f"The topic {state.spec.topic} was deleted and made anew: the table {state.spec.name} keeps its rows "
                    f"and reads it from the beginning. To have only the new ones: riverrun tables remove {state.spec.name}"
                )
                state.positions = {}
            state.topic_id = topic_id
            state.turn = NOT_READ
            save(self._database, [state])

    # --- the writer ---------------------------------------------------------------------------------------------------

    def _write(self) -> None:
        writer = Writer(self._database)
        while not self._stopping.is_set():
            with self._handed:
                self._handed.wait_for(lambda: self._pending or self._stopping.is_set(), _IDLE_SECONDS)
                block, turn = self._pending, self._turn
                self._pending = Block()
                self._handed.notify_all()
            begun = time.monotonic()
            try:
                self._one(writer, block, turn)
            except Exception as error:  # noqa: BLE001  -- nothing of the block may be passed over, whatever it was
                self._fail(error)
            if block:
                self._rest(time.monotonic() - begun)

    def _one(self, writer: Writer, block: Block, turn: int) -> None:
        if not self._follow_catalog(wait=bool(block)):
            return
        with self._lock:
            # Before the block: it may have rows from behind a cut that the catalog has just told of.
            self.switch()
            if block:
                self._write_block(writer, block, turn)
                self.switch()
            self._keep_up()

    def _fail(self, error: Exception) -> None:
        """All tables have missed something, for all that is known."""
        self._notice(f"The store cannot go on: {_said(error)}")
        for state in list(self._states.values()):
            state.failed(_said(error))

    def _write_block(self, writer: Writer, block: Block, turn: int) -> None:
        for gap in block.gaps:
            self._notice(
                f"{gap.gone} records of {gap.place} are gone: retention removed them before the store read them"
                if not gap.made_anew
                else f"{gap}: reading goes on there"
            )
        failed = writer.write(block, turn, self._states)
        for name, error in failed.items():
            state = self._states[name]
            said = _said(error)
            if said != state.problem:
                self._notice(f"The table {name} cannot go on: {said}")
            state.failed(said)

    def _follow_catalog(self, *, wait: bool) -> bool:
        """Have the tables as they are declared now. With records in hand that may need it, there is no going on without."""
        while self._catalog is not None and not self._stopping.is_set():
            try:
                self._catalog.refresh()
                with self._lock:
                    self._declare(self._catalog)
            except KafkaError as error:
                self._troubled(error.what, str(error))
                if not wait:
                    return True
                self._stopping.wait(_IDLE_SECONDS)
            except StoreError as error:
                self._troubled(error.what, str(error))
                return True
            else:
                self._writer_trouble = ""
                return True
        return not self._stopping.is_set()

    def _rest(self, seconds: float) -> None:
        rest = max(_LEAST_REST_SECONDS, min(seconds * _REST, _MOST_REST_SECONDS))
        with self._handed:
            self._handed.wait_for(lambda: self._stopping.is_set() or self._pending.rows >= _SMALL_ROWS, rest)

    def _keep_up(self) -> None:
        try:
            self._upkeep()
        except duckdb.Error as error:
            said = f"Upkeep of the store failed: {_said(error)}"
            self._troubled(said, said)

    def _troubled(self, trouble: str, said: str) -> None:
        """Remember what is in the way, and say it when it is new."""
        if trouble != self._writer_trouble:
            self._notice(said)
        self._writer_trouble = trouble


def _waiting(states: Iterable[TableState]) -> list[TableState]:
    """Tables that are to be read for, and are not."""
    return [each for each in states if each.turn == NOT_READ and not each.resting]


def _said(error: Exception) -> str:
    return error.what if isinstance(error, RiverrunError) else str(error).split("\n", 1)[0] or type(error).__name__
