"""Conditions: SQL's three answers over one row, and a clear word for what is not one."""

from decimal import Decimal
from typing import Any

import pytest

from riverrun.alerts.condition import parse_condition
from riverrun.errors import DeclarationError
from support.watching import table

ROW: dict[str, Any] = {
    "house_id": "h1",
    "load_kw": 2.5,
    "phone": None,
    "readings": 3,
    "paid": Decimal("1.80"),
    "known": None,
}


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("load_kw > 2.0", True),
        ("LOAD_KW > 2.0", True),
        ("load_kw < 2.0", False),
        ("phone = 'x'", None),
        ("not phone = 'x'", None),
        ("known and load_kw > 2", None),
        ("known and load_kw < 2", False),
        ("known or load_kw > 2", True),
        ("known or load_kw < 2", None),
        ("phone is null and load_kw is not null", True),
        ("known is true", False),
        ("readings in (1, 2, 3)", True),
        ("readings in (1, null)", None),
        ("readings not in (1, 2)", True),
        ("load_kw between 2 and 3", True),
        ("load_kw not between 2 and 3", False),
        ("house_id like 'h%'", True),
        ("house_id like 'h'", False),
        ("house_id not like '%x%'", True),
        ("house_id ilike 'H_'", True),
        ("'a.c' like 'a_c' and not 'abbc' like 'a_c'", True),
        ("'abcabc' like '%abc' and not 'ab' like 'ab%b'", True),
        ("paid = 1.8", True),
        ("paid * load_kw > 4.4", True),
        ("-readings + 10 / 4 = -0.5", True),
        ("-7 % 3 = -1", True),
        ("readings / 0 > 1", None),
        ("coalesce(known, false)", False),
        ("abs(load_kw - 5) >= 2.5", True),
        ("round(load_kw) = 3 and floor(load_kw) = 2 and ceil(load_kw) = 3", True),
        ("greatest(load_kw, readings, null) = 3", True),
        ("upper(house_id) = 'H1' and length(house_id) = 2", True),
        ("at > '2026-01-01'", None),
    ],
)
def test_sql_has_three_answers(text: str, answer: bool | None) -> None:
    assert parse_condition(text, table(), "when").evaluate(ROW) is answer


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("load_kwh > 2", "names the column load_kwh, which house_now does not have"),
        ("load_kwh > 2", "Did you mean load_kw?"),
        ("house_now.load_kw > 2", "Write load_kw"),
        ("load_kw", "is a number, not a condition"),
        ("load_kw > 'high'", "compares a number with a text"),
        ("house_id + 1 > 2", "house_id is a text, not a number"),
        ("not load_kw", "load_kw is a number, not a condition"),
        ("at > 'soon'", "'soon' is not a time"),
        ("ab(load_kw) > 1", "uses ab(), which alerts do not have"),
        ("ab(load_kw) > 1", "Did you mean abs?"),
        ("now() > at", "uses now()"),
        ("(select 1) = 1", "(SELECT 1)"),
        ("exists(select 1)", "EXISTS"),
        ("cast(load_kw as text) = ''", "CAST"),
        ("case when known then true end", "CASE"),
        ("house_id like phone", "a pattern in quotes"),
        ("house_id like 'a' escape 'b'", "which alerts do not have"),
        ("load_kw between symmetric 3 and 2", "SYMMETRIC"),
        ("load_kw >", "is not understood"),
        ("load_kw > 1; drop table x", "is not understood at 'drop'"),
        ("load_kw > 1 as x", "is not understood"),
        ("", "is not one condition"),
        ("abs(load_kw, 1) > 1", "abs takes 1 arguments"),
        ("load_kw > " + "1 + " * 500 + "1", "words and signs"),
        ("'" + "x" * 5000 + "' = house_id", "characters"),
    ],
)
def test_what_is_no_condition_is_refused_by_name(text: str, said: str) -> None:
    with pytest.raises(DeclarationError) as caught:
        parse_condition(text, table(), "The alert overload: when")
    assert str(caught.value).startswith("The alert overload: when")
    assert said in str(caught.value)


def test_a_pattern_takes_no_longer_than_the_text_is_long() -> None:
    hard = parse_condition("house_id like '" + "%a" * 40 + "'", table(), "when")
    assert hard.evaluate({"house_id": "a" * 39 + "b" * 4000}) is False
    assert hard.evaluate({"house_id": "a" * 4000}) is True
