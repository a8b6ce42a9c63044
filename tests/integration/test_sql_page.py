"""The SQL page in a real browser: suggestions, answers, charts, errors, cancelling, files, links, hostile text, phones."""

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq
import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from riverrun.dashboard.live.hub import DashboardHub
from riverrun.dashboard.routes import dashboard_routes
from riverrun.store.contract import QueryLimits
from riverrun.store.server import StoreServer
from support.browsing import chromium, page_of
from support.duck_store import ROWS, DuckStore

HOSTILE = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>'
# Long enough to be cancelled, and over by itself before a test would hang.
SLOW = "select sum(a.x * b.x) from range(100000) a(x), range(100000) b(x)"
MOST_ROWS = 1200
# What the browser itself says of an answer that is an error.
STATUS = "Failed to load resource: the server responded with a status of"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def store() -> Iterator[DuckStore]:
    hostile = f"insert into houses values ('h3', '{HOSTILE}', '3', null);"  # noqa: S608
    with DuckStore(rows=ROWS + hostile) as opened:
        yield opened


@pytest.fixture(scope="module")
def address(store: DuckStore) -> Iterator[str]:
    hub = DashboardHub(store, {}, "meters")
    with StoreServer(store, limits=QueryLimits(MOST_ROWS, 30), routes=dashboard_routes(hub)) as server:
        yield server.start()
        hub.request_close()


@pytest.fixture(scope="module")
def opened(browser: Browser) -> Iterator[tuple[Page, list[str]]]:
    complaints: list[str] = []
    with page_of(browser, complaints=complaints, permissions=["clipboard-read", "clipboard-write"]) as found:
        yield found, complaints


@pytest.fixture
def page(opened: tuple[Page, list[str]], address: str) -> Iterator[Page]:
    """One page for all tests; each begins with an empty editor and no history."""
    found, complaints = opened
    if found.url.startswith(address):
        found.evaluate("localStorage.clear(), sessionStorage.clear()")
    ready(found, address)
    complaints.clear()
    yield found
    assert [complaint for complaint in complaints if not complaint.startswith(STATUS)] == []


def ready(page: Page, address: str, link: str = "") -> None:
    if "#" in page.url + link:
        # Else the browser takes it for a jump within the page.
        page.goto("about:blank")
    page.goto(f"{address}/sql{link}")
    expect(page.locator("#limits")).to_contain_text("At most 30 s and 1,200 rows")
    expect(page.locator(".table-name")).to_have_count(3)


def editor(page: Page) -> Locator:
    return page.locator("#sql")


def run(page: Page, sql: str) -> None:
    editor(page).fill(sql)
    editor(page).press("Control+Enter")


def answered(page: Page, rows: str) -> None:
    expect(page.locator("#run")).to_be_visible()
    expect(page.locator("#summary")).to_have_text(re.compile(rf"^{rows} in \d"))


def cells(page: Page, column: int) -> list[str]:
    return page.locator(f"tbody td:nth-child({column})").all_text_contents()


