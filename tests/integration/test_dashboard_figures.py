"""Figures in a real browser: no digit that counts is lost, columns are written alike, all lines are drawn or it is said."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

import riverrun as rr
from riverrun.model.table import TableSpec
from support.browsing import chromium, page_of
from support.dashboards import DashServer
from support.memory_store import MemoryStore, columns

BEGIN = datetime(2026, 3, 2, 10, 41, tzinfo=UTC)
SIZES = TableSpec(
    "sizes", "sizes", columns(name="text", at="timestamp", large="double", small="double", share="double", noise="double"),
    ("name",), upserts=True, time="at",
)  # fmt: skip
GARAGES = TableSpec(
    "garages", "garages", columns(minute="timestamp", day="date", garage="text", cars="bigint", share="double"),
    ("minute", "garage"), upserts=True, time="minute",
)  # fmt: skip
NAMES = ["North", "South", "West"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


def store() -> MemoryStore:
    made = MemoryStore(SIZES, GARAGES)
    at = [BEGIN, BEGIN + timedelta(minutes=4, seconds=33), BEGIN + timedelta(minutes=5)]
    values: list[dict[str, Any]] = [
        {"large": 1234.56, "small": 0.00001234, "share": 80.0, "noise": 0.1 + 0.2},
        {"large": 12.5, "small": 0.5, "share": 57.5, "noise": 1e-17},
        {"large": 0.0, "small": None, "share": 56.0, "noise": 41.123456789},
    ]
    made.put("sizes", [{"name": name, "at": when, **row} for name, when, row in zip(NAMES, at, values, strict=True)])
    # South has no cars in the third minute, and nobody in the fifth.
    rows = [
        {
            "minute": BEGIN + timedelta(minutes=minute),
            "day": (BEGIN + timedelta(days=minute)).date(),
            "garage": garage,
            "cars": 10 * number + minute,
            "share": 40.0 if minute < 7 else 84.0,
        }
        for minute in range(8)
        for number, garage in enumerate(NAMES, 1)
        if minute != 5 and (minute, garage) != (3, "South")
    ]
    made.put("garages", rows)
    return made


def garages_app() -> rr.App:
    app = rr.App("parking")
    over_time = "select minute, garage, cars, share from garages order by 1"
    app.dashboard(
        rr.rows("Sizes", "sizes", by="name", width=6),
        rr.leaderboard("Shares", "sizes", by="name", y="share", unit="%", limit=2),
        rr.number("Full", "select max(share) from garages where minute = latest", unit="%"),
        rr.number("Cars", "select sum(cars) from garages where minute = latest"),
        rr.line("Two numbers", over_time),
        rr.line("By day", "select day, garage, sum(cars) as cars from garages group by all"),
        rr.line("Gaps", "garages", by="garage", y="cars"),
        rr.line("Filled", "garages", by="garage", y="cars", fill=0),
        rr.line(
            "Many", "select minute, garage || (cars % 1 + x) as name, cars * x as cars from garages, range(14) t(x)"
        ),
        rr.area("Stacked", "select minute, garage || x as name, cars from garages, range(14) t(x)"),
        rr.line("Two", "garages", by="garage", y="cars", limit=2),
        rr.leaderboard("Ranked", "select garage, cars from garages where minute = latest"),
        rr.line("Twice", "select minute, cars from garages"),
        rr.bar("Names", "select garage, max(cars) as cars from garages group by all order by 2 desc", x="garage"),
        rr.line("Along names", "select garage, max(cars) as cars from garages group by all", x="garage"),
    )
    return app


@pytest.fixture(scope="module")
def server() -> Iterator[DashServer]:
    with DashServer(garages_app(), store()) as running:
        yield running


@pytest.fixture
def page(browser: Browser, server: DashServer) -> Iterator[Page]:
    complaints: list[str] = []
    with page_of(browser, complaints=complaints, viewport={"width": 1440, "height": 2200}) as found:
        found.goto(server.address)
        expect(found.locator("#link-text")).to_have_text("Live")
        yield found
    assert complaints == []


def tile(page: Page, name: str) -> Locator:
    return page.locator(f'[data-name="{name}"]')


def column(page: Page, name: str, number: int) -> list[str]:
    return tile(page, name).locator(f"tbody td:nth-child({number})").all_inner_texts()


def test_a_table_keeps_the_digits_that_count(page: Page) -> None:
    expect(tile(page, "sizes").locator("tbody tr")).to_have_count(3)
    # The newest first.
    assert column(page, "sizes", 3) == ["0.00", "12.50", "1,234.56"]
    assert column(page, "sizes", 4) == ["\N{EN DASH}", "0.50000000", "0.00001234"]
    assert column(page, "sizes", 5) == ["56.0", "57.5", "80.0"]
    # Computed figures are rounded, what is nothing beside them is not shown as nothing, and a pointer reads it all.
    assert column(page, "sizes", 6) == ["41.1235", "1e-17", "0.3000"]
    noise = tile(page, "sizes").locator("tbody tr:first-child td:nth-child(6)")
    expect(noise).to_have_attribute("title", "41.123456789")


def test_digits_that_a_browser_does_not_have(page: Page) -> None:
    found = page.evaluate(
        """async () => {
            const { cell, columnForm } = await import("/assets/format.js");
            const values = ["12345678901234567.89", "9007199254740993", 1.5, "NaN"];
            const form = columnForm(values, "number");
            return values.map((value) => cell(value, "number", form));
        }"""
    )
    assert found == ["12345678901234567.89", "9,007,199,254,740,993", "1.5", "NaN"]


def test_times_of_a_column_are_written_alike_and_the_zone_is_said(
    page: Page, browser: Browser, server: DashServer
) -> None:
    expect(tile(page, "sizes").locator("tbody tr")).to_have_count(3)
    assert column(page, "sizes", 2) == ["10:46:00", "10:45:33", "10:41:00"]
    expect(page.locator("#clock")).to_contain_text("10:48:00 UTC")
    with page_of(browser, timezone_id="Europe/Berlin") as elsewhere:
        elsewhere.goto(server.address)
        expect(elsewhere.locator("#clock")).to_contain_text("11:48:00 CET")
        expect(elsewhere.locator("#clock")).to_have_attribute("title", "Times are shown in Europe/Berlin")


def test_figures_of_a_list_are_written_alike(page: Page) -> None:
    expect(tile(page, "shares").locator(".entry-value")).to_have_text(["80.00 %", "57.50 %"])


def test_how_a_number_changed(page: Page) -> None:
    """Percent of percent says two things at once."""
    expect(tile(page, "full").locator(".change")).to_have_text(re.compile("^↑up 44 points vs [5-7] min ago$"))
    expect(tile(page, "full").locator(".change")).to_have_attribute("title", re.compile(r"^40 % at 10:4\d:00$"))
    expect(tile(page, "cars").locator(".change")).to_have_text(re.compile(r"^↑up [\d.]+ % vs [5-7] min ago$"))


def test_a_row_or_a_rank_that_is_chosen_is_shown_alone(page: Page) -> None:
    expect(tile(page, "shares").locator(".entry-name")).to_have_text(["North", "South"])
    tile(page, "sizes").get_by_role("button", name="West").click()
    # West is third, and a list of two could not even mark it.
    expect(tile(page, "shares").locator(".entry-name")).to_have_text(["West"])
    expect(tile(page, "sizes").locator("tbody tr")).to_have_count(1)
    tile(page, "sizes").get_by_role("button", name="West").click()
    expect(tile(page, "sizes").locator("tbody tr")).to_have_count(3)


def test_two_numbers_of_a_name_are_two_lines(page: Page) -> None:
    names = tile(page, "two-numbers").locator(".legend-entry")
    expect(names).to_have_count(6)
    texts = {"".join(entry.split()) for entry in names.all_inner_texts()}
    assert {"North·cars17", "North·share84"} <= texts


def test_a_line_along_days(page: Page) -> None:
    box = tile(page, "by-day")
    expect(box.locator(".legend-entry")).to_have_count(3)
    assert inked(box) > 200
    plot = box.locator(".u-over")
    plot.hover(position={"x": 2, "y": 40})
    expect(box.locator(".hint")).to_have_text("2026-03-02")


def test_gaps_are_filled_where_the_file_says_so(page: Page) -> None:
    expect(tile(page, "gaps").locator(".legend-entry")).to_have_count(3)
    found = page.evaluate(
        """async () => {
            const { pivot } = await import("/assets/series.js");
            const at = (minute) => Date.UTC(2026, 2, 2, 10, minute);
            const named = [["minute", "time"], ["garage", "text"], ["cars", "number"]];
            const columns = named.map(([name, type]) => ({ name, type }));
            const rows = [[at(0), "a", 1], [at(0), "b", 2], [at(1), "a", 3], [at(2), "b", 4], [at(5), "a", 5]];
            const state = { columns, rows, x: 0, by: 1, y: [2] };
            return [null, 0].map((fill) => pivot(state, fill).lines.map(({ list }) => list));
        }"""
    )
    assert found == [[[1, 3, None, 5], [2, None, 4, None]], [[1, 3, 0, 0, 0, 5], [2, 0, 4, 0, 0, 0]]]
    gaps, filled = inked(tile(page, "gaps")), inked(tile(page, "filled"))
    assert filled > gaps > 0


def test_what_is_not_drawn_is_said(page: Page) -> None:
    many = tile(page, "many")
    expect(many.locator(".legend-entry")).to_have_count(24)
    expect(many.locator(".note")).to_have_text("24 of 42 lines are drawn, the largest; 18 are left out")
    expect(tile(page, "two").locator(".legend-entry")).to_have_count(2)
    expect(tile(page, "two").locator(".note")).to_have_text("2 of 3 lines are drawn, the largest; 1 is left out")
    # Of parts of a whole the rest is a part too.
    expect(tile(page, "stacked").locator(".legend-entry")).to_have_count(24)
    expect(tile(page, "stacked").locator(".legend-name", has_text="19 others")).to_have_count(1)
    expect(tile(page, "stacked").locator(".note")).to_be_hidden()
    expect(tile(page, "twice").locator(".note")).to_contain_text("rows have a time and a name that another row has")


def test_a_leaderboard_of_sql_has_the_largest_first(page: Page) -> None:
    expect(tile(page, "ranked").locator(".entry-name")).to_have_text(["West", "South", "North"])


def test_along_names_there_are_bars(page: Page) -> None:
    expect(tile(page, "names").locator(".entry-name")).to_have_text(NAMES[::-1])
    expect(tile(page, "along-names").locator(".note")).to_contain_text("goes along garage, which is text")


def inked(box: Locator) -> int:
    count = box.locator("canvas").evaluate(
        """(canvas) => { const all = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
        let count = 0; for (let at = 3; at < all.length; at += 4) if (all[at] > 200) count += 1; return count; }"""
    )
    return int(count)
