"""Tables and blocks of records for tests of the embedded store, without a broker."""

import json
import time
from collections.abc import Iterable
from typing import Any

import duckdb

from riverrun.kafka.reading.bulk_reader import ColumnarBatch, RecordColumns
from riverrun.model.cluster_state import TopicPartition
from riverrun.model.table import Column, TableSpec
from riverrun.store.contract import Store, TableStatus
from riverrun.store.embedded import schema, table_state
from riverrun.store.embedded.session import DuckDBSession
from riverrun.store.embedded.table_state import TableState

BEGIN_MS = 1_767_225_600_000  # 2026-01-01


def column(name: str, kind: str, *path: str) -> Column:
    return Column(name, kind, path or (name,))


def events(topic: str = "events", **parts: Any) -> TableSpec:
    """A table that is appended to."""
    columns = (column("id", "bigint"), column("at", "timestamp"), column("note", "text"))
    return TableSpec(**{"name": "events", "topic": topic, "columns": columns, "time": "at"} | parts)


def loads(topic: str = "loads", **parts: Any) -> TableSpec:
    """A table that is updated by key, of which one part is a window's start."""
    columns = (
        column("minute", "timestamp", "minute", "start"),
        column("minute_end", "timestamp", "minute", "end"),
        column("house", "text"),
        column("load", "double"),
    )
    given: dict[str, Any] = {
        "name": "loads", "topic": topic, "columns": columns, "key": ("minute", "house"), "upserts": True, "time": "minute",
    }  # fmt: skip
    return TableSpec(**(given | parts))


def load(house: str | None, kw: float, minute: int = 0) -> bytes:
    window = {"start": f"2026-01-01T00:{minute:02d}:00.000000Z", "end": f"2026-01-01T00:{minute + 1:02d}:00.000000Z"}
    return json.dumps({"minute": window, "house": house, "load": kw}).encode()


Given = tuple[int, int, bytes | None]


def block(
    topic: str, records: Iterable[Given], *, key: bytes | None = None, identity: bytes | None = None
) -> ColumnarBatch:
    """Records (partition, offset, value) of one topic."""
    columns = RecordColumns()
    for partition, offset, value in records:
        columns.extend(RecordColumns([partition], [offset], [BEGIN_MS + offset], [key], [value], [identity]))
    reached = {TopicPartition(topic, partition): offset + 1 for partition, offset, _ in records}
    return ColumnarBatch({topic: columns}, reached, rows=len(columns))


def make(database: duckdb.DuckDBPyConnection, *tables: TableSpec) -> dict[str, TableState]:
    """The tables in a database, ready to be written to."""
    if database.execute("SELECT current_setting('TimeZone')").fetchall() != [("UTC",)]:
        database.execute("SET GLOBAL TimeZone = 'UTC'")
    session = DuckDBSession(database)
    schema.create_metadata(session)
    for table in tables:
        for statement in schema.plan_changes(session, None, table)[0]:
            database.execute(statement)
    states = table_state.load_states(session)
    for each in states.values():
        each.read_epoch = 0
    return states


def caught_up(store: Store, *, seconds: float = 60, **rows: int) -> dict[str, TableStatus]:
    """Wait until tables have these numbers of rows and lag nothing."""
    deadline = time.monotonic() + seconds
    while True:
        found = {each.table: each for each in store.table_statuses()}
        if all(name in found and found[name].rows == count and found[name].lag == 0 for name, count in rows.items()):
            return found
        assert time.monotonic() < deadline, found
        time.sleep(0.02)
