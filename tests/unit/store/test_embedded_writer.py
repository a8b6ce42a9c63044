"""Blocks into tables: a row once, the last record of a key, misfits beside, positions with the rows."""

import json

import duckdb
import pytest

from riverrun.kafka.consumer.offset_gap import OffsetGap
from riverrun.model.cluster_state import TopicPartition
from riverrun.model.table import Column, TableSpec
from riverrun.store.embedded import table_state
from riverrun.store.embedded.session import DuckDBSession
from riverrun.store.embedded.table_state import TableState
from riverrun.store.embedded.writer import TableWriter
from support.storing import block, column, events, load, loads, make


@pytest.fixture
def database() -> duckdb.DuckDBPyConnection:
    return duckdb.connect()


def event(number: int) -> bytes:
    return json.dumps({"id": number, "at": "2026-01-01T00:00:00Z", "note": f"note {number}"}).encode()


def ids(database: duckdb.DuckDBPyConnection) -> list[int]:
    return [each for (each,) in database.execute("SELECT id FROM events ORDER BY id").fetchall()]


def houses(database: duckdb.DuckDBPyConnection) -> dict[str | None, float]:
    return dict(database.execute('SELECT house, "load" FROM loads').fetchall())


def saved(database: duckdb.DuckDBPyConnection, states: dict[str, TableState]) -> None:
    """What is in the file is what is known."""
    for name, found in table_state.load_states(DuckDBSession(database)).items():
        now = states[name]
        assert (found.positions, found.rows, found.rejected, found.duplicates, found.expired, found.newest) == (
            now.positions, now.rows, now.rejected, now.duplicates, now.expired, now.newest,
        )  # fmt: skip


def test_rows_and_positions_move_together(database: duckdb.DuckDBPyConnection) -> None:
    states = make(database, events())
    writer = TableWriter(DuckDBSession(database))
    assert writer.write(block("events", [(0, 5, event(1)), (1, 0, event(2)), (0, 9, event(3))]), 0, states) == {}
    assert ids(database) == [1, 2, 3]
    assert states["events"].positions == {0: 10, 1: 1}
    assert states["events"].rows == 3
    assert states["events"].newest == 1767225600.0
    saved(database, states)


def test_records_that_are_read_again_are_not_written_again(database: duckdb.DuckDBPyConnection) -> None:
    states = make(database, events())
    writer = TableWriter(DuckDBSession(database))
    writer.write(block("events", [(0, 0, event(1)), (0, 1, event(2))]), 0, states)
    writer.write(block("events", [(0, 0, event(1)), (0, 1, event(2)), (0, 2, event(3))]), 0, states)
    assert ids(database) == [1, 2, 3]


def test_records_of_an_earlier_turn_are_not_for_a_table_that_misses_some(database: duckdb.DuckDBPyConnection) -> None:
    states = make(database, events())
    states["events"].read_epoch = 2
    TableWriter(DuckDBSession(database)).write(block("events", [(0, 4, event(4))]), 1, states)
    assert ids(database) == []
    assert states["events"].positions == {}


def test_what_does_not_fit_is_kept_aside_and_counted(database: duckdb.DuckDBPyConnection) -> None:
    states = make(database, events())
    bad = [b"bad", b'{"id":"x"}', b"\xff{", None]
    records = [(0, number, value) for number, value in enumerate([event(1), *bad, event(2)])]
    assert TableWriter(DuckDBSession(database)).write(block("events", records), 0, states) == {}
    assert ids(database) == [1, 2]
    assert states["events"].rejected == 4
    assert states["events"].positions == {0: 6}
    kept = database.execute(
        'SELECT "table", topic, partition, "offset", reason, bytes FROM _riverrun.rejected ORDER BY "offset"'
    ).fetchall()
    assert kept == [
        ("events", "events", 0, 1, "it is not a JSON object", b"bad"),
        ("events", "events", 0, 2, "id is not a bigint: x", b'{"id":"x"}'),
        ("events", "events", 0, 3, "it is not UTF-8 at byte 0", b"\xff{"),
        ("events", "events", 0, 4, "it has no value", b""),
    ]


def test_records_that_were_sent_again_are_one_row(database: duckdb.DuckDBPyConnection) -> None:
    states = make(database, events())
    writer = TableWriter(DuckDBSession(database))
    first = block("events", [(0, 0, event(1)), (0, 1, event(1))], identity=b"one")
    first.extend(block("events", [(0, 2, event(2))], identity=b"two"))
    first.extend(block("events", [(0, 3, event(3)), (0, 4, event(3))]))
    writer.write(first, 0, states)
    again = block("events", [(1, 0, event(2))], identity=b"two")
    again.extend(block("events", [(1, 1, event(4))], identity=b"four"))
    writer.write(again, 0, states)
    assert ids(database) == [1, 2, 3, 3, 4]
    assert states["events"].duplicates == 2
    saved(database, states)


