"""Runs queries during ingest: each on its own connection, in a read-only transaction, with limits, and cancellable."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from riverrun.errors import (
    QueryCancelledError,
    QueryError,
    QueryRefusedError,
    QueryTimeoutError,
    RiverrunError,
    StoreError,
    StoreUnavailableError,
)
from riverrun.model.table import TableSpec
from riverrun.store.contract import QueryLimits, QueryResult
from riverrun.store.sql import prepare

_WATCH_SECONDS = 0.02
_STOP_SECONDS = 10.0
_REFUSED_ERRORS = (duckdb.PermissionException, duckdb.TransactionException)
_INVALID_SQL_ERRORS = (duckdb.ProgrammingError, duckdb.DataError, duckdb.NotSupportedError)


@dataclass(eq=False)
class _RunningQuery:
    cursor: duckdb.DuckDBPyConnection
    deadline: float
    cancelled: bool = False
    finished: threading.Event = field(default_factory=threading.Event)

    @property
    def should_stop(self) -> bool:
        return self.cancelled or time.monotonic() > self.deadline


class QueryRunner:
    """Runs queries. One thread watches all running queries for those that must end."""

    def __init__(self, database: Callable[[], duckdb.DuckDBPyConnection]) -> None:
        self._database = database
        self._changed = threading.Condition()
        self._running: dict[str, _RunningQuery] = {}
        self._numbers = count(1)
        self._closed = False
        self._paused = False
        self._watcher: threading.Thread | None = None

    def query(self, sql: str, tables: Mapping[str, TableSpec], limits: QueryLimits, name: str) -> QueryResult:
        """Run a query in riverrun's SQL."""
        return self.run_duckdb_sql(to_duckdb_sql(sql, tables), limits, name)

    def run_duckdb_sql(self, sql: str, limits: QueryLimits, name: str = "") -> QueryResult:
        """Run a query in DuckDB's own SQL."""
        begun = time.monotonic()
        running = _RunningQuery(self._database().cursor(), begun + limits.seconds)
        name = self._register(name, running)
        try:
            rows, kinds = _execute(running.cursor, sql, limits.rows + 1)
        except duckdb.InterruptException as error:
            raise self._interrupted_error(running, limits) from error
        except duckdb.Error as error:
            raise _map_error(error) from error
        finally:
            self._unregister(name, running)
        rows = _cast_columns(rows, kinds)
        more = rows.num_rows > limits.rows
        return QueryResult(rows.slice(0, limits.rows) if more else rows, more, time.monotonic() - begun)

    def _interrupted_error(self, running: _RunningQuery, limits: QueryLimits) -> RiverrunError:
        if self._closed:
            return StoreUnavailableError("The store was closed while a question ran")
        if running.cancelled:
            return QueryCancelledError("The question was cancelled")
        return QueryTimeoutError(
            f"The question took longer than {limits.seconds:g} s and was ended",
            hint="Ask for less (a shorter time, fewer groups), or allow more: store.query_seconds",
            seconds=limits.seconds,
        )

    def cancel(self, name: str) -> bool:
        with self._changed:
            running = self._running.get(name)
            if running is not None:
                running.cancelled = True
                running.cursor.interrupt()
            return running is not None

    @contextmanager
    def paused(self, seconds: float) -> Iterator[bool]:
        """Let no query begin, and wait for those that run: whether none does. New queries wait, within their own time
        limit."""
        with self._changed:
            self._paused = True
            quiet = self._changed.wait_for(lambda: not self._running, seconds)
        try:
            yield quiet
        finally:
            with self._changed:
                self._paused = False
                self._changed.notify_all()

    def close(self) -> None:
        """End all running queries, and wait for them."""
        with self._changed:
            self._closed = True
            left = list(self._running.values())
            for running in left:
                running.cancelled = True
            self._changed.notify_all()
        for running in left:
            running.finished.wait(_STOP_SECONDS)
        if self._watcher is not None:
            self._watcher.join(_STOP_SECONDS)
            self._watcher = None

    def _register(self, name: str, running: _RunningQuery) -> str:
        with self._changed:
            left = running.deadline - time.monotonic()
            self._changed.wait_for(lambda: not self._paused or self._closed, left)
            if self._closed:
                running.cursor.close()
                raise StoreUnavailableError("The store is closed")
            name = name or f" {next(self._numbers)}"
            if name in self._running:
                running.cursor.close()
                raise QueryError(f"A question of the name {name} runs already", hint="Give each its own name")
            self._running[name] = running
            if self._watcher is None:
                self._watcher = threading.Thread(target=self._interrupt_loop, name="store-watch", daemon=True)
                self._watcher.start()
            self._changed.notify_all()
            return name

    def _unregister(self, name: str, running: _RunningQuery) -> None:
        with self._changed:
            # Before it counts as ended, and not while another thread interrupts it.
            running.cursor.close()
            del self._running[name]
            self._changed.notify_all()
        running.finished.set()

    def _interrupt_loop(self) -> None:
        """Interrupt what must end, again and again: an interrupt that comes before its query has begun is lost."""
        with self._changed:
            while not (self._closed and not self._running):
                for running in self._running.values():
                    if running.should_stop:
                        running.cursor.interrupt()
                self._changed.wait(_WATCH_SECONDS if self._running else None)


