"""The pipeline files that the pages about connectors show can be read, and the stream among them does what its page says."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from riverrun.app import App, load_app
from riverrun.testing import StreamTest

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# What each page declares: topics with a source, and with a sink.
PAGES = {
    "connectors.md": (["readings"] * 3, ["readings"]),
    "files.md": (["requests", "orders"], []),
    "http-ingest.md": (["readings", "hooks"], []),
    "mqtt.md": (["readings"], []),
    "webhook.md": ([], ["high"]),
}


def pipeline(page: str, folder: Path) -> App:
    """All code of a page, as one file."""
    file = folder / f"page_{page.removesuffix('.md').replace('-', '_')}.py"
    file.write_text("\n".join(BLOCK.findall((DOCS / page).read_text(encoding="utf-8"))), encoding="utf-8")
    return load_app(file)


@pytest.mark.parametrize("page", PAGES)
def test_a_page_declares_what_it_says(page: str, tmp_path: Path) -> None:
    app = pipeline(page, tmp_path)
    sources, sinks = PAGES[page]
    assert [source.topic for source in app.sources.values()] == sources
    assert [sink.upstream for sink in app.sinks.values()] == sinks


def test_the_webhook_gets_what_its_stream_lets_pass(stream_test: Callable[..., StreamTest], tmp_path: Path) -> None:
    kit = stream_test(pipeline("webhook.md", tmp_path))
    kit.send("readings", {"house_id": "a", "load_kw": 2.5}, {"house_id": "b", "load_kw": 1.5})
    assert [row["house_id"] for row in kit.rows("high")] == ["a"]
