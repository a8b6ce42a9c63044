"""The alerts page in a real browser: what fires appears as it does, and is acknowledged, silenced and looked into.

The ledger is in memory, behind what follows the real one (test_alert_state_follower.py)."""

import re
from collections.abc import Iterator
from typing import Literal

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from riverrun.alerts.state_topic import AlertRecord, AlertState, ChannelHealthRecord, Silence
from riverrun.dashboard.alerts import live
from riverrun.dashboard.alerts.live import AlertsBroadcast
from riverrun.dashboard.alerts.state_follower import AlertLag
from support.alerted import MINUTE, PHONE, MemoryFollowing, ack, evening, fired, life, now_ms, quiet
from support.browsing import chromium, page_of
from support.dashboards import DashServer
from support.memory_store import MemoryStore
from support.topology import meters_app

HOSTILE = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>'
TURNED = "\N{RIGHT-TO-LEFT OVERRIDE}evil"
# What a browser says of a server that is gone, or refuses.
GONE = (
    "503 (Service Unavailable)",
    "ERR_CONNECTION_REFUSED",
    "ERR_INCOMPLETE_CHUNKED_ENCODING",
    "ERR_EMPTY_RESPONSE",
    "ERR_CONNECTION_RESET",
)


class World:
    def __init__(self) -> None:
        self.following = MemoryFollowing()

    def alerts(self) -> AlertsBroadcast:
        return AlertsBroadcast("meters", self.following, declared=("overload", "silent"), frame_seconds=0.02)

    def put(self, *records: AlertRecord) -> None:
        self.following.put(*records)

    @property
    def ledger(self) -> AlertState:
        return self.following.read(lambda ledger: ledger)


@pytest.fixture(scope="module")
def world() -> World:
    return World()


@pytest.fixture(scope="module")
def server(world: World) -> Iterator[DashServer]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(live, "POLL_SECONDS", 0.1)
        with DashServer(meters_app(), MemoryStore(), alerts=world.alerts) as running:
            yield running


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def one_page(browser: Browser, server: DashServer) -> Iterator[Page]:
    complaints: list[str] = []
    with page_of(browser, complaints=complaints) as found:
        found.goto(f"{server.address}/alerts")
        expect(found.locator("#link-text")).to_have_text("Live")
        found.evaluate("window.same = true")
        yield found
        assert found.evaluate("window.hacked") is None
        assert found.evaluate("window.same"), "the page was loaded again"
    assert [complaint for complaint in complaints if not any(word in complaint for word in GONE)] == []


@pytest.fixture
def page(one_page: Page, world: World) -> Page:
    """The page with nothing open, nothing fired and no filter."""
    one_page.mouse.move(0, 0)
    one_page.keyboard.press("Escape")
    one_page.locator("#text").fill("")
    one_page.locator("#rule").select_option("")
    world.following.late = None
    world.following._ledger = AlertState()
    world.put(life())
    expect(one_page.locator("#panel")).to_be_hidden()
    expect(one_page.locator(".case")).to_have_count(0)
    return one_page


def case(page: Page, key: str, among: str = "firing") -> Locator:
    return page.locator(f"#{among} .case").filter(has_text=key)


def test_what_fires_appears_by_itself_and_goes_when_it_is_over(page: Page, world: World) -> None:
    expect(page.locator("#firing-none")).to_have_text("Nothing fires. 2 rules watch: overload, silent.")
    expect(page.locator("#history-none")).to_have_text("Nothing has fired yet.")
    world.put(*fired("house-1", severity="critical", text="It draws 4.6 kW."))
    found = case(page, "house-1")
    expect(found).to_contain_text("It draws 4.6 kW.")
    expect(found).to_contain_text("to +353 ••• 4567 · delivered")
    expect(found.locator("svg")).to_have_attribute("aria-label", "critical")
    expect(found.locator(".case-age")).to_have_text("4 min")
    expect(page.locator("#said")).to_have_text("overload · house-1 fires")
    expect(page.locator("#pages .badge")).to_have_text("1 firing")
    expect(page).to_have_title("(1) Alerts · meters")
    world.put(*fired("house-1", resolved=1, delivery="sent"))
    expect(found).to_have_count(0)
    over = case(page, "house-1", "history")
    expect(over.locator(".lasted")).to_have_text("3 min")
    expect(over.locator(".sent")).to_have_text("2 sent")
    expect(page.locator("#pages .badge")).to_have_count(0)
    expect(page).to_have_title("Alerts · meters")


