"""Texts of messages: columns in braces, times in the receiver's zone, and values that can do no harm."""

from datetime import UTC, datetime
from decimal import Decimal
from zoneinfo import ZoneInfo

import pytest

from riverrun.alerts.template import MAX_CHARACTERS, parse_template
from riverrun.errors import DeclarationError
from support.watching import table

SUMMER = datetime(2026, 7, 1, 10, 5, tzinfo=UTC)


def filled(text: str, **row: object) -> str:
    return parse_template(text, table().columns, "text", "house_now").render(row, ZoneInfo("Europe/Dublin"))


@pytest.mark.parametrize(
    ("text", "row", "shown"),
    [
        ("{house_id}: {load_kw:.1f} kW", {"house_id": "h1", "load_kw": 2.345}, "h1: 2.3 kW"),
        ("{{{house_id}}}", {"house_id": "h1"}, "{h1}"),
        ("{load_kw:.1f}", {"load_kw": None}, "–"),  # noqa: RUF001
        ("{readings:,}", {"readings": 1234567}, "1,234,567"),
        ("{paid:.2f}", {"paid": Decimal("1.5")}, "1.50"),
        ("{load_kw:.0%}", {"load_kw": 0.5}, "50%"),
        ("since {at:%H:%M}", {"at": SUMMER}, "since 11:05"),
        ("{at}", {"at": SUMMER}, "2026-07-01 11:05"),
        ("{known}", {"known": True}, "true"),
        ("{house_id}", {"house_id": "a\r\nb\x00c\u202ed"}, "a b cd"),
        ("{house_id}", {"house_id": "{load_kw}"}, "{load_kw}"),
    ],
)
def test_a_text_is_filled_from_a_row(text: str, row: dict[str, object], shown: str) -> None:
    assert filled(text, **row) == shown


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{owner}", "names the column owner, which house_now does not have"),
        ("{loud_kw}", "Did you mean load_kw?"),
        ("{house_id.__class__}", "{house_id.__class__}"),
        ("{house_id[0]}", "the name of a column in braces"),
        ("{}", "the name of a column in braces"),
        ("{house_id!r}", "{house_id!r}"),
        ("{house_id", "cannot be understood"),
        ("}", "A brace that is meant as one is written twice"),
        ("{load_kw:d}", "such as {load_kw:.1f}"),
        ("{load_kw:999999999}", "shows load_kw, a number, as '999999999'"),
        ("{house_id:.1f}", "shows house_id, a text"),
        ("{at:.1f}{load_kw:{readings}}", "as '{readings}'"),
        ("x" * 1001, "at most 1000"),
    ],
)
def test_a_wrong_template_is_refused(text: str, said: str) -> None:
    with pytest.raises(DeclarationError) as caught:
        parse_template(text, table().columns, "The alert overload: text", "house_now")
    assert said in str(caught.value)


def test_what_events_say_stays_short() -> None:
    assert len(filled("{house_id}", house_id="x" * 100_000)) == 200
    assert len(filled("{house_id}" * 10, house_id="x" * 100_000)) == MAX_CHARACTERS
