"""What a question is told when it is wrong: where, what there is, what was probably meant."""

# ruff: noqa: E501  -- one case a line

import pytest

from riverrun.errors import QueryError, QueryRefusedError
from riverrun.model.table import TableSpec
from riverrun.store.sql import describe_tables, prepare
from support.duck_store import TABLES, columns


def told(sql: str) -> str:
    with pytest.raises(QueryError) as caught:
        prepare(sql, TABLES, "duckdb")
    return str(caught.value)


@pytest.mark.parametrize(
    ("sql", "parts"),
    [
        ("select lod_kw from house_load",
         ["no column lod_kw in house_load (line 1, column 8)", "minute, minute_end, house_id, load_kw", "Did you mean load_kw?"]),
        ("select\n  h.stret from houses h", ["no column stret in h (line 2, column 5)", "Did you mean street?"]),
        ("select x.street from houses h", ["There is no x in this FROM", "Expected h"]),
        ("select * from house_lod", ["no table house_lod (line 1, column 15)", "house_load, houses, readings", "Did you mean house_load?"]),
        ("select house_id from house_load, houses", ["house_id is ambiguous", "house_load and houses have it", "house_load.house_id"]),
        ("select 1 from houses, houses", ["Two tables in one FROM are called houses"]),
        ("select medain(load_kw) from house_load", ["no function medain", "Did you mean median?"]),
        ("select qqq(1)", ["no function qqq", "There are: abs"]),
        ("select abs(1, 2)", ["abs has 2 arguments", "Expected 1"]),
        ("select row_number() from houses", ["row_number needs a window", "over (order by"]),
        ("select lower(street) over () from houses", ["lower cannot be asked over a window"]),
        ("select load_kw from house_load order by 3", ["ORDER BY 3 is out of range", "1 to 1"]),
        ("select sum(load_kw) from house_load group by 0", ["GROUP BY 0 is out of range"]),
        ("select load_kw from house_load limit x", ["LIMIT is a number"]),
        ("select load_kw from house_load where minute > interval '5 lightyears'", ["The interval", "minute"]),
        ("select date_trunc('fortnight', minute) from house_load", ["date_trunc of 'fortnight'", "second, minute, hour"]),
        ("select time_bucket(5, minute) from house_load", ["time_bucket needs an interval first"]),
        ("select cast(load_kw as uuid) from house_load", ["no type UUID", "text, boolean, bigint"]),
        ("select minute at time zone 'Mars/Base' from house_load", ["no time zone 'Mars/Base'"]),
        ("select 1 union select 1, 2", ["1 and 2 columns"]),
        ("select a from (values (1)) t", ["VALUES needs a name"]),
        ("with a as (select 1), a as (select 2) select 1", ["WITH has two parts called a"]),
        ("select * from houses join readings using (street)", ["readings has no column street, which USING names"]),
        ("select * exclude (nothing) from houses", ["no column nothing to leave out"]),
        ("select * from house_load left join houses", ["LEFT JOIN has no condition"]),
        ("select quantile_cont(load_kw, 50) from house_load", ["quantile_cont of 50", "0 to 1"]),
        # Where it is not understood.
        ("select load_kw from where house_load", ["not understood: line 1, column 21"]),
        ("select load_kw house_load where x = 1 1", ["line 1, column"]),
        ("selec load_kw from house_load", ["SELEC is not how a question begins", "SELECT, WITH or FROM"]),
        ("select 'abc from house_load", ["quotation mark or a comment is not closed"]),
        ("select (1", ["not understood"]),
        ("select { : 1 }", ["not understood"]),
        ("select string_agg(house_id, order by house_id) from houses", ["something is missing"]),
        ("select count(distinct) from houses", ["count has 0 arguments"]),
        ("select count() from houses", ["count has 0 arguments"]),
        ("select street from houses group by order by 1", ["GROUP BY names nothing"]),
        ("drop table house_load", ["DROP is not how a question begins", "only read"]),
        ("select 1; select 2", ["More than one statement"]),
        ("select * from main.house_load", ["names a schema", "the name of a table alone"]),
        ("select * from read_csv('x')", ["read_csv('x') cannot be read from"]),
        ("select * from range(1000000)", ["makes 1000000 rows", "at most 100000"]),
    ],
)  # fmt: skip
def test_a_message(sql: str, parts: list[str]) -> None:
    message = told(sql)
    for part in parts:
        assert part in message


