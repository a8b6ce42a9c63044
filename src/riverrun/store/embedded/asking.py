"""Questions beside the ingest: each on a connection of its own, in a read-only transaction, with bounds, and cancellable."""

import threading
import time
from collections.abc import Callable, Mapping
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
from riverrun.store.contract import Answer, Limits
from riverrun.store.sql import prepare

_LOOK_SECONDS = 0.02
_STOP_SECONDS = 10.0
_REFUSED = (duckdb.PermissionException, duckdb.TransactionException)
_WRONG = (duckdb.ProgrammingError, duckdb.DataError, duckdb.NotSupportedError)


@dataclass(eq=False)
class _Running:
    cursor: duckdb.DuckDBPyConnection
    deadline: float
    cancelled: bool = False
    over: threading.Event = field(default_factory=threading.Event)

    @property
    def to_end(self) -> bool:
        return self.cancelled or time.monotonic() > self.deadline


class Asking:
    """Runs questions. One thread watches all that run, for those that are to end."""

    def __init__(self, database: Callable[[], duckdb.DuckDBPyConnection]) -> None:
        self._database = database
        self._changed = threading.Condition()
        self._running: dict[str, _Running] = {}
        self._numbers = count(1)
        self._closed = False
        self._watch: threading.Thread | None = None

    def ask(self, sql: str, tables: Mapping[str, TableSpec], limits: Limits, name: str) -> Answer:
        """Answer a question in riverrun's SQL."""
        return self.run(run_text(sql, tables), limits, name)

    def run(self, text: str, limits: Limits, name: str = "") -> Answer:
        """Answer a question in DuckDB's own SQL."""
        begun = time.monotonic()
        running = _Running(self._database().cursor(), begun + limits.seconds)
        name = self._enter(name, running)
        try:
            rows, kinds = _run(running.cursor, text, limits.rows + 1)
        except duckdb.InterruptException as error:
            raise self._ended(running, limits) from error
        except duckdb.Error as error:
            raise _translated(error) from error
        finally:
            self._leave(name, running)
        rows = _as_told(rows, kinds)
        more = rows.num_rows > limits.rows
        return Answer(rows.slice(0, limits.rows) if more else rows, more, time.monotonic() - begun)

    def _ended(self, running: _Running, limits: Limits) -> RiverrunError:
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

    def close(self) -> None:
        """End all that run, and wait for them."""
        with self._changed:
            self._closed = True
            left = list(self._running.values())
            for running in left:
                running.cancelled = True
            self._changed.notify_all()
        for running in left:
            running.over.wait(_STOP_SECONDS)
        if self._watch is not None:
            self._watch.join(_STOP_SECONDS)
            self._watch = None

    def _enter(self, name: str, running: _Running) -> str:
        with self._changed:
            if self._closed:
                running.cursor.close()
                raise StoreUnavailableError("The store is closed")
            name = name or f" {next(self._numbers)}"
            if name in self._running:
                running.cursor.close()
                raise QueryError(f"A question of the name {name} runs already", hint="Give each its own name")
            self._running[name] = running
            if self._watch is None:
                self._watch = threading.Thread(target=self._look, name="store-watch", daemon=True)
                self._watch.start()
            self._changed.notify_all()
            return name

    def _leave(self, name: str, running: _Running) -> None:
        with self._changed:
            del self._running[name]
        running.cursor.close()
        running.over.set()

    def _look(self) -> None:
        """Interrupt what is to end, again and again: an interrupt that comes before its question has begun is lost."""
        with self._changed:
            while not (self._closed and not self._running):
                for running in self._running.values():
                    if running.to_end:
                        running.cursor.interrupt()
                self._changed.wait(_LOOK_SECONDS if self._running else None)


def run_text(sql: str, tables: Mapping[str, TableSpec]) -> str:
    """The question in DuckDB's own SQL, found to be one that only reads the tables."""
    return prepare(sql, tables, "duckdb").sql


def _run(cursor: duckdb.DuckDBPyConnection, sql: str, most: int) -> tuple[pa.Table, list[str]]:
    # The parser of riverrun's SQL has looked already; this is DuckDB's own word on the same text.
    statements = cursor.extract_statements(sql)
    if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
        raise QueryRefusedError("Only one question at a time, and only questions", found=sql.strip()[:80])
    cursor.execute("BEGIN TRANSACTION READ ONLY")
    relation = cursor.sql(sql)
    kinds = [str(each) for each in relation.types]
    return relation.limit(most).to_arrow_table(), kinds


def _as_told(rows: pa.Table, kinds: list[str]) -> pa.Table:
    """The rows in the types that `Answer` promises, whatever DuckDB computed with."""
    columns, fields = [], []
    for name, kind, column in zip(rows.column_names, kinds, rows.columns, strict=True):
        wanted = _wanted(column, kind)
        columns.append(column if wanted == column.type else column.cast(wanted))
        fields.append(pa.field(name, wanted))
    return pa.table(columns, schema=pa.schema(fields)) if columns else rows


def _wanted(column: pa.ChunkedArray, kind: str) -> pa.DataType:
    found = column.type
    if pa.types.is_integer(found) and found not in (pa.int64(), pa.uint64()):
        return pa.int64()
    if kind in ("HUGEINT", "UHUGEINT") or found == pa.uint64():
        # A sum of whole numbers; beyond 64 bits it stays exact as a decimal.
        ends = pc.min_max(column).as_py()
        fits = ends["max"] is None or (ends["min"] >= -(2**63) and ends["max"] < 2**63)
        return pa.int64() if fits else pa.decimal128(38, 0)
    if pa.types.is_floating(found):
        return pa.float64()
    if pa.types.is_timestamp(found):
        return pa.timestamp("us", "UTC")
    if pa.types.is_null(found) or pa.types.is_large_string(found) or pa.types.is_dictionary(found):
        return pa.string()
    return found


def _translated(error: duckdb.Error) -> RiverrunError:
    said = str(error).split("\n\nLINE")[0].strip()
    what = said.splitlines()[0].removesuffix(".")
    if isinstance(error, duckdb.OutOfMemoryException):
        return QueryError(
            "The question needs more memory than the store may take",
            found=what,
            hint="Ask for fewer groups or a shorter time, or raise store.memory_mb",
        )
    if isinstance(error, _REFUSED):
        return QueryRefusedError("The question does more than read the store's tables", found=what)
    if isinstance(error, _WRONG):
        return QueryError("The store does not understand the question", found=said.replace("\n", " ").removesuffix("."))
    return StoreError("The store failed at the question", found=what)
