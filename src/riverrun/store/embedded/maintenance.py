# ruff: noqa: S608  -- SQL is made here, of names and values that are quoted
"""Keeps the file bounded: deletes expired rows, reclaims space, and keeps identities and rejected rows for a while.

DuckDB reclaims the space of deleted rows at a checkpoint only where whole row groups have many of them. The rest is
reclaimed by rewriting the table, when most of it is dead.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext

import duckdb

from riverrun.store.embedded.schema import identities_table, quote_identifier, quote_literal, rows_table, view_statement
from riverrun.store.embedded.session import DuckDBSession
from riverrun.store.embedded.store_file import CHECKPOINT_MB, StoreFile
from riverrun.store.embedded.table_state import TableState, save_states

# How far back duplicates are recognized: by the record's own time, and in number.
IDENTITY_RETENTION_MS = 600_000
MAX_IDENTITIES = 4_000_000
# How many rejected rows are kept for inspection; all are counted.
MAX_REJECTED_ROWS = 10_000
# A table is rewritten when this share of its space is dead, and it is large enough to be worth it.
DEAD_SHARE = 0.5
_MIN_DEAD_ROWS = 500_000
# What is deleted at once when the file is too large: this share of the rows of the largest table.
_EVICTION_SHARE = 0.1
# DuckDB keeps rows in groups of this many, and reclaims the space of whole groups.
_ROW_GROUP_SIZE = 122_880
_BLOCK_BYTES = 262_144
# How long to wait for queries when the log is large, and when it is very large.
_PAUSE_SECONDS, _LONG_PAUSE_SECONDS = 1.0, 30.0
_MEBIBYTE = 1 << 20
_SIZE_SECONDS, _AGE_SECONDS, _SPACE_SECONDS = 5.0, 30.0, 120.0


class StoreMaintenance:
    """Called by the writer between batches; does each kind of work when it is due."""

    def __init__(
        self,
        database: DuckDBSession,
        file: StoreFile,
        states: Mapping[str, TableState],
        max_bytes: int,
        notice: Callable[[str], None],
        *,
        pause_queries: Callable[[float], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self._database = database
        self._file = file
        self._states = states
        self._max_bytes = max_bytes
        self._notice = notice
        self._pause_queries = pause_queries
        self._due = dict.fromkeys((self.delete_expired, self.enforce_max_size, self.reclaim_space), 0.0)
        self._full_notified: set[bool] = set()
        self._wal_due = 0.0

    def run_due(self) -> None:
        """Do what is due."""
        self.checkpoint_wal()
        periods = {
            self.delete_expired: _AGE_SECONDS,
            self.enforce_max_size: _SIZE_SECONDS,
            self.reclaim_space: _SPACE_SECONDS,
        }
        for work, period in periods.items():
            if time.monotonic() >= self._due[work]:
                self._due[work] = time.monotonic() + period
                work()

    def checkpoint_wal(self) -> None:
        """Checkpoint when the write-ahead log is large. DuckDB does so by itself, but never while a query runs that
        began before the last update or delete; where queries overlap, there always is one. So they wait for a
        moment."""
        size = self._file.wal_size()
        if size < CHECKPOINT_MB * 1.25 * _MEBIBYTE or time.monotonic() < self._wal_due:
            return
        # A checkpoint during queries may leave the log as it is.
        if self._checkpoint() and self._file.wal_size() < size:
            return
        urgent = size > CHECKPOINT_MB * 4 * _MEBIBYTE
        with self._pause_queries(_LONG_PAUSE_SECONDS if urgent else _PAUSE_SECONDS):
            self._checkpoint()
        self._wal_due = time.monotonic() + _SIZE_SECONDS

    def delete_expired(self) -> None:
        """Delete rows older than their table's retention, and the metadata of old rows."""
        for state in self._states.values():
            spec = state.spec
            if spec.retention_ms >= 0:
                before = f"to_timestamp({(time.time() - spec.retention_ms / 1000)!r})"
                self._delete(state, f"{quote_identifier(spec.time)} < {before}")
            self._forget_identities(spec.name)
        self._database.run(
            "DELETE FROM _riverrun.rejected WHERE rowid < (SELECT min(rowid) FROM "
            f"(SELECT rowid FROM _riverrun.rejected ORDER BY rowid DESC LIMIT {MAX_REJECTED_ROWS}))"
        )

    def _forget_identities(self, table: str) -> None:
        ids = identities_table(table)
        self._database.run(f"DELETE FROM {ids} WHERE sent < (SELECT max(sent) - {IDENTITY_RETENTION_MS} FROM {ids})")
        count = self._database.run_count(f"SELECT count(*) FROM {ids}")
        if count > MAX_IDENTITIES * 1.1:
            self._database.run(
                f"DELETE FROM {ids} WHERE sent < (SELECT quantile_disc(sent, {1 - MAX_IDENTITIES / count!r}) FROM {ids})"
            )

    def enforce_max_size(self) -> None:
        """While the tables exceed the size limit, delete the oldest rows of the largest append table.

        A replay's hidden table has its own bound: while it and the table that it replaces both exist, no rows of any
        table are deleted for it.
        """
        if self._max_bytes <= 0:
            return
        states = list(self._states.values())
        for hidden in (False, True):
            own = [state for state in states if bool(state.replaces) == hidden]
            if own:
                self._shrink(own, [state for state in states if bool(state.replaces) != hidden], hidden=hidden)

    def _shrink(self, states: Sequence[TableState], aside: Sequence[TableState], *, hidden: bool) -> None:
        """Delete rows only if it helps: not where all else is too large already, and no more when the last deletion
        made no room. While a query still sees deleted rows, there is no checkpoint and no free space: deletion waits
        until there is."""
        others = [stored for name in aside for stored in (_table_literal(name), _table_literal(name, "_seen"))]
        if self._used_bytes() - self._table_bytes(others) <= self._max_bytes:
            self._full_notified.discard(hidden)
            return
        appended = [state for state in states if not state.spec.upserts]
        while self._checkpoint() and (used := self._used_bytes() - self._table_bytes(others)) > self._max_bytes:
            largest = max((table for table in appended if table.rows), key=lambda table: table.rows, default=None)
            rest = used - self._table_bytes([_table_literal(table) for table in appended])
            if largest is None or rest > self._max_bytes:
                self._notify_full(used, rest, hidden=hidden)
                return
            if not self._make_room(largest, self._used_bytes()):
                return

    def _make_room(self, state: TableState, used: int) -> bool:
        """Delete the oldest rows of a table; returns whether less space is used than before."""
        deleted = self._evict_oldest(state)
        if not self._checkpoint():
            return False
        if self._used_bytes() >= used and deleted < _ROW_GROUP_SIZE:
            # Less than a row group, whose space is not reclaimed by itself: all rows would be deleted before it made
            # room.
            self.rewrite(state)
        return self._used_bytes() < used

    def _checkpoint(self) -> bool:
        """Write the log into the file. Not while a query needs what it would remove."""
        try:
            self._database.run("CHECKPOINT")
        except duckdb.TransactionException:
            return False
        return True

    def _evict_oldest(self, state: TableState) -> int:
        rows, most = rows_table(state.spec.name), max(1, int(state.rows * _EVICTION_SHARE))
        oldest = f"SELECT rowid FROM {rows} ORDER BY {quote_identifier(state.spec.time)} NULLS FIRST LIMIT {most}"
        deleted = self._delete(state, f"rowid IN ({oldest})")
        of = f"the replay of {state.replaces}" if state.replaces else state.spec.name
        self._notice(f"The store is full (store.max_size): the oldest {deleted:,} rows of {of} went")
        return deleted

    def _notify_full(self, used: int, rest: int, *, hidden: bool) -> None:
        if hidden not in self._full_notified:
            self._notice(
                f"The store takes {used:,} bytes, more than store.max_size allows, and {rest:,} of them are not of tables "
                "that are appended to. Of those that are updated by key nothing goes by itself: give them a retention, or "
                "the store more room"
            )
        self._full_notified.add(hidden)

    def _table_bytes(self, stored: Sequence[str]) -> int:
        """Bytes of these tables. Small ones share blocks."""
        if not stored:
            return 0
        tables = " UNION ALL ".join(f"FROM pragma_storage_info({literal})" for literal in stored)
        (blocks,) = self._database.fetch_one(
            "SELECT count(DISTINCT block) FROM "
            f"(SELECT unnest(list_append(additional_block_ids, block_id)) AS block FROM ({tables})) WHERE block >= 0"
        )
        return int(blocks) * _BLOCK_BYTES

    def _used_bytes(self) -> int:
        """Bytes in use: free blocks are in the file, but are reused before it grows."""
        block, total, free = self._database.fetch_one(
            "SELECT block_size, total_blocks, free_blocks FROM pragma_database_size() "
            "WHERE database_name = current_database()"
        )
        return int(block) * (int(total) - int(free))

    def reclaim_space(self) -> None:
        """Measure the tables; rewrite those that are mostly dead rows."""
        for state in self._states.values():
            blocks, stored_rows = self._database.fetch_one(
                "SELECT count(DISTINCT block_id) FILTER (block_id >= 0) + sum(len(additional_block_ids)), "
                "sum(count) FILTER (column_id = 0 AND segment_type <> 'VALIDITY') "
                f"FROM pragma_storage_info({_table_literal(state)})"
            )
            state.bytes = int(blocks or 0) * _BLOCK_BYTES
            dead = int(stored_rows or 0) - state.rows
            if dead > _MIN_DEAD_ROWS and dead > DEAD_SHARE * int(stored_rows):
                self.rewrite(state)

    def rewrite(self, state: TableState) -> None:
        """Rewrite a table, oldest rows first, so that it takes only the space its rows need."""
        rows, name = rows_table(state.spec.name), state.spec.name
        new_table = f"_rows.{quote_identifier(f'{name} anew')}"
        with self._database.transaction():
            self._database.run(
                f"CREATE TABLE {new_table} AS SELECT * FROM {rows} ORDER BY {quote_identifier(state.spec.time)}"
            )
            self._database.run(f"DROP TABLE {rows}")
            self._database.run(f"ALTER TABLE {new_table} RENAME TO {quote_identifier(name)}")
            if not state.replaces:
                self._database.run(view_statement(state.spec))
        self._checkpoint()

    def _delete(self, state: TableState, condition: str) -> int:
        before = state.rows
        try:
            with self._database.transaction():
                deleted = self._database.run_count(f"DELETE FROM {rows_table(state.spec.name)} WHERE {condition}")
                state.rows -= deleted
                save_states(self._database, [state])
        except BaseException:
            state.rows = before
            raise
        return deleted


def _table_literal(state: TableState, schema: str = "_rows") -> str:
    """The table's name as a string literal, for functions that take text."""
    return quote_literal(f"{schema}.{quote_identifier(state.spec.name)}")
