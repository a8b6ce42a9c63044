"""The kit that users test their streams with, on a real Spark."""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

import riverrun as rr
from riverrun.errors import PipelineError, StreamCodeError, StreamFailedError, UsageError
from riverrun.testing import DeadRow, StreamTest

# A busy machine takes its time.
pytestmark = pytest.mark.timeout(600)

Make = Callable[..., StreamTest]


class Reading(rr.Event):
    house_id: str = rr.key()
    load_kw: float = rr.field(ge=0)
    at: datetime = rr.event_time(late="1 minute")


def minute(number: int, second: int = 0) -> datetime:
    return datetime(2026, 1, 1, 0, number, second, tzinfo=UTC)


def reading(house: str, load: float, number: int, second: int = 0) -> Reading:
    return Reading(house_id=house, load_kw=load, at=minute(number, second))


def row(house: str, load: float, number: int) -> dict[str, object]:
    return {"minute": {"start": minute(number), "end": minute(number + 1)}, "house_id": house, "load_kw": load}


def averages(**options: str) -> rr.App:
    app = rr.App("meters")
    app.topic("readings", Reading)

    @app.stream(**options)  # type: ignore[call-overload,untyped-decorator]
    def house_load(readings: DataFrame) -> DataFrame:
        return readings.groupBy(F.window("at", "1 minute").alias("minute"), "house_id").agg(
            F.avg("load_kw").alias("load_kw")
        )

    @app.stream
    def high(house_load: DataFrame) -> DataFrame:
        return house_load.where("load_kw > 2")

    return app


def test_rows_are_the_newest_of_each_key_and_changes_are_all(stream_test: Make) -> None:
    t = stream_test(averages())
    t.send("readings", reading("a", 1.0, 0), reading("b", 5.0, 0))
    assert t.rows("house_load") == [row("a", 1.0, 0), row("b", 5.0, 0)]
    t.send("readings", reading("a", 3.0, 0, 30))
    assert t.rows("house_load") == [row("a", 2.0, 0), row("b", 5.0, 0)]
    assert t.changes("house_load") == [row("a", 1.0, 0), row("b", 5.0, 0), row("a", 2.0, 0)]
    assert t.rows("high") == [row("b", 5.0, 0)]
    assert t.batch("house_load") == t.rows("house_load")
    assert t.batch("high") == t.rows("high")


def test_final_rows_come_when_the_time_is_over(stream_test: Make) -> None:
    t = stream_test(averages(emit="final"))
    t.send("readings", reading("a", 1.0, 0), {"house_id": "a", "load_kw": 2, "at": minute(0, 10)})
    t.advance("2026-01-01T00:01:59Z")
    assert t.rows("house_load") == []
    t.advance(readings="2026-01-01T00:02:00Z")
    assert t.rows("house_load") == [row("a", 1.5, 0)]
    t.send("readings", reading("a", 100.0, 0, 59), reading("b", 3.0, 1))
    t.advance("2026-01-01T00:03:00Z")
    assert t.rows("house_load") == [row("a", 1.5, 0), row("b", 3.0, 1)]
    account = t.record_counts("house_load")
    assert (account.read, account.late, account.out, account.exact) == (4, 1, 2, False)


def test_records_that_are_no_good_are_dead(stream_test: Make) -> None:
    app = rr.App("meters")
    app.topic("readings", Reading)
    app.sql("high", "select * from readings where load_kw > 2")
    t = stream_test(app)
    t.send("readings", b"{", {"house_id": "a", "load_kw": -1, "at": minute(0)}, reading("b", 3.0, 0), key="b")
    t.send("readings", reading("c", 1.0, 0))
    assert t.rows("high") == [{"house_id": "b", "load_kw": 3.0, "at": minute(0)}]
    assert t.dead("readings") == [
        DeadRow(b"{", "input data was truncated"),
        DeadRow(b'{"house_id":"a","load_kw":-1,"at":"2026-01-01T00:00:00Z"}', "$.load_kw: expected `float` >= 0.0"),
    ]
    account = t.record_counts("high")
    assert (account.read, account.dead_letters, account.filtered, account.out) == (4, 2, 1, 1)
    assert account.exact
    assert account.balanced


def test_a_pipeline_file_can_be_named(stream_test: Make, tmp_path: Path) -> None:
    (tmp_path / "houses.csv").write_text("house_id,street\na,Main\n")
    (tmp_path / "factor.py").write_text("def double(x):\n    return x * 2\n")
    file = tmp_path / "meters.py"
    file.write_text(
        "from pyspark.sql import functions as F\n"
        "import riverrun as rr\n"
        "from factor import double\n"
        "app = rr.App('meters')\n"
        "class Reading(rr.Event):\n"
        "    house_id: str = rr.key()\n"
        "    load_kw: float\n"
        "app.topic('readings', Reading)\n"
        "app.table('houses', rr.csv('houses.csv'), key='house_id')\n"
        "@F.udf('double')\n"
        "def twice(x):\n"
        "    return double(x)\n"
        "@app.stream\n"
        "def street_load(readings, houses):\n"
        "    return readings.join(houses, 'house_id').select('street', twice('load_kw').alias('load_kw'))\n"
    )
    t = stream_test(file)
    t.send("readings", {"house_id": "a", "load_kw": 1.0}, {"house_id": "x", "load_kw": 1.0})
    assert t.rows("street_load") == [{"street": "Main", "load_kw": 2.0}]


