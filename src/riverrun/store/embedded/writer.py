# ruff: noqa: S608  -- SQL is made here, of names and values that are quoted
"""Writes a block of records into its tables: rows, counts and positions in one transaction."""

import time
from collections.abc import Mapping
from dataclasses import asdict, replace

import pyarrow as pa
import pyarrow.compute as pc

from riverrun.kafka.reading.bulk_reader import ColumnarBatch
from riverrun.model.table import TableSpec
from riverrun.store.embedded import projection
from riverrun.store.embedded.batch import RejectedRow, TableBatch, build_batch
from riverrun.store.embedded.projection import IDENTITY, ROW, TIME, TOMBSTONE, VALID
from riverrun.store.embedded.schema import identities_table, quote_identifier, quote_literal, rows_table
from riverrun.store.embedded.session import DuckDBSession
from riverrun.store.embedded.table_state import TableState, load_states, save_states

_BATCH, _PROJECTED = "batch", "shaped"
# Types of key columns whose minimum and maximum in a batch limit the part of the table to scan.
_RANGE_TYPES = ("timestamp", "date", "bigint")


class TableWriter:
    """Writes with a connection of its own. One thread at a time."""

    def __init__(self, database: DuckDBSession) -> None:
        self._database = database
        self._projections: dict[str, tuple[TableSpec, projection.RowProjection]] = {}

    def write(self, block: ColumnarBatch, read_epoch: int, states: Mapping[str, TableState]) -> dict[str, Exception]:
        """Write the block's records to each of the tables, and advance their states. Tables that failed have not
        advanced.

        All in one transaction; when that fails, table by table, so that one that cannot go on does not stop the others.
        `read_epoch` is the reader's, when it read this.
        """
        affected = [
            state
            for state in states.values()
            if not state.is_paused and state.read_epoch <= read_epoch and _touches_topic(block, state.spec.topic)
        ]
        if not affected:
            return {}
        if not block.topics and not block.gaps:
            # Only transaction markers were passed: the position is written with the next rows.
            for state in affected:
                state.positions = _advanced_positions(state, block)
            return {}
        try:
            self._write(block, affected)
        except Exception as error:  # noqa: BLE001  -- whatever it was, none of these records may be passed over
            if len(affected) == 1:
                return {affected[0].spec.name: error}
            failed: dict[str, Exception] = {}
            for state in affected:
                try:
                    self._write(block, [state])
                except Exception as table_error:  # noqa: BLE001
                    failed[state.spec.name] = table_error
            return failed
        return {}

    def _write(self, block: ColumnarBatch, states: list[TableState]) -> None:
        with self._database.transaction():
            after = [self._write_table(block, state) for state in states]
            save_states(self._database, after)
        for state, moved in zip(states, after, strict=True):
            state.positions = moved.positions
            state.rows, state.rejected, state.duplicates = moved.rows, moved.rejected, moved.duplicates
            state.expired, state.newest, state.updated = moved.expired, moved.newest, moved.updated
            state.clear_problem()

    def _write_table(self, block: ColumnarBatch, state: TableState) -> TableState:
        """The table's state after this block; its rows are written."""
        spec = state.spec
        if state.failures:
            # The failure may have been the response to a commit that was done: the file knows.
            state = replace(load_states(self._database)[spec.name], stop_offsets=state.stop_offsets)
        after = replace(state, positions=dict(state.positions), stop_offsets=dict(state.stop_offsets))
        # From which offset on records are new: if the log was truncated, offsets behind its end are new again.
        new = dict(state.positions)
        for gap in block.gaps:
            partition = gap.topic_partition.partition
            before = after.positions.get(partition, 0)
            if gap.topic_partition.topic == spec.topic and (gap.log_recreated or gap.next > before):
                after.expired += max(0, gap.next - max(before, gap.first))
                after.positions[partition] = gap.next
                if gap.log_recreated:
                    new[partition] = min(gap.next, new.get(partition, 0))
        columns = block.topics.get(spec.topic)
        if columns is not None:
            batch = build_batch(spec, columns, new, state.stop_offsets)
            if batch.records.num_rows or batch.rejected:
                self._write_rows(spec, batch, after)
        after.positions = _advanced_positions(after, block)
        return after

    def _write_rows(self, spec: TableSpec, batch: TableBatch, after: TableState) -> None:
        """Write the rows of a batch, and update the table's counts."""
        database, sql = self._database, self._projection(spec)
        rejected, expected_rows = list(batch.rejected), batch.records.num_rows
        database.register_rows(_BATCH, batch.records)
        if batch.has_identities and not spec.upserts:
            duplicates = self._drop_duplicates(spec, batch.records)
            after.duplicates += duplicates
            expected_rows -= duplicates
        oldest = (
            f"{quote_identifier(spec.time)} < to_timestamp({after.min_time_ms / 1000!r})" if after.min_time_ms else ""
        )
        if spec.upserts:
            database.run(f"CREATE OR REPLACE TEMP TABLE {_PROJECTED} AS {sql.rows}")
            if oldest:
                expected_rows -= database.run_count(
                    f"DELETE FROM {_PROJECTED} WHERE {VALID} AND NOT {TOMBSTONE} AND {oldest}"
                )
            newest, valid_rows = database.fetch_one(
                f"SELECT epoch(max({quote_identifier(spec.time)}) FILTER (NOT {TOMBSTONE})), count(*) "
                f"FROM {_PROJECTED} WHERE {VALID}"
            )
        else:
            # Straight into the table: most records are of this kind, and a temporary table costs a fifth.
            rows = f"FROM ({sql.rows}) WHERE NOT ({VALID} AND coalesce({oldest}, false))" if oldest else sql.rows
            valid_rows = int(database.run_prepared(self._insert_statement(spec, rows))[0][0])
            after.rows += valid_rows
            # With a bound, or it would read the times of all rows of the table, for every batch.
            time_column = quote_identifier(spec.time)
            (newest,) = database.fetch_one(
                f"SELECT epoch(max({time_column})) FROM {rows_table(spec.name)} "
                f"WHERE {time_column} > to_timestamp({after.newest!r})"
            )
        if valid_rows < expected_rows:
            rejected += [batch.reject(row, reason) for row, reason in database.run(sql.rejected)]
        if spec.upserts:
            after.rows += self._upsert(spec, with_rejected=valid_rows < expected_rows)
        self._save_rejected(spec, rejected)
        after.rejected += len(rejected)
        after.newest = max(after.newest, newest or 0.0)
        after.updated = time.time()

    def _save_rejected(self, spec: TableSpec, rejected: list[RejectedRow]) -> None:
        if rejected:
            self._database.register_rows("misfits", pa.Table.from_pylist([asdict(row) for row in rejected]))
            self._database.run(
                "INSERT INTO _riverrun.rejected "
                f"SELECT {quote_literal(spec.name)}, {quote_literal(spec.topic)}, * FROM misfits"
            )

    def _insert_statement(self, spec: TableSpec, rows: str) -> str:
        names = ", ".join(quote_identifier(column.name) for column in spec.columns)
        return f"INSERT INTO {rows_table(spec.name)} ({names}) SELECT {names} FROM ({rows}) WHERE {VALID}"

    def _upsert(self, spec: TableSpec, *, with_rejected: bool) -> int:
        """The last record of each key becomes its row, or deletes it. Returns by how much the row count grew."""
        keys = [quote_identifier(name) for name in spec.key]
        by_key = f"GROUP BY {', '.join(keys)}" if keys else ""
        fits = f"WHERE {VALID}" if with_rejected else ""
        last = f"{ROW} IN (SELECT max({ROW}) FROM {_PROJECTED} {fits} {by_key})"
        names = ", ".join(quote_identifier(column.name) for column in spec.columns)
        self._database.run(
            f"CREATE OR REPLACE TEMP TABLE latest AS SELECT {names}, {TOMBSTONE} FROM {_PROJECTED} WHERE {last}"
        )
        same = " AND ".join(f"kept.{key} IS NOT DISTINCT FROM latest.{key}" for key in keys) or "true"
        removed = self._database.run_count(
            f"DELETE FROM {rows_table(spec.name)} AS kept USING latest WHERE {same}{self._key_range_condition(spec)}"
        )
        added = self._database.run_count(
            f"INSERT INTO {rows_table(spec.name)} ({names}) SELECT {names} FROM latest WHERE NOT {TOMBSTONE}"
        )
        return added - removed

    def _key_range_condition(self, spec: TableSpec) -> str:
        """The range of the batch's keys, as constants: DuckDB skips the parts of the table outside it."""
        ranged = [
            quote_identifier(column_name)
            for column_name in spec.key
            if (column := spec.column(column_name)) and column.type in _RANGE_TYPES
        ]
        if not ranged:
            return ""
        selected = ", ".join(
            f"min({column_name})::VARCHAR, max({column_name})::VARCHAR, count(*) - count({column_name})"
            for column_name in ranged
        )
        values = list(self._database.fetch_one(f"SELECT {selected} FROM latest"))
        parts = []
        for column_name in ranged:
            least, most, missing = values[:3]
            del values[:3]
            if least is not None and not missing:
                parts.append(f" AND kept.{column_name} BETWEEN {quote_literal(least)} AND {quote_literal(most)}")
        return "".join(parts)

    def _drop_duplicates(self, spec: TableSpec, records: pa.Table) -> int:
        """Drop records of the batch whose identity is in the table already, and remember the others; returns how many
        were dropped.

        By identity alone, before anything is parsed: so the rest is written like records that have none.
        """
        identities, whole = identities_table(spec.name), records.num_rows
        records = _drop_duplicates_in_batch(records)
        self._database.register_rows(_BATCH, records)
        # A join, not IN: that would make a hash table of all identities ever seen for a few new ones.
        repeated_rows = self._database.run_prepared(
            f"SELECT DISTINCT {ROW} FROM {identities} AS seen JOIN {_BATCH} AS own ON seen.identity = hash(own.{IDENTITY})"
        )
        if repeated_rows:
            numbers = pa.array([number for (number,) in repeated_rows], pa.int64())
            records = records.filter(pc.invert(pc.is_in(records.column(0), value_set=numbers)))
            self._database.register_rows(_BATCH, records)
        self._database.run_prepared(
            f"INSERT INTO {identities} SELECT hash({IDENTITY}), epoch_ms({TIME}) FROM {_BATCH} WHERE {IDENTITY} IS NOT NULL"
        )
        return int(whole - records.num_rows)

    def _projection(self, spec: TableSpec) -> projection.RowProjection:
        known = self._projections.get(spec.name)
        if known is None or known[0] != spec:
            known = self._projections[spec.name] = (spec, projection.build_projection(spec, _BATCH))
        return known[1]


