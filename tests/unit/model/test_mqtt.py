"""What a pipeline file may say of MQTT."""

from typing import Any

import pytest

import riverrun as rr
from riverrun.errors import DeclarationError
from riverrun.model.connectors.mqtt import without_share_prefix


def test_one_filter_or_several() -> None:
    assert rr.mqtt("meters/+/load").topic_filters == ("meters/+/load",)
    assert rr.mqtt(["meters/#", "$share/bridges/doors/+"]).topic_filters == ("meters/#", "$share/bridges/doors/+")


@pytest.mark.parametrize("good", ["#", "+", "+/+", "/", "a//b", "meters/#", "$share/x/meters/+", "$SYS/#", "häuser/+"])
def test_filters_that_mqtt_knows(good: str) -> None:
    assert rr.mqtt(good).topic_filters == (good,)


@pytest.mark.parametrize(
    "bad",
    [
        "",
        [],
        "meters/#/load",
        "meters/lo#",
        "meters/h+/load",
        "$share/x",
        "$share//a",
        "$share/+/a",
        "a\0b",
        "x" * 70_000,
    ],
)
def test_filters_that_are_none(bad: Any) -> None:
    with pytest.raises(DeclarationError):
        rr.mqtt(bad)


def test_a_shared_filter_is_matched_without_its_name() -> None:
    assert without_share_prefix("$share/bridges/meters/+/load") == "meters/+/load"
    assert without_share_prefix("meters/+/load") == "meters/+/load"


def test_levels_must_be_there() -> None:
    assert rr.mqtt("meters/+/load", fields={"house_id": 1}).field_levels == {"house_id": 1}
    assert rr.mqtt("meters/#", fields={"house_id": 7}).field_levels == {"house_id": 7}
    assert rr.mqtt("$share/b/meters/+", key=1).key == 1
    with pytest.raises(DeclarationError, match="takes the field house_id from level 3") as caught:
        rr.mqtt("meters/+/load", fields={"house_id": 3})
    assert "0 to 2" in str(caught.value)
    with pytest.raises(DeclarationError, match="the key"):
        rr.mqtt(["meters/+", "meters"], key=1)


@pytest.mark.parametrize(
    "options",
    [
        {"fields": {"house_id": -1}}, {"fields": {"house_id": "1"}}, {"key": True}, {"key": ""}, {"qos": 2}, {"qos": -1},
        {"retained": "yes"}, {"in_flight": 0}, {"in_flight": 65_536}, {"keepalive_seconds": 0}, {"session": "soon"},
    ],
)  # fmt: skip
def test_options_that_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(DeclarationError):
        rr.mqtt("meters/+/load", **options)


def test_it_is_a_source_of_a_topic() -> None:
    app = rr.App("meters")
    fed = app.source(app.topic("readings"), rr.mqtt("meters/+/load"))
    assert (fed.name, fed.topic) == ("readings", "readings")


class Reading(rr.Event):
    house_id: str = rr.key()
    load_kw: float


def test_options_that_do_not_fit_the_events_are_refused_where_they_are_declared() -> None:
    app = rr.App("meters")
    readings = app.topic("readings", Reading)
    with pytest.raises(DeclarationError, match="hous_id, which Reading does not have") as caught:
        app.source(readings, rr.mqtt("meters/+", fields={"hous_id": 1}))
    assert "Did you mean 'house_id'?" in str(caught.value)
    with pytest.raises(DeclarationError, match="fills the field load"):
        app.source(readings, rr.mqtt("meters/+", value="load"))
    with pytest.raises(DeclarationError, match="bring their own"):
        app.source(readings, rr.mqtt("meters/+", key=1))
    assert app.sources == {}
