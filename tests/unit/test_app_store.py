"""`app.store`: what a pipeline file says of the tables its results become, and what is refused."""

import pytest

import riverrun as rr
from riverrun.errors import DeclarationError


class Reading(rr.Event):
    house_id: str = rr.key()
    load_kw: float


def app_with_stream() -> tuple[rr.App, rr.Stream]:
    app = rr.App("meters")
    app.topic("readings", Reading)
    return app, app.sql("high_load", "select * from readings where load_kw > 2")


def test_what_is_said_is_remembered() -> None:
    app, stream = app_with_stream()
    kept = app.store(stream, name="high", key="house_id", retention="30 days", segment="day", granularity="minute")
    assert app.table_options == {"high": kept}
    assert (kept.source, kept.table, kept.key, kept.retention) == ("high_load", "high", ("house_id",), "30 days")
    assert str(kept.line).startswith("test_app_store.py:")


def test_a_topic_can_be_a_table() -> None:
    app, _ = app_with_stream()
    assert app.store(app.topics["readings"]).table == "readings"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"retention": "a while"}, "retention of the table high_load"),
        ({"segment": "fortnight"}, "segment='fortnight'"),
        ({"granularity": "ms"}, "granularity='ms'"),
        ({"rollup": {"load_kw": "median"}}, "roll up by 'median'"),
        ({"name": "not a name"}, "'not a name' cannot be the name of a table of the store"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, object], said: str) -> None:
    app, stream = app_with_stream()
    with pytest.raises(DeclarationError) as caught:
        app.store(stream, **options)  # type: ignore[arg-type]
    assert said in str(caught.value)


def test_two_tables_of_one_name_are_refused() -> None:
    app, stream = app_with_stream()
    app.store(stream)
    with pytest.raises(DeclarationError, match="declared twice"):
        app.store(app.topics["readings"], name="high_load")


def test_a_name_is_no_source() -> None:
    app, _ = app_with_stream()
    with pytest.raises(DeclarationError, match=r"app\.store cannot keep 'high_load'"):
        app.store("high_load")  # type: ignore[arg-type]
