"""Settings of Spark's session that depend on the machine and on what it is for."""

import pytest

import riverrun as rr
from riverrun.config import Settings
from riverrun.model.pipeline import Speed
from riverrun.streams import session
from riverrun.streams.graph import graph_of
from riverrun.streams.planner import all_in_real_time


@pytest.mark.parametrize(("cores", "master", "less"), [(2, "local[6]", True), (4, "local", True), (8, "local[9]", False),
                                                       (2, "spark://spark.example:7077", False)])  # fmt: skip
def test_one_compiler_where_cores_are_few(monkeypatch: pytest.MonkeyPatch, cores: int, master: str, less: bool) -> None:
    monkeypatch.setattr(session, "cores", lambda: cores)
    assert ("-XX:TieredStopAtLevel=1" in str(session.compiling_less(master))) is less


class Reading(rr.Event):
    house: str = rr.key()


@pytest.mark.parametrize(("speeds", "override", "expected"), [
    (("real-time", "real-time"), None, True),
    (("real-time", "near-real-time"), None, False),
    (("real-time", None), None, False),
    (("near-real-time", None), "real-time", True),
    (("real-time", "real-time"), "batch", False),
])  # fmt: skip
def test_all_streams_must_be_asked_for_in_real_time(
    speeds: tuple[Speed | None, ...], override: Speed | None, expected: bool
) -> None:
    app = rr.App("meters")
    app.topic("readings", Reading)
    for number, speed in enumerate(speeds):
        app.sql(f"s{number}", "SELECT * FROM readings", speed=speed)
    assert all_in_real_time(graph_of(app), Settings(), override) is expected