def _drop_duplicates_in_batch(records: pa.Table) -> pa.Table:
    """The records without those whose identity an earlier one has."""
    identities = records.column(3)
    if pc.count_distinct(identities).as_py() == len(identities) - identities.null_count:
        return records
    first: set[int] = set()
    known: set[bytes] = set()
    for number, identity in zip(records.column(0).to_pylist(), identities.to_pylist(), strict=True):
        if identity is None or identity not in known:
            first.add(number)
            known.add(identity or b"")
    return records.filter(pc.is_in(records.column(0), value_set=pa.array(sorted(first), pa.int64())))


def _advanced_positions(state: TableState, block: ColumnarBatch) -> dict[int, int]:
    """The positions of a table after a block. After a log was truncated, an earlier position is beyond its end."""
    positions, recreated = (
        dict(state.positions),
        {gap.topic_partition: gap.first for gap in block.gaps if gap.log_recreated},
    )
    for topic_partition, offset in block.next_offsets.items():
        if topic_partition.topic == state.spec.topic and offset != recreated.get(topic_partition):
            reached = min(offset, state.stop_offsets.get(topic_partition.partition, offset))
            positions[topic_partition.partition] = max(reached, positions.get(topic_partition.partition, 0))
    return positions


def _touches_topic(block: ColumnarBatch, topic: str) -> bool:
    return (
        topic in block.topics
        or any(topic_partition.topic == topic for topic_partition in block.next_offsets)
        or any(gap.topic_partition.topic == topic for gap in block.gaps)
    )
