"""One contract, two stores: the same tables, records and questions give the same rows, through restarts and kills."""

import pytest

from contract.kit import Kit, same
from contract.queries import QUERIES
from contract.rows import EVENTS, LOADS, NOTHING, events, loads, retyped, with_column
from riverrun.errors import QueryError, QueryRefusedError, QueryTimeoutError, StoreTableError
from riverrun.store.contract import QueryLimits

# The first test of each store starts it, and a Druid takes its time.
pytestmark = [pytest.mark.kafka, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def filled(kit: Kit) -> Kit:
    """A store that follows three topics, one of them empty, and has been through all that a table goes through."""
    kit.table(EVENTS)
    kit.table(LOADS)
    kit.table(NOTHING)
    kit.send("events", events(0, 300))
    kit.send("loads", loads(6, 3))
    kit.settle()
    return kit


@pytest.mark.parametrize("name", QUERIES)
def test_the_same_rows(filled: Kit, name: str) -> None:
    sql = QUERIES[name]
    difference = same(filled.ask(sql), filled.answer(sql), ordered="order by" in sql)
    assert not difference, f"{filled.name}: {sql}: {difference}"


def test_rows_beyond_the_limit_are_said(filled: Kit) -> None:
    answer = filled.store.query("select id from events order by id", QueryLimits(rows=10))
    assert answer.rows.num_rows == 10
    assert answer.more
    assert not filled.store.query("select id from events order by id limit 10", QueryLimits(rows=10)).more


@pytest.mark.parametrize(
    "sql",
    [
        "insert into events select * from events",
        "delete from events",
        "drop table events",
        "select * from read_text('/etc/passwd')",
        "copy events to '/tmp/x.csv'",
        "select * from sys.segments",
        "select * from information_schema.tables",
    ],
)
def test_only_reading_its_tables_is_answered(filled: Kit, sql: str) -> None:
    with pytest.raises(QueryRefusedError):
        filled.store.query(sql)


def test_an_unknown_column_names_the_nearest(filled: Kit) -> None:
    with pytest.raises(QueryError, match="load"):
        filled.store.query("select laod from events")


def test_a_question_ends_at_its_time_limit(filled: Kit) -> None:
    sql = (
        "select count(*) as n from events a, events b, events c, events d where a.load + b.load + c.load + d.load = 0.1"
    )
    with pytest.raises((QueryTimeoutError, QueryError)):
        filled.store.query(sql, QueryLimits(seconds=0.5))


# What follows changes the tables: in the order of the file, after the questions.


def test_it_goes_on_after_a_restart(filled: Kit) -> None:
    filled.reopen()
    filled.send("events", events(300, 100))
    filled.send("loads", loads(7, 4))
    filled.settle()
    assert not same(
        filled.ask(QUERIES["everything updated"]), filled.answer(QUERIES["everything updated"]), ordered=True
    )


def test_it_is_exact_after_a_crash(filled: Kit) -> None:
    filled.send("events", events(400, 500))
    filled.crash()
    filled.send("events", events(900, 500))
    filled.send("loads", loads(8, 5))
    filled.settle()
    for name in ("number", "big integers", "number of updated rows", "everything updated"):
        assert not same(filled.ask(QUERIES[name]), filled.answer(QUERIES[name]), ordered=True), name


def test_a_new_column_appears_while_it_runs(filled: Kit) -> None:
    wider = filled.apply(with_column(filled.specs["loads"], "peak", "double"))
    records = loads(9, 6)
    for record in records:
        record.row["peak"] = record.row["load"] * 2
    filled.send("loads", records)
    filled.settle("loads")
    sql = "select minute, house, load, peak from loads order by minute, house"
    assert wider.column("peak") is not None
    assert not same(filled.ask(sql), filled.answer(sql), ordered=True)


def test_a_changed_type_is_refused_with_the_way_out(filled: Kit) -> None:
    with pytest.raises(StoreTableError) as caught:
        filled.store.apply([retyped(filled.specs["loads"], "street", "bigint")])
    assert "street" in str(caught.value)
    assert caught.value.hint
    assert filled.store.tables["loads"] == filled.specs["loads"]
    assert filled.ask("select count(*) as n from loads")[0]["n"] == len(filled.expected("loads"))


def test_a_removed_table_is_gone(filled: Kit) -> None:
    filled.store.remove("events")
    assert "events" not in filled.store.tables
    with pytest.raises(QueryError, match="events"):
        filled.store.query("select count(*) from events")
