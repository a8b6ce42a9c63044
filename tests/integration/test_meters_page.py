"""The page of the meters example in a real browser: who draws most, whose house it is, from a street to its houses."""

from collections.abc import Iterator
from datetime import UTC, datetime
from urllib.parse import parse_qs, urlparse

import pytest
from playwright.sync_api import Page, expect

from support.browsing import chromium, page_of
from support.dashboards import DashServer
from support.meters import MINUTE, MeterCity, example

BEGIN = datetime(2026, 11, 16, 18, 0, tzinfo=UTC)
HOSTILE = '<img src=x onerror="window.hacked=1">'


@pytest.fixture(scope="module")
def city() -> Iterator[MeterCity]:
    with example() as modules, pytest.MonkeyPatch.context() as patch:
        patch.setenv("METERS_SPEED", "60")
        made = MeterCity(modules, 120, BEGIN)
        made.run(75)
        yield made


@pytest.fixture(scope="module")
def page(city: MeterCity) -> Iterator[Page]:
    complaints: list[str] = []
    with (
        DashServer(city.app, city.store) as server,
        chromium() as browser,
        page_of(browser, complaints=complaints) as page,
    ):
        page.goto(server.address)
        expect(page.locator("#link-text")).to_have_text("Live")
        yield page
    assert complaints == []


def test_the_page_from_the_city_to_a_house(city: MeterCity, page: Page) -> None:
    def tile(name: str) -> str:
        return f'[data-name="{name}"]'

    expect(page.locator(tile("about"))).to_contain_text("City time runs 60 times faster than ours.")
    newest = city.readings[-1].at - MINUTE
    whole = {house: load for (minute, house), load in city.truth.house_load.items() if minute == newest}
    first = min(whole, key=lambda each: (-whole[each], each))
    owner = next(each for each in city.houses if each.house_id == first)
    leader = page.locator(f"{tile('highest-houses')} li").first
    expect(leader.locator(".entry-name")).to_have_text(first)
    expect(leader.locator(".entry-detail")).to_have_text(owner.owner)
    high = sum(load > 2 for load in whole.values())
    expect(page.locator(f"{tile('above-2-kw')} .value")).to_have_text(str(high))
    still = [episode for episode in city.truth.episodes if episode.ended is None]
    expect(page.locator(f"{tile('above-2-kw-now')} tbody tr")).to_have_count(len(still))

    # An owner's name is somebody's input.
    row = {"minute": newest, "minute_end": newest + MINUTE, "house_id": "house-99999", "street": "Howth Road"}
    city.store.put("house_load", [row | {"owner": HOSTILE, "load_kw": 13.0}])
    expect(leader.locator(".entry-detail")).to_have_text(HOSTILE)
    assert page.evaluate("window.hacked") is None

    page.locator(tile("load-by-street")).get_by_role("button", name="Howth Road").click()
    expect(page.locator(tile("houses-of-street"))).to_contain_text("Houses of Howth Road")
    assert parse_qs(urlparse(page.url).query) == {"f.street": ["Howth Road"]}
    mine = [each.house_id for each in city.houses if each.street == "Howth Road"]
    expect(page.locator(f"{tile('highest-houses')} .entry-name").nth(1)).to_have_text(
        max(mine, key=lambda each: whole[each])
    )