def test_suggestions_by_keyboard(page: Page) -> None:
    area, options = editor(page), page.locator("#options [role=option]")
    area.focus()
    page.keyboard.type("sel")
    expect(options).to_have_text([re.compile("^select")])
    expect(area).to_have_attribute("aria-activedescendant", "option-0")
    expect(page.locator("#said")).to_have_text("1 suggestion")
    page.keyboard.press("Tab")
    expect(area).to_have_value("select ")
    expect(area).to_be_focused()
    page.keyboard.type("* from ")
    # Nothing is typed yet, so nothing is chosen: Enter would be a new line.
    expect(options.first).to_contain_text("house_load")
    assert area.get_attribute("aria-activedescendant") is None
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    expect(options.nth(1)).to_have_attribute("aria-selected", "true")
    page.keyboard.press("Enter")
    expect(area).to_have_value("select * from houses")
    page.keyboard.type(" WHERE str")
    expect(options.first).to_contain_text("street")
    page.keyboard.press("Escape")
    expect(page.locator("#options")).to_be_hidden()
    page.keyboard.press("Enter")
    page.keyboard.type("eet = upp")
    page.keyboard.press("Enter")
    expect(area).to_have_value("select * from houses WHERE str\neet = upper()")
    page.keyboard.type("street")
    page.keyboard.press("Escape")
    expect(area).to_have_value("select * from houses WHERE str\neet = upper(street)")
    # Where no list is open, Tab goes on: the editor is no trap.
    page.keyboard.press("Tab")
    expect(page.locator("#run")).to_be_focused()
    area.click()
    page.keyboard.press("Control+End")
    page.keyboard.press("Control+Space")
    options.get_by_text("group by").click()
    expect(area).to_have_value(re.compile(r"upper\(street\) group by $"))
    page.keyboard.press("Control+z")
    expect(area).to_have_value(re.compile(r"upper\(street\)$"))
    # What is typed in full already: Enter is a new line, Tab takes it all the same.
    area.fill("select ")
    page.keyboard.type("lower")
    expect(options.first).to_have_attribute("aria-selected", "true")
    page.keyboard.press("Enter")
    expect(area).to_have_value("select lower\n")
    page.keyboard.type(", upper")
    page.keyboard.press("Tab")
    expect(area).to_have_value("select lower\n, upper()")


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("select | from house_load", ["minute", "minute_end", "house_id", "load_kw"]),
        ("select h.| from houses h join house_load l using (house_id)", ["house_id", "street", "phone", "recorded_at"]),
        ("select house| from houses h join house_load l using (house_id)", ["h.house_id", "l.house_id"]),
        ("select * from houses join house_load using (hou|", ["house_id"]),
        ("with part as (select 1) select * from |", ["part", "house_load", "houses", "readings"]),
        ("select * from house_load |", ["where ", "join ", "left join "]),
        ("select * from house_load group |", ["by "]),
        ("SELECT * FROM houses ORD|", ["ORDER BY "]),
        ("select cast(street as |", ["text", "boolean"]),
        ("select lo| from house_load", ["load_kw"]),
        ("select kw| from house_load", ["load_kw"]),
        ("select now| from houses", ["now()"]),
        ("select coun| from readings", ["count", "count()", "count_if()"]),
        ('select "hou| from readings', ["houseId"]),
        ("select 'lo|' from house_load", None),
        ("select 1 -- lo|", None),
        ("select load_kw as lo| from house_load", None),
        ("select 12|", None),
    ],
)
def test_what_is_suggested_where(opened: tuple[Page, list[str]], address: str, text: str, first: list[str]) -> None:
    page = opened[0]
    if not page.url.startswith(f"{address}/sql"):
        ready(page, address)
    found = page.evaluate(
        """async (text) => {
            const { Language } = await import("/assets/complete.js");
            const get = async (path) => (await fetch(path)).json();
            const language = new Language(await get("/api/sql"));
            language.learn((await get("/api/tables")).tables);
            const found = language.suggest(text.replace("|", ""), text.indexOf("|"));
            return found && found.options.map((each) => each.insert);
        }""",
        text,
    )
    assert (found if found is None else found[: len(first)]) == first


def test_an_answer_is_exact_and_sorted_by_a_click(page: Page) -> None:
    run(page, "select houseId, at, day, kwh, count, ok, extra from readings order by houseId")
    answered(page, "3 rows")
    assert page.locator("tbody tr").nth(0).locator("td").all_text_contents() == [
        "h0", "2026-01-01 00:00:01", "2026-01-01", "1.25", "9007199254740993", "true", '{"a": {"b": [1, 2]}, "c": "x"}',
    ]  # fmt: skip
    assert cells(page, 2)[2] == "2026-01-02 00:00:00.123456"
    assert cells(page, 4) == ["1.25", "2.50", "null"]
    expect(page.locator("tbody td.null")).to_have_count(4)
    assert page.locator("td:nth-child(4)").first.evaluate("(it) => getComputedStyle(it).textAlign") == "right"
    kwh = page.get_by_role("columnheader", name="kwh")
    kwh.get_by_role("button").click()
    expect(kwh).to_have_attribute("aria-sort", "ascending")
    assert cells(page, 4) == ["null", "1.25", "2.50"]
    kwh.get_by_role("button").click()
    expect(kwh).to_have_attribute("aria-sort", "descending")
    assert cells(page, 1) == ["h1", "h0", "h2"]
    kwh.get_by_role("button").click()
    assert cells(page, 1) == ["h0", "h1", "h2"]
    expect(page.locator("#said")).to_have_text(re.compile("^3 rows in"))