def test_the_worst_comes_first_and_what_is_looked_after_last(page: Page, world: World) -> None:
    world.put(*fired("info", severity="info", ago=1), *fired("old", ago=9), *fired("new", ago=2))
    world.put(*fired("worst", severity="critical", ago=50), *fired("mine", severity="critical"), ack("mine"))
    names = page.locator("#firing .case-open")
    expect(names).to_have_text([f"overload · {each}" for each in ("worst", "new", "old", "info", "mine")])


def test_nothing_moves_under_a_pointer(page: Page, world: World) -> None:
    world.put(*fired("one", ago=3), *fired("two", ago=5), *fired("three", ago=9))
    names = page.locator("#firing .case-open")
    expect(names).to_have_count(3)
    case(page, "two").hover()
    world.put(*fired("new", severity="critical"), *fired("one", ago=3, resolved=1))
    expect(names).to_have_text([f"overload · {each}" for each in ("one", "two", "three", "new")])
    expect(page.locator("#firing .case[inert]")).to_contain_text("one")
    expect(page.locator("#firing-count")).to_have_text("3")
    page.mouse.move(0, 0)
    expect(names).to_have_text([f"overload · {each}" for each in ("new", "two", "three")])
    expect(page.locator("#firing .case[inert]")).to_have_count(0)


def test_it_is_acknowledged(page: Page, world: World) -> None:
    world.put(*fired("house-1"), *fired("house-2"))
    button = page.get_by_role("button", name="Acknowledge overload · house-1")
    button.focus()
    page.keyboard.press("Enter")
    found = case(page, "house-1")
    expect(found).to_contain_text("acknowledged by this machine at")
    expect(button).to_have_count(0)
    # Who goes by keyboard is not lost.
    expect(found.locator(".case-open")).to_be_focused()
    expect(page.locator("#pages .badge")).to_have_text("1 firing")
    assert world.ledger.acks["overload", "house-1", 1].by == "this machine"


def test_a_refused_request_says_why(page: Page, world: World) -> None:
    world.put(*fired("house-1"))
    found = page.get_by_role("button", name="Acknowledge overload · house-1")
    expect(found).to_be_visible()
    page.route("**/api/alerts/ack", lambda route: route.fulfill(status=503, json={"error": {"message": "No broker."}}))
    found.click()
    expect(page.locator("#outcome")).to_have_text("It was not acknowledged: No broker.")
    expect(found).to_be_enabled()
    page.unroute("**/api/alerts/ack")
    found.click()
    expect(page.locator("#outcome")).to_be_empty()


def test_it_is_silenced_and_the_silence_ended(page: Page, world: World) -> None:
    world.put(*fired("house-1"), *fired("house-2"))
    page.get_by_role("button", name="Silence… overload · house-1").click()
    ask = page.get_by_role("dialog")
    expect(ask.get_by_label("Rule")).to_have_value("overload")
    expect(ask.get_by_label("Key")).to_have_value("house-1")
    expect(ask.get_by_label("For")).to_be_focused()
    ask.get_by_label("For").select_option("4 hours")
    ask.get_by_label("Why").fill(f"painters {HOSTILE}")
    ask.get_by_role("button", name="Silence").click()
    held = case(page, "house-1", "held")
    expect(held).to_contain_text("silenced by this machine until ")
    expect(held).to_contain_text(f"painters {HOSTILE}")
    expect(page.locator("#firing .case")).to_have_count(1)
    expect(page.locator("#pages .badge")).to_have_text("1 firing")
    (kept,) = world.ledger.silences.values()
    assert (kept.rule, kept.key, kept.until - kept.begun) == ("overload", "house-1", 240 * MINUTE)
    page.get_by_role("button", name="End now overload · house-1").click()
    expect(case(page, "house-1")).to_be_visible()
    expect(page.locator("#silences .case")).to_have_count(0)
    expect(page.locator("#silences-title")).to_be_focused()


