"""Questions and tiles over the rows of the test kit; and streams that only history can answer."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

import riverrun as rr
from riverrun.config import Settings
from riverrun.errors import PipelineError, QueryError, UsageError
from riverrun.model.pipeline import Speed
from riverrun.streams.run.planner import plan_streams
from riverrun.testing import StreamTest

pytestmark = pytest.mark.timeout(600)

BEGIN = datetime(2026, 1, 15, 12, 0, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


class Reading(rr.Event):
    house_id: str = rr.key()
    load_kw: float = rr.field(ge=0)
    at: datetime = rr.event_time(late="1 minute")


def meters() -> rr.App:
    app = rr.App("meters")
    readings = app.topic("readings", Reading)
    app.store(readings, name="newest_reading", key="house_id")

    @app.stream
    def house_load(readings: DataFrame) -> DataFrame:
        minute = F.window("at", "1 minute").alias("minute")
        return readings.groupBy(minute, "house_id").agg(F.avg("load_kw").alias("load_kw"))

    app.dashboard(
        rr.number("City load", "select sum(load_kw) as kw from house_load where minute = latest"),
        rr.line("Load", house_load, by="house_id"),
        rr.rows(
            "High houses", "select house_id, max(load_kw) as kw from house_load group by house_id order by kw desc"
        ),
    )
    return app


def reading(house: str, load_kw: float, minute: int = 0) -> Reading:
    return Reading(house_id=house, load_kw=load_kw, at=BEGIN + minute * MINUTE)


def test_a_question_is_asked_of_the_rows(stream_test: Callable[..., StreamTest]) -> None:
    t = stream_test(meters())
    t.send(
        "readings", reading("h1", 1.0), reading("h1", 2.0), reading("h2", 3.0), b"nothing", reading("h1", 5.0, minute=1)
    )
    asked = "select minute, minute_end, sum(load_kw) as kw from house_load group by minute, minute_end order by minute"
    assert t.query(asked) == [
        {"minute": BEGIN, "minute_end": BEGIN + MINUTE, "kw": 4.5},
        {"minute": BEGIN + MINUTE, "minute_end": BEGIN + 2 * MINUTE, "kw": 5.0},
    ]
    # A topic that is kept by key: the newest good record of each.
    newest = t.query("select house_id, load_kw from newest_reading order by house_id")
    assert newest == [{"house_id": "h1", "load_kw": 5.0}, {"house_id": "h2", "load_kw": 3.0}]

    assert t.tile("City load") == [{"kw": 5.0}]
    assert t.tile("High houses", house_id="h2") == [{"house_id": "h2", "kw": 3.0}]
    assert sorted(row["house_id"] for row in t.tile("Load")) == ["h1", "h1", "h2"]

    t.send("readings", reading("h1", 8.0, minute=1))
    assert t.tile("City load") == [{"kw": 6.5}]


def test_what_is_not_there_is_said(stream_test: Callable[..., StreamTest]) -> None:
    t = stream_test(meters())
    with pytest.raises(UsageError, match="has no tile 'City lode'") as caught:
        t.tile("City lode")
    assert "City load" in caught.value.hint
    with pytest.raises(QueryError, match="loads"):
        t.query("select * from loads")
    assert t.query("select count(*) as n from house_load") == [{"n": 0}]


def history(speed: Speed | None = None) -> rr.App:
    app = rr.App("history")
    app.topic("readings", Reading)
    asked = "select load_kw > 2 as high, count(distinct house_id) as houses from readings group by load_kw > 2"
    app.sql("houses_by_load", asked, key="high", speed=speed)
    return app


def test_a_question_about_history_may_ask_what_no_stream_can(stream_test: Callable[..., StreamTest]) -> None:
    with pytest.raises(PipelineError, match="Distinct aggregations"):
        stream_test(history())
    t = stream_test(history(speed="batch"))
    t.send("readings", reading("h1", 1.0), reading("h1", 3.0), reading("h2", 3.0), reading("h2", 4.0))
    rows = {row["high"]: row["houses"] for row in t.batch("houses_by_load")}
    assert rows == {False: 1, True: 2}
    # Whatever is asked for.
    plan = plan_streams(t._compilation, Settings(), slots=4, speed="real-time").for_stream("houses_by_load")
    assert plan.speed == "batch"
    assert "Distinct aggregations" in plan.reason