def test_the_place_is_shown_below_the_message() -> None:
    message = told("select load_kw, from where x").splitlines()
    assert len(message) == 3
    assert message[2].strip().startswith("^")


@pytest.mark.parametrize(
    ("sql", "part"),
    [
        ("select latest from house_load", "latest stands alone"),
        ("select * from house_load where latest", "latest stands alone"),
        ("select * from house_load where latest > now()", "not clear what is latest"),
        ("select * from house_load where minute = latest + minute_end", "not clear what is latest"),
        ("select * from house_load where house_id = latest and latest > 3", "not clear what is latest"),
        ("select * from house_load join houses using (house_id) where house_id = latest",
         "latest of house_id is ambiguous: house_load and houses have it"),
        ("select * from house_load a join house_load b on a.house_id = b.house_id where minute = latest", "minute is ambiguous"),
        ("select * from (select minute from house_load) x where minute = latest", "Give the subquery a name"),
        ("select * from house_load where date_trunc('hour', minute) = latest and minut = latest", "no column minut"),
    ],
)  # fmt: skip
def test_latest_that_is_not_clear(sql: str, part: str) -> None:
    assert part in told(sql)


def test_latest_of_one_of_two_tables() -> None:
    made = prepare(
        "select 1 from house_load a join house_load b on a.house_id = b.house_id where b.minute = latest",
        TABLES,
        "duckdb",
    )
    assert '"b"."minute" = (SELECT MAX("house_load"."minute")' in made.sql


def test_a_column_called_latest_is_that_column() -> None:
    tables = {"t": TableSpec("t", "t", columns(at="timestamp", latest="timestamp"), time="at")}
    made = prepare("select 1 from t where at = latest", tables, "duckdb")
    assert 'WHERE "t"."at" = "t"."latest"' in made.sql


def test_what_was_refused_and_what_was_wrong_differ() -> None:
    with pytest.raises(QueryRefusedError):
        prepare("select getenv('HOME')", TABLES, "duckdb")
    with pytest.raises(QueryError) as caught:
        prepare("select x from houses", TABLES, "duckdb")
    assert caught.value.code == "QUERY_INVALID"


def test_tables_and_columns_of_the_answer_are_known() -> None:
    made = prepare(
        "select at, kwh * 2 as twice, count + 1, ok, day, extra, sum(kwh) over () s, houseId from readings "
        "where houseId in (select house_id from houses)", TABLES, "duckdb",
    )  # fmt: skip
    assert made.tables == ("houses", "readings")
    assert [(column.name, column.type) for column in made.columns] == [
        ("at", "timestamp"), ("twice", "decimal(29,2)"), ("count + 1", "bigint"), ("ok", "boolean"), ("day", "date"),
        ("extra", "json"), ("s", "decimal(38,2)"), ("houseId", "text"),
    ]  # fmt: skip


def test_the_same_question_of_other_tables_is_another() -> None:
    tables = {"t": TableSpec("t", "t", columns(a="bigint"))}
    first = prepare("select * from t", tables, "duckdb")
    assert prepare("select * from t", dict(tables), "duckdb") is first
    wider = {"t": TableSpec("t", "t", columns(a="bigint", b="text"))}
    assert [column.name for column in prepare("select * from t", wider, "duckdb").columns] == ["a", "b"]
    assert prepare("select * from t", tables, "duckdb") is first


def test_names_of_the_store() -> None:
    made = prepare("select street from houses", TABLES, "duckdb", datasource=lambda spec: f"rows.{spec.name}")
    assert made.sql == 'SELECT "houses"."street" AS "street" FROM "rows.houses" AS "houses"'


def test_description() -> None:
    assert describe_tables(TABLES)[1] == {
        "name": "houses",
        "topic": "houses",
        "time": "recorded_at",
        "key": ["house_id"],
        "upserts": True,
        "columns": [
            {"name": "house_id", "type": "text"},
            {"name": "street", "type": "text"},
            {"name": "phone", "type": "text"},
            {"name": "recorded_at", "type": "timestamp"},
        ],
    }