def test_a_record_that_does_not_fit_and_is_sent_again_is_told_once(database: duckdb.DuckDBPyConnection) -> None:
    states = make(database, events())
    writer = TableWriter(DuckDBSession(database))
    writer.write(block("events", [(0, 0, b"bad")], identity=b"one"), 0, states)
    again = block("events", [(1, 0, b"bad")], identity=b"one")
    again.extend(block("events", [(1, 1, b"worse")], identity=b"two"))
    writer.write(again, 0, states)
    assert (states["events"].rejected, states["events"].duplicates, ids(database)) == (2, 1, [])
    told = database.execute('SELECT partition, "offset", bytes FROM _riverrun.rejected ORDER BY ALL').fetchall()
    assert told == [(0, 0, b"bad"), (1, 1, b"worse")]
    saved(database, states)


def test_older_rows_leave_the_newest_time_as_it_is(database: duckdb.DuckDBPyConnection) -> None:
    states = make(database, events())
    writer = TableWriter(DuckDBSession(database))
    writer.write(block("events", [(0, 0, event(1))]), 0, states)
    old = json.dumps({"id": 2, "at": "2025-01-01T00:00:00Z"}).encode()
    writer.write(block("events", [(0, 1, old)]), 0, states)
    assert (states["events"].rows, states["events"].newest) == (2, 1767225600.0)
    new = json.dumps({"id": 3, "at": "2026-01-01T00:00:01.5Z"}).encode()
    writer.write(block("events", [(0, 2, new)]), 0, states)
    assert states["events"].newest == 1767225601.5
    saved(database, states)


def test_the_last_record_of_a_key_counts(database: duckdb.DuckDBPyConnection) -> None:
    states = make(database, loads())
    writer = TableWriter(DuckDBSession(database))
    records = [(0, 0, load("a", 1)), (0, 1, load("b", 1)), (0, 2, load("a", 2)), (1, 0, load(None, 1))]
    writer.write(block("loads", records), 0, states)
    assert houses(database) == {"a": 2.0, "b": 1.0, None: 1.0}
    assert states["loads"].rows == 3
    writer.write(block("loads", [(0, 3, load("a", 3)), (1, 1, load(None, 5)), (0, 4, b"bad")]), 0, states)
    assert houses(database) == {"a": 3.0, "b": 1.0, None: 5.0}
    assert (states["loads"].rows, states["loads"].rejected) == (3, 1)
    writer.write(block("loads", [(0, 5, load("a", 7, minute=1))]), 0, states)
    assert states["loads"].rows == 4
    saved(database, states)


def test_a_record_without_a_value_deletes_its_key(database: duckdb.DuckDBPyConnection) -> None:
    states = make(database, loads())
    writer = TableWriter(DuckDBSession(database))
    writer.write(block("loads", [(0, 0, load("a", 1)), (0, 1, load('b"', 1)), (0, 2, load("c", 1))]), 0, states)
    dead = block("loads", [(0, 3, None)], key=b'["2026-01-01T00:00:00Z","a"]')
    dead.extend(block("loads", [(0, 4, None)], key=b'["2026-01-01T00:00:00Z","b\\""]'))
    dead.extend(block("loads", [(0, 5, None)], key=b"no key of this table"))
    dead.extend(block("loads", [(0, 6, load("a", 9))]))
    writer.write(dead, 0, states)
    assert houses(database) == {"c": 1.0, "a": 9.0}
    assert (states["loads"].rows, states["loads"].rejected) == (2, 1)
    saved(database, states)


@pytest.mark.parametrize(
    ("kind", "value", "key"),
    [
        ("text", '"x"', b"x"),
        ("bigint", "12", b"12"),
        ("decimal(38,18)", "1.500000000000000000", b"1.500000000000000000"),
        ("timestamp", '"2026-01-01T00:00:00.100000Z"', b"2026-01-01T00:00:00.1Z"),
        ("date", '"2026-01-01"', b"2026-01-01"),
        ("boolean", "true", b"true"),
        ("text", "null", None),
    ],
)
def test_one_key_column_is_its_own_text(
    database: duckdb.DuckDBPyConnection, kind: str, value: str, key: bytes | None
) -> None:
    columns = (column("k", kind), column("n", "bigint"), Column("recorded_at", "timestamp", ()))
    table = TableSpec("t", "topic", columns, ("k",), upserts=True)
    states = make(database, table)
    writer = TableWriter(DuckDBSession(database))
    writer.write(block("topic", [(0, 0, b'{"k":%s,"n":1}' % value.encode())]), 0, states)
    assert states["t"].rows == 1
    writer.write(block("topic", [(0, 1, None)], key=key), 0, states)
    assert states["t"].rows == 0
    assert database.execute("FROM t").fetchall() == []


