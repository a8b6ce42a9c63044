"""What may change of a table that has rows, and what is refused with the way out."""

from dataclasses import replace

import duckdb
import pytest

from riverrun.errors import StoreError, StoreTableError
from riverrun.model.table import TableSpec
from riverrun.store.embedded import schema
from riverrun.store.embedded.session import DuckDBSession
from support.storing import column, events, loads, make


@pytest.fixture
def database() -> duckdb.DuckDBPyConnection:
    return duckdb.connect()


def change(database: duckdb.DuckDBPyConnection, before: TableSpec, after: TableSpec) -> list[str]:
    statements, said = schema.plan_changes(DuckDBSession(database), before, after)
    for statement in statements:
        database.execute(statement)
    return said


def shown(database: duckdb.DuckDBPyConnection, table: str) -> list[str]:
    return list(database.sql(f'FROM "{table}"').columns)


def test_a_new_column_appears_and_is_null_before(database: duckdb.DuckDBPyConnection) -> None:
    make(database, events())
    database.execute("INSERT INTO _rows.events VALUES (1, now(), 'x')")
    more = events(columns=(*events().columns[:1], column("more", "decimal(10,2)"), *events().columns[1:]))
    assert change(database, events(), more) == ["The table events has a new column more (decimal(10,2))"]
    assert shown(database, "events") == ["id", "more", "at", "note"]
    assert database.execute("SELECT id, more FROM events").fetchall() == [(1, None)]
    assert schema.load_tables(DuckDBSession(database)) == {"events": more}
    assert change(database, more, more) == []


def test_a_column_that_is_declared_no_more_is_not_shown_and_comes_back(database: duckdb.DuckDBPyConnection) -> None:
    make(database, events())
    fewer = events(columns=events().columns[:2])
    assert change(database, events(), fewer) == ["The table events shows its column note no more"]
    assert shown(database, "events") == ["id", "at"]
    assert change(database, fewer, events()) == ["The table events has a new column note (text)"]
    other = events(columns=(*events().columns[:2], column("note", "bigint")))
    with pytest.raises(StoreTableError, match="cannot change its type"):
        schema.plan_changes(DuckDBSession(database), fewer, other)


@pytest.mark.parametrize(
    ("after", "words"),
    [
        (loads(columns=(*loads().columns[:3], column("load", "bigint"))), "column load .* type.*double.*bigint"),
        (loads(columns=(*loads().columns[:3], column("load", "decimal(10,2)"))), "column load .* type"),
        (loads(key=("house",)), "another key.*minute, house.*house"),
        (loads(time="minute_end"), "another time"),
        (loads(topic="other"), "another topic"),
        (loads(upserts=False, key=()), "another key"),
    ],
)
def test_what_rows_do_not_allow_is_refused_with_the_way_out(
    database: duckdb.DuckDBPyConnection, after: TableSpec, words: str
) -> None:
    make(database, loads())
    with pytest.raises(StoreTableError, match=words) as caught:
        schema.plan_changes(DuckDBSession(database), loads(), after)
    assert "riverrun tables remove loads" in str(caught.value)
    assert caught.value.fields["table"] == "loads"


def test_retention_may_change(database: duckdb.DuckDBPyConnection) -> None:
    make(database, events())
    said = change(database, events(), events(retention_ms=60_000))
    assert said == ["The table events keeps its rows 60 s"]


def test_paths_may_change(database: duckdb.DuckDBPyConnection) -> None:
    make(database, events())
    moved = events(columns=(*events().columns[:2], column("note", "text", "inside", "note")))
    assert change(database, events(), moved) == []
    assert schema.load_tables(DuckDBSession(database)) == {"events": moved}


@pytest.mark.parametrize(
    "table",
    [
        events(columns=(column("a", "text"), column("A", "text"))),
        events(columns=(column("a", "json"), column("b", "text", "a", "b"))),
        events(columns=()),
        events(columns=(column("~value", "text"),)),
        events(name="_hidden"),
    ],
)
def test_a_table_that_cannot_be_is_refused(database: duckdb.DuckDBPyConnection, table: TableSpec) -> None:
    make(database)
    with pytest.raises(StoreTableError, match="cannot be kept"):
        schema.plan_changes(DuckDBSession(database), None, table)


def test_a_removed_table_leaves_nothing(database: duckdb.DuckDBPyConnection) -> None:
    make(database, events(), loads())
    for statement in schema.drop_statements("events"):
        database.execute(statement)
    assert list(schema.load_tables(DuckDBSession(database))) == ["loads"]
    left = database.execute(
        "SELECT schema_name, table_name FROM duckdb_tables() WHERE table_name = 'events'"
    ).fetchall()
    assert left == []
    make(database, replace(events(), topic="other"))


def test_a_file_of_another_format_is_refused(database: duckdb.DuckDBPyConnection) -> None:
    make(database)
    database.execute("UPDATE _riverrun.about SET format = 99")
    with pytest.raises(StoreError, match="format 99"):
        schema.create_metadata(DuckDBSession(database))
