"""The pipeline file that docs/alerts.md shows is a right one, and it tells every option and function."""

import re
from pathlib import Path
from typing import Any

from riverrun.alerts.condition import _FUNCTIONS
from riverrun.alerts.rules import build_rules
from riverrun.model.alert import OPTIONS
from riverrun.model.table import Column
from support.watching import table

PAGE = (Path(__file__).parents[3] / "docs" / "alerts.md").read_text(encoding="utf-8")


def test_the_file_it_shows_is_right() -> None:
    code = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    namespace: dict[str, Any] = {}
    exec(code[0], namespace)  # noqa: S102  -- our own documentation
    watched = table(columns=(*table().columns, Column("owner", "text", ("owner",))))
    rules, wrong = build_rules(namespace["app"].alerts.values(), {"house_now": watched}, {})
    assert wrong == []
    assert [rule.name for rule in rules] == ["overload", "silent"]


def test_every_option_and_function_is_told() -> None:
    for option in OPTIONS:
        assert f"`{option}=`" in PAGE, option
    for name in _FUNCTIONS:
        assert f"`{name}`" in PAGE, name