def test_many_rows_come_in_pages_and_more_is_said(page: Page) -> None:
    run(page, "select x from range(5000) t(x) order by x")
    answered(page, "1,200 rows")
    expect(page.locator("#more")).to_contain_text("first 1,200 rows; there are more")
    expect(page.locator("tbody tr")).to_have_count(100)
    page.get_by_role("button", name="Next page").click()
    expect(page.locator(".where")).to_have_text("101 to 200 of 1,200")
    assert cells(page, 1)[0] == "100"
    page.get_by_role("columnheader", name="x").get_by_role("button").dblclick()
    assert cells(page, 1)[0] == "1199"
    page.get_by_role("button", name="Last page").click()
    assert cells(page, 1)[-1] == "0"
    expect(page.get_by_role("button", name="Next page")).to_be_disabled()


def test_a_chart_is_chosen_by_the_columns(page: Page) -> None:
    run(page, "select minute, house_id, load_kw from house_load order by minute")
    answered(page, "30 rows")
    page.get_by_role("button", name="Chart").click()
    expect(page.locator(".legend-name")).to_have_text(["h2", "h1", "h0"])
    assert page.locator(".plot").get_attribute("aria-label") == (
        "load_kw by house_id: line chart along minute, 30 rows. The table has the figures."
    )
    assert inked(page) > 500
    labels = "import('/assets/series.js').then((it) => [[10, 12.5, 15], [0, 20], [0, 0.05]].map(it.tickLabels))"
    assert page.evaluate(labels) == [["10.0", "12.5", "15.0"], ["0", "20"], ["0.00", "0.05"]]
    page.get_by_label("Kind").select_option("bar")
    expect(page.locator(".plot")).to_have_attribute("aria-label", re.compile("bar chart"))
    run(page, "select house_id, sum(load_kw) as kw from house_load group by all order by kw desc")
    expect(page.locator(".entry-name")).to_have_text(["h2", "h1", "h0"])
    expect(page.locator(".entry-value").first).to_have_text("77.50")
    run(page, "select street from houses")
    expect(page.locator(".nothing:visible")).to_have_text(re.compile("A chart needs a number"))
    page.get_by_role("button", name="Table").click()
    expect(page.locator("tbody tr")).to_have_count(4)


def inked(page: Page) -> int:
    count = page.evaluate(
        """() => { const canvas = document.querySelector(".chart canvas");
        const all = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
        let count = 0; for (let at = 3; at < all.length; at += 4) if (all[at]) count += 1; return count; }"""
    )
    return int(count)


def test_an_error_says_what_and_where(page: Page) -> None:
    run(page, "select *\nfrom houses whree street = 'Oak'")
    error = page.locator("#error")
    expect(error.locator(".error-what")).to_contain_text("The question is not understood: line 2")
    expect(page.locator("#layer .wrong")).to_have_count(1)
    expect(editor(page)).to_have_attribute("aria-invalid", "true")
    run(page, "select *,\n  strete\nfrom houses")
    expect(error).to_contain_text("Did you mean street?")
    expect(page.locator("#layer .wrong")).to_have_text("strete")
    error.get_by_role("button", name="Go to line 2, column 3").click()
    expect(editor(page)).to_be_focused()
    assert editor(page).evaluate("(it) => it.selectionStart") == len("select *,\n  ")
    page.keyboard.type("x")
    expect(page.locator("#layer .wrong")).to_have_count(0)
    run(page, "delete from houses")
    expect(error).to_contain_text("DELETE is not how a question begins.")
    expect(error).to_contain_text("Expected SELECT, WITH or FROM.")
    expect(error).to_contain_text("Questions only read the store's tables.")
    run(page, " ")
    expect(error).to_contain_text("The question is empty.")
    run(page, "select 1 as one")
    answered(page, "1 row")
    expect(error).to_be_hidden()


def test_a_question_is_cancelled(page: Page, store: DuckStore) -> None:
    run(page, SLOW)
    expect(page.locator("#limits")).to_have_text(re.compile(r"^\d+\.\d s of at most 30 s$"))
    expect(page.get_by_role("progressbar")).to_be_visible()
    began = time.monotonic()
    with page.expect_response(lambda answer: answer.request.method == "DELETE") as ended:
        page.get_by_role("button", name="Cancel").click()
    assert ended.value.status == 200
    expect(page.locator("#limits")).to_have_text(re.compile(r"^Cancelled after \d+\.\d s$"))
    assert time.monotonic() - began < 10
    assert store._running == {}
    expect(page.locator("#run")).to_be_focused()
    run(page, "select 1 as one")
    answered(page, "1 row")


