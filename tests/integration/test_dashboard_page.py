"""The dashboards in a real browser: figures, updates, reconnecting, drill-down, the past, hostile text, phones, colours."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

import riverrun as rr
from support.browsing import chromium, page_of
from support.city import BEGIN, City, city_app
from support.dashboards import DashServer

HOSTILE = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>'
# What a browser says of a server that is gone is no fault of the page.
GONE = ("ERR_CONNECTION_REFUSED", "ERR_INCOMPLETE_CHUNKED_ENCODING", "ERR_CONNECTION_RESET", "ERR_EMPTY_RESPONSE")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture
def city() -> City:
    made = City(24)
    made.run(90)
    return made


@pytest.fixture
def server(city: City) -> Iterator[DashServer]:
    with DashServer(city_app(), city.store) as running:
        yield running


@pytest.fixture
def page(browser: Browser, server: DashServer) -> Iterator[Page]:
    complaints: list[str] = []
    with page_of(browser, complaints=complaints) as found:
        found.goto(server.address)
        live(found)
        yield found
    assert [complaint for complaint in complaints if not any(word in complaint for word in GONE)] == []


def live(page: Page) -> None:
    expect(page.locator("#link-text")).to_have_text("Live")


def tile(page: Page, name: str) -> Locator:
    return page.locator(f'[data-name="{name}"]')


def value(page: Page, name: str) -> Locator:
    return tile(page, name).locator(".value")


def highest(city: City, minute: int | None = None) -> str:
    rows = city.rows(city.minutes - 1 if minute is None else minute)
    return f"{max(row['load_kw'] for row in rows):.2f}"


def total(city: City, minute: int) -> str:
    return f"{sum(row['load_kw'] for row in city.rows(minute)):.2f}"


def test_figures_are_the_stores_and_change_without_a_reload(page: Page, city: City) -> None:
    page.evaluate("window.same = true")
    for _ in range(3):
        expect(value(page, "city-load")).to_have_text(total(city, city.minutes - 2))
        expect(value(page, "highest-house")).to_have_text(highest(city))
        expect(value(page, "houses")).to_have_text("24")
        city.run(1)
    best = sorted(city.rows(city.minutes - 1), key=lambda row: (-row["load_kw"], row["house_id"]))[:10]
    expect(tile(page, "highest-houses").locator(".entry-name")).to_have_text([row["house_id"] for row in best])
    expect(tile(page, "highest-houses").locator(".entry-value").first).to_have_text(f"{best[0]['load_kw']:.2f} kW")
    assert page.evaluate("window.same")


def test_it_reconnects_by_itself_and_says_so(page: Page, city: City, server: DashServer) -> None:
    page.evaluate("window.same = true")
    expect(value(page, "highest-house")).to_have_text(highest(city))
    server.stop()
    expect(page.locator("#link-text")).to_have_text("Reconnecting")
    expect(page.locator("#banner")).to_contain_text("tried again by itself")
    city.run(1)
    server.start()
    live(page)
    expect(page.locator("#banner")).to_be_hidden()
    expect(value(page, "highest-house")).to_have_text(highest(city))
    assert page.evaluate("window.same")


def test_a_click_on_a_street_shows_its_houses(page: Page, city: City) -> None:
    expect(tile(page, "houses-of-street")).to_have_count(0)
    tile(page, "load-by-street").get_by_role("button", name=re.compile("Elm Street")).click()
    expect(page).to_have_url(re.compile(r"\?f\.street=Elm"))
    expect(tile(page, "houses-of-street").locator("h2")).to_have_text("Houses of Elm Street")
    houses = [f"house-{house:04}" for house in range(24) if city.street_of(house) == "Elm Street"]
    expect(value(page, "houses")).to_have_text(str(len(houses)))
    expect(tile(page, "houses-of-street").locator(".legend-name")).to_have_count(len(houses))
    expect(tile(page, "readings-of-street").locator("th")).to_have_text(["minute", "house id", "load kw"])
    expect(tile(page, "highest-houses").locator(".entry")).to_have_count(len(houses))
    # The tile that was clicked keeps all streets, and marks the one.
    expect(tile(page, "load-by-street").locator('[aria-pressed="true"]')).to_contain_text("Elm Street")
    expect(tile(page, "load-by-street").locator(".legend-name")).to_have_count(12)
    page.reload()
    expect(value(page, "houses")).to_have_text(str(len(houses)))
    page.get_by_role("button", name="Remove the filter street: Elm Street").click()
    expect(tile(page, "houses-of-street")).to_have_count(0)
    expect(value(page, "houses")).to_have_text("24")
    page.go_back()
    expect(value(page, "houses")).to_have_text(str(len(houses)))


def test_pause_go_back_and_go_live(page: Page, city: City) -> None:
    shown = highest(city)
    expect(value(page, "highest-house")).to_have_text(shown)
    page.get_by_role("button", name="Pause").click()
    expect(page.locator("#link-text")).to_have_text("Paused")
    city.run(1)
    expect(page.locator("#moment-text")).to_have_text(f"{BEGIN:%Y-%m-%d} 07:29:00")
    expect(value(page, "highest-house")).to_have_text(shown)
    # The tables begin at six; the slider's middle is three quarters of an hour later.
    page.locator("#moment").focus()
    page.evaluate("const it = document.getElementById('moment'); it.value = 500; it.dispatchEvent(new Event('input'))")
    expect(page.locator("#moment-text")).to_have_text(f"{BEGIN:%Y-%m-%d} 06:44:30")
    expect(value(page, "highest-house")).to_have_text(highest(city, 44))
    expect(value(page, "city-load")).to_have_text(total(city, 43))
    expect(tile(page, "city-load").locator(".age")).to_have_text("at 06:44:30")
    page.keyboard.press("Home")
    expect(page.locator("#moment-text")).to_have_text(f"{BEGIN:%Y-%m-%d} 06:00:00")
    page.get_by_role("button", name="Go live").click()
    live(page)
    expect(value(page, "highest-house")).to_have_text(highest(city))


def test_a_figure_says_how_old_it_is_and_turns_when_stale(page: Page, city: City) -> None:
    import time

    expect(tile(page, "houses").locator(".age")).to_have_text(re.compile(r"^(now|\d+ s)$"))
    for table in city.store.tables:
        city.store.touch(table, time.time() - 300)
    expect(tile(page, "houses")).to_have_attribute("data-stale", "")
    expect(tile(page, "houses").locator(".age")).to_have_text("stale: 5 min")
    city.run(1)
    expect(tile(page, "houses")).not_to_have_attribute("data-stale", "")


def test_every_kind_is_drawn_and_has_a_table(page: Page, city: City, server: DashServer) -> None:
    page.goto(f"{server.address}/?d=more")
    live(page)
    for name in ("load-all-streets", "readings-a-minute", "price"):
        expect(tile(page, name).locator("canvas")).to_be_visible()
        assert inked(page, name) > 200
    expect(tile(page, "streets-now").locator(".entry")).to_have_count(12)
    expect(tile(page, "about").locator("strong")).to_have_text("averages")
    expect(tile(page, "about").locator("li")).to_have_count(2)
    expect(tile(page, "price").locator(".plot")).to_have_attribute(
        "aria-label", re.compile("Price: candle chart, newest 07:29")
    )
    for name, rows in (("load-all-streets", 500), ("readings-a-minute", 30), ("price", 60), ("streets-now", 12)):
        swap = tile(page, name).locator(".swap")
        swap.focus()
        page.keyboard.press("Enter")
        expect(tile(page, name).locator("tbody tr")).to_have_count(rows)
        page.keyboard.press("Enter")
        expect(tile(page, name).locator("tbody")).to_have_count(0)
    page.goto(server.address)
    expect(tile(page, "load-through-the-hour").locator("canvas")).to_be_visible()
    assert inked(page, "load-through-the-hour") > 1000
    expect(tile(page, "houses-over-their-limit").locator(".entry")).to_have_count(24)


def inked(page: Page, name: str) -> int:
    """How many points of a tile's canvas have colour."""
    count = page.evaluate(
        """(name) => { const canvas = document.querySelector(`[data-name="${name}"] canvas`);
        const all = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
        let count = 0; for (let at = 3; at < all.length; at += 4) if (all[at]) count += 1; return count; }""",
        name,
    )
    return int(count)


