"""Questions: bounded in rows and time, cancellable, read-only by the connection too, in the types that are promised."""

import contextlib
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

from riverrun.config.spec import StoreSettings
from riverrun.errors import (
    QueryCancelledError,
    QueryError,
    QueryRefusedError,
    QueryTimeoutError,
    RiverrunError,
    StoreUnavailableError,
)
from riverrun.store.contract import QueryLimits, QueryResult
from riverrun.store.embedded.queries import QueryRunner, to_duckdb_sql
from riverrun.store.embedded.store_file import StoreFile
from support.storing import events, make

# Takes forever, and very little else.
ENDLESS = "SELECT count(*) FROM range(1000000) AS a, range(1000000) AS b WHERE a.range + b.range = -1"


@pytest.fixture
def file(tmp_path: Path) -> Iterator[StoreFile]:
    found = StoreFile(tmp_path, StoreSettings(memory_mb=256))
    found.open()
    make(found.database, events())
    found.database.execute("INSERT INTO _rows.events SELECT range, to_timestamp(range), 'note' FROM range(1000)")
    yield found
    found.close()


@pytest.fixture
def asking(file: StoreFile) -> Iterator[QueryRunner]:
    found = QueryRunner(lambda: file.database)
    yield found
    found.close()


def ask(asking: QueryRunner, sql: str, limits: QueryLimits | None = None, name: str = "") -> QueryResult:
    return asking.run_duckdb_sql(sql, limits or QueryLimits(), name)


def test_types_are_those_that_are_promised(asking: QueryRunner) -> None:
    answer = ask(
        asking,
        """SELECT count(*) AS n, sum(id) AS s, 1::TINYINT AS tiny, avg(id)::FLOAT AS mean, max("at") AS newest,
           '{}'::JSON AS j, NULL AS nothing, DATE '2026-01-01' AS day, 1.5::DECIMAL(10,2) AS price, min(note) AS note,
           TIMESTAMP '2026-01-01' AS bare, true AS yes, sum(id)::HUGEINT * 10000000000000000000 AS huge FROM events""",
    )
    kinds = {field.name: field.type for field in answer.rows.schema}
    assert kinds == {
        "n": pa.int64(), "s": pa.int64(), "tiny": pa.int64(), "mean": pa.float64(), "newest": pa.timestamp("us", "UTC"),
        "j": pa.string(), "nothing": pa.string(), "day": pa.date32(), "price": pa.decimal128(10, 2), "note": pa.string(),
        "bare": pa.timestamp("us", "UTC"), "yes": pa.bool_(), "huge": pa.decimal128(38, 0),
    }  # fmt: skip
    row = answer.rows.to_pylist()[0]
    assert (row["n"], row["s"], row["price"]) == (1000, 499500, Decimal("1.50"))
    assert row["newest"] == datetime.fromtimestamp(999, UTC)
    assert row["huge"] == Decimal(499500) * 10**19


def test_rows_are_limited_and_it_is_said(asking: QueryRunner) -> None:
    answer = ask(asking, "SELECT id FROM events ORDER BY id DESC", QueryLimits(rows=3))
    assert answer.rows.to_pydict() == {"id": [999, 998, 997]}
    assert answer.more
    assert not ask(asking, "SELECT id FROM events", QueryLimits(rows=1000)).more
    assert ask(asking, "SELECT id FROM events WHERE false").rows.to_pydict() == {"id": []}


def test_time_is_limited(asking: QueryRunner) -> None:
    with pytest.raises(QueryTimeoutError, match=r"longer than 0\.2 s"):
        ask(asking, ENDLESS, QueryLimits(seconds=0.2))
    assert ask(asking, "SELECT 1 AS one").rows.to_pydict() == {"one": [1]}


def test_a_question_can_be_cancelled(asking: QueryRunner) -> None:
    failed: list[RiverrunError] = []

    def run() -> None:
        try:
            ask(asking, ENDLESS, name="mine")
        except RiverrunError as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    deadline = time.monotonic() + 30
    while not asking.cancel("mine"):
        assert time.monotonic() < deadline
    thread.join(30)
    assert [type(each) for each in failed] == [QueryCancelledError]
    assert not asking.cancel("mine")


