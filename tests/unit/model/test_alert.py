"""Declaring alerts: what is wrong is said when the file is read."""

from typing import Any

import pytest

import riverrun as rr
from riverrun.errors import DeclarationError


def declared(*, name: str = "overload", watched: Any = "house_now", **options: Any) -> rr.Alert:
    app = rr.App("meters")
    return app.alert(name, watched, **{"to": "phone", "text": "{house_id}", "when": "load_kw > 2", **options})


def test_an_alert_knows_what_it_was_told() -> None:
    app = rr.App("meters")
    readings: rr.Topic[rr.Event] = app.topic("readings")
    made = app.alert(
        "overload", readings, when="load_kw > 2.0", clear="load_kw < 1.8", by="house_id", lasting="2 minutes",
        to=rr.column_of("houses", "phone"), text="{house_id}", resolved="{house_id}", cooldown="1 hour",
        quiet=rr.quiet("22:00", "07:00", zone="Europe/Dublin"), digest=rr.digest(most=5, within="1 minute"),
        escalate=rr.escalate(after="10 minutes", to=["+353861234567"]), expires="10 minutes", severity="critical",
    )  # fmt: skip
    assert app.alerts == {"overload": made}
    assert (made.source, made.by, made.lasting_ms, made.cooldown_ms) == ("readings", ("house_id",), 120_000, 3_600_000)
    assert (made.expires_ms, made.channel, made.severity) == (600_000, "sms", "critical")
    assert str(made.line).startswith("test_alert.py:")
    with pytest.raises(DeclarationError, match="declared twice in the app meters: see test_alert"):
        app.alert("overload", readings, to="phone", text="x")


def test_what_is_not_said_has_a_default() -> None:
    made = declared()
    assert (made.severity, made.expires_ms, made.cooldown_ms, made.silent_ms) == ("warning", 3_600_000, 0, -1)
    assert declared(expires="forever").expires_ms == -1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"name": "Over load"}, "cannot be the name of an alert"),
        ({"wen": "x"}, "Did you mean 'when'?"),
        ({"to": ""}, "has no to="),
        ({"text": ""}, "has no text="),
        ({"to": "+353861234567"}, "A receiver itself: to=['+353861234567']"),
        ({"to": []}, "has no to="),
        ({"to": [1]}, "a list of receivers"),
        ({"lasting": "two minutes"}, "lasting cannot be understood"),
        ({"lasting": 5}, "a duration such as"),
        ({"cooldown": "forever"}, "cannot be for ever"),
        ({"severity": "warn"}, "Did you mean 'warning'?"),
        ({"quiet": "22:00"}, "what riverrun.quiet(…) gives"),
        ({"silent": "15 minutes"}, "has when= and silent="),
        ({"when": "", "clear": "load_kw < 1"}, "has clear= and no when="),
        ({"when": "", "lasting": "1 minute"}, "has lasting= and no when="),
        ({"when": "", "resolved": "over"}, "fires at every row"),
        ({"watched": 3}, "cannot watch 3"),
        ({"when": 3}, "cannot have when=3"),
    ],
)
def test_a_mistake_is_named(options: dict[str, Any], said: str) -> None:
    with pytest.raises(DeclarationError) as caught:
        declared(**options)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: rr.quiet("22", "07:00", zone="UTC"), "times such as"),
        (lambda: rr.quiet("25:00", "07:00", zone="UTC"), "times such as"),
        (lambda: rr.quiet("07:00", "07:00", zone="UTC"), "two times"),
        (lambda: rr.quiet("22:00", "07:00", zone="Europe/Dublim"), "Did you mean 'Europe/Dublin'?"),
        (lambda: rr.quiet("22:00", "07:00", zone="UTC", then="wait"), '"hold" or "drop"'),  # type: ignore[arg-type]
        (lambda: rr.digest(most=0, within="1 minute"), "from 1 on"),
        (lambda: rr.escalate(after="1 minute", to=[]), "a list of receivers"),
        (lambda: rr.column_of(3, "phone"), "a table of the app"),  # type: ignore[arg-type]
    ],
)
def test_a_mistake_in_its_manners_is_named(make: Any, said: str) -> None:
    with pytest.raises(DeclarationError) as caught:
        make()
    assert said in str(caught.value)


def test_a_zone_may_be_a_column() -> None:
    assert rr.quiet("22:00", "07:00", zone="zone").zone_column == "zone"
