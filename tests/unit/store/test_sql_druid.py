"""Questions as Druid gets them. That it answers them the same is for the contract suite, on a real Druid."""

# ruff: noqa: E501, S608  -- one case a line; texts that nobody runs

import pytest
import sqlglot

from riverrun.errors import QueryError
from riverrun.model.table import TableSpec
from riverrun.store.sql import PreparedQuery, prepare
from riverrun.store.sql.druid_functions import joda_pattern
from riverrun.store.sql.druid_tables import DruidTable
from riverrun.store.sql.intervals import divides_day, interval_seconds, iso_period
from support.duck_store import TABLES, columns


def druid(sql: str, tables: dict[str, TableSpec] = TABLES) -> PreparedQuery:
    made = prepare(sql, tables, "druid", datasource=lambda spec: f"app.{spec.name}")
    sqlglot.parse_one(made.sql, dialect="druid")
    return made


def test_an_upserted_table_gives_the_newest_version_of_each_key() -> None:
    assert druid("select house_id, load_kw, minute_end from house_load").sql == (
        'SELECT "house_load"."house_id" AS "house_id", "house_load"."load_kw" AS "load_kw", '
        '"house_load"."minute_end" AS "minute_end" FROM ('
        'SELECT MILLIS_TO_TIMESTAMP(LATEST_BY("minute_end", MILLIS_TO_TIMESTAMP("__version"))) AS "minute_end", '
        '"house_id" AS "house_id", LATEST_BY("load_kw", MILLIS_TO_TIMESTAMP("__version")) AS "load_kw" '
        'FROM "app.house_load" GROUP BY "__time", "house_id") AS "house_load"'
    )


def test_only_what_is_used_is_read() -> None:
    assert (
        'FROM (SELECT "house_id" AS "house_id" FROM "app.houses" GROUP BY "house_id")'
        in druid("select count(*) from houses").sql
    )
    assert "LATEST_BY" not in druid("select minute, count(*) from house_load group by 1").sql
    assert "phone" not in druid("select * exclude (phone) from houses").sql


def test_a_table_of_events_has_its_declared_types() -> None:
    assert druid("select * from readings").sql.endswith(
        'FROM (SELECT "houseId" AS "houseId", "__time" AS "at", CAST("day" AS DATE) AS "day", "kwh" AS "kwh", '
        '"count" AS "count", "ok" = 1 AS "ok", "extra" AS "extra" FROM "app.readings") AS "readings"'
    )


def test_a_table_of_one_row_is_empty_before_it_has_it() -> None:
    tables = {"total": TableSpec("total", "total", columns(n="bigint", recorded_at="timestamp"), upserts=True)}
    made = druid("select n from total", tables).sql
    assert 'FROM "app.total" HAVING COUNT(*) > 0)' in made
    assert "GROUP BY" not in made


def test_what_druid_has_not_seen_yet_is_null() -> None:
    def kept(spec: TableSpec) -> DruidTable:
        return DruidTable(spec.name, frozenset({"__time", "house_id"}) if spec.name == "house_load" else frozenset())

    made = prepare(
        "select house_id, load_kw, street from house_load join houses using (house_id)",
        TABLES,
        "druid",
        datasource=kept,
    )
    assert (
        '(SELECT "house_id" AS "house_id", CAST(NULL AS DOUBLE) AS "load_kw" FROM "house_load" GROUP BY "__time", "house_id")'
        in made.sql
    )
    assert (
        '(SELECT CAST(NULL AS VARCHAR) AS "house_id", CAST(NULL AS VARCHAR) AS "street" FROM (VALUES (0)) AS "nothing"("x") '
        'WHERE "nothing"."x" = 1) AS "houses"'
    ) in made.sql


def test_events_that_may_be_there_twice_are_one() -> None:
    made = prepare(
        "select at, count, extra from readings",
        TABLES,
        "druid",
        datasource=lambda _: DruidTable("r", has_duplicates=True),
    )
    assert (
        'FROM (SELECT "__time" AS "at", ANY_VALUE("count") AS "count", ANY_VALUE("extra", 1024) AS "extra" '
        'FROM "r" GROUP BY "__time", "__id") AS "readings"'
    ) in made.sql