def test_everything_is_silenced_or_nothing(page: Page, world: World) -> None:
    world.put(*fired("house-1"))
    page.locator("#silence").click()
    ask = page.get_by_role("dialog")
    page.keyboard.press("Escape")
    expect(ask).to_be_hidden()
    expect(page.locator("#silence")).to_be_focused()
    page.locator("#silence").click()
    world.put(*(quiet(f"s{number}", minutes=0) for number in range(3)))
    ask.get_by_role("button", name="Silence").click()
    expect(page.locator("#silences .case")).to_contain_text("Everything")
    expect(page.locator("#firing .case")).to_have_count(0)
    assert [(silence.rule, silence.key) for silence in world.ledger.silences.values() if silence.until > now_ms()] == [
        ("", "")
    ]


def test_a_case_tells_why_it_fired(page: Page, world: World) -> None:
    world.put(*fired("house-1", number=7, to=(PHONE, "+353871112222"), delivery="refused", reason="barred"))
    case(page, "house-1").locator(".case-open").focus()
    page.keyboard.press("Enter")
    panel = page.locator("#panel")
    expect(panel.locator("#panel-title")).to_be_focused()
    expect(panel.locator("#panel-title")).to_have_text("overload · house-1")
    expect(panel.locator(".place")).to_have_text("house_now[1]@4107")
    expect(panel.get_by_role("region", name="The row behind it").locator("tr")).to_have_count(6)
    expect(panel.locator("tr").filter(has_text="load_kw")).to_have_text("load_kw2.4")
    expect(panel.locator(".letter")).to_have_count(2)
    first = panel.locator(".letter").first
    expect(first.locator("b")).to_have_text(PHONE)
    expect(first).to_contain_text("refused")
    expect(first.locator(".case-reason")).to_have_text("barred")
    expect(first).to_contain_text("1 try")
    expect(page).to_have_url(re.compile(r"#overload/7/house-1$"))
    expect(case(page, "house-1")).to_have_attribute("aria-current", "true")
    # It is live too.
    world.put(ack("house-1", number=7, by="ada"))
    expect(panel.locator(".facts")).to_contain_text("by ada at")
    expect(panel.get_by_role("button", name="Acknowledge")).to_have_count(0)
    page.keyboard.press("Escape")
    expect(panel).to_be_hidden()
    expect(case(page, "house-1").locator(".case-open")).to_be_focused()
    page.go_back()
    expect(panel.locator("#panel-title")).to_have_text("overload · house-1")


def test_dead_letters_say_why_and_lead_to_their_case(page: Page, world: World) -> None:
    expect(page.locator("#dead-none")).to_contain_text("None.")
    world.put(*fired("house-1", to=("+35316",), delivery="refused", reason="the number is too short", resolved=1))
    letter = case(page, "house-1", "dead")
    expect(letter).to_contain_text("the number is too short")
    expect(letter).to_contain_text("+353 ••• 16")
    letter.locator(".case-open").click()
    expect(page.locator("#panel .letter b")).to_have_text("+35316")


def test_a_filter_by_rule_and_text(page: Page, world: World) -> None:
    world.put(*fired("house-1"), *fired("house-2", rule="silent"), *fired("house-3", resolved=1))
    page.locator("#rule").select_option("silent")
    expect(page.locator("#firing .case")).to_have_count(1)
    expect(page.locator("#firing-count")).to_have_text("1 of 2")
    expect(page.locator("#history-none")).to_have_text("None of them matches the filter.")
    page.locator("#rule").select_option("")
    page.locator("#text").fill("HOUSE-3")
    expect(page.locator("#firing .case")).to_have_count(0)
    expect(page.locator("#history .case")).to_have_count(1)


def test_hostile_text_is_text(page: Page, world: World) -> None:
    key = f"{HOSTILE}{TURNED}\n/../?#&"
    world.put(
        *fired(
            key,
            text=f"Text {HOSTILE}",
            reason=HOSTILE,
            delivery="refused",
            row={HOSTILE: HOSTILE},
            record_location=HOSTILE,
        )
    )
    world.put(quiet(rule="silent", why=HOSTILE, by=HOSTILE), ack(key, by=HOSTILE))
    world.put(ChannelHealthRecord(name=HOSTILE, destination=HOSTILE, problem=HOSTILE, since=now_ms()))
    found = page.locator("#firing .case")
    expect(found.locator(".case-text")).to_have_text(f"Text {HOSTILE}")
    expect(found.locator(".case-open")).to_contain_text(r"\u202eevil")
    found.locator(".case-open").click()
    expect(page.locator("#panel .place")).to_have_text(HOSTILE)
    expect(page.locator("#panel tbody th")).to_have_text(HOSTILE)
    expect(page.locator("#panel .facts")).to_contain_text(f"by {HOSTILE}")
    expect(page.locator("#banner")).to_contain_text(HOSTILE)
    # The address holds the key, whatever is in it.
    page.locator("#panel").get_by_role("button", name="Silence…").click()
    page.get_by_role("dialog").get_by_role("button", name="Silence").click()
    expect(page.locator("#firing .case")).to_have_count(0)
    assert key in [silence.key for silence in world.ledger.silences.values()]
    assert page.locator("main img, main script, #panel img, #panel script").count() == 0


