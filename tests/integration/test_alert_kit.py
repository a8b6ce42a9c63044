"""Rules tested as a user tests them: rows in, messages out, by event time, with nothing to wait for."""

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

import riverrun as rr
from riverrun.errors import PipelineError, UsageError
from riverrun.testing import AlertNotification, StreamTest

pytestmark = pytest.mark.timeout(600)

Make = Callable[..., StreamTest]
OPS = "+353860000000"
PAGE = Path(__file__).parents[2] / "docs" / "alerts.md"


class Reading(rr.Event):
    house_id: str = rr.key()
    load_kw: float
    zone: str = "Europe/Dublin"
    at: datetime = rr.event_time(late="1 minute")


def at(clock: str, day: int = 15) -> datetime:
    hour, minute = clock.split(":")
    return datetime(2026, 1, day, int(hour), int(minute), tzinfo=UTC)


def reading(house: str, load: float, clock: str, **more: Any) -> Reading:
    return Reading(house_id=house, load_kw=load, at=at(clock), **more)


def meters(name: str = "overload", watched: str = "readings", **options: Any) -> rr.App:
    app = rr.App("meters")
    app.topic("readings", Reading)
    app.sql("loads", "select house_id, load_kw, at from readings")
    given = {"to": [OPS], "text": "{house_id} {load_kw:.1f}", **options}
    if "silent" not in given:
        given = {"when": "load_kw > 2.0", **given}
    app.alert(name, watched, **given)
    return app


def told(messages: list[AlertNotification]) -> list[tuple[str, str, datetime]]:
    return [(message.kind, message.text, message.at) for message in messages]


def test_hysteresis_and_resolved(stream_test: Make) -> None:
    t = stream_test(meters(clear="load_kw < 1.8", resolved="{house_id} is back"))
    t.send("readings", reading("h1", 2.1, "12:00"), reading("h1", 1.9, "12:01"), reading("h1", 2.2, "12:02"))
    [first] = t.alerts("overload")
    assert first == AlertNotification("overload", "fired", "h1", OPS, "h1 2.1", at("12:00"))
    t.send("readings", reading("h1", 1.7, "12:03"), reading("h1", 2.3, "12:04"))
    assert told(t.alerts("overload")) == [
        ("fired", "h1 2.1", at("12:00")), ("resolved", "h1 is back", at("12:03")), ("fired", "h1 2.3", at("12:04")),
    ]  # fmt: skip


def test_lasting(stream_test: Make) -> None:
    t = stream_test(meters(lasting="2 minutes"))
    t.send("readings", reading("h1", 3, "12:00"), reading("h1", 1, "12:01"), reading("h1", 3, "12:02"))
    t.send("readings", reading("h1", 3, "12:03"))
    assert t.alerts("overload") == []
    t.send("readings", reading("h1", 3, "12:04"))
    assert told(t.alerts("overload")) == [("fired", "h1 3.0", at("12:04"))]


def test_quiet_hours_of_the_receivers_zone(stream_test: Make) -> None:
    t = stream_test(meters(quiet=rr.quiet("22:00", "07:00", zone="zone")))
    t.send("readings", reading("dublin", 3, "23:00"), reading("new-york", 3, "23:00", zone="America/New_York"))
    assert [alert.key for alert in t.alerts("overload")] == ["new-york"]
    held = [alert for alert in t.alerts("overload", unsent=True) if alert.stage != "sent"]
    assert [(each.key, each.stage, each.note) for each in held] == [("dublin", "held", "quiet hours")]
    t.advance(at("06:59", day=16))
    assert len(t.alerts("overload")) == 1
    t.advance(at("12:00", day=16))
    assert told(t.alerts("overload"))[1:] == [("fired", "dublin 3.0", at("07:00", day=16))]


def test_a_digest(stream_test: Make) -> None:
    t = stream_test(meters(digest=rr.digest(most=2, within="1 minute")))
    t.send("readings", *(reading(f"h{number}", 3, "12:00") for number in range(5)))
    assert [alert.kind for alert in t.alerts("overload")] == ["fired", "fired"]
    t.advance("2026-01-15T12:05:00Z")
    digest = t.alerts("overload")[-1]
    assert (digest.kind, digest.at) == ("digest", at("12:01"))
    assert digest.text == "3 alerts:\n- h2 3.0\n- h3 3.0\n- h4 3.0"