@pytest.mark.parametrize("kind", ["CSV", "Parquet"])
def test_a_file_has_all_rows(page: Page, tmp_path: Path, kind: str) -> None:
    sql = "select x, x * 0.5 as half, case when x % 2 = 0 then 'a,\"b' end as word from range(3000) t(x) order by x"
    run(page, sql)
    answered(page, "1,200 rows")
    # What is exported is the answer's question, whatever the editor says by now.
    editor(page).fill("select nothing")
    with page.expect_download() as loading:
        page.get_by_role("button", name=kind).click()
    name = loading.value.suggested_filename
    assert re.fullmatch(rf"meters-\d{{8}}-\d{{6}}\.{kind.lower()}", name)
    path = tmp_path / name
    loading.value.save_as(path)
    if kind == "CSV":
        rows = duckdb.read_csv(str(path)).fetchall()
    else:
        table = pq.read_table(path)
        assert str(table.schema.field("x").type) == "int64"
        rows = list(zip(*(table.column(at).to_pylist() for at in range(3)), strict=True))
    assert len(rows) == 3000
    assert [(int(x), float(half), word) for x, half, word in rows[:2]] == [(0, 0.0, 'a,"b'), (1, 0.5, None)]
    expect(page.locator("#limits")).to_have_text(f"{name} is saved")


def test_a_link_fills_the_editor_and_does_not_run(page: Page, address: str) -> None:
    sql = "select 'a+b & #1' as word,\n  100 % 7 as rest"
    editor(page).fill(sql)
    page.get_by_role("button", name="Copy link").click()
    expect(page.locator("#limits")).to_have_text("The link is copied")
    link = page.evaluate("navigator.clipboard.readText()")
    assert link.startswith(f"{address}/sql#q=")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.method))
    page.evaluate("sessionStorage.clear()")
    ready(page, address, link.removeprefix(f"{address}/sql"))
    expect(editor(page)).to_have_value(sql)
    expect(page.locator("#from-link")).to_contain_text("has not been run")
    expect(page.locator("#answer")).to_be_hidden()
    # Nor does a second link in the same page.
    page.evaluate("location.hash = '#q=select+2+as+two'")
    expect(editor(page)).to_have_value("select 2 as two")
    assert set(asked) == {"GET"}
    page.get_by_role("button", name="Run").click()
    answered(page, "1 row")
    assert cells(page, 1) == ["2"]
    expect(page.locator("#from-link")).to_be_hidden()


def test_history_and_draft_are_kept(page: Page, address: str) -> None:
    for sql in ("select 1 as one", "select 2 as two", "select 1 as one"):
        run(page, sql)
        answered(page, "1 row")
    editor(page).fill("select unfinished")
    ready(page, address)
    expect(editor(page)).to_have_value("select unfinished")
    page.get_by_text("History").click()
    expect(page.locator(".past-sql")).to_have_text(["select 1 as one", "select 2 as two"])
    page.locator(".past").nth(1).click()
    expect(editor(page)).to_have_value("select 2 as two")
    page.get_by_role("button", name="Forget all").click()
    expect(page.locator(".past")).to_have_count(0)
    assert page.evaluate("localStorage.getItem('riverrun-sql-history')") == "[]"


def test_tables_stand_beside_and_a_click_inserts(page: Page, store: DuckStore) -> None:
    expect(page.locator(".table-state").first).to_have_text(re.compile(r"^30 rows · \d+ days$"))
    expect(page.locator(".column").first).to_have_text(re.compile("^minutekey, timetimestamp$"))
    page.get_by_role("button", name="houses", exact=True).click()
    expect(editor(page)).to_have_value("select * from houses limit 100")
    editor(page).fill("select count")
    page.get_by_role("button", name=re.compile("^houseId")).click()
    expect(editor(page)).to_have_value("select count houseId")
    unfold = page.get_by_role("button", name="Columns of readings")
    unfold.click()
    expect(unfold).to_have_attribute("aria-expanded", "false")
    expect(page.get_by_role("button", name=re.compile("^houseId"))).to_have_count(0)
    store.failing = "readings"
    try:
        run(page, "select 1 as one")
        expect(page.locator('.table-state[data-state="failing"]')).to_have_text("failing")
    finally:
        store.failing = ""


