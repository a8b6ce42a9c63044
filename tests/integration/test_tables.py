"""What a store is told of an app's streams: columns, keys, whether rows are updated, how long they are kept."""

from datetime import date, datetime
from decimal import Decimal

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

import riverrun as rr
from riverrun.config import KafkaSettings, Settings
from riverrun.errors import DeclarationError, PipelineError
from riverrun.kafka.connection import Connection
from riverrun.model.table import Column, TableSpec
from riverrun.streams.compile.compiler import compile_app
from riverrun.streams.compile.sources import KafkaRecordSource
from riverrun.streams.compile.tables import alert_rules, build_tables
from riverrun.streams.pipeline import build_checked_graph
from riverrun.streams.run.planner import plan_streams

NOWHERE = Connection(KafkaSettings(bootstrap_servers="127.0.0.1:1"))


class Reading(rr.Event):
    house_id: str = rr.key()
    load_kw: float
    price: Decimal
    count: int
    good: bool
    day: date
    raw: bytes
    tags: list[str]
    at: datetime = rr.event_time(late="2 minutes")


class Bare(rr.Event):
    what: str


def made(app: rr.App, spark: SparkSession) -> dict[str, TableSpec]:
    done = compile_app(build_checked_graph(app), spark, KafkaRecordSource(spark, NOWHERE))
    return {each.name: each for each in build_tables(done)}


def app_of_readings() -> rr.App:
    app = rr.App("meters")
    app.topic("readings", Reading, partitions=4)
    return app


def test_an_aggregate_is_updated_by_its_key_and_its_window_is_its_start(spark: SparkSession) -> None:
    app = app_of_readings()

    @app.stream
    def house_load(readings: DataFrame) -> DataFrame:
        minute = F.window("at", "1 minute").alias("minute")
        return readings.groupBy(minute, "house_id").agg(F.avg("load_kw").alias("load_kw"))

    assert made(app, spark) == {
        "house_load": TableSpec(
            "house_load",
            "house_load",
            (
                Column("minute", "timestamp", ("minute", "start")),
                Column("minute_end", "timestamp", ("minute", "end")),
                Column("house_id", "text", ("house_id",)),
                Column("load_kw", "double", ("load_kw",)),
            ),
            key=("minute", "house_id"),
            upserts=True,
            time="minute",
        )
    }


def test_every_type_has_its_column_and_events_are_kept_all(spark: SparkSession) -> None:
    app = app_of_readings()
    app.sql("high_load", "select * from readings where load_kw > 2")
    table = made(app, spark)["high_load"]
    assert {column.name: column.type for column in table.columns} == {
        "house_id": "text", "load_kw": "double", "price": "decimal(38,18)", "count": "bigint", "good": "boolean",
        "day": "date", "raw": "text", "tags": "json", "at": "timestamp",
    }  # fmt: skip
    assert (table.key, table.upserts, table.time) == ((), False, "at")


def test_a_topic_is_a_table_when_it_is_asked_for(spark: SparkSession) -> None:
    app = app_of_readings()
    bare = app.topic("bare", Bare)
    app.sql("high_load", "select * from readings where load_kw > 2", store=False)
    app.store(bare, retention="1 hour")
    app.store(app.topics["readings"], name="newest", key="house_id")
    tables = made(app, spark)
    assert set(tables) == {"bare", "newest"}
    assert tables["bare"].columns[-1] == Column("recorded_at", "timestamp", ())
    assert (tables["bare"].time, tables["bare"].retention_ms) == ("recorded_at", 3_600_000)
    assert (tables["newest"].key, tables["newest"].upserts, tables["newest"].topic) == (("house_id",), True, "readings")


def test_the_one_row_of_an_aggregate_over_all_is_updated(spark: SparkSession) -> None:
    app = app_of_readings()
    app.sql("total", "select count(*) as readings from readings")
    table = made(app, spark)["total"]
    assert (table.key, table.upserts) == ((), True)


def test_what_app_store_cannot_mean_is_said_with_its_line(spark: SparkSession) -> None:
    app = app_of_readings()
    raw: rr.Topic[rr.Event] = app.topic("raw")
    high = app.sql("high_load", "select * from readings where load_kw > 2")
    app.store(high, key="house")
    app.store(raw)
    with pytest.raises(PipelineError) as caught:
        made(app, spark)
    first, second = caught.value.problems
    assert first.startswith("test_tables.py:")
    assert "has no column house, which key names" in first
    assert "raw, whose records have no type" in second


def test_alerts_are_held_against_what_they_watch(spark: SparkSession) -> None:
    app = app_of_readings()
    app.sql("house_load", "select window(at, '1 minute') as minute, house_id, avg(load_kw) as load_kw from readings "
                          "group by window(at, '1 minute'), house_id")  # fmt: skip
    app.alert("overload", "house_load", when="load_kw > 2", to=["+1"], text="{house_id} since {minute:%H:%M}")
    app.alert("reading", "readings", when="good", to=["+1"], text="{house_id}")
    done = compile_app(build_checked_graph(app), spark, KafkaRecordSource(spark, NOWHERE))
    build_tables(done)
    rules, wrong = alert_rules(done)
    assert wrong == []
    assert [(rule.name, rule.by, rule.table.upserts) for rule in rules] == [
        ("overload", ("house_id",), True),
        ("reading", ("house_id",), False),
    ]
    app.alert("wrong", "house_load", when="load_kwh > 2", to=["+1"], text="x")
    with pytest.raises(PipelineError) as caught:
        made(app, spark)
    assert "test_tables.py" in str(caught.value)
    assert "Did you mean load_kw?" in str(caught.value)


def test_what_reads_plain_json_refuses_a_topic_with_a_schema_registry(spark: SparkSession) -> None:
    app = rr.App("meters")
    readings = app.topic("readings", Reading, format="avro")
    app.topic("high", Reading, format="json-schema")
    app.sql("again", "select * from high")
    app.store(readings)
    app.sql("strong", "select * from readings where load_kw > 2", topic="high")
    app.sql("fine", "select * from readings where load_kw > 1")
    with pytest.raises(DeclarationError, match="are avro, and Kafka Connect reads plain JSON"):
        app.sink(readings, rr.jdbc("public.readings"))
    with pytest.raises(PipelineError) as caught:
        compile_app(build_checked_graph(app), spark, KafkaRecordSource(spark, NOWHERE, topics=app.topics)).require()
    assert "strong writes high, whose format is json-schema: streams write plain JSON" in str(caught.value)
    del app.streams["strong"]
    done = compile_app(build_checked_graph(app), spark, KafkaRecordSource(spark, NOWHERE, topics=app.topics))
    plan = plan_streams(done, Settings(), slots=100, speed="real-time")
    assert plan.for_stream("fine").reason == "real-time mode does not take readings in Avro, which Python opens"
    assert plan.for_stream("again").speed == "real-time"
    with pytest.raises(PipelineError, match="made of readings, whose format is avro: stores read plain JSON"):
        build_tables(done)
    watching = rr.App("meters")
    watching.topic("readings", Reading, format="avro")
    watching.sql("fine", "select * from readings where load_kw > 1")
    watching.alert("overload", "readings", when="load_kw > 2", to=["+353 20 910 0600"], text="{house_id}")
    with pytest.raises(PipelineError, match="watches readings, whose format is avro: alerts read plain JSON"):
        made(watching, spark)