@pytest.mark.parametrize(
    "what", ["max(minute)", "min(house_id)", "count(*)", "max(load_kw) + 1", "arg_max(load_kw, minute)"]
)
def test_what_is_added_up_of_a_table_without_rows_is_looked_for(what: str) -> None:
    made = prepare(
        f"select {what} from house_load", TABLES, "druid", datasource=lambda _: DruidTable("x", frozenset())
    ).sql
    assert 'FROM UNNEST(ARRAY[0]) AS "nothing"("x")' in made


def test_the_greatest_text_is_the_last_of_all() -> None:
    texts = 'ARRAY_AGG(DISTINCT "houses"."street", 65536)'
    made = druid("select max(street), min(street) filter (where house_id > 'h') from houses").sql
    assert f"ARRAY_OFFSET({texts}, ARRAY_LENGTH({texts}) - 1)" in made
    few = f'{texts} FILTER(WHERE "houses"."house_id" > \'h\')'
    assert f"COALESCE(ARRAY_OFFSET({few}, 0), ARRAY_OFFSET({few}, 1))" in made


def test_latest_can_be_asked_first_so_that_segments_are_skipped() -> None:
    made = druid("select sum(load_kw) from house_load where minute > latest - interval '1 hour'")
    assert [(each.sql, each.type) for each in made.latest] == [
        ('SELECT MAX("house_load"."minute") AS "latest" FROM (SELECT "__time" AS "minute" FROM "app.house_load") AS "house_load"',
         "timestamp")
    ]  # fmt: skip
    assert "(SELECT MAX(" in made.sql
    given = made.with_latest(["2026-01-01T00:09:00.000Z"])
    assert given.endswith(
        """WHERE "house_load"."minute" > TIME_SHIFT(TIMESTAMP '2026-01-01 00:09:00.000', 'PT1H', -1)"""
    )
    assert made.with_latest([None]).endswith("TIME_SHIFT(TIMESTAMP '1970-01-01 00:00:00.000', 'PT1H', -1)")


@pytest.mark.parametrize(
    ("newest", "first"),
    [
        ("select max(minute) from house_load", True),
        ("select max(MINUTE) as m from House_Load", True),
        ("select max(h.minute) from house_load as h", True),
        # Other than the newest time there is in a table.
        ("select max(minute) from house_load where load_kw > 1", False),
        ("select max(minute) from house_load limit 1", False),
        ("select min(minute) from house_load", False),
        ("select max(minute) + interval '1 minute' from house_load", False),
        ("with house_load as (select * from house_load where load_kw > 1) select max(minute) from house_load", False),
    ],
)
def test_latest_spelt_out_is_asked_first_too(newest: str, first: bool) -> None:
    made = druid(f"select sum(load_kw) from house_load where minute > ({newest}) - interval '1 hour'")
    assert len(made.latest) == first
    if first:
        assert made.latest[0].sql.startswith('SELECT MAX("house_load"."minute") AS "latest" FROM (SELECT "__time"')
        assert "TIMESTAMP '2026-01-01 00:09:00.000', 'PT1H'" in made.with_latest(["2026-01-01T00:09:00.000Z"])


def test_latest_spelt_out_is_null_where_there_is_none() -> None:
    made = druid("select (select max(minute) from house_load) as newest")
    assert made.with_latest(["2026-01-01T00:09:00.000Z"]) == "SELECT TIMESTAMP '2026-01-01 00:09:00.000' AS \"newest\""
    assert "SELECT MAX(" in made.with_latest([None])


def test_latest_of_a_value_is_that_of_the_newest_versions() -> None:
    made = druid("select house_id from house_load where load_kw = latest")
    assert "LATEST_BY" in made.latest[0].sql
    assert made.with_latest([14.5]).endswith('WHERE "house_load"."load_kw" = 14.5')


