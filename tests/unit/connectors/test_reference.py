"""docs/reference/connectors.md is what the options say, and every connector has a page."""

import re
from pathlib import Path

import pytest

import riverrun
from riverrun.connectors.reference import builtin_connectors, docs_page_of, public_name, render_page
from riverrun.model.connector import Sink, Source

DOCS = Path(__file__).parents[3] / "docs"


def test_the_page_is_up_to_date() -> None:
    assert (DOCS / "reference/connectors.md").read_text(encoding="utf-8") == render_page(DOCS), "run script/docs"


@pytest.mark.parametrize("connector", builtin_connectors(), ids=public_name)
def test_every_connector_has_a_page_and_a_public_name(connector: type[Source] | type[Sink]) -> None:
    name = public_name(connector)
    assert docs_page_of(connector, DOCS), f"no page in docs/ shows rr.{name}(…)"
    assert name in riverrun.__all__
    assert connector.__doc__


def test_links_lead_somewhere() -> None:
    for link in re.findall(r"\]\(\.\./([\w-]+\.md)", render_page(DOCS)):
        assert (DOCS / link).exists()
