"""Nothing but questions about the store's tables gets through, on either store."""

import pytest

from riverrun.errors import QueryError
from riverrun.store.sql import prepare
from support.duck_store import TABLES
from support.hostile import HOSTILE


@pytest.mark.parametrize("dialect", ["duckdb", "druid"])
@pytest.mark.parametrize("sql", HOSTILE, ids=lambda sql: sql[:40])
def test_it_is_refused(sql: str, dialect: str) -> None:
    with pytest.raises(QueryError) as caught:
        prepare(sql, TABLES, dialect)  # type: ignore[arg-type]
    assert caught.value.exit_code == 2
    assert len(str(caught.value)) < 4000


def test_there_are_enough_of_them() -> None:
    assert len(HOSTILE) >= 100
    assert len(set(HOSTILE)) == len(HOSTILE)


def test_comments_are_not_carried_along() -> None:
    made = prepare(
        "select /* ; drop table x */ load_kw -- ; attach 'x'\n from house_load /*+ hint */", TABLES, "duckdb"
    )
    assert made.sql == 'SELECT "house_load"."load_kw" AS "load_kw" FROM "house_load" AS "house_load"'


@pytest.mark.parametrize(
    "value", ["it''s", 'a "quote"', "a\\b", "; drop table x --", "/* x */", "${x}", "üñí → 漢", "U&''\\0041''"]
)
def test_texts_stay_texts(value: str) -> None:
    import duckdb

    made = prepare(f"select '{value}' as v", TABLES, "duckdb")
    assert duckdb.connect().execute(made.sql).fetchall() == [(value.replace("''", "'"),)]


def test_names_stay_names() -> None:
    made = prepare('select load_kw as "a"" from x; --" from house_load', TABLES, "druid")
    assert 'AS "a"" from x; --"' in made.sql
