"""Attacks that need a browser: a real Chromium, with a page of somebody else's beside ours.

Those that are plain requests are in tests/unit/dashboard/test_attacks.py."""

import functools
import http.server
import re
import threading
from collections.abc import Iterator
from typing import Any, cast, get_args

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

import riverrun as rr
from riverrun.dashboard.responses import Asset, assets
from riverrun.model.dashboard import TileKind
from support.browsing import chromium, page_of
from support.city import City, city_app
from support.guarded import PASSWORD, Guarded

HOSTILE = (
    '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>\'"--></title></script><svg onload=hacked=1>'
)


# What a page of another origin can try. Its title says when it has.
ATTACKS = """
const tried = [];
const asked = { method: "POST", credentials: "include", body: JSON.stringify({ sql: "select 'evil' as n" }) };
const call = (path, options) => tried.push(fetch("ADDRESS" + path, { credentials: "include", ...options }));
call("/api/query", { ...asked, mode: "no-cors", headers: { "content-type": "text/plain" } });
call("/logout", { ...asked, mode: "no-cors", headers: { "content-type": "text/plain" } });
call("/api/query", { ...asked, headers: { "content-type": "application/json" } });
call("/logout", { ...asked, headers: { "content-type": "application/json" } });
call("/api/tables/prices", { method: "DELETE" });
tried.push(fetch("ADDRESS/api/dashboards").then((it) => it.text()).then(() => (window.read = 1)));
tried.push(new Promise((done) => {
  const source = new EventSource("ADDRESS/api/live/main", { withCredentials: true });
  source.onopen = () => (window.read = 1);
  source.onerror = () => { source.close(); done(); };
}));
const frame = document.createElement("iframe");
frame.src = "ADDRESS/";
tried.push(new Promise((done) => (frame.onload = done)));
document.body.append(frame);
Promise.allSettled(tried).then(() => (document.title = "tried"));
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium("--host-resolver-rules=MAP dash.test 127.0.0.1, MAP evil.test 127.0.0.1") as found:
        yield found


@pytest.fixture(scope="module")
def city() -> City:
    made = City(12)
    made.run(30)
    return made


def hostile_app() -> rr.App:
    """The city, and a dashboard with a tile of every kind whose figures, names and words are hostile."""
    app = city_app()
    app.dashboard(
        rr.number(f"{HOSTILE} number", "select max(house_id) as name from house_load", unit=HOSTILE),
        rr.line("Line", "street_load", by="street", y="load_kw", unit=HOSTILE),
        rr.area("Area", "street_load", by="street", y="load_kw", unit=HOSTILE),
        rr.bar("Bar", "street_load", by="street", limit=20, y="load_kw", unit=HOSTILE),
        rr.leaderboard("Leaders", "street_load", by="street", limit=20, y="load_kw", unit=HOSTILE),
        rr.status("Status", "street_load", by="street", limit=20, y="load_kw", unit=HOSTILE),
        rr.heat_map("Heat", "street_load", by="street", limit=20, y="load_kw", unit=HOSTILE),
        rr.candle("Candle", "prices", unit=HOSTILE),
        rr.rows("Rows", "house_load", by="house_id"),
        rr.text(f"{HOSTILE} **{HOSTILE}** `{HOSTILE}`\n\n- {HOSTILE}", title=HOSTILE),
        rr.number("Wrong", "select cast('<img src=x onerror=window.hacked=1>' as bigint) as n from house_load"),
        name="hostile",
        title=HOSTILE,
    )
    return app


@pytest.fixture(scope="module")
def guarded(city: City) -> Iterator[Guarded]:
    for minute in range(30):
        at = city.rows(minute)[0]["minute"]
        city.store.put("street_load", [{"minute": at, "street": HOSTILE, "load_kw": 99.0}])
        city.store.put("house_load", [{"minute": at, "house_id": HOSTILE, "street": HOSTILE, "load_kw": 99.0}])
    with Guarded(hostile_app(), city.store) as found:
        yield found


@pytest.fixture
def address(guarded: Guarded) -> str:
    return guarded.outside.replace("127.0.0.1", "dash.test")


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    with page_of(browser) as found:
        yield found


def let_in(context: BrowserContext, guarded: Guarded, address: str) -> str:
    number = guarded.sessions.create("test")
    context.add_cookies([{"name": "riverrun", "value": number, "url": address, "httpOnly": True, "sameSite": "Strict"}])
    return number


def live(page: Page) -> None:
    expect(page.locator("#link-text")).to_have_text("Live")


def test_a_login_from_the_first_page_to_the_last(page: Page, guarded: Guarded, address: str) -> None:
    page.goto(f"{address}/?d=more")
    expect(page).to_have_url(re.compile(r"/login\?next="))
    expect(page.locator("#password")).to_be_focused()
    page.keyboard.type("not it")
    page.keyboard.press("Enter")
    expect(page.locator("#said")).to_have_text("That is not the password.")
    page.locator("#password").fill(PASSWORD)
    page.keyboard.press("Enter")
    expect(page).to_have_url(f"{address}/?d=more")
    live(page)
    assert page.evaluate("document.cookie") == ""
    # Somebody logs out elsewhere: this page's figures end too.
    number = page.context.cookies()[0]["value"]
    with guarded.client() as other:
        other.post("/logout", json={}, headers={"cookie": f"riverrun={number}"})
    expect(page).to_have_url(re.compile(r"/login\?next="))
    let_in(page.context, guarded, address)
    page.reload()
    live(page)
    page.get_by_role("button", name="Log out").click()
    expect(page.locator("#password")).to_be_visible()
    page.goto(address)
    expect(page.locator("#password")).to_be_visible()


@pytest.mark.parametrize(
    "then", ["https://evil.test/", "//evil.test/", "/\\evil.test/", "javascript:window.hacked=1", "/%09/evil.test"]
)
def test_the_login_page_leads_nowhere_else(page: Page, guarded: Guarded, address: str, then: str) -> None:
    let_in(page.context, guarded, address)
    page.goto(f"{address}/login?next={then}")
    expect(page.locator("#link-text, pre").first).to_be_visible()
    assert page.url.startswith(f"{address}/")
    assert page.evaluate("window.hacked") is None


def test_a_link_from_elsewhere_needs_no_second_login(page: Page, guarded: Guarded, address: str, evil: str) -> None:
    """The strict cookie does not come along with it; the login page finds it and goes on."""
    let_in(page.context, guarded, address)
    page.goto(f"{evil}/link")
    page.get_by_role("link").click()
    expect(page).to_have_url(f"{address}/?d=more")
    live(page)


# --- a page of somebody else's ---


@pytest.fixture
def evil(address: str) -> Iterator[str]:
    """A server of an attacker's: pages that try what a page of another origin can."""
    attacks = ATTACKS.replace("ADDRESS", address)
    form = f"""<form action="{address}/logout" method="post" enctype="text/plain"><input name='{{"a":"' value='"}}'></form>
        <script>document.forms[0].submit()</script>"""
    pages = {
        "/": f"<body><script>{attacks}</script>",
        "/form": form,
        "/link": f'<a href="{address}/?d=more">look</a>',
    }

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = pages.get(self.path, "").encode()
            self.send_response(200 if body else 404)
            self.send_header("content-type", "text/html; charset=utf-8")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None: ...

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=functools.partial(server.serve_forever, 0.05))
    thread.start()
    yield f"http://evil.test:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("neighbour", [False, True], ids=["cross-site", "same-site"])