def test_dashboards_are_links(page: Page) -> None:
    page.get_by_role("link", name="More").click()
    expect(page.locator("h1")).to_have_text("More")
    expect(tile(page, "price").locator("canvas")).to_be_visible()
    page.go_back()
    expect(page.locator("h1")).to_have_text("City power")


def test_hostile_text_is_text(browser: Browser) -> None:
    city = City(12)
    city.run(5)
    for minute in range(5):
        city.store.put("street_load", [{"minute": city.rows(minute)[0]["minute"], "street": HOSTILE, "load_kw": 99.0}])
        city.store.put(
            "house_load", [{**city.rows(minute)[0], "house_id": HOSTILE, "street": HOSTILE, "load_kw": 99.0}]
        )
    app = city_app()
    app.dashboard(
        rr.line(f"{HOSTILE} {{{{street}}}}", "street_load", by="street", y="load_kw", unit=HOSTILE),
        rr.rows("Houses of {street}", "house_load", by="house_id", when="street"),
        rr.bar("Streets", "street_load", by="street", y="load_kw"),
        rr.heat_map("Map", "street_load", by="street", y="load_kw", limit=20),
        rr.status("States", "house_load", by="house_id", y="load_kw", unit=HOSTILE),
        rr.number("Name", "select max(house_id) as name from house_load", unit=HOSTILE),
        rr.text(f"{HOSTILE} **{HOSTILE}** `{HOSTILE}`", title=HOSTILE),
        name="hostile",
        title=HOSTILE,
    )
    complaints: list[str] = []
    with DashServer(app, city.store) as server, page_of(browser, complaints=complaints) as page:
        page.goto(f"{server.address}/?d=hostile")
        live(page)
        expect(page.locator("h1")).to_have_text(HOSTILE)
        expect(tile(page, "streets").locator(".entry-name").first).to_have_text(HOSTILE)
        tile(page, "streets").locator(".entry").first.click()
        expect(tile(page, "houses-of-street").locator("h2")).to_have_text(f"Houses of {HOSTILE}")
        expect(tile(page, "houses-of-street").locator("td .cell").first).to_have_text(HOSTILE)
        expect(page.locator(".chip")).to_contain_text(HOSTILE)
        assert page.locator("img, main script").count() == 0
        assert page.evaluate("window.hacked") is None
    assert complaints == []


