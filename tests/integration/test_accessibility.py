"""axe-core finds nothing to complain about: every page the header lists, light and dark, on a desk and on a phone."""

from collections.abc import Iterator
from importlib.resources import files
from typing import Any, Literal
from urllib.parse import urljoin

import pytest
from playwright.sync_api import Page, expect

from riverrun.alerts.gateway.server import Gateway
from support.alerted import evening_alerts
from support.browsing import chromium, page_of
from support.city import City, city_app
from support.gateway import ring
from support.guarded import Guarded
from support.topology import moving_picture

AXE = (files("axe_playwright_python") / "axe.min.js").read_text(encoding="utf-8")
# Everything axe knows of WCAG A and AA, and its own advice.
ASKED: dict[str, Any] = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]}
LOOKS: tuple[tuple[str, int, int, Literal["light", "dark"]], ...] = (
    ("light", 1440, 900, "light"),
    ("dark", 1440, 900, "dark"),
    ("phone", 390, 844, "light"),
    ("dark phone", 390, 844, "dark"),
)


@pytest.fixture(scope="module")
def guarded() -> Iterator[Guarded]:
    # A small one: what axe takes grows with the rows there are.
    city = City(12)
    city.run(6)
    with Guarded(city_app(), city.store, picture=moving_picture(None), alerts=evening_alerts()) as found:
        yield found


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    with chromium() as browser, page_of(browser, reduced_motion="reduce") as found:
        yield found


def complaints(page: Page, part: str = "") -> list[str]:
    """What axe says of the page, or a part of it, in each of its looks."""
    found = []
    page.evaluate(AXE)
    for name, width, height, colours in LOOKS:
        page.set_viewport_size({"width": width, "height": height})
        page.emulate_media(color_scheme=colours)
        result = page.evaluate("([part, asked]) => axe.run(part || document, asked)", [part, ASKED])
        assert len(result["passes"]) >= (5 if part else 10)
        found += [
            f"{name}: {each['id']} ({each['impact']}): {node['html'][:160]} {node['failureSummary'][:300]}"
            for each in result["violations"]
            for node in each["nodes"][:3]
        ]
    return found


def let_in(page: Page, guarded: Guarded) -> None:
    page.context.add_cookies([{"name": "riverrun", "value": guarded.sessions.create("test"), "url": guarded.outside}])


def settled(page: Page) -> None:
    """Nothing waits for its first figures."""
    page.wait_for_load_state("load")
    if page.locator("#link-text").count():
        expect(page.locator("#link-text")).to_have_text("Live")
        expect(page.locator("[data-waiting]")).to_have_count(0)


def test_the_login_page(page: Page, guarded: Guarded) -> None:
    page.context.clear_cookies()
    page.goto(f"{guarded.outside}/login?failed=state")
    expect(page.locator("#password")).to_be_visible()
    expect(page.locator("#said")).not_to_be_empty()
    assert complaints(page) == []


def test_every_page_of_the_header(page: Page, guarded: Guarded) -> None:
    let_in(page, guarded)
    page.goto(guarded.outside)
    settled(page)
    expect(page.locator("#log-out")).to_be_visible()
    links: list[str] = page.evaluate(
        "[...document.querySelectorAll('header a[href]')].map((it) => it.getAttribute('href'))"
    )
    pages = list(dict.fromkeys(urljoin(f"{guarded.outside}/", link) for link in links))
    assert {f"{guarded.outside}/{each}" for each in ("?d=more", "sql", "pipeline", "alerts")} <= set(pages)
    found: dict[str, list[str]] = {}
    for each in pages:
        page.goto(each)
        settled(page)
        expect(page.locator("#log-out")).to_be_visible()
        if wrong := complaints(page):
            found[each] = wrong
    assert found == {}


def test_what_a_reader_has_done_to_a_page(page: Page, guarded: Guarded) -> None:
    """A filter, tables instead of charts, the past."""
    let_in(page, guarded)
    page.goto(f"{guarded.outside}/?f.street=Elm+Street")
    settled(page)
    expect(page.locator(".chip")).to_be_visible()
    for swap in page.locator(".swap:visible").all()[:3]:
        swap.click()
    page.locator("#pause").click()
    expect(page.locator("#travel")).to_be_visible()
    assert complaints(page) == []


def test_an_alert_that_is_looked_into_and_silenced(page: Page, guarded: Guarded) -> None:
    let_in(page, guarded)
    page.goto(f"{guarded.outside}/alerts")
    settled(page)
    page.locator("#firing .case-open").first.click()
    expect(page.locator("#panel .letter").first).to_be_visible()
    assert complaints(page, "#panel") == []
    page.locator("#panel").get_by_role("button", name="Silence…").click()
    expect(page.get_by_role("dialog")).to_be_visible()
    assert complaints(page, "#ask") == []


def test_the_phones(page: Page) -> None:
    with Gateway() as gateway:
        ring(gateway, 12)
        page.goto(f"{gateway.address}/")
        expect(page.locator(".bubble").first).to_be_visible()
        expect(page.locator("#link-text")).to_have_text("Live")
        assert complaints(page) == []