def test_a_foreign_page_reads_and_changes_nothing(
    page: Page, guarded: Guarded, city: City, address: str, evil: str, neighbour: bool
) -> None:
    """`same-site`: another port of the same machine, where the browser sends the cookie along."""
    number = let_in(page.context, guarded, address)
    page.goto(address)
    live(page)
    viewers = sum(len(view.viewers) for view in guarded.hub._views.values())
    with page.context.expect_page() as opened:
        page.evaluate("window.open('about:blank')")
    foreign = opened.value
    foreign.goto(evil.replace("evil.test", "dash.test") if neighbour else evil)
    expect(foreign).to_have_title("tried")
    assert foreign.evaluate("window.read") is None
    assert not foreign.frames[1].url.startswith(address) or foreign.frames[1].locator("header").count() == 0
    foreign.goto(f"{evil}/form")
    expect(foreign.locator("body")).to_contain_text("FORBIDDEN")
    assert not [each for each in city.store.asked if "evil" in each]
    assert "prices" in city.store.tables
    assert guarded.sessions.find(number) is not None
    assert sum(len(view.viewers) for view in guarded.hub._views.values()) <= viewers


def test_dns_rebinding(page: Page, guarded: Guarded, address: str) -> None:
    """A name of the attacker's that points here: same origin for the browser, and still refused."""
    for own in (guarded.outside, guarded.inside):
        answer = page.goto(own.replace("127.0.0.1", "evil.test"))
        assert answer is not None
        assert answer.status == 403
        assert page.evaluate("fetch('/api/login').then((it) => it.status, () => 'not even tried')") == "not even tried"