def test_an_error_is_shown_where_it_is(browser: Browser, city: City) -> None:
    app = rr.App("meters")
    app.dashboard(
        rr.number("Wrong", "select nonsense(load_kw) as n from house_load"),
        rr.number("Right", "house_load", y="load_kw"),
    )
    with DashServer(app, city.store) as server, page_of(browser) as page:
        page.goto(server.address)
        expect(tile(page, "wrong").locator(".note")).to_contain_text("nonsense")
        expect(tile(page, "right").locator(".value")).to_have_text(re.compile(r"\d"))


def overflow(page: Page) -> dict[str, Any]:
    found: dict[str, Any] = page.evaluate(
        """() => ({ wide: document.documentElement.scrollWidth, room: innerWidth,
        out: [...document.querySelectorAll(".tile")]
            .filter((it) => it.getBoundingClientRect().right > innerWidth + 1).length })"""
    )
    return found


def test_a_phone_has_room_for_it(browser: Browser, server: DashServer, city: City) -> None:
    options: dict[str, Any] = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
    with page_of(browser, **options) as page:
        page.goto(f"{server.address}/?f.street=Elm+Street")
        live(page)
        expect(value(page, "highest-house")).to_have_text(re.compile(r"\d"))
        expect(tile(page, "houses-of-street").locator("canvas")).to_be_visible()
        found = overflow(page)
        assert found["wide"] <= found["room"]
        assert found["out"] == 0
        page.get_by_role("button", name="Pause").tap()
        expect(page.get_by_role("button", name="Go live")).to_be_visible()


def test_dark_as_the_system_is_and_by_the_switch(browser: Browser, server: DashServer) -> None:
    with page_of(browser, color_scheme="dark") as page:
        page.goto(server.address)
        live(page)
        ground = "getComputedStyle(document.querySelector('.tile')).backgroundColor"
        assert page.evaluate(ground) == "rgb(22, 27, 34)"
        switch = page.locator("#theme")
        switch.click()
        expect(switch).to_have_attribute("aria-label", "Colours: light")
        assert page.evaluate(ground) == "rgb(255, 255, 255)"
        page.reload()
        live(page)
        assert page.evaluate(ground) == "rgb(255, 255, 255)"


def test_the_keyboard_reaches_everything(page: Page) -> None:
    expect(value(page, "highest-house")).to_have_text(re.compile(r"\d"))
    page.keyboard.press("Tab")
    expect(page.locator(".skip")).to_be_focused()
    page.keyboard.press("Enter")
    entry = tile(page, "load-by-street").get_by_role("button", name=re.compile("Canal Row"))
    entry.focus()
    page.keyboard.press("Enter")
    expect(tile(page, "houses-of-street").locator("h2")).to_have_text("Houses of Canal Row")
    expect(entry).to_be_focused()
    # Landmarks and names for those who listen.
    expect(page.get_by_role("banner")).to_have_count(1)
    expect(page.get_by_role("main")).to_have_count(1)
    expect(page.get_by_role("navigation", name="Dashboards")).to_have_count(1)
    nameless = page.evaluate(
        "[...document.querySelectorAll('button, [role=img], section')].filter((it) => !it.hidden && it.offsetParent"
        " && !it.ariaLabel && !it.getAttribute('aria-labelledby') && !it.textContent.trim()).map((it) => it.outerHTML)"
    )
    assert nameless == []
