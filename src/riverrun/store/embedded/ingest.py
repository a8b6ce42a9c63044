"""Follows the topics of all tables: one thread reads, one writes what has arrived meanwhile.

The writer takes whatever is there as soon as it is free. So batches are small and immediate under low load, and large
while the store is behind; the reader stops when a batch is waiting already, and with it the client's queue, which is
bounded.
"""

import threading
import time
from collections.abc import Callable, Iterable, Mapping

import duckdb

from riverrun.errors import KafkaError, RiverrunError, StoreError
from riverrun.kafka.connection import Connection
from riverrun.kafka.reading.bulk_reader import BulkReader, ColumnarBatch, LogEndOffsets
from riverrun.model.cluster_state import TopicPartition
from riverrun.store.catalog import Catalog
from riverrun.store.embedded.session import DuckDBSession
from riverrun.store.embedded.table_state import NOT_ASSIGNED, TableState, save_states
from riverrun.store.embedded.writer import TableWriter

MAX_BATCH_ROWS = 50_000
MAX_BATCH_BYTES = 32 << 20
# A batch of this many rows does not wait for more.
_ENOUGH_ROWS = 10_000
# How often partitions are looked up, and the catalog while nothing arrives.
_PARTITION_CHECK_SECONDS = 2.0
_IDLE_SECONDS = 1.0
# A write is followed by a pause of this many times its duration, within bounds, so that queries get their share of the
# machine and many small batches become one; not while the store is behind.
_PAUSE_FACTOR, _MIN_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 1.0, 0.04, 0.1
_STOP_SECONDS = 30.0