def test_without_a_key_there_is_one_row(database: duckdb.DuckDBPyConnection) -> None:
    columns = (column("n", "bigint"), Column("recorded_at", "timestamp", ()))
    states = make(database, TableSpec("total", "topic", columns, upserts=True))
    writer = TableWriter(DuckDBSession(database))
    for offset in range(3):
        writer.write(block("topic", [(0, offset, b'{"n":%d}' % offset)]), 0, states)
        assert database.execute("SELECT n FROM total").fetchall() == [(offset,)]
    writer.write(block("topic", [(0, 3, None)], key=b""), 0, states)
    assert states["total"].rows == 0


def test_one_topic_may_be_two_tables(database: duckdb.DuckDBPyConnection) -> None:
    states = make(database, events(), events(name="again", key=("note",), upserts=True))
    states["again"].positions = {0: 1}
    TableWriter(DuckDBSession(database)).write(block("events", [(0, 0, event(1)), (0, 1, event(2))]), 0, states)
    assert (states["events"].rows, states["again"].rows) == (2, 1)


def test_records_that_are_gone_are_counted(database: duckdb.DuckDBPyConnection) -> None:
    states = make(database, events())
    found = block("events", [(0, 12, event(1))])
    found.gaps.append(OffsetGap(TopicPartition("events", 0), 0, 12, 20))
    TableWriter(DuckDBSession(database)).write(found, 0, states)
    assert (states["events"].expired, states["events"].positions) == (12, {0: 13})
    saved(database, states)


def test_records_before_a_gap_are_not_gone(database: duckdb.DuckDBPyConnection) -> None:
    states = make(database, events())
    found = block("events", [(0, 0, event(1)), (0, 1, event(2)), (0, 12, event(3))])
    found.gaps.append(OffsetGap(TopicPartition("events", 0), 2, 12, 20))
    TableWriter(DuckDBSession(database)).write(found, 0, states)
    assert ids(database) == [1, 2, 3]
    assert (states["events"].expired, states["events"].positions) == (10, {0: 13})


CUT = OffsetGap(TopicPartition("events", 0), 1000, 900, 900)


def test_what_comes_after_a_log_was_cut_is_new(database: duckdb.DuckDBPyConnection) -> None:
    states = make(database, events())
    states["events"].positions = {0: 1000, 1: 1000}
    found = block("events", [(0, 900, event(1)), (0, 905, event(2)), (1, 999, event(3))])
    found.gaps.append(CUT)
    TableWriter(DuckDBSession(database)).write(found, 0, states)
    # Of the other partition, it is in the table already.
    assert ids(database) == [1, 2]
    assert (states["events"].expired, states["events"].positions) == (0, {0: 906, 1: 1000})
    saved(database, states)


def test_what_came_before_a_log_was_cut_is_kept(database: duckdb.DuckDBPyConnection) -> None:
    states = make(database, events())
    states["events"].positions = {0: 998}
    writer = TableWriter(DuckDBSession(database))
    before = block("events", [(0, 998, event(1)), (0, 999, event(2))])
    before.gaps.append(CUT)
    writer.write(before, 0, states)
    assert (ids(database), states["events"].positions) == ([1, 2], {0: 900})
    writer.write(block("events", [(0, 900, event(3))]), 0, states)
    assert (ids(database), states["events"].positions) == ([1, 2, 3], {0: 901})
    saved(database, states)


def test_a_table_that_fails_does_not_stop_the_others(database: duckdb.DuckDBPyConnection) -> None:
    states = make(database, events(), loads())
    database.execute("DROP VIEW loads; DROP TABLE _rows.loads")
    both = block("events", [(0, 0, event(1))])
    both.extend(block("loads", [(0, 0, load("a", 1))]))
    failed = TableWriter(DuckDBSession(database)).write(both, 0, states)
    assert list(failed) == ["loads"]
    assert ids(database) == [1]
    assert states["loads"].positions == {}
    saved(database, states)


def test_columns_of_every_name_and_type_are_written(database: duckdb.DuckDBPyConnection) -> None:
    kinds = ("text", "boolean", "bigint", "double", "decimal(10,2)", "timestamp", "date", "json")
    table = TableSpec("t", "topic", tuple(column(f"the {kind}", kind) for kind in kinds))
    table = TableSpec(table.name, table.topic, (*table.columns, Column("recorded_at", "timestamp", ())))
    states = make(database, table)
    given = {"text": "x", "boolean": True, "bigint": 1, "double": 1.5, "decimal(10,2)": 2.5, "json": [1]}
    given |= {"timestamp": "2026-01-01T00:00:00Z", "date": "2026-01-01"}
    value = json.dumps({f"the {kind}": each for kind, each in given.items()}).encode()
    assert TableWriter(DuckDBSession(database)).write(block("topic", [(0, 0, value)]), 0, states) == {}
    assert database.execute("SELECT count(*), count(columns(*)) FROM t").fetchone() == (1,) * (len(kinds) + 2)