def test_exact_answers_in_utc() -> None:
    context = druid("select count(distinct house_id), count(distinct minute) from house_load").context
    assert context["useApproximateCountDistinct"] is False
    assert context["useApproximateTopN"] is False
    assert context["sqlTimeZone"] == "UTC"
    assert context["useGroupingSetForExactDistinct"] is True
    assert druid("select street, count(*) from houses group by rollup (street)").context["applyLimitPushDown"] is False


@pytest.mark.parametrize(
    ("expression", "written"),
    [
        ("load_kw / 3", '"house_load"."load_kw" / 3'),
        ("1 / load_kw", 'CAST(1 AS DOUBLE) / NULLIF("house_load"."load_kw", 0)'),
        ("now() - interval '90 minutes'", "TIME_SHIFT(CURRENT_TIMESTAMP, 'PT1H30M', -1)"),
        ("date_trunc('hour', minute)", """DATE_TRUNC('hour', "house_load"."minute")"""),
        ("time_bucket(interval '5 minutes', minute)", """TIME_FLOOR("house_load"."minute", 'PT5M')"""),
        ("time_bucket(interval '1 week', minute)", """TIME_FLOOR("house_load"."minute", 'P1W', TIMESTAMP '2000-01-03 00:00:00')"""),
        ("time_bucket(interval '1 month', minute)", """TIME_FLOOR("house_load"."minute", 'P1M', TIMESTAMP '2000-01-01 00:00:00')"""),
        ("extract(dow from minute)", 'MOD(EXTRACT(ISODOW FROM "house_load"."minute"), 7)'),
        ("extract(epoch from minute)", 'TIMESTAMP_TO_MILLIS("house_load"."minute") / 1000.0'),
        ("extract(epoch from minute_end - minute)",
         '(TIMESTAMP_TO_MILLIS("house_load"."minute_end") - TIMESTAMP_TO_MILLIS("house_load"."minute")) / 1000.0'),
        ("minute_end - minute > interval '1 minute'",
         '(TIMESTAMP_TO_MILLIS("house_load"."minute_end") - TIMESTAMP_TO_MILLIS("house_load"."minute")) > 60000'),
        ("minute >= '2026-01-31T12:00:00+01:00'", """"house_load"."minute" >= TIMESTAMP '2026-01-31 11:00:00.000'"""),
        ("minute in ('2026-01-31')", """"house_load"."minute" IN (TIMESTAMP '2026-01-31 00:00:00.000')"""),
        ("house_id ilike 'H%'", """LOWER("house_load"."house_id") LIKE LOWER('H%')"""),
        ("strftime(minute, '%Y-%m-%dT%H:%M')", """TIME_FORMAT("house_load"."minute", 'yyyy''-''MM''-''dd''T''HH'':''mm', 'UTC')"""),
        ("cast(load_kw as bigint)", 'CAST(ROUND("house_load"."load_kw") AS BIGINT)'),
        ("cast(load_kw as text)", 'CAST("house_load"."load_kw" AS VARCHAR)'),
        ("load_kw || 'x'", """CAST("house_load"."load_kw" AS VARCHAR) || 'x'"""),
        ("if(load_kw > 1, 'a', 'b')", """CASE WHEN "house_load"."load_kw" > 1 THEN 'a' ELSE 'b' END"""),
        ("house_id in (select house_id from houses)",
         """"house_load"."house_id" IN (SELECT "houses"."house_id" AS "house_id" FROM (SELECT "house_id" AS "house_id" """
         """FROM "app.houses" GROUP BY "house_id") AS "houses")"""),
    ],
)  # fmt: skip
def test_an_expression(expression: str, written: str) -> None:
    assert f"SELECT {written} AS" in druid(f"select {expression} from house_load").sql


