"""A store in memory for tests of what stands above it: DuckDB with plain tables, filled by hand."""

import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import duckdb
import pyarrow as pa

from riverrun.errors import QueryError, StoreUnavailableError
from riverrun.model.table import Column, TableSpec
from riverrun.store.contract import QueryLimits, QueryResult, Store, TableHealth, TableStatus
from riverrun.store.sql import prepare

_TYPES = {"text": "varchar", "timestamp": "timestamptz", "json": "varchar"}
_ARROW = {"text": pa.string(), "bigint": pa.int64(), "double": pa.float64(), "boolean": pa.bool_(), "json": pa.string(),
          "timestamp": pa.timestamp("us", "UTC"), "date": pa.date32()}  # fmt: skip


def columns(**types: str) -> tuple[Column, ...]:
    return tuple(Column(name, kind, (name,)) for name, kind in types.items())


class MemoryStore(Store):
    """Keeps the contract as far as dashboards see it. `asked` has every question, in order."""

    def __init__(self, *tables: TableSpec) -> None:
        self._database = duckdb.connect()
        self._database.execute("set timezone = 'UTC'")
        self._lock = threading.Lock()
        self._specs: dict[str, TableSpec] = {}
        self._offsets: dict[str, int] = {}
        self._updated: dict[str, float] = {}
        self.states: dict[str, tuple[TableHealth, str]] = {}
        self.asked: list[str] = []
        self.down = ""
        self.apply(tables)

    def open(self) -> None: ...

    def close(self) -> None: ...

    def apply(self, tables: Sequence[TableSpec]) -> list[str]:
        with self._lock:
            for spec in tables:
                parts = [f'"{column.name}" {_TYPES.get(column.type, column.type)}' for column in spec.columns]
                if spec.upserts and spec.key:
                    parts.append("primary key (" + ", ".join(f'"{each}"' for each in spec.key) + ")")
                self._database.execute(f'create table "{spec.name}" ({", ".join(parts)})')
                self._specs[spec.name] = spec
                self._offsets[spec.name] = 0
                self._updated[spec.name] = 0.0
        return []

    def put(self, table: str, rows: Iterable[Mapping[str, Any]], *, at: float | None = None) -> None:
        """Rows that come in now, or at a Unix time."""
        spec = self._specs[table]
        listed = list(rows)
        found = pa.table({  # noqa: F841  -- DuckDB finds it by its name
            column.name: pa.array([row.get(column.name) for row in listed], _ARROW.get(column.type))
            for column in spec.columns
        })  # fmt: skip
        with self._lock:
            insert = "insert or replace into" if spec.upserts else "insert into"
            self._database.execute(f'{insert} "{table}" select * from found')  # noqa: S608
            self._offsets[table] += len(listed)
            self._updated[table] = time.time() if at is None else at

    def touch(self, table: str, at: float) -> None:
        """As if the newest row had come in at that Unix time."""
        self._updated[table] = at

    def remove(self, table: str) -> None:
        with self._lock:
            self._database.execute(f'drop table "{table}"')
            del self._specs[table]

    @property
    def tables(self) -> dict[str, TableSpec]:
        return dict(self._specs)

    def table_statuses(self) -> list[TableStatus]:
        if self.down:
            raise StoreUnavailableError(self.down)
        found = []
        with self._lock:
            for name, spec in self._specs.items():
                rows, newest = self._one(f'select count(*), epoch(max("{spec.time}")) from "{name}"')  # noqa: S608
                state, detail = self.states.get(name, ("following", ""))
                offset, updated = self._offsets[name], self._updated[name]
                found.append(TableStatus(name, rows, state, detail, {0: offset}, 0, newest or 0.0, updated))
        return found

    def _one(self, sql: str) -> tuple[Any, ...]:
        rows: list[tuple[Any, ...]] = self._database.execute(sql).fetchall()
        return rows[0]

    def query(self, sql: str, limits: QueryLimits = QueryLimits(), *, name: str = "") -> QueryResult:  # noqa: B008, ARG002
        if self.down:
            raise StoreUnavailableError(self.down)
        with self._lock:
            self.asked.append(sql)
            began = time.monotonic()
            try:
                table = self._database.sql(prepare(sql, self._specs, "duckdb").sql).to_arrow_table()
            except duckdb.Error as error:
                raise QueryError(str(error).splitlines()[0]) from error
            more = table.num_rows > limits.rows
            return QueryResult(table.slice(0, limits.rows), more, time.monotonic() - began)

    def cancel(self, name: str) -> bool:  # noqa: ARG002
        return False
