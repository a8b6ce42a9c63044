"""What questions mean: each runs on a real DuckDB after it was checked and written out."""

# ruff: noqa: E501  -- one case a line

from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest

from riverrun.store.contract import QueryResult
from support.duck_store import DuckStore


def at(minute: int, second: int = 0, day: int = 1, hour: int = 0) -> datetime:
    return datetime(2026, 1, day, hour, minute, second, tzinfo=UTC)


@pytest.fixture(scope="module")
def store() -> Iterator[DuckStore]:
    with DuckStore() as opened:
        yield opened


def rows(answer: QueryResult) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in answer.rows.to_pylist()]


CASES: list[tuple[str, list[tuple[Any, ...]]]] = [
    # latest
    ("select sum(load_kw) from house_load where minute = latest", [(42.0,)]),
    ("select count(*) from house_load where latest = minute", [(3,)]),
    ("select count(*) from house_load where minute > latest - interval '2 minutes'", [(6,)]),
    ("select count(*) from house_load where minute between latest - interval '1 minute' and latest", [(6,)]),
    ("select count(*) from house_load l join houses h using (house_id) where l.minute = latest and street = 'Main'", [(2,)]),
    ("with m as (select minute, sum(load_kw) s from house_load group by 1) select s from m where minute = latest", [(42.0,)]),
    ("select count(*) from readings where day = latest", [(1,)]),
    ("select sum(load_kw) from house_load where minute = (select max(minute) from house_load)", [(42.0,)]),
    ("select count(*) from house_load l where l.minute > (select max(o.minute) from house_load o) - interval '2 minutes'", [(6,)]),
    # What panels ask: numbers, lines, leaderboards, shares.
    ("select minute, street, sum(load_kw) as load_kw from house_load join houses using (house_id) "
     "group by minute, street order by minute desc, street limit 2", [(at(9), "Main", 27.5), (at(9), "Oak", 14.5)]),
    ("select house_id, max(load_kw) m from house_load group by house_id order by m desc limit 1", [("h2", 14.5)]),
    ("select time_bucket(interval '5 minutes', minute) t, avg(load_kw) from house_load group by t order by t",
     [(at(0), 3.5), (at(5), 11.0)]),
    ("select date_trunc('hour', minute) h, count(*) from house_load group by h", [(at(0), 30)]),
    ("select house_id, load_kw - lag(load_kw) over (partition by house_id order by minute) d from house_load "
     "order by minute desc, house_id limit 1", [("h0", 1.5)]),
    ("select house_id, rank() over w as r from house_load where minute = latest window w as (order by load_kw desc) "
     "order by r limit 1", [("h2", 1)]),
    ("select house_id, load_kw from house_load qualify row_number() over (partition by house_id order by minute desc) = 1 "
     "order by house_id", [("h0", 13.5), ("h1", 14.0), ("h2", 14.5)]),
    ("select street, round(100 * sum(load_kw) / sum(sum(load_kw)) over (), 1) share from house_load join houses "
     "using (house_id) where minute = latest group by street order by street", [("Main", 65.5), ("Oak", 34.5)]),
    ("select count(distinct house_id), count(*) filter (where load_kw > 14) from house_load", [(3, 1)]),
    ("select house_id, arg_max(load_kw, minute) from house_load group by all order by 1 limit 1", [("h0", 13.5)]),
    ("select quantile_cont(load_kw, 0.5), median(load_kw), percentile_cont(0.5) within group (order by load_kw) from house_load",
     [(7.25, 7.25, 7.25)]),
    ("select min(minute), max(minute), max(minute) - min(minute) < interval '1 hour' from house_load", [(at(0), at(9), True)]),
    # Shapes.
    ("select h.street, l.load_kw from houses h left join house_load l on h.house_id = l.house_id and l.load_kw > 14.2 "
     "order by street, load_kw", [("Main", None), ("Main", None), ("Oak", 14.5)]),
    ("select count(*) from houses a cross join houses b", [(9,)]),
    ("select count(*) from houses a, houses b where a.street = b.street", [(5,)]),
    ("select count(*) from houses full join (select 'h9' as house_id) x using (house_id)", [(4,)]),
    ("select house_id from houses full join (select 'h9' as house_id) x using (house_id) order by 1 desc limit 1", [("h9",)]),
    ("select x.* from (select house_id, street from houses) x order by 1 limit 1", [("h0", "Main")]),
    ("select house_id from houses where house_id in (select house_id from house_load where load_kw > 14.2)", [("h2",)]),
    ("select street from houses h where exists (select 1 from house_load l where l.house_id = h.house_id and l.load_kw > 14.2)",
     [("Oak",)]),
    ("select (select count(*) from houses) + 1", [(4,)]),
    ("select street from houses where street = 'Oak' union all select 'x' union all select 'x' order by 1 limit 2",
     [("Oak",), ("x",)]),
    ("select street from houses union select 'Oak' order by street", [("Main",), ("Oak",)]),
    ("(select 1 as a) union (select 2) order by a desc", [(2,), (1,)]),
    ("with a(x) as (select 1), b as (select x + 1 as y from a) select x, y from a, b", [(1, 2)]),
    ("select street, house_id, count(*) from houses group by rollup (street, house_id) order by 1, 2 limit 2",
     [(None, None, 3), ("Main", None, 2)]),
    ("select distinct street from houses order by street", [("Main",), ("Oak",)]),
    ("select street, count(*) as n from houses group by street having n > 1", [("Main", 2)]),
    ("select sum(load_kw) as load_kw, house_id from house_load group by house_id having load_kw > 73 order by load_kw",
     [(77.5, "h2")]),
    ("select load_kw * 2 as twice, twice + 1 as more from house_load order by minute, house_id limit 1", [(0.0, 1.0)]),
    ("select house_id from houses order by phone", [("h2",), ("h0",), ("h1",)]),
    ("select house_id from houses order by phone desc", [("h1",), ("h0",), ("h2",)]),
    ("select house_id from houses order by phone nulls last", [("h0",), ("h1",), ("h2",)]),
    ("select * exclude (phone, recorded_at) from houses order by 1 limit 1", [("h0", "Main")]),
    ("select * replace (upper(street) as street) from houses order by 1 limit 1", [("h0", "MAIN", "1", at(0))]),
    ("from houses select street order by house_id desc limit 1", [("Oak",)]),
    ("select a, b from (values (1, 'x'), (2, 'y')) t(a, b) where a > 1", [(2, "y")]),
    ("select x from range(3) t(x)", [(0,), (1,), (2,)]),
    ("select x from unnest([3, 1]) u(x) order by x", [(1,), (3,)]),
    ("select t, coalesce(sum(load_kw), 0) from generate_series(timestamp '2026-01-01 00:09:00', timestamp '2026-01-01 00:10:00', "
     "interval '1 minute') g(t) left join house_load on minute = t group by t order by t", [(at(9), 42.0), (at(10), 0.0)]),
    ("select case when load_kw > 14 then 'high' else 'low' end as level, count(*) from house_load group by level order by 1",
     [("high", 1), ("low", 29)]),
    # Values.
    ("select houseid, HOUSEID from readings order by 1 limit 1", [("h0", "h0")]),
    ("select sum(count), max(count) from readings", [(9007199254740993, 9007199254740993)]),
    ("select sum(kwh), avg(kwh) from readings", [(Decimal("3.75"), 1.875)]),
    ("select median(kwh), quantile_cont(count, 0.5), arg_max(kwh, at) from readings", [(1.875, 4503599627370496.0, Decimal("2.50"))]),
    ("select 1 / 0, 1 % 0, 7 // 2, 7 / 2, kwh / count from readings where houseId = 'h1'", [(None, None, 3, 3.5, None)]),
    ("select extra->>'$.a.b[1]', extra->>'c', json_extract_string(extra, '$.c') from readings where houseId = 'h0'", [("2", "x", "x")]),
    ("select day, day + interval '1 day', day - date '2025-12-31' from readings where houseId = 'h0'",
     [(date(2026, 1, 1), at(0, day=2), 1)]),
    ("select extract(hour from at), extract(epoch from at), date_part('dow', at), hour(at), year(at), epoch_ms(at) "
     "from readings where houseId = 'h0'", [(0, 1767225601.0, 4, 0, 2026, 1767225601000)]),
    ("select date_trunc('day', at at time zone 'Europe/Berlin') from readings where houseId = 'h1'", [(at(0, day=2),)]),
    ("select (at at time zone 'Europe/Berlin') at time zone 'Europe/Berlin' = at from readings where houseId = 'h1'", [(True,)]),
    ("select date_diff('hour', at, '2026-01-02 00:30:00'), date_sub('hour', at, timestamp '2026-01-02 00:29:00') "
     "from readings where houseId = 'h1'", [(1, 0)]),
    ("select strftime(at, '%Y-%m-%d %H:%M') from readings where houseId = 'h1'", [("2026-01-01 23:30",)]),
    ("select count(*) from readings where at >= '2026-01-01' and at < '2026-01-02' and ok", [(1,)]),
    ("select count(*) from readings where at > now() - interval '100 years'", [(3,)]),
    ("select ok is true, ok is not null, not ok, ok is distinct from true from readings order by at",
     [(True, True, False, False), (False, True, True, True), (False, False, None, True)]),
    ("select lower('Ü'), upper(street), length('añb'), left('abc', 2), substring('abc' from 2 for 1), trim('  a '), "
     "replace('a-b', '-', '+'), concat('a', null, 'b'), 'a' || 'b', position('b' in 'abc') from houses limit 1",
     [("ü", "MAIN", 3, "ab", "b", "a", "a+b", "ab", "ab", 2)]),
    ("select street ilike 'MA%', street not like 'M%', regexp_matches(street, 'a.n'), starts_with(street, 'Ma') from houses limit 1",
     [(True, False, True, True)]),
    ("select round(2.567, 1), abs(-3), ceil(1.2), floor(1.8), sqrt(9), power(2, 3), 2 ** 3, mod(7, 3), greatest(1, 3), sign(-2.5)",
     [(Decimal("2.6"), 3, Decimal(2), Decimal(1), 3.0, 8.0, 8.0, 1, 3, -1)]),
    ("select coalesce(null, 2), nullif(1, 1), if(true, 'a', 'b'), ifnull(null, 3), cast('7' as bigint), try_cast('x' as bigint), '5'::int",
     [(2, None, "a", 3, 7, None, 5)]),
    ("select string_agg(house_id, ',' order by house_id desc) from houses", [("h2,h1,h0",)]),
    ("select bool_and(load_kw >= 0), bool_or(load_kw > 100), count_if(load_kw > 14) from house_load", [(True, False, 1)]),
    ("select x, x from (select 1 as x) t", [(1, 1)]),
    ("select 9223372036854775807 as big", [(9223372036854775807,)]),
    ("select 'a' in ('a', 'b'), 1 not in (2), 2 between 1 and 3, 2 not between 1 and 3", [(True, True, True, False)]),
]  # fmt: skip


@pytest.mark.parametrize(("sql", "expected"), CASES, ids=[sql[:60] for sql, _ in CASES])
def test_an_answer(store: DuckStore, sql: str, expected: list[tuple[Any, ...]]) -> None:
    assert rows(store.query(sql)) == expected