def test_escalation_unless_somebody_acknowledges(stream_test: Make) -> None:
    t = stream_test(meters(escalate=rr.escalate(after="10 minutes", to=["+353861111111"])))
    t.send("readings", reading("h1", 3, "12:00"), reading("h2", 3, "12:01"))
    t.acknowledge("overload", "h1")
    t.advance(at("12:30"))
    [*_, last] = t.alerts("overload")
    assert len(t.alerts("overload")) == 3
    assert (last.kind, last.key, last.receiver, last.at) == ("escalated", "h2", "+353861111111", at("12:11"))
    with pytest.raises(UsageError, match="does not fire for 'h3'"):
        t.acknowledge("overload", "h3")


def test_silences(stream_test: Make) -> None:
    t = stream_test(meters())
    t.advance(at("12:00"))
    t.silence("overload", key="h1", lasting="1 hour", why="being rewired")
    t.send("readings", reading("h1", 3, "12:10"), reading("h2", 3, "12:10"), reading("h1", 1, "12:59"))
    t.send("readings", reading("h1", 3, "13:00"))
    assert [(alert.key, alert.at) for alert in t.alerts("overload")] == [("h2", at("12:10")), ("h1", at("13:00"))]
    [silenced] = [alert for alert in t.alerts(unsent=True) if alert.stage == "silenced"]
    assert "being rewired" in silenced.note


def test_absence(stream_test: Make) -> None:
    t = stream_test(
        meters("silent", silent="15 minutes", text="{house_id} was last heard at {at:%H:%M}", resolved="back")
    )
    t.send("readings", reading("h1", 1, "12:00"), reading("h2", 1, "12:10"))
    t.advance(at("12:14"))
    assert t.alerts("silent") == []
    t.send("readings", reading("h2", 1, "12:20"))
    assert told(t.alerts("silent")) == [("fired", "h1 was last heard at 12:00", at("12:20"))]
    t.send("readings", reading("h1", 1, "12:21"))
    t.advance(at("12:40"))
    assert [(alert.kind, alert.key, alert.at) for alert in t.alerts("silent")][1:] == [
        ("resolved", "h1", at("12:21")), ("fired", "h2", at("12:35")), ("fired", "h1", at("12:36")),
    ]  # fmt: skip


def test_over_the_windows_of_a_stream(stream_test: Make) -> None:
    """What a house draws on average, minute by minute; a rule over it, and the cooldown between two of its episodes."""
    app = meters(watched="house_load", cooldown="10 minutes", text="{house_id} {load_kw:.1f} at {minute:%H:%M}")

    @app.stream(emit="final")
    def house_load(readings: DataFrame) -> DataFrame:
        minute = F.window("at", "1 minute").alias("minute")
        return readings.groupBy(minute, "house_id").agg(F.avg("load_kw").alias("load_kw"))

    t = stream_test(app)
    loads = {"12:00": (1.0, 5.0), "12:05": (1.0,), "12:06": (4.0,), "12:12": (4.0,)}
    t.send("readings", *(reading("h1", load, clock) for clock, several in loads.items() for load in several))
    t.advance(at("12:30"))
    assert [alert.text for alert in t.alerts("overload")] == ["h1 3.0 at 12:00", "h1 4.0 at 12:12"]


class HouseNow(rr.Event):
    house_id: str = rr.key()
    owner: str
    phone: str
    load_kw: float
    at: datetime = rr.event_time()


def test_the_tests_that_the_page_shows(stream_test: Make) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    namespace: dict[str, Any] = {}
    for block in blocks:
        exec(block, namespace)  # noqa: S102  -- our own documentation
    namespace["app"].topic("house_now", HouseNow)
    namespace["app"].sql("loads", "select house_id, load_kw, at from house_now")
    tests = [name for name in namespace if name.startswith("test_")]
    assert len(tests) == 2
    for name in tests:
        namespace[name](stream_test)


def test_what_is_wrong_is_said(stream_test: Make) -> None:
    t = stream_test(meters())
    with pytest.raises(UsageError, match=r"no alert overlod.*Did you mean overload"):
        t.alerts("overlod")
    with pytest.raises(UsageError, match="what time it is"):
        t.silence(lasting=timedelta(hours=1))
    t = stream_test(meters(text="{lod_kw}"))
    t.send("readings", reading("h1", 3, "12:00"))
    with pytest.raises(PipelineError, match="Did you mean load_kw"):
        t.alerts()
