"""Streams whose shuffle breaks the order of a key's rows say so where somebody depends on it; what is recommended helps."""

from collections.abc import Callable
from datetime import datetime

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

import riverrun as rr
from riverrun.config import KafkaSettings
from riverrun.kafka.connection import Connection
from riverrun.streams.compile.compiler import compile_app
from riverrun.streams.compile.sources import KafkaRecordSource
from riverrun.streams.pipeline import build_checked_graph
from riverrun.testing import StreamTest

pytestmark = pytest.mark.timeout(600)
NOWHERE = Connection(KafkaSettings(bootstrap_servers="127.0.0.1:1"))


class Report(rr.Event):
    fridge_id: str = rr.key()
    report_id: str
    celsius: float
    at: datetime = rr.event_time(late="1 minute")


def fridges(*columns: str, alert: bool = False, table: bool = False) -> rr.App:
    app = rr.App("fridges")
    app.topic("reports", Report, partitions=2)

    @app.stream(key="fridge_id")
    def once(reports: DataFrame) -> DataFrame:
        return reports.dropDuplicatesWithinWatermark(list(columns)) if columns else reports.where("celsius > -50")

    if alert:
        app.alert("warm", once, when="celsius > 8", to="someone", text="{fridge_id}")
    if table:
        app.store(once, name="newest", key="fridge_id")
    return app


def order_note(app: rr.App, spark: SparkSession, name: str = "once") -> str:
    done = compile_app(build_checked_graph(app), spark, KafkaRecordSource(spark, NOWHERE))
    assert not done.problems
    return done.streams[name].order_note


def test_a_deduplicated_stream_says_who_depends_on_its_order(spark: SparkSession) -> None:
    note = order_note(fridges("report_id", alert=True, table=True), spark)
    assert "Spark splits them by report_id: the alert warm ignores a row" in note
    assert "and the table newest may show an older row" in note
    assert "groupBy(fridge_id).agg(F.max(at), F.max_by(COLUMN, at))" in note
    # The key among the columns does not help: Spark splits by all of them together.
    assert "fridge_id, report_id" in order_note(fridges("fridge_id", "report_id", table=True), spark)
    assert order_note(fridges("fridge_id", table=True), spark) == ""
    assert order_note(fridges("report_id"), spark) == "", "nobody depends on it"
    assert order_note(fridges(alert=True, table=True), spark) == "", "without a shuffle rows stay in order"


def test_joined_streams_are_split_by_what_they_are_joined_on(spark: SparkSession) -> None:
    for on, disordered in (("report_id", True), ("fridge_id", False)):
        app = rr.App("fridges")
        for name in ("reports", "checks"):
            app.topic(name, Report)
        joined = app.sql(
            "joined",
            f"select a.fridge_id, a.at, b.celsius from reports a join checks b on a.{on} = b.{on} "  # noqa: S608
            "and b.at between a.at and a.at + interval 1 minute",
            key="fridge_id",
        )
        app.store(joined, key="fridge_id")
        assert bool(order_note(app, spark, "joined")) == disordered, on


def test_the_newest_row_of_a_key_is_the_newest_in_whatever_order_they_come(
    stream_test: Callable[..., StreamTest],
) -> None:
    app = fridges("report_id")

    @app.stream
    def newest(once: DataFrame) -> DataFrame:
        return once.groupBy("fridge_id").agg(F.max("at").alias("at"), F.max_by("celsius", "at").alias("celsius"))

    t = stream_test(app)
    for second in (30, 10, 50, 20, 40):
        t.send(
            "reports",
            {"fridge_id": "F1", "report_id": f"r{second}", "celsius": second / 10, "at": f"2026-01-01T00:00:{second}Z"},
        )
    assert t.query("select fridge_id, celsius from newest") == [{"fridge_id": "F1", "celsius": 5.0}]