@pytest.mark.parametrize(
    ("aggregate", "written"),
    [
        ("avg(load_kw)", 'AVG("house_load"."load_kw")'),
        ("median(load_kw)", 'APPROX_QUANTILE_DS("house_load"."load_kw", 0.5, 1024)'),
        ("arg_max(house_id, minute)",
         'LATEST_BY("house_load"."house_id", CASE WHEN NOT "house_load"."house_id" IS NULL THEN "house_load"."minute" END, 1024)'),
        ("count_if(load_kw > 1) filter (where house_id = 'a')",
         """COALESCE(SUM(CASE WHEN "house_load"."load_kw" > 1 THEN 1 ELSE 0 END) FILTER(WHERE "house_load"."house_id" = 'a'), 0)"""),
        ("sum(load_kw) over (partition by house_id order by minute rows between 2 preceding and current row)",
         'SUM("house_load"."load_kw") OVER (PARTITION BY "house_load"."house_id" ORDER BY "house_load"."minute" '
         "ROWS BETWEEN 2 PRECEDING AND CURRENT ROW)"),
        ("avg(load_kw) over ()", 'AVG("house_load"."load_kw") OVER ()'),
    ],
)  # fmt: skip
def test_an_aggregate(aggregate: str, written: str) -> None:
    assert f"SELECT {written} AS" in druid(f"select {aggregate} from house_load").sql


@pytest.mark.parametrize(
    ("sql", "what"),
    [
        ("select 1 from houses a full join houses b using (house_id)", "FULL JOIN"),
        ("select 1 from houses a right join houses b using (house_id)", "RIGHT JOIN"),
        ("select 1 from houses a left join houses b on a.house_id > b.house_id", "LEFT JOIN on anything but equality"),
        ("select stddev(load_kw) from house_load", "function stddev"),
        ("select nth_value(load_kw, 2) over (order by minute) from house_load", "function nth_value"),
        ("select lag(load_kw, 1, 0) over (order by minute) from house_load", "lag with a default"),
        ("select sum(load_kw) over (order by minute range between interval '1 hour' preceding and current row) from house_load",
         "window over RANGE"),
        ("select count(distinct house_id) over () from house_load", "DISTINCT in a window"),
        ("select string_agg(house_id, ',' order by house_id) from houses", "string_agg in an order"),
        ("select house_id from houses order by street nulls last", "NULLS LAST"),
        ("select house_id from houses order by street desc nulls first", "NULLS FIRST"),
        ("select house_id from houses except select 'a'", "EXCEPT"),
        ("select house_id from houses union select 'a'", "UNION"),
        ("select house_id from houses union all select 'a' order by 1", "ORDER BY or LIMIT of a UNION ALL"),
        ("select count(*) from (select house_id from houses union all select 'a') x", "UNION ALL inside a question"),
        ("select 1 from houses where exists (select 1 from houses)", "EXISTS"),
        ("select house_id from houses intersect select 'a'", "INTERSECT"),
        ("select distinct on (street) house_id from houses", "DISTINCT ON"),
        ("select x from range(3) t(x)", "range in FROM"),
        ("select x from unnest([1]) t(x)", "unnest"),
        ("select minute_end - minute from house_load", "length of time as a value"),
        ("select strftime(minute, '%U') from house_load", "strftime with %U"),
        ("select regexp_replace(street, 'a', 'b') from houses", "function regexp_replace"),
        ("select now() - interval '1 microsecond'", "interval of 1 microsecond"),
        ("select arg_max(load_kw, house_id) from house_load", "by what is not a time"),
    ],
)  # fmt: skip
def test_what_druid_cannot_do_is_said_by_name(sql: str, what: str) -> None:
    prepare(sql, TABLES, "duckdb")
    with pytest.raises(QueryError) as caught:
        druid(sql)
    assert what in str(caught.value)
    assert str(caught.value).startswith("Druid has no")


def is_wrapped(sql: str) -> bool:
    return "ROW_NUMBER() OVER () AS" in sql