# --- what a page may do ---


def test_an_injected_script_does_not_run(
    page: Page, guarded: Guarded, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if there were a hole: markup of an attacker's in the page as it is sent, and in the page as it runs."""
    let_in(page.context, guarded, address)
    injected = """<script>window.hacked = 1</script><img src="/none" onerror="window.hacked = 2">
        <a id="bait" href="javascript:window.hacked=3">x</a><script src="http://evil.test:1/x.js"></script>
        <style>body { display: none }</style><base href="http://evil.test/">"""

    page_as_it_is = assets()["index.html"].body.decode()
    with_a_hole = Asset("index.html", page_as_it_is.replace("<main", f"{injected}<main").encode())
    monkeypatch.setitem(cast("dict[str, Asset]", assets()), "index.html", with_a_hole)
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.goto(address)
    live(page)
    expect(page.locator("body")).to_be_visible()
    page.locator("#bait").dispatch_event("click")
    for code in (
        "const it = document.createElement('script'); it.textContent = 'window.hacked = 4'; document.body.append(it)",
        "document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=window.hacked=5>')",
        "document.getElementById('said').innerHTML = '<img src=x onerror=window.hacked=6>'",
        "document.body.setAttribute('onclick', 'window.hacked = 7'); document.body.click()",
        "const it = document.createElement('script'); it.src = '/assets/theme.js?x'; document.body.append(it)",
    ):
        page.evaluate(f"() => {{ try {{ {code} }} catch {{ /* refused */ }} }}")
    live(page)
    assert page.evaluate("window.hacked") is None
    assert len([complaint for complaint in complaints if "Content Security Policy" in complaint]) >= 4


def test_hostile_text_is_text_in_every_kind_of_tile(page: Page, guarded: Guarded, address: str) -> None:
    let_in(page.context, guarded, address)
    app = hostile_app()
    assert {tile.kind for tile in app.dashboards["hostile"].tiles} == set(get_args(TileKind))
    page.goto(f"{address}/?d=hostile")
    live(page)
    expect(page.locator("h1")).to_have_text(HOSTILE)
    for name in ("bar", "leaders", "status"):
        expect(page.locator(f'[data-name="{name}"] .entry-name').first).to_have_text(HOSTILE)
    expect(page.locator('[data-name="rows"] td .cell', has_text="<img").first).to_have_text(HOSTILE)
    expect(page.locator('[data-name="wrong"] .note')).to_be_visible()
    # Behind every chart is a table.
    for swap in page.locator(".swap:visible").all():
        swap.click()
    page.locator('[data-name="bar"] .swap').click()
    page.locator('[data-name="bar"] .entry').first.click()
    expect(page.locator(".chip")).to_contain_text(HOSTILE)
    page.reload()
    live(page)
    expect(page.locator(".chip")).to_contain_text(HOSTILE)
    assert page.locator("img, main script, main svg[onload]").count() == 0
    assert page.evaluate("window.hacked") is None