def test_hostile_text_is_text(page: Page, address: str) -> None:
    name = HOSTILE.replace('"', '""')
    run(page, f"select street as \"{name}\", 1 as n from houses where house_id = 'h3'")  # noqa: S608
    answered(page, "1 row")
    assert cells(page, 1) == [HOSTILE]
    expect(page.locator("th .sort-name").first).to_have_text(HOSTILE)
    page.get_by_role("button", name="Chart").click()
    expect(page.locator(".entry-name")).to_have_text([HOSTILE])
    page.get_by_text("History").click()
    expect(page.locator(".past-sql").first).to_contain_text("<img src=x")
    run(page, f'select "{name}" from houses')  # noqa: S608
    expect(page.locator("#error")).to_contain_text("<img src=x")
    ready(page, address, "#q=%3Cimg%20src%3Dx%20onerror%3D%22window.hacked%3D1%22%3E")
    expect(page.locator("#layer")).to_contain_text('<img src=x onerror="window.hacked=1">')
    assert page.locator("img, main script").count() == 0
    assert page.evaluate("window.hacked") is None


def test_pages_lead_to_each_other(page: Page, address: str) -> None:
    expect(page.get_by_role("navigation", name="Pages").locator("[aria-current]")).to_have_text("SQL")
    page.get_by_role("link", name="Dashboards").click()
    # This app has none; the page says so and leads back.
    expect(page.locator("h2")).to_have_text("No dashboard yet")
    expect(page.locator("#pause")).to_be_hidden()
    page.get_by_role("link", name="SQL page").click()
    expect(page).to_have_url(f"{address}/sql")
    expect(page.locator("#app")).to_have_text("meters")
    expect(page).to_have_title("SQL · meters · riverrun")


def test_the_keyboard_reaches_everything(page: Page) -> None:
    page.keyboard.press("Tab")
    expect(page.locator(".skip")).to_be_focused()
    page.keyboard.press("Enter")
    expect(editor(page)).to_be_focused()
    expect(page.get_by_role("banner")).to_have_count(1)
    expect(page.get_by_role("main")).to_have_count(1)
    run(page, "select house_id, load_kw from house_load")
    answered(page, "30 rows")
    nameless = page.evaluate(
        "[...document.querySelectorAll('button, textarea, select, progress, [role=group], section, nav')]"
        ".filter((it) => it.offsetParent && !it.ariaLabel && !it.getAttribute('aria-labelledby')"
        " && !it.textContent.trim()).map((it) => it.outerHTML)"
    )
    assert nameless == []
    clashes = page.evaluate(
        "(() => { const all = [...document.querySelectorAll('[id]')].map((it) => it.id);"
        " return all.filter((id, at) => all.indexOf(id) !== at); })()"
    )
    assert clashes == []


def test_a_phone_has_room_for_it_in_the_dark(browser: Browser, address: str) -> None:
    options: dict[str, Any] = {
        "viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True, "color_scheme": "dark",
    }  # fmt: skip
    with page_of(browser, **options) as page:
        page.goto(f"{address}/sql")
        expect(page.locator("#limits")).to_contain_text("At most")
        # The tables are folded away until they are wanted.
        expect(page.locator(".table-name").first).to_be_hidden()
        editor(page).fill("select minute, house_id, load_kw, load_kw * 2 as twice, minute_end from house_load")
        page.get_by_role("button", name="Run").tap()
        answered(page, "30 rows")
        page.get_by_text("Tables").tap()
        expect(page.locator(".table-name").first).to_be_visible()
        for view in ("Chart", "Table"):
            page.get_by_role("button", name=view, exact=True).tap()
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert page.evaluate("getComputedStyle(document.querySelector('.paper')).backgroundColor") == "rgb(22, 27, 34)"


def test_a_server_that_is_gone_is_said(browser: Browser, store: DuckStore) -> None:
    with (
        StoreServer(store, routes=dashboard_routes(hub := DashboardHub(store, {}, "meters"))) as server,
        page_of(browser) as page,
    ):
        page.goto(f"{server.start()}/sql")
        expect(page.locator("#limits")).to_contain_text("At most")
        hub.request_close()
        server.close()
        run(page, "select 1 as one")
        expect(page.locator("#error")).to_contain_text("riverrun does not answer.")
        expect(page.locator("#error")).to_contain_text("Look whether riverrun serve still runs.")
        expect(page.locator("#run")).to_be_visible()