def test_a_scan_is_sorted_as_groups_unless_by_time() -> None:
    """Druid's own way to sort rows takes 200 MB of heap for any question, and the broker dies of it."""
    assert druid("select houseId from readings order by kwh, at").sql == (
        'SELECT "__rows"."houseId" AS "houseId" FROM (SELECT "readings"."houseId" AS "houseId", "readings"."kwh" AS "__o1", '
        '"readings"."at" AS "__o2", ROW_NUMBER() OVER () AS "__n3" FROM (SELECT "houseId" AS "houseId", "__time" AS "at", '
        '"kwh" AS "kwh" FROM "app.readings") AS "readings") AS "__rows" GROUP BY "__rows"."houseId", "__rows"."__o1", '
        '"__rows"."__o2", "__rows"."__n3" HAVING ANY_VALUE("__rows"."__n3") > 0 ORDER BY "__rows"."__o1", "__rows"."__o2"'
    )
    by_time = druid("select houseId, at from readings order by at desc limit 3").sql
    assert by_time.endswith('ORDER BY "at" DESC LIMIT 3')
    assert not is_wrapped(by_time)


@pytest.mark.parametrize(
    ("sql", "wrapped"),
    [
        ("select house_id, load_kw from house_load order by load_kw desc", False),
        ("select houseId, count(*) n from readings group by 1 order by n", False),
        ("select distinct houseId from readings order by 1", False),
        ("select n from (select houseId, count(*) n from readings group by 1) x order by n", False),
        ("with x as (select houseId, count(*) n from readings group by 1) select n from x order by n", False),
        ("select houseId from readings order by at desc, houseId", True),
        ("select a from (select houseId as a from readings limit 2) x order by a", True),
        ("select h.street from house_load l join houses h using (house_id) order by l.load_kw", True),
        ("select house_id from house_load where house_id in (select house_id from houses) order by load_kw", True),
        ("select house_id from house_load where minute = latest order by load_kw", True),
    ],
)
def test_which_questions_are_sorted_as_groups(sql: str, wrapped: bool) -> None:
    assert is_wrapped(druid(sql).sql) is wrapped


def test_a_value_instead_of_latest_needs_no_such_sort() -> None:
    made = druid("select house_id from house_load where minute = latest order by load_kw desc limit 3")
    assert not is_wrapped(made.with_latest(["2026-01-01T00:00:00Z"]))


def test_rows_of_a_window_are_told_apart_in_that_window() -> None:
    made = druid(
        "select load_kw - lag(load_kw) over (partition by house_id order by minute) d from house_load order by d"
    ).sql
    assert (
        '"house_load"."house_id" AS "__n1", ROW_NUMBER() OVER (PARTITION BY "house_load"."house_id" ORDER BY "house_load"."minute") AS "__n2"'
        in made
    )
    assert made.endswith(
        'GROUP BY "__rows"."d", "__rows"."__n1", "__rows"."__n2" HAVING ANY_VALUE("__rows"."__n2") > 0 ORDER BY "__rows"."d"'
    )


def test_qualify_becomes_a_where_around() -> None:
    made = druid("select house_id from house_load qualify row_number() over (order by load_kw) = 1 and load_kw > 2").sql
    assert made.startswith(
        'SELECT "__rows"."house_id" AS "house_id" FROM (SELECT "house_load"."house_id" AS "house_id", ROW_NUMBER()'
    )
    assert 'WHERE "__rows"."__w1" = 1 AND "__rows"."__w2" > 2 GROUP BY' in made


@pytest.mark.parametrize(
    ("span", "period", "seconds", "even"),
    [
        ("5 minutes", "PT5M", 300, True),
        ("1 day 12 hours", "P1DT12H", 129600, False),
        ("90 seconds", "PT1M30S", 90, True),
        ("7 minutes", "PT7M", 420, False),
        ("1 quarter", "P3M", 7776000, False),
        ("250 milliseconds", "PT0.25S", 0.25, True),
        ("-2 hours", "PT-2H", -7200, False),
        ("1.5 hours", "PT1H30M", 5400, True),
        ("1 microsecond", None, 0.000001, True),
        ("1.5 days", None, 129600, False),
    ],
)
def test_intervals(span: str, period: str | None, seconds: float, even: bool) -> None:
    assert iso_period(span) == period
    assert interval_seconds(span) == pytest.approx(seconds)
    assert divides_day(span) is even


def test_patterns_of_times() -> None:
    assert joda_pattern("%Y-%m-%d") == "yyyy'-'MM'-'dd"
    assert joda_pattern("at %H o'clock 100%%") == "'at 'HH' o''clock 100%'"
