"""A store of a few tables in DuckDB's memory, filled by the test that uses it. It follows no topic."""

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import duckdb

from riverrun.errors import QueryCancelledError, QueryError, QueryTimeoutError
from riverrun.model.table import Column, TableSpec
from riverrun.store.arrow_types import normalize_types
from riverrun.store.contract import QueryLimits, QueryResult, Store, TableHealth, TableStatus
from riverrun.store.embedded.snapshot import write_snapshot
from riverrun.store.sql import prepare

TYPES = {"text": "varchar", "json": "varchar", "timestamp": "timestamptz"}


def columns(**types: str) -> tuple[Column, ...]:
    return tuple(Column(name, kind, (name,)) for name, kind in types.items())


HOUSE_LOAD = TableSpec(
    "house_load", "house_load",
    columns(minute="timestamp", minute_end="timestamp", house_id="text", load_kw="double"),
    ("minute", "house_id"), upserts=True, time="minute",
)  # fmt: skip
HOUSES = TableSpec(
    "houses", "houses", columns(house_id="text", street="text", phone="text", recorded_at="timestamp"),
    ("house_id",), upserts=True,
)  # fmt: skip
READINGS = TableSpec(
    "readings", "readings",
    columns(houseId="text", at="timestamp", day="date", kwh="decimal(10,2)", count="bigint", ok="boolean", extra="json"),
    (), upserts=False, time="at",
)  # fmt: skip
TABLES = {each.name: each for each in (HOUSE_LOAD, HOUSES, READINGS)}
ROWS = """
insert into house_load select timestamptz '2026-01-01 00:00:00+00' + interval (i // 3) minute,
    timestamptz '2026-01-01 00:01:00+00' + interval (i // 3) minute, 'h' || (i % 3), i * 0.5 from range(30) t(i);
insert into houses values ('h0', 'Main', '1', timestamptz '2026-01-01 00:00:00+00'),
    ('h1', 'Main', '2', timestamptz '2026-01-01 00:00:00+00'), ('h2', 'Oak', null, timestamptz '2026-01-01 00:00:00+00');
insert into readings values
    ('h0', timestamptz '2026-01-01 00:00:01+00', date '2026-01-01', 1.25, 9007199254740993, true,
        '{"a": {"b": [1, 2]}, "c": "x"}'),
    ('h1', timestamptz '2026-01-01 23:30:00+00', date '2026-01-01', 2.50, 0, false, '{"a": 1}'),
    ('h2', timestamptz '2026-01-02 00:00:00.123456+00', date '2026-01-02', null, null, null, null);
"""


class DuckStore(Store):
    """Questions are answered as the contract says; nothing is followed."""

    def __init__(self, tables: Sequence[TableSpec] = tuple(TABLES.values()), rows: str = ROWS) -> None:
        self._given = tables
        self._rows = rows
        self._tables: dict[str, TableSpec] = {}
        self._connection = duckdb.connect()
        self._running: dict[str, _Running] = {}
        self.failing = ""

    def open(self) -> None:
        self._connection.execute("set TimeZone = 'UTC'")
        self.apply(self._given)
        if self._rows:
            self._connection.execute(self._rows)

    def close(self) -> None:
        self._connection.close()

    def apply(self, tables: Sequence[TableSpec]) -> list[str]:
        told = []
        for spec in tables:
            listed = ", ".join(f'"{column.name}" {TYPES.get(column.type, column.type)}' for column in spec.columns)
            self._connection.execute(f'create or replace table "{spec.name}" ({listed})')
            self._tables[spec.name] = spec
            told.append(f"the table {spec.name} is made")
        return told

    def remove(self, table: str) -> None:
        self._connection.execute(f'drop table "{table}"')
        del self._tables[table]

    @property
    def tables(self) -> dict[str, TableSpec]:
        return dict(self._tables)

    def table_statuses(self) -> list[TableStatus]:
        found = []
        for name in self._tables:
            row = self._connection.cursor().execute(f'select count(*) from "{name}"').fetchone()  # noqa: S608
            state: TableHealth = "failing" if name == self.failing else "following"
            found.append(
                TableStatus(name, row[0] if row else 0, state, positions={0: 7, 1: 9}, lag=0, newest=1.0, updated=2.0)
            )
        return found

    def query(self, sql: str, limits: QueryLimits = QueryLimits(), *, name: str = "") -> QueryResult:  # noqa: B008
        began = time.monotonic()
        prepared = prepare(sql, self._tables, "duckdb")
        cursor = self._connection.cursor()
        cursor.execute("set TimeZone = 'UTC'")
        running = _Running(cursor, began + limits.seconds)
        self._running[name] = running
        watch = threading.Thread(target=running.watch)
        watch.start()
        try:
            rows = cursor.sql(prepared.sql).to_arrow_table()
        except duckdb.InterruptException as error:
            if running.cancelled:
                raise QueryCancelledError("It was cancelled") from error
            raise QueryTimeoutError(f"It took longer than {limits.seconds:g} seconds") from error
        except duckdb.Error as error:
            raise QueryError(f"DuckDB: {error}") from error
        finally:
            running.done.set()
            watch.join()
            self._running.pop(name, None)
        more = rows.num_rows > limits.rows
        return QueryResult(
            normalize_types(rows.slice(0, limits.rows), prepared.columns), more, time.monotonic() - began
        )

    def snapshot(self, path: Path) -> None:
        write_snapshot(self._connection, self._tables, path)

    def cancel(self, name: str) -> bool:
        running = self._running.get(name)
        if running is not None:
            running.cancelled = True
        return running is not None


@dataclass
class _Running:
    cursor: duckdb.DuckDBPyConnection
    deadline: float
    cancelled: bool = False
    done: threading.Event = field(default_factory=threading.Event)

    def watch(self) -> None:
        """Interrupt it when it is to end, again and again: an interrupt before its question has begun is lost."""
        while not self.done.wait(0.01):
            if self.cancelled or time.monotonic() > self.deadline:
                self.cursor.interrupt()
