"""What an editor is told of the language is what the language is."""

import re

import pytest

from riverrun.store.sql import prepare, sql_vocabulary
from riverrun.store.sql.functions import FUNCTIONS, TABLE_FUNCTIONS
from riverrun.store.sql.vocabulary import KEYWORDS, TYPES
from support.duck_store import TABLES

QUESTIONS = (
    "select distinct house_id from house_load where minute = latest and load_kw between 1 and 2 or not load_kw is null",
    "select house_id, count(*) filter (where load_kw > 1) from house_load group by all having count(*) > 1",
    "select * exclude (phone) from houses where phone is not null order by street asc nulls first limit 3 offset 1",
    "select street from houses order by street desc nulls last",
    "with a as (select 1 as x) select x from a union all select 2 union select 3 intersect select 3 except select 4",
    "select a.house_id from houses a left join house_load b on a.house_id = b.house_id cross join houses c",
    "select house_id from houses a full join houses b using (house_id) right join houses c using (house_id)",
    "select house_id, sum(load_kw) over (partition by house_id order by minute rows between unbounded preceding"
    " and current row) as s, avg(load_kw) over (order by minute rows between 2 preceding and current row) as t"
    " from house_load qualify s > 1",
    "select street, house_id, count(*) from houses group by rollup (street, house_id)",
    "select street, house_id, count(*) from houses group by cube (street, house_id)",
    "select street, house_id, count(*) from houses group by grouping sets ((street), (house_id))",
    "select case when street like 'M%' then true when street ilike 'o%' then false else null end from houses"
    " where house_id in ('h0') and exists (select 1 from house_load)",
    "select cast(1 as text), try_cast('1' as bigint), extract(hour from minute at time zone 'Europe/Berlin'),"
    " minute + interval '1 hour' from house_load join houses using (house_id)",
    "select n from (values (1, 'a')) as t(n, word)",
)


def test_every_word_stands_in_a_question_that_is_understood() -> None:
    for question in QUESTIONS:
        prepare(question, TABLES, "duckdb")
    together = " ; ".join(QUESTIONS)
    assert [word for word in KEYWORDS if not re.search(rf"\b{word}\b", together)] == []


@pytest.mark.parametrize("name", TYPES)
def test_every_type_can_be_cast_to(name: str) -> None:
    prepare(f"select cast(null as {name}) as x", TABLES, "duckdb")


def test_every_function_is_told_once() -> None:
    told = [each["name"] for each in sql_vocabulary()["functions"]]
    assert sorted(told) == sorted([*FUNCTIONS, *TABLE_FUNCTIONS])
    assert next(each for each in sql_vocabulary()["functions"] if each["name"] == "count") == {
        "name": "count", "use": "aggregate", "least": 1, "most": 1, "result": "bigint",
    }  # fmt: skip
