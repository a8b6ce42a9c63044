"""Sources and sinks in the pipeline file."""

import pytest

import riverrun as rr
from riverrun.errors import DeclarationError


class Reading(rr.Event):
    house_id: str = rr.key()
    load_kw: float = 0.0


def test_a_source_is_named_after_its_topic() -> None:
    app = rr.App("meters")
    readings = app.topic("readings", Reading)
    fed = app.source(readings, rr.Source())
    assert (fed.name, fed.topic) == ("readings", "readings")
    assert app.sources == {"readings": fed}
    assert fed.line.file == __file__


def test_a_second_source_of_a_topic_needs_a_name_of_its_own() -> None:
    app = rr.App("meters")
    readings = app.topic("readings", Reading)
    app.source(readings, rr.Source())
    with pytest.raises(DeclarationError, match="The connector readings is declared twice"):
        app.source(readings, rr.Source())
    assert app.source(readings, rr.Source(), name="more").name == "more"


def test_a_source_fills_a_topic_of_the_app() -> None:
    app, other = rr.App("meters"), rr.App("other")
    with pytest.raises(DeclarationError, match="cannot fill"):
        app.source(other.topic("readings", Reading), rr.Source())


def test_what_is_no_connector_is_refused() -> None:
    app = rr.App("meters")
    readings = app.topic("readings", Reading)
    with pytest.raises(DeclarationError, match="cannot come from 'mqtt'"):
        app.source(readings, "mqtt")  # type: ignore[arg-type]
    with pytest.raises(DeclarationError, match="cannot go to 'jdbc'"):
        app.sink(readings, "jdbc")  # type: ignore[arg-type]


def test_a_sink_takes_the_rows_of_a_stream() -> None:
    app = rr.App("meters")
    app.topic("readings", Reading)
    high = app.sql("high", "select * from readings where load_kw > 2")
    assert app.sink(high, rr.Sink()).upstream == "high"
    with pytest.raises(DeclarationError, match="The connector high is declared twice"):
        app.sink(high, rr.Sink())