def to_duckdb_sql(sql: str, tables: Mapping[str, TableSpec]) -> str:
    """The query in DuckDB's own SQL, verified to only read the tables."""
    return prepare(sql, tables, "duckdb").sql


def _execute(cursor: duckdb.DuckDBPyConnection, sql: str, max_rows: int) -> tuple[pa.Table, list[str]]:
    # riverrun's SQL parser has checked already; this is DuckDB's own parse of the same text.
    statements = cursor.extract_statements(sql)
    if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
        raise QueryRefusedError("Only one question at a time, and only questions", found=sql.strip()[:80])
    cursor.execute("BEGIN TRANSACTION READ ONLY")
    relation = cursor.sql(sql)
    kinds = [str(column_type) for column_type in relation.types]
    return relation.limit(max_rows).to_arrow_table(), kinds


def _cast_columns(rows: pa.Table, kinds: list[str]) -> pa.Table:
    """The rows in the types that `QueryResult` promises, whatever DuckDB computed with."""
    columns, fields = [], []
    for name, kind, column in zip(rows.column_names, kinds, rows.columns, strict=True):
        result_type = _result_type(column, kind)
        columns.append(column if result_type == column.type else column.cast(result_type))
        fields.append(pa.field(name, result_type))
    return pa.table(columns, schema=pa.schema(fields)) if columns else rows


def _result_type(column: pa.ChunkedArray, kind: str) -> pa.DataType:
    arrow_type = column.type
    if pa.types.is_integer(arrow_type) and arrow_type not in (pa.int64(), pa.uint64()):
        return pa.int64()
    if kind in ("HUGEINT", "UHUGEINT") or arrow_type == pa.uint64():
        # A sum of whole numbers; beyond 64 bits it stays exact as a decimal.
        bounds = pc.min_max(column).as_py()
        fits = bounds["max"] is None or (bounds["min"] >= -(2**63) and bounds["max"] < 2**63)
        return pa.int64() if fits else pa.decimal128(38, 0)
    if pa.types.is_floating(arrow_type):
        return pa.float64()
    if pa.types.is_timestamp(arrow_type):
        return pa.timestamp("us", "UTC")
    if pa.types.is_null(arrow_type) or pa.types.is_large_string(arrow_type) or pa.types.is_dictionary(arrow_type):
        return pa.string()
    return arrow_type


def _map_error(error: duckdb.Error) -> RiverrunError:
    message = str(error).split("\n\nLINE")[0].strip()
    first_line = message.splitlines()[0].removesuffix(".")
    if isinstance(error, duckdb.OutOfMemoryException):
        return QueryError(
            "The question needs more memory than the store may take",
            found=first_line,
            hint="Ask for fewer groups or a shorter time, or raise store.memory_mb",
        )
    if isinstance(error, _REFUSED_ERRORS):
        return QueryRefusedError("The question does more than read the store's tables", found=first_line)
    if isinstance(error, _INVALID_SQL_ERRORS):
        return QueryError(
            "The store does not understand the question", found=message.replace("\n", " ").removesuffix(".")
        )
    return StoreError("The store failed at the question", found=first_line)