class TableIngest:
    """`apply_catalog` makes the tables what the catalog says. `states` is shared with the store, changed only under
    `lock`."""

    def __init__(
        self,
        connection: Connection,
        database: DuckDBSession,
        states: dict[str, TableState],
        lock: threading.RLock,
        *,
        name: str,
        catalog: Catalog | None,
        apply_catalog: Callable[[Catalog], None],
        maintenance: Callable[[], None],
        notice: Callable[[str], None],
    ) -> None:
        self._connection = connection
        self._database = database
        self._states = states
        self._lock = lock
        self._name = name
        self._catalog = catalog
        self._apply_catalog = apply_catalog
        self._maintenance = maintenance
        self._notice = notice
        # Switches tables to the generation that a replay has made.
        self.switch_generations: Callable[[], None] = lambda: None
        self._ends = LogEndOffsets(connection)
        self._stopping = threading.Event()
        self._pending_changed = threading.Condition()
        self._pending = ColumnarBatch()
        self._read_epoch = 0
        # The id and the number of partitions of each topic at the last look-up; 0 for topics that do not exist.
        self._topics: dict[str, tuple[str, int]] = {}
        self._reader_error = self._writer_error = ""
        self._threads = [
            threading.Thread(target=self._read_loop, name="store-reader", daemon=True),
            threading.Thread(target=self._write_loop, name="store-writer", daemon=True),
        ]

    @property
    def error(self) -> str:
        """Why no records may be arriving; empty when all is well."""
        return self._writer_error or self._reader_error

    def partitions(self, topic: str) -> list[TopicPartition] | None:
        """The partitions of a topic: none when it does not exist; None when Kafka was not asked yet."""
        topic_state = self._topics.get(topic)
        return (
            None if topic_state is None else [TopicPartition(topic, partition) for partition in range(topic_state[1])]
        )

    def ends(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int] | None:
        """The end offsets for readers of committed records; None when the cluster does not answer."""
        return self._ends.end_offsets(partitions) if partitions else {}

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stopping.set()
        with self._pending_changed:
            self._pending_changed.notify_all()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(_STOP_SECONDS)

    # --- the reader ---------------------------------------------------------------------------------------------------

    def _read_loop(self) -> None:
        reader = BulkReader(self._connection, self._name)
        checked_at = -_PARTITION_CHECK_SECONDS
        try:
            while not self._stopping.is_set():
                try:
                    if (
                        _unassigned(list(self._states.values()))
                        or time.monotonic() - checked_at >= _PARTITION_CHECK_SECONDS
                    ):
                        self._assign_partitions(reader)
                        checked_at = time.monotonic()
                    self._enqueue(reader.read(MAX_BATCH_ROWS, MAX_BATCH_BYTES, 0.1))
                    self._reader_error = reader.last_error
                except Exception as error:  # noqa: BLE001  -- a reader that is gone would be silence
                    self._reader_error = _error_text(error)
                    self._stopping.wait(_IDLE_SECONDS)
        finally:
            reader.close()

    def _enqueue(self, block: ColumnarBatch) -> None:
        if not block:
            return
        with self._pending_changed:
            self._pending_changed.wait_for(self._has_room)
            self._pending.extend(block)
            self._pending_changed.notify_all()

    def _has_room(self) -> bool:
        is_full = self._pending.rows >= MAX_BATCH_ROWS // 2 or self._pending.bytes >= MAX_BATCH_BYTES // 2
        return self._stopping.is_set() or not is_full

    def _assign_partitions(self, reader: BulkReader) -> None:
        """Assign to the reader all existing partitions of the tables' topics."""
        states = list(self._states.values())
        topics = {table.spec.topic for table in states}
        existing = self._ends.partition_counts(topics)
        topics_found = self._topics = {topic: existing.get(topic, ("", 0)) for topic in topics}
        for state in states:
            if topics_found.get(state.spec.topic, ("", 0))[0] not in ("", state.topic_id):
                self._restart_if_recreated(state, topics_found)
        # Not those that the writer has added or switched to another topic since: theirs were not looked up.
        unassigned = _unassigned([table for table in states if table.spec.topic in topics_found])
        if unassigned:
            with self._pending_changed:
                # Blocks of two epochs must not mix: the writer has one epoch for all it takes.
                if not self._pending_changed.wait_for(
                    lambda: not self._pending or self._stopping.is_set(), _PARTITION_CHECK_SECONDS
                ):
                    return
                self._read_epoch += 1
            for state in unassigned:
                state.read_epoch = self._read_epoch
        positions: dict[TopicPartition, int] = {}
        for state in states:
            for partition in (
                range(topics_found.get(state.spec.topic, ("", 0))[1]) if state.read_epoch <= self._read_epoch else ()
            ):
                topic_partition = TopicPartition(state.spec.topic, partition)
                position = state.positions.get(partition, 0)
                positions[topic_partition] = min(positions.get(topic_partition, position), position)
        topics_again = {table.spec.topic for table in unassigned}
        reader.assign(
            positions,
            restart=[topic_partition for topic_partition in positions if topic_partition.topic in topics_again],
        )

    def _restart_if_recreated(self, state: TableState, topics: Mapping[str, tuple[str, int]]) -> None:
        """Restart a table whose topic was deleted and created again: its offsets start over; the table keeps its rows."""
        with self._lock:
            # The writer may have switched the table to another topic since, or replaced it.
            topic_id, _ = topics.get(state.spec.topic, ("", 0))
            if topic_id in ("", state.topic_id) or self._states.get(state.spec.name) is not state:
                return
            if state.topic_id:
                self._notice(
                    f"The topic {state.spec.topic} was deleted and made anew: the table {state.spec.name} keeps its rows "
                    f"and reads it from the beginning. To have only the new ones: riverrun tables remove {state.spec.name}"
                )
                state.positions = {}
            state.topic_id = topic_id
            state.read_epoch = NOT_ASSIGNED
            save_states(self._database, [state])

    # --- the writer ---------------------------------------------------------------------------------------------------

    def _write_loop(self) -> None:
        writer = TableWriter(self._database)
        while not self._stopping.is_set():
            with self._pending_changed:
                self._pending_changed.wait_for(lambda: self._pending or self._stopping.is_set(), _IDLE_SECONDS)
                block, read_epoch = self._pending, self._read_epoch
                self._pending = ColumnarBatch()
                self._pending_changed.notify_all()
            begun = time.monotonic()
            try:
                self._write_once(writer, block, read_epoch)
            except Exception as error:  # noqa: BLE001  -- nothing of the block may be passed over, whatever it was
                self._fail_all(error)
            if block:
                self._pause(time.monotonic() - begun)

    def _write_once(self, writer: TableWriter, block: ColumnarBatch, read_epoch: int) -> None:
        if not self._follow_catalog(wait=bool(block)):
            return
        with self._lock:
            # Before the block: it may have rows past a cutover that the catalog has just announced.
            self.switch_generations()
            if block:
                self._write_block(writer, block, read_epoch)
                self.switch_generations()
            self._run_maintenance()

    def _fail_all(self, error: Exception) -> None:
        """Mark all tables as failed: any of them may have missed records."""
        self._notice(f"The store cannot go on: {_error_text(error)}")
        for state in list(self._states.values()):
            state.mark_failed(_error_text(error))

    def _write_block(self, writer: TableWriter, block: ColumnarBatch, read_epoch: int) -> None:
        for gap in block.gaps:
            self._notice(
                f"{gap.missing} records of {gap.topic_partition} are gone: retention removed them before the store read them"
                if not gap.log_recreated
                else f"{gap}: reading goes on there"
            )
        failed = writer.write(block, read_epoch, self._states)
        for name, error in failed.items():
            state = self._states[name]
            message = _error_text(error)
            if message != state.problem:
                self._notice(f"The table {name} cannot go on: {message}")
            state.mark_failed(message)

    def _follow_catalog(self, *, wait: bool) -> bool:
        """Apply the current declarations. With records pending that may need them, retry until it works."""
        while self._catalog is not None and not self._stopping.is_set():
            try:
                self._catalog.refresh()
                with self._lock:
                    self._apply_catalog(self._catalog)
            except KafkaError as error:
                self._report_error(error.what, str(error))
                if not wait:
                    return True
                self._stopping.wait(_IDLE_SECONDS)
            except StoreError as error:
                self._report_error(error.what, str(error))
                return True
            else:
                self._writer_error = ""
                return True
        return not self._stopping.is_set()

    def _pause(self, seconds: float) -> None:
        rest = max(_MIN_PAUSE_SECONDS, min(seconds * _PAUSE_FACTOR, _MAX_PAUSE_SECONDS))
        with self._pending_changed:
            self._pending_changed.wait_for(lambda: self._stopping.is_set() or self._pending.rows >= _ENOUGH_ROWS, rest)

    def _run_maintenance(self) -> None:
        try:
            self._maintenance()
        except duckdb.Error as error:
            message = f"Upkeep of the store failed: {_error_text(error)}"
            self._report_error(message, message)

    def _report_error(self, error: str, message: str) -> None:
        """Remember the current error, and report it when it is new."""
        if error != self._writer_error:
            self._notice(message)
        self._writer_error = error


def _unassigned(states: Iterable[TableState]) -> list[TableState]:
    """Tables that should be read and are not assigned."""
    return [state for state in states if state.read_epoch == NOT_ASSIGNED and not state.is_paused]


def _error_text(error: Exception) -> str:
    return error.what if isinstance(error, RiverrunError) else str(error).split("\n", 1)[0] or type(error).__name__
