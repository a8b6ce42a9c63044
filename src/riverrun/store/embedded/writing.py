# ruff: noqa: S608  -- SQL is made here, of names and values that are quoted
"""A block of records into the tables it is for: rows, counts and positions in one transaction."""

import time
from collections.abc import Mapping
from dataclasses import asdict, replace

import pyarrow as pa
import pyarrow.compute as pc

from riverrun.kafka.bulk import Block
from riverrun.model.table import TableSpec
from riverrun.store.embedded import shaping
from riverrun.store.embedded.batch import Batch, Misfit, batch_of
from riverrun.store.embedded.schema import literal, quoted, rows_of, seen_of
from riverrun.store.embedded.session import Session
from riverrun.store.embedded.shaping import DEAD, FITS, IDENTITY, ROW, TIME
from riverrun.store.embedded.state import TableState, load, save

_BATCH, _SHAPED = "batch", "shaped"
# Kinds of key columns whose least and greatest value in a batch say which part of the table to look at.
_RANGED = ("timestamp", "date", "bigint")


class Writer:
    """Writes with a connection of its own. One thread at a time."""

    def __init__(self, database: Session) -> None:
        self._database = database
        self._shapings: dict[str, tuple[TableSpec, shaping.Shaping]] = {}

    def write(self, block: Block, turn: int, states: Mapping[str, TableState]) -> dict[str, Exception]:
        """Write what the block has for each of the tables, and move on their states. Tables that failed have not moved.

        All in one transaction; when that fails, table by table, so that one that cannot go on does not stop the others.
        `turn` is the reader's, when it read this.
        """
        concerned = [
            each
            for each in states.values()
            if not each.resting and each.turn <= turn and _concerns(block, each.spec.topic)
        ]
        if not concerned:
            return {}
        if not block.topics and not block.gaps:
            # Only marks of transactions were passed: that is written with the next rows.
            for state in concerned:
                state.positions = _moved(state, block)
            return {}
        try:
            self._write(block, concerned)
        except Exception as error:  # noqa: BLE001  -- whatever it was, none of these records may be passed over
            if len(concerned) == 1:
                return {concerned[0].spec.name: error}
            failed: dict[str, Exception] = {}
            for state in concerned:
                try:
                    self._write(block, [state])
                except Exception as own:  # noqa: BLE001
                    failed[state.spec.name] = own
            return failed
        return {}

    def _write(self, block: Block, states: list[TableState]) -> None:
        with self._database.transaction():
            after = [self._table(block, state) for state in states]
            save(self._database, after)
        for state, moved in zip(states, after, strict=True):
            state.positions = moved.positions
            state.rows, state.rejected, state.repeated = moved.rows, moved.rejected, moved.repeated
            state.gone, state.newest, state.updated = moved.gone, moved.newest, moved.updated
            state.well()

    def _table(self, block: Block, state: TableState) -> TableState:
        """What the table's state is after this block; its rows are written."""
        spec = state.spec
        if state.failures:
            # What failed may have been the answer to a commit that was done: the file knows.
            state = replace(load(self._database)[spec.name], until=state.until)
        after = replace(state, positions=dict(state.positions), until=dict(state.until))
        # From where on records are new: that the log was cut means that offsets behind its end are new again.
        new = dict(state.positions)
        for gap in block.gaps:
            partition = gap.place.partition
            before = after.positions.get(partition, 0)
            if gap.place.topic == spec.topic and (gap.made_anew or gap.next > before):
                after.gone += max(0, gap.next - max(before, gap.first))
                after.positions[partition] = gap.next
                if gap.made_anew:
                    new[partition] = min(gap.next, new.get(partition, 0))
        columns = block.topics.get(spec.topic)
        if columns is not None:
            batch = batch_of(spec, columns, new, state.until)
            if batch.records.num_rows or batch.misfits:
                self._rows(spec, batch, after)
        after.positions = _moved(after, block)
        return after

    def _rows(self, spec: TableSpec, batch: Batch, after: TableState) -> None:
        """Write the rows of a batch, and what they change of the table's counts."""
        database, sql = self._database, self._shaping(spec)
        misfits, whole = list(batch.misfits), batch.records.num_rows
        database.rows(_BATCH, batch.records)
        if batch.identified and not spec.upserts:
            repeated = self._drop_repeated(spec, batch.records)
            after.repeated += repeated
            whole -= repeated
        oldest = (
            f"{quoted(spec.time)} < to_timestamp({after.oldest_taken_ms / 1000!r})" if after.oldest_taken_ms else ""
        )
        if spec.upserts:
            database.run(f"CREATE OR REPLACE TEMP TABLE {_SHAPED} AS {sql.rows}")
            if oldest:
                whole -= database.count(f"DELETE FROM {_SHAPED} WHERE {FITS} AND NOT {DEAD} AND {oldest}")
            newest, fit = database.row(
                f"SELECT epoch(max({quoted(spec.time)}) FILTER (NOT {DEAD})), count(*) FROM {_SHAPED} WHERE {FITS}"
            )
        else:
            # Straight into the table: most records are of this kind, and a table in between costs a fifth.
            rows = f"FROM ({sql.rows}) WHERE NOT ({FITS} AND coalesce({oldest}, false))" if oldest else sql.rows
            fit = int(database.prepared(self._appending(spec, rows))[0][0])
            after.rows += fit
            # With a bound, or it would read the times of all rows that there are, for every batch.
            moment = quoted(spec.time)
            (newest,) = database.row(
                f"SELECT epoch(max({moment})) FROM {rows_of(spec.name)} WHERE {moment} > to_timestamp({after.newest!r})"
            )
        if fit < whole:
            misfits += [batch.misfit(row, reason) for row, reason in database.run(sql.misfits)]
        if spec.upserts:
            after.rows += self._upsert(spec, with_misfits=fit < whole)
        self._keep_misfits(spec, misfits)
        after.rejected += len(misfits)
        after.newest = max(after.newest, newest or 0.0)
        after.updated = time.time()

    def _keep_misfits(self, spec: TableSpec, misfits: list[Misfit]) -> None:
        if misfits:
            self._database.rows("misfits", pa.Table.from_pylist([asdict(each) for each in misfits]))
            self._database.run(
                f"INSERT INTO _riverrun.rejected SELECT {literal(spec.name)}, {literal(spec.topic)}, * FROM misfits"
            )

    def _appending(self, spec: TableSpec, rows: str) -> str:
        names = ", ".join(quoted(each.name) for each in spec.columns)
        return f"INSERT INTO {rows_of(spec.name)} ({names}) SELECT {names} FROM ({rows}) WHERE {FITS}"

    def _upsert(self, spec: TableSpec, *, with_misfits: bool) -> int:
        """The last record of each key is its row, or deletes it. How many rows more there are then."""
        keys = [quoted(each) for each in spec.key]
        by_key = f"GROUP BY {', '.join(keys)}" if keys else ""
        fits = f"WHERE {FITS}" if with_misfits else ""
        last = f"{ROW} IN (SELECT max({ROW}) FROM {_SHAPED} {fits} {by_key})"
        names = ", ".join(quoted(each.name) for each in spec.columns)
        self._database.run(f"CREATE OR REPLACE TEMP TABLE latest AS SELECT {names}, {DEAD} FROM {_SHAPED} WHERE {last}")
        same = " AND ".join(f"kept.{key} IS NOT DISTINCT FROM latest.{key}" for key in keys) or "true"
        removed = self._database.count(
            f"DELETE FROM {rows_of(spec.name)} AS kept USING latest WHERE {same}{self._bounds(spec)}"
        )
        added = self._database.count(
            f"INSERT INTO {rows_of(spec.name)} ({names}) SELECT {names} FROM latest WHERE NOT {DEAD}"
        )
        return added - removed

    def _bounds(self, spec: TableSpec) -> str:
        """The range of the batch's keys, as constants: DuckDB leaves out the parts of the table that have none of it."""
        ranged = [quoted(each) for each in spec.key if (column := spec.column(each)) and column.type in _RANGED]
        if not ranged:
            return ""
        asked = ", ".join(f"min({each})::VARCHAR, max({each})::VARCHAR, count(*) - count({each})" for each in ranged)
        found = list(self._database.row(f"SELECT {asked} FROM latest"))
        parts = []
        for each in ranged:
            least, most, missing = found[:3]
            del found[:3]
            if least is not None and not missing:
                parts.append(f" AND kept.{each} BETWEEN {literal(least)} AND {literal(most)}")
        return "".join(parts)

    def _drop_repeated(self, spec: TableSpec, records: pa.Table) -> int:
        """Leave those of the batch out that are in the table by their identity, and remember the others; how many went.

        By identity alone, before anything is read of them: so the rest goes the same way as records that have none.
        """
        seen, whole = seen_of(spec.name), records.num_rows
        records = _first_of_each(records)
        self._database.rows(_BATCH, records)
        # A join, not IN: that would make a hash table of all that were ever seen for a few that came.
        again = self._database.prepared(
            f"SELECT DISTINCT {ROW} FROM {seen} AS seen JOIN {_BATCH} AS own ON seen.identity = hash(own.{IDENTITY})"
        )
        if again:
            numbers = pa.array([number for (number,) in again], pa.int64())
            records = records.filter(pc.invert(pc.is_in(records.column(0), value_set=numbers)))
            self._database.rows(_BATCH, records)
        self._database.prepared(
            f"INSERT INTO {seen} SELECT hash({IDENTITY}), epoch_ms({TIME}) FROM {_BATCH} WHERE {IDENTITY} IS NOT NULL"
        )
        return int(whole - records.num_rows)

    def _shaping(self, spec: TableSpec) -> shaping.Shaping:
        known = self._shapings.get(spec.name)
        if known is None or known[0] != spec:
            known = self._shapings[spec.name] = (spec, shaping.shaping(spec, _BATCH))
        return known[1]


def _first_of_each(records: pa.Table) -> pa.Table:
    """The records without those whose identity one before them has."""
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


def _moved(state: TableState, block: Block) -> dict[int, int]:
    """The positions of a table behind a block. What was reached before a log was cut is behind its end."""
    positions, cut = dict(state.positions), {gap.place: gap.first for gap in block.gaps if gap.made_anew}
    for place, offset in block.reached.items():
        if place.topic == state.spec.topic and offset != cut.get(place):
            reached = min(offset, state.until.get(place.partition, offset))
            positions[place.partition] = max(reached, positions.get(place.partition, 0))
    return positions


def _concerns(block: Block, topic: str) -> bool:
    return (
        topic in block.topics
        or any(place.topic == topic for place in block.reached)
        or any(gap.place.topic == topic for gap in block.gaps)
    )