def test_what_is_wrong_is_said_above_all(page: Page, world: World) -> None:
    banner = page.locator("#banner")
    expect(banner).to_be_hidden()
    world.put(ChannelHealthRecord(name="sms", problem="it cannot be reached", since=now_ms()))
    expect(banner).to_have_text(re.compile(r"^sms: alerts are parked since \d\d:\d\d: it cannot be reached$"))
    world.following.late = AlertLag(1234, now_ms() - 20_000)
    expect(banner.locator("p")).to_have_count(2)
    expect(banner).to_contain_text("1,234 offsets wait to be judged")
    expect(page.locator("#facts")).to_contain_text("1,234 offsets behind")
    world.following.late = None
    world.put(ChannelHealthRecord(name="sms"), life(ended=now_ms()))
    expect(banner).to_contain_text("Alerts do not run since")
    expect(page.locator("#facts")).to_contain_text("stopped at")
    world.following.change(trouble="No broker answers")
    expect(banner).to_contain_text("What is shown may be old: No broker answers")
    world.following.change(trouble="")
    world.put(life(pid=2**22 + 1))
    expect(banner).to_contain_text("died: nobody is told")


def test_other_pages_have_the_number_in_their_header(
    browser: Browser, server: DashServer, world: World, page: Page
) -> None:
    world.put(*fired("house-1", severity="critical"), *fired("house-2"))
    with page_of(browser) as other:
        other.goto(f"{server.address}/sql")
        expect(other.locator("#pages .badge")).to_have_text("2 firing")
        expect(other.locator("#pages .badge")).to_have_attribute("data-severity", "critical")


def test_an_app_without_alerts_says_how_to_have_some(browser: Browser) -> None:
    complaints: list[str] = []
    with DashServer(meters_app(), MemoryStore()) as bare, page_of(browser, complaints=complaints) as found:
        found.goto(f"{bare.address}/alerts")
        expect(found.locator("#none")).to_contain_text("app.alert(")
        expect(found.locator("#filter")).to_be_hidden()
    assert complaints == []


@pytest.mark.parametrize("colours", ["light", "dark"])
def test_on_a_phone_everything_fits(
    browser: Browser, server: DashServer, world: World, page: Page, colours: Literal["light", "dark"]
) -> None:
    world.put(*evening(), *fired("x" * 190, text="y" * 900), *fired("<wide>", resolved=1, text="z" * 300))
    with page_of(browser, viewport={"width": 390, "height": 844}, has_touch=True, color_scheme=colours) as phone:
        phone.goto(f"{server.address}/alerts")
        expect(case(phone, "house-00417")).to_be_visible()
        assert phone.evaluate("document.documentElement.scrollWidth") <= 390
        case(phone, "house-00417").locator(".case-open").click()
        expect(phone.locator("#panel .letter")).to_have_count(2)
        assert phone.evaluate("document.documentElement.scrollWidth") <= 390
        phone.get_by_role("button", name="Close").click()
        expect(phone.locator("#panel")).to_be_hidden()
        ground = phone.evaluate("getComputedStyle(document.documentElement).backgroundColor")
        assert ground == ("rgb(243, 245, 247)" if colours == "light" else "rgb(13, 17, 23)")


def test_after_a_restart_of_the_server_it_goes_on(page: Page, server: DashServer, world: World) -> None:
    world.put(*fired("house-1"))
    expect(case(page, "house-1")).to_be_visible()
    server.stop()
    expect(page.locator("#banner")).to_contain_text("The connection to riverrun is lost")
    expect(case(page, "house-1")).to_be_visible()
    world.put(*fired("house-2"), Silence(id="x", until=now_ms() + MINUTE, key="house-1"))
    server.start()
    expect(page.locator("#link-text")).to_have_text("Live")
    expect(case(page, "house-2")).to_be_visible()
    expect(case(page, "house-1", "held")).to_be_visible()
