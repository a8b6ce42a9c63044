"""The phones in a real browser: messages come live, as text whatever they say, and again after a restart."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from riverrun.alerts.gateway.server import Gateway
from support.browsing import chromium, page_of
from support.gateway import send

HOSTILE = '<img src=x onerror="document.title=1"><script>document.title=2</script>'


@pytest.fixture(scope="module")
def complaints() -> list[str]:
    return []


@pytest.fixture(scope="module")
def page(complaints: list[str]) -> Iterator[Page]:
    with chromium() as browser, page_of(browser, complaints=complaints) as found:
        yield found


def test_messages_come_live_to_their_phones(page: Page, complaints: list[str], tmp_path: Path) -> None:
    book = tmp_path / "book.sqlite"
    with Gateway(book, delivery_ms=50) as gateway:
        page.goto(f"{gateway.address}/")
        expect(page.locator("#number")).to_have_text("No messages yet")
        send(gateway, 1, "Lea Malone, your home draws 2.4 kW.")
        expect(page.locator("#number")).to_have_text("+353209100001")
        expect(page.locator(".bubble")).to_have_text(["Lea Malone, your home draws 2.4 kW."])
        expect(page.locator(".under")).to_contain_text(["delivered"])
        # The newest is shown, until somebody chooses a phone.
        send(gateway, 2, HOSTILE)
        expect(page.locator(".bubble")).to_have_text([HOSTILE])
        assert page.title() == "Phones · riverrun"
        page.locator("[data-number='+353209100001']").click()
        send(gateway, 2, "Sean Kelly, your home draws 3.1 kW.")
        expect(page.locator("[data-number='+353209100002'] .new")).to_have_text("1")
        expect(page.locator("#number")).to_have_text("+353209100001")
        page.locator("#search").fill("sean")
        expect(page.locator("#phones button")).to_have_count(1)
        page.locator("#search").fill("")
        page.set_viewport_size({"width": 390, "height": 844})
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert complaints == []
        port = int(gateway.address.rpartition(":")[2])
    expect(page.locator("#link")).not_to_have_attribute("data-state", "live")
    with Gateway(book, port=port) as gateway:
        expect(page.locator("#link-text")).to_have_text("Live")
        send(gateway, 1, "After the restart.")
        expect(page.locator(".bubble")).to_have_text(["Lea Malone, your home draws 2.4 kW.", "After the restart."])
