"""The shapes of question that dashboards ask, each with what it is for. All stores give the same rows."""

# Name: SQL. Where the order matters it says so; else rows are compared in any order.
QUERIES: dict[str, str] = {
    "count": "select count(*) as n from events",
    "number": "select sum(load) as load, avg(load) as mean, min(load) as low, max(load) as high from events",
    "number of updated rows": "select count(*) as n, sum(load) as load, sum(n) as versions from loads",
    "latest minute": "select sum(load) as load from loads where minute = latest",
    "latest of the latest": "select house, load from loads where minute = latest order by load desc",
    "everything updated": "select * from loads order by minute, house",
    "everything appended": "select * from events order by id limit 50",
    "latest spelt out": "select sum(load) as load from loads where minute = (select max(minute) from loads)",
    "latest spelt out, of nothing": "select (select max(minute) from nothing) is null as none, count(*) as n from loads",
    "latest of nothing": "select sum(load) as load, count(*) as n from nothing where minute = latest",
    "latest rows of nothing": "select house, load from nothing where minute = latest order by load desc",
    "recent rows of nothing": "select minute, load from nothing where minute > latest - interval '1 minute' order by 1",
    "other latest of nothing": "select count(*) as n from nothing where seen = latest",
    "newest of nothing": "select max(minute) as minute, min(house) as first, max(house) as last, count(*) as n from nothing",
    "line of nothing": "select minute, sum(load) as load from nothing group by minute order by minute",
    "rows of nothing": "select * from nothing order by load desc, house",
    "line": "select minute, sum(load) as load from loads group by minute order by minute",
    "line by group": "select minute, street, sum(load) as load from loads group by minute, street order by minute, street",
    "line of events": "select date_trunc('minute', at) as minute, avg(load) as load from events group by 1 order by 1",
    "line by the hour": "select date_trunc('hour', at) as hour, count(*) as n from events group by 1 order by 1",
    "bar": "select house, count(*) as n, sum(load) as load from events group by house order by house",
    "leaderboard": "select house, max(load) as load from loads group by house order by load desc, house limit 3",
    "top rows": "select id, house, load from events where load is not null order by load desc, id limit 10",
    "ends of text": "select min(house) as first, max(house) as last, min(note) as least, max(note) as most from events",
    "ends of text by group": "select ok, min(note) as first, max(note) as last from events group by ok order by ok",
    "ends of some text": "select max(house) filter (where id < 2) as two, min(note) filter (where id < 0) as none"
    " from events",
    "newest text": "select house, load from loads where house = (select max(house) from loads) order by minute",
    "ends of text that is updated": "select minute, max(street) as last from loads group by minute order by minute",
    "distinct": "select count(distinct house) as houses, count(distinct note) as notes from events",
    "distinct rows": "select distinct house, ok from events order by house, ok",
    "nulls": "select count(*) as n, count(load) as loads, count(ok) as oks, count(day) as days, count(note) as notes,"
    " count(tags) as tags, count(seen) as seens from events",
    "null is null": "select id from events where note is null and load is not null order by id",
    "coalesce": "select coalesce(street, 'nowhere') as street, count(*) as n from loads group by 1 order by 1",
    "case": "select case when load > 3 then 'high' when load > 1 then 'mid' else 'low' end as band, count(*) as n"
    " from events where load is not null group by 1 order by 1",
    "filter": "select count(*) filter (where ok) as good, count(*) filter (where not ok) as bad from events",
    "truth": "select id from events where ok order by id limit 20",
    "truth shown": "select id, ok from events where id < 30 order by id",
    "time range": "select count(*) as n from events"
    " where at >= timestamptz '2026-11-01 12:05:00Z' and at < timestamptz '2026-11-01 12:20:00Z'",
    "time range of updates": "select house, sum(load) as load from loads"
    " where minute >= timestamptz '2026-11-01 12:01:00Z' and minute < timestamptz '2026-11-01 12:03:00Z'"
    " group by house order by house",
    "ends": "select min(at) as first, max(at) as last, max(seen) as seen from events",
    "other time": "select id, seen from events where seen > timestamptz '2026-11-01 12:10:00Z' order by id limit 20",
    "day": "select day, count(*) as n from events group by day order by day",
    "one day": "select count(*) as n from events where day = date '2026-11-02'",
    "decimal": "select sum(price) as price, max(price) as most from events",
    "big integers": "select max(big) as most, min(big) as least from events",
    "one big integer": "select id from events where big = 9223372036854775806",
    "unicode": "select count(*) as n from events where house = 'Ørsteds «höhle»'",
    "like": "select count(*) as n from events where note like 'näht 3%'",
    "in": "select house, count(*) as n from events where house in ('h-1', '家-4') group by house order by house",
    "between": "select count(*) as n from events where id between 10 and 20",
    "json": "select id, tags from events where tags is not null order by id limit 5",
    "having": "select house, sum(load) as load from loads group by house having sum(load) > 10 order by house",
    "with": "with high as (select house, load from loads where load > 2) select house, count(*) as n from high"
    " group by house order by house",
    "subquery": "select house, load from (select house, max(load) as load from loads group by house) as best"
    " where load > 1 order by house",
    "join": "select l.house, l.load, e.n from (select house, max(load) as load from loads group by house) as l"
    " join (select house, count(*) as n from events group by house) as e on l.house = e.house order by l.house",
    "scalar": "select id, load from events where load = (select max(load) from events) order by id",
    "union": "select 'events' as what, count(*) as n from events union all select 'loads' as what, count(*) as n from loads",
    "arithmetic": "select id, load * 2 + 1 as more, id % 7 as rest from events where id < 10 order by id",
    "text": "select upper(house) as house, length(house) as long from events where id < 4 order by id",
    "extract": "select extract(hour from at) as hour, extract(minute from at) as minute, count(*) as n from events"
    " where id < 100 group by 1, 2 order by 1, 2",
    "nothing": "select id from events where id < 0",
    "sum of nothing": "select sum(load) as load, count(*) as n from events where id < 0",
    "drill-down": "select minute, house, load from loads where street = 'street 1' order by minute, house",
    "rows of one key": "select minute, load from loads where house = '家-4' order by minute",
}
