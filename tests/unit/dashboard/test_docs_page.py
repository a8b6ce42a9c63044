"""The pipeline file that docs/dashboards.md shows is a right one, and its tables of options are the real ones."""

import re
from pathlib import Path
from typing import Any

from riverrun.dashboard.tiles.checks import tile_problems
from riverrun.model import dashboard
from support.city import HOUSE_LOAD, STREET_LOAD

PAGE = (Path(__file__).parents[3] / "docs" / "dashboards.md").read_text(encoding="utf-8")


def test_the_file_it_shows_is_right() -> None:
    code = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    namespace: dict[str, Any] = {}
    exec(code[0], namespace)  # noqa: S102  -- our own documentation
    tables = {each.name: each for each in (HOUSE_LOAD, STREET_LOAD)}
    assert tile_problems(namespace["app"].dashboards.values(), tables) == []


def test_every_kind_and_option_is_told() -> None:
    for kind in dashboard._SIZES:
        assert f"`rr.{kind}`" in PAGE
    for option in dashboard.TileOptions.__annotations__:
        assert f"`{option}=" in PAGE, option
