"""JSON to columns: what fits keeps all its digits, what does not is told with a reason and nothing is made null silently."""

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import duckdb
import pytest

from riverrun.model.table import Column, TableSpec
from riverrun.store.embedded.batch import build_batch
from riverrun.store.embedded.projection import build_projection
from support.storing import BEGIN_MS, block, column

TABLE = TableSpec(
    "t",
    "topic",
    (
        column("start", "timestamp", "window", "start"),
        column("text", "text"),
        column("n", "bigint"),
        column("d", "double"),
        column("b", "boolean"),
        column("price", "decimal(38,18)"),
        column("small", "decimal(5,2)"),
        column("day", "date"),
        column("j", "json"),
        Column("recorded_at", "timestamp", ()),
    ),
    time="start",
)


@pytest.fixture(scope="module")
def database() -> duckdb.DuckDBPyConnection:
    found = duckdb.connect()
    found.execute("SET TimeZone = 'UTC'")
    return found


def shaped(database: duckdb.DuckDBPyConnection, value: str) -> dict[str, Any] | str:
    """The row of a record, without what is null; or why it is none."""
    columns = block("topic", [(0, 7, value.encode())]).topics["topic"]
    database.register("batch", build_batch(TABLE, columns, {}).records)
    sql = build_projection(TABLE, "batch")
    relation = database.sql(sql.rows)
    row = dict(zip(relation.columns, relation.fetchall()[0], strict=True))
    misfits = database.execute(sql.rejected).fetchall()
    assert row["~fits"] == (not misfits)
    if misfits:
        assert len(misfits) == 1
        assert misfits[0][0] == 0
        return str(misfits[0][1])
    found = {each.name: row[each.name] for each in TABLE.columns if row[each.name] is not None}
    assert found.pop("recorded_at") == datetime.fromtimestamp((BEGIN_MS + 7) / 1000, UTC)
    return found


GOOD = {
    '{"window":{"start":"2026-01-01T00:00:00.123456Z","end":"x"}}': {
        "start": datetime(2026, 1, 1, 0, 0, 0, 123456, UTC)
    },
    '{"window":{"start":"2026-01-01T05:30:00+05:30"}}': {"start": datetime(2026, 1, 1, tzinfo=UTC)},
    '{"window":{"start":"2026-01-01T00:00:00"}}': {"start": datetime(2026, 1, 1, tzinfo=UTC)},
    '{"window":{"start":"0001-01-01T00:00:00Z"}}': {"start": datetime(1, 1, 1, tzinfo=UTC)},
    '{"window":{"start":"9999-12-31T23:59:59.999999Z"},"day":"9999-12-31"}': {
        "start": datetime.max.replace(tzinfo=UTC),
        "day": date.max,
    },
    '{"window":null,"n":null,"j":null,"more":1}': {},
    "{}": {},
    ' {"n": 9223372036854775807} ': {"n": 9223372036854775807},
    '{"n":-9223372036854775808}': {"n": -9223372036854775808},
    '{"n":"12"}': {"n": 12},
    '{"n":12.0}': {"n": 12},
    '{"text":"grüße 🦆"}': {"text": "grüße 🦆"},
    '{"text":"a\\u0000b"}': {"text": "a\0b"},
    '{"text":1.50}': {"text": "1.50"},
    '{"d":0.1}': {"d": 0.1},
    '{"d":"Infinity"}': {"d": float("inf")},
    '{"b":false}': {"b": False},
    '{"price":12345678901234567890.123456789012345678}': {"price": Decimal("12345678901234567890.123456789012345678")},
    '{"price":0E-18}': {"price": Decimal(0)},
    '{"price":"1.50"}': {"price": Decimal("1.5")},
    '{"small":999.9900}': {"small": Decimal("999.99")},
    '{"day":"2026-02-28"}': {"day": date(2026, 2, 28)},
    '{"j":{"a":[1,2.50,12345678901234567890.5],"b":null}}': {"j": '{"a":[1,2.50,12345678901234567890.5],"b":null}'},
    '{"j":"text"}': {"j": '"text"'},
}
BAD = {
    "": "it is not a JSON object",
    "nonsense": "it is not a JSON object",
    '{"n":1} {"n":2}': "it is not a JSON object",
    "[1]": "it is not a JSON object",
    "5": "it is not a JSON object",
    "null": "it is not a JSON object",
    '{"text":"a\0b"}': "it is not a JSON object",
    '{"text":"\\ud800"}': "it is not a JSON object",
    '{"window":5}': "window is not a JSON object",
    '{"window":{"start":5}}': "start is not a timestamp: 5",
    '{"window":{"start":"infinity"}}': "start is not a timestamp: infinity",
    '{"window":{"start":"12026-01-01T00:00:00Z"}}': "start is not a timestamp: 12026-01-01T00:00:00Z",
    '{"window":{"start":"0001-01-01T00:00:00+14:00"}}': "start is not a timestamp: 0001-01-01T00:00:00+14:00",
    '{"window":{"start":"9999-12-31T23:59:59-00:01"}}': "start is not a timestamp: 9999-12-31T23:59:59-00:01",
    '{"n":1.5}': "n is not a bigint: 1.5",
    '{"n":"abc"}': "n is not a bigint: abc",
    '{"n":true}': "n is not a bigint: true",
    '{"n":9223372036854775808}': "n is not a bigint: 9223372036854775808",
    '{"d":"x"}': "d is not a double: x",
    '{"d":1e400}': "d is not a double: 1e400",
    '{"b":1}': "b is not a boolean: 1",
    '{"small":1000}': "small is not a decimal(5,2): 1000",
    '{"small":1.505}': "small is not a decimal(5,2): 1.505",
    '{"price":1.0000000000000000001}': "price is not a decimal(38,18): 1.0000000000000000001",
    '{"day":"2026-13-01"}': "day is not a date: 2026-13-01",
    '{"day":"12026-01-01"}': "day is not a date: 12026-01-01",
    '{"day":"0000-01-01"}': "day is not a date: 0000-01-01",
}


@pytest.mark.parametrize("value", GOOD)
def test_what_fits_is_kept_as_it_is_written(database: duckdb.DuckDBPyConnection, value: str) -> None:
    assert shaped(database, value) == GOOD[value]


@pytest.mark.parametrize("value", BAD)
def test_what_does_not_fit_is_told_with_its_reason(database: duckdb.DuckDBPyConnection, value: str) -> None:
    assert shaped(database, value) == BAD[value]


def test_not_a_number_is_a_double(database: duckdb.DuckDBPyConnection) -> None:
    found = shaped(database, '{"d":"NaN"}')
    assert isinstance(found, dict)
    assert found["d"] != found["d"]  # which is what it is


def test_names_that_sql_knows_are_only_names(database: duckdb.DuckDBPyConnection) -> None:
    names = ("select", "at", 'quo"te', "it's", "with space", "a.b", "grüße")
    table = TableSpec("t", "topic", tuple(column(name, "bigint") for name in names))
    value = "{" + ",".join(f'"{each}":{number}' for number, each in enumerate(names)).replace('quo"', 'quo\\"') + "}"
    columns = block("topic", [(0, 0, value.encode())]).topics["topic"]
    database.register("batch", build_batch(table, columns, {}).records)
    assert database.sql(build_projection(table, "batch").rows).fetchall()[0][: len(names)] == tuple(range(len(names)))