def test_a_table_of_a_database_has_the_columns_that_are_remembered(stream_test: Make, tmp_path: Path) -> None:
    (tmp_path / ".riverrun").mkdir()
    columns = {"columns": [["id", "integer"], ["name", "text"]], "key": ["id"], "group": 1}
    (tmp_path / ".riverrun" / "postgres.json").write_text(json.dumps({"|public.houses": columns}))
    (tmp_path / "shop.py").write_text(
        """
import riverrun as rr

app = rr.App("shop")

class Move(rr.Event):
    house: int = rr.key()

app.topic("moves", Move)
app.table("houses", rr.postgres("houses"))
app.sql("moved", "select house, name from moves join houses on house = id", key="house")
"""
    )
    t = stream_test(tmp_path / "shop.py")
    t.send("shop.houses", {"id": 1, "name": "Main Street 1"}, key="1")
    t.send("moves", {"house": 1}, key="1")
    assert t.rows("moved") == [{"house": 1, "name": "Main Street 1"}]


def test_a_function_that_raises_is_told_with_its_line(stream_test: Make) -> None:
    app = rr.App("meters")
    app.topic("readings", Reading)

    @F.udf("double")
    def inverse(load: float) -> float:
        return 1 / load

    @app.stream
    def inverses(readings: DataFrame) -> DataFrame:
        return readings.select("house_id", inverse("load_kw").alias("x"))

    t = stream_test(app)
    t.send("readings", reading("a", 0.0, 0))
    with pytest.raises(StreamCodeError, match=r"test_stream_kit.py:\d+: .* in inverse\(\): ZeroDivisionError"):
        t.rows("inverses")


def test_what_is_wrong_with_the_app_or_a_name_is_said(stream_test: Make) -> None:
    app = rr.App("meters")
    app.topic("readings", Reading)
    app.sql("high", "select hous_id from readings")
    with pytest.raises(PipelineError, match="Did you mean house_id"):
        stream_test(app)
    t = stream_test(averages())
    with pytest.raises(UsageError, match="Did you mean readings"):
        t.send("reading", b"")
    with pytest.raises(UsageError, match="Did you mean house_load"):
        t.rows("house_lod")
    with pytest.raises(UsageError, match="no time zone"):
        t.advance(readings=datetime(2026, 1, 1))  # noqa: DTZ001


def test_a_stream_that_takes_too_long_is_given_up(spark: SparkSession, tmp_path: Path) -> None:
    with StreamTest(averages(), spark, tmp_path, seconds=0.001) as t:
        t.send("readings", reading("a", 1.0, 0))
        for _ in range(2):
            with pytest.raises(StreamFailedError, match=r"house_load was not done after 0.001 s"):
                t.rows("house_load")


def test_values_come_back_as_python_has_them(stream_test: Make) -> None:
    app = rr.App("meters")
    app.topic("readings", Reading)
    app.topic("raw")
    app.sql(
        "kinds",
        """select house_id, at, cast(at as date) as day, cast(at as timestamp_ntz) as wall,
           cast('1.50' as decimal(9,2)) as price, array(1, 2) as list,
           map('a', 1.0D) as map, cast('x' as binary) as bytes, cast(null as int) as nothing,
           named_struct('inner', at) as struct from readings""",
    )
    app.sql("texts", "select cast(value as string) as text, cast(key as string) as k, offset from raw")
    t = stream_test(app)
    t.send("readings", reading("a", 1.0, 0, 30))
    t.send("raw", "one", b"two", key="k")
    at = minute(0, 30)
    assert t.rows("kinds") == [
        {
            "house_id": "a",
            "at": at,
            "day": at.date(),
            "wall": at.replace(tzinfo=None),
            "price": Decimal("1.50"),
            "list": [1, 2],
            "map": {"a": 1.0},
            "bytes": b"x",
            "nothing": None,
            "struct": {"inner": at},
        }
    ]
    assert t.rows("texts") == [{"text": "one", "k": "k", "offset": 0}, {"text": "two", "k": "k", "offset": 1}]
    assert t.dead("raw") == []


def test_fields_may_have_the_names_of_kafkas_own_columns(stream_test: Make) -> None:
    class Measured(rr.Event):
        key: str = rr.key()
        value: float = rr.field(ge=0)
        offset: int
        partition: str
        topic: str
        timestamp: datetime = rr.event_time(late="1 minute")

    app = rr.App("plant")
    app.topic("measured", Measured)
    app.sql("large", "select key, value, offset, partition, topic, timestamp from measured where value > 1")
    test = stream_test(app)
    good = {"key": "a", "value": 2.0, "offset": 7, "partition": "x", "topic": "y", "timestamp": "2026-01-01T00:00:00Z"}
    test.send("measured", good, good | {"value": 0.5}, good | {"value": -1})
    assert [(row["offset"], row["partition"], row["topic"]) for row in test.rows("large")] == [(7, "x", "y")]
    assert len(test.dead("measured")) == 1