def test_closing_ends_what_runs(asking: QueryRunner) -> None:
    failed: list[RiverrunError] = []
    running = threading.Event()

    def run() -> None:
        running.set()
        try:
            ask(asking, ENDLESS)
        except RiverrunError as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    running.wait(30)
    asking.close()
    thread.join(30)
    assert [type(each) for each in failed] == [StoreUnavailableError]
    with pytest.raises(StoreUnavailableError):
        ask(asking, "SELECT 1")


def test_a_pause_waits_for_what_runs_and_keeps_the_others_waiting(asking: QueryRunner, file: StoreFile) -> None:
    ended: list[str] = []

    def run(name: str, sql: str, seconds: float) -> None:
        with contextlib.suppress(QueryTimeoutError):
            ask(asking, sql, QueryLimits(seconds=seconds), name)
        ended.append(name)

    first = threading.Thread(target=run, args=("first", ENDLESS, 0.5))
    first.start()
    while not asking._running:
        time.sleep(0.001)
    # As updates do: what a question still sees is in the way of a checkpoint.
    file.database.execute("DELETE FROM _rows.events WHERE id = 0")
    with asking.paused(60) as quiet:
        assert quiet
        second = threading.Thread(target=run, args=("second", "SELECT 1", 60))
        second.start()
        file.database.execute("CHECKPOINT")
        assert not asking._running
    second.join(60)
    first.join(60)
    assert ended == ["first", "second"]


def test_many_at_once(asking: QueryRunner) -> None:
    sums: list[list[int]] = []

    def run() -> None:
        sums.extend(ask(asking, "SELECT sum(id) AS s FROM events").rows["s"].to_pylist() for _ in range(5))

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sums == [[499500]] * 40


@pytest.mark.parametrize(
    "sql",
    [
        "DROP VIEW events",
        "INSERT INTO _rows.events VALUES (1, NULL, NULL)",
        "SELECT 1; DELETE FROM _rows.events",
        "COMMIT; DELETE FROM _rows.events",
        "CREATE TEMP TABLE x AS SELECT 1",
        "COPY events TO 'x.csv'",
        "SELECT * FROM read_text('/etc/passwd')",
        "SELECT * FROM read_csv('/etc/passwd')",
        "FROM '/etc/passwd'",
        "ATTACH 'x.db'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "SET threads = 1",
        "SET enable_external_access = true",
        "PRAGMA database_list",
        "EXPORT DATABASE 'x'",
        "CALL pragma_database_list()",
        "CHECKPOINT",
    ],
)
def test_what_is_no_question_is_refused_by_the_connection_too(asking: QueryRunner, file: StoreFile, sql: str) -> None:
    with pytest.raises(QueryError):
        ask(asking, sql)
    assert file.database.execute("SELECT count(*) FROM events").fetchone() == (1000,)


def test_variables_of_this_process_are_no_tables(asking: QueryRunner) -> None:
    secret = pa.table({"x": [1]})
    assert secret is not None
    with pytest.raises(QueryError):
        ask(asking, "SELECT * FROM secret")


def test_a_mistake_is_told(asking: QueryRunner) -> None:
    with pytest.raises(QueryError, match="nowhere") as caught:
        ask(asking, "SELECT nowhere FROM events")
    assert not isinstance(caught.value, QueryRefusedError)
    with pytest.raises(QueryError, match="syntax error"):
        ask(asking, "SELECT FROM WHERE")


def test_a_question_that_needs_too_much_memory_is_told_so(asking: QueryRunner) -> None:
    # One value, kept in memory until it is whole.
    with pytest.raises(QueryError, match=r"store\.memory_mb"):
        ask(asking, "SELECT list(range) AS l FROM range(500000000)", QueryLimits(seconds=60))
    assert ask(asking, "SELECT 1 AS one").rows.num_rows == 1


def test_dialect_is_checked_before(asking: QueryRunner) -> None:
    """Where riverrun's own SQL is prepared: one function, which the store calls."""
    assert to_duckdb_sql("SELECT 1", {}) == 'SELECT 1 AS "1"'
    with pytest.raises(QueryRefusedError):
        to_duckdb_sql("DROP TABLE loads", {})
