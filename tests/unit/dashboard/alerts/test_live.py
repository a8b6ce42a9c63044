"""The alerts page, live and over HTTP: one frame for all, nothing read before somebody looks, and what people may say."""

import asyncio
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest

from riverrun.alerts.state_topic import Ack, AlertState, ChannelHealthRecord, Silence
from riverrun.dashboard.alerts import live as live_module
from riverrun.dashboard.alerts.live import AlertsBroadcast, is_alive
from riverrun.dashboard.alerts.state_follower import AlertLag
from riverrun.dashboard.alerts.view import state_of
from riverrun.errors import RiverrunError
from support.alerted import MINUTE, PHONE, MemoryFollowing, ack, fired, life, now_ms, quiet
from support.dashboards import DashServer
from support.memory_store import MemoryStore
from support.topology import meters_app

HOSTILE = '<img src=x onerror="window.hacked=1">\N{RIGHT-TO-LEFT OVERRIDE}/..?#'
JSON = {"content-type": "application/json"}


async def frame(messages: AsyncIterator[bytes]) -> dict[str, Any]:
    """The next frame."""
    while True:
        event, data = (await asyncio.wait_for(anext(messages), 10)).decode().strip().split("\n")[-2:]
        if event == "event: frame":
            found: dict[str, Any] = json.loads(data.removeprefix("data: "))
            return found


# --- live ---


def test_many_viewers_cost_one_look_and_get_only_what_changed() -> None:
    async def scenario() -> None:
        following = MemoryFollowing(*fired("h1"), life())
        alerts = AlertsBroadcast("meters", following, frame_seconds=0.01)
        assert (following.started, following.looks) == (0, 0)
        pages = [alerts.add_viewer().messages() for _ in range(50)]
        whole = await asyncio.gather(*(frame(page) for page in pages))
        assert alerts.reads == 1
        assert all(each["whole"] and each["count"] == 1 for each in whole)
        following.put(ack("h1"))
        changes = await asyncio.gather(*(frame(page) for page in pages))
        assert all(change == changes[0] for change in changes)
        assert set(changes[0]) == {"now", "count", "worst", "cases"}
        assert [each["ack"]["by"] for each in changes[0]["cases"].values()] == ["ada"]
        for page in pages:
            await page.aclose()
        alerts.close()
        assert following.closed

    asyncio.run(scenario())


def test_a_flood_of_changes_becomes_a_few_frames() -> None:
    async def scenario() -> None:
        following = MemoryFollowing(life())
        alerts = AlertsBroadcast("meters", following, frame_seconds=0.2)
        page = alerts.add_viewer().messages()
        await frame(page)
        began = time.monotonic()
        for number in range(300):
            following.put(*fired(f"h{number}"))
            await asyncio.sleep(0.001)
        seen, frames = 0, 0
        while seen < 300:
            seen += len((await frame(page)).get("cases", {}))
            frames += 1
        assert frames <= 2 + (time.monotonic() - began) / 0.2
        await page.aclose()
        alerts.close()

    asyncio.run(scenario())


def test_time_alone_changes_things_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_module, "POLL_SECONDS", 0.02)

    async def scenario() -> None:
        now = now_ms()
        following = MemoryFollowing(*fired("h1"), quiet(minutes=1))
        alerts = AlertsBroadcast("meters", following, frame_seconds=0.01, clock=lambda: now)
        page = alerts.add_viewer().messages()
        assert (await frame(page))["count"] == 0
        now += 2 * MINUTE
        change = await frame(page)
        assert (change["count"], change["silences"]) == (1, [])
        # So long behind is not worth a word, and then it is.
        following.late = AlertLag(12, now - 1000)
        now += 4100
        assert (await frame(page))["behind"] == {"offsets": 12, "since": now - 5100}
        await page.aclose()
        alerts.close()

    asyncio.run(scenario())


def test_lists_are_made_only_when_something_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    def counted(ledger: AlertState, now: int, **given: Any) -> dict[str, Any]:
        made.append(now)
        return state_of(ledger, now, **given)

    monkeypatch.setattr(live_module, "state_of", counted)

    async def scenario() -> None:
        now = now_ms()
        following = MemoryFollowing(*fired("h1"), quiet(minutes=1))
        alerts = AlertsBroadcast("meters", following, clock=lambda: now)
        for _ in range(3):
            assert (await alerts.refresh())["count"] == 0
        assert len(made) == 1
        now += 2 * MINUTE
        for _ in range(3):
            assert (await alerts.refresh())["count"] == 1
        assert len(made) == 2
        following.put(ack("h1"))
        assert (await alerts.refresh())["count"] == 0
        assert len(made) == 3
        alerts.close()

    asyncio.run(scenario())


def test_whether_the_process_lives() -> None:
    with subprocess.Popen([sys.executable, "-c", "pass"]) as process:
        gone = process.pid
    assert is_alive(life()) is True
    assert is_alive(life(pid=gone)) is False
    assert is_alive(life(host="elsewhere", pid=gone)) is None
    assert is_alive(life(pid=0)) is None
    assert is_alive(None) is None
    assert life().pid == os.getpid()
    assert life().host == socket.gethostname()


# --- over HTTP ---


class World:
    def __init__(self) -> None:
        self.following = MemoryFollowing()

    def alerts(self) -> AlertsBroadcast:
        return AlertsBroadcast("meters", self.following, declared=("overload", "silent"), frame_seconds=0.01)

    def ledger(self) -> AlertState:
        return self.following.read(lambda ledger: ledger)


@pytest.fixture(scope="module")
def world() -> World:
    return World()


@pytest.fixture(scope="module")
def client(world: World) -> Iterator[httpx.Client]:
    with (
        DashServer(meters_app(), MemoryStore(), alerts=world.alerts) as server,
        httpx.Client(base_url=server.address, trust_env=False) as found,
    ):
        yield found


@pytest.fixture(autouse=True)
def fresh(world: World) -> None:
    world.following._ledger = AlertState()
    world.following.told.clear()
    world.following.put(*fired("h1"), *fired("h2", resolved=1), life())


def test_the_page_and_what_there_is(client: httpx.Client) -> None:
    page = client.get("/alerts")
    assert page.status_code == 200
    assert "script-src 'self'" in page.headers["content-security-policy"]
    state = client.get("/api/alerts").json()
    assert (state["app"], state["ready"], state["count"], state["rules"]) == ("meters", True, 1, ["overload", "silent"])
    assert {each["list"] for each in state["cases"].values()} == {"firing", "history"}
    assert client.get("/api/alerts/count").json() == {"there": True, "count": 1, "worst": "warning"}


def test_what_is_new_is_told_at_once(client: httpx.Client, world: World) -> None:
    assert client.get("/api/alerts/count").json()["count"] == 1
    world.following.put(*fired("h3", severity="critical"))
    assert client.get("/api/alerts/count").json() == {"there": True, "count": 2, "worst": "critical"}


def test_without_alerts_there_is_a_page_that_says_so() -> None:
    with (
        DashServer(meters_app(), MemoryStore()) as server,
        httpx.Client(base_url=server.address, trust_env=False) as client,
    ):
        assert client.get("/alerts").status_code == 200
        assert client.get("/api/alerts/count").json() == {"there": False, "count": 0, "worst": ""}
        assert client.get("/api/alerts").status_code == 404


def test_one_case_by_any_key(client: httpx.Client, world: World) -> None:
    world.following.put(*fired(HOSTILE, number=12), *fired("", number=3))
    found = client.get("/api/alerts/case/overload/12", params={"key": HOSTILE}).json()
    assert (found["key"], found["place"], found["letters"][0]["to"]) == (HOSTILE, "house_now[1]@4112", PHONE)
    assert client.get("/api/alerts/case/overload/3").json()["key"] == ""


@pytest.mark.parametrize(
    ("path", "status", "message"),
    [
        ("/api/alerts/case/overload/9?key=h1", 404, "There is no alert overload of 'h1' with the number 9"),
        ("/api/alerts/case/other/1?key=h1", 404, "There is no alert other"),
        ("/api/alerts/case/overload/x?key=h1", 400, "cannot be understood"),
        ("/api/alerts/case/overload/-1?key=h1", 400, "cannot be understood"),
        ("/api/alerts/case/overload/9999999999999999?key=h1", 400, "cannot be understood"),
    ],
)
def test_what_is_not_there(client: httpx.Client, path: str, status: int, message: str) -> None:
    answer = client.get(path)
    assert (answer.status_code, message in answer.json()["error"]["message"]) == (status, True), answer.text


def test_acknowledging_is_kept_with_who_did_it_first(client: httpx.Client, world: World) -> None:
    asked = {"rule": "overload", "key": "h1", "number": 1}
    answer = client.post("/api/alerts/ack", json=asked)
    assert (answer.status_code, answer.json()["by"]) == (200, "this machine")
    kept = world.ledger().acks["overload", "h1", 1]
    assert kept == Ack(rule="overload", key="h1", number=1, at=answer.json()["at"], by="this machine")
    world.following.put(ack("h1", by="ada"))
    assert client.post("/api/alerts/ack", json=asked).json()["by"] == "ada"
    assert world.ledger().acks["overload", "h1", 1].by == "ada"


def test_a_silence_is_kept_and_ended(client: httpx.Client, world: World) -> None:
    asked = {"rule": "overload", "key": HOSTILE, "minutes": 90, "why": " painters "}
    answer = client.post("/api/alerts/silence", json=asked).json()
    (kept,) = world.ledger().silences.values()
    assert kept == Silence(
        id=answer["id"], rule="overload", key=HOSTILE, begun=kept.begun, until=kept.begun + 90 * MINUTE,
        by="this machine", why="painters",
    )  # fmt: skip
    assert [each["why"] for each in client.get("/api/alerts").json()["silences"]] == ["painters"]
    assert client.delete(f"/api/alerts/silence/{answer['id']}").status_code == 200
    assert world.ledger().silences == {}
    again = client.delete(f"/api/alerts/silence/{answer['id']}")
    assert (again.status_code, "There is no silence" in again.text) == (404, True)
    assert client.post("/api/alerts/silence", json={"minutes": 1}).status_code == 200
    assert [(silence.rule, silence.key) for silence in world.ledger().silences.values()] == [("", "")]


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("ack", "", 400, "The request is not JSON"),
        ("ack", "[]", 400, "The request is no object"),
        ("ack", '{"rule": "overload", "key": "h1"}', 400, "The request has no number"),
        ("ack", '{"rule": "overload", "key": "h1", "number": true}', 400, "number cannot be true"),
        ("ack", '{"rule": "overload", "key": "h1", "number": -1}', 400, "number cannot be -1"),
        ("ack", '{"rule": "overload", "key": 7, "number": 1}', 400, "key cannot be 7"),
        ("ack", '{"rule": "overload", "key": "h1", "number": 1, "by": "me"}', 400, "There can be no 'by'"),
        ("ack", '{"rule": "overload", "key": "h9", "number": 1}', 404, "There is no alert overload of 'h9'"),
        ("ack", '{"rule": "overload", "key": "h2", "number": 1}', 400, "does not fire any more"),
        ("silence", "{}", 400, "A silence has an end"),
        ("silence", '{"minutes": 0}', 400, "minutes from 1 to 43200 (30 days)"),
        ("silence", '{"minutes": 43201}', 400, "minutes from 1 to 43200 (30 days)"),
        ("silence", '{"minutes": 1.5}', 400, "minutes cannot be 1.5"),
        ("silence", '{"minutes": 5, "rule": "overlaod"}', 404, "There is no rule 'overlaod'"),
        ("silence", '{"minutes": 5, "key": "%s"}' % ("x" * 201), 400, "The request is too long"),
        ("silence", '{"minutes": 5, "why": "%s"}' % ("x" * 201), 400, "The request is too long"),
        ("silence", '{"minutes": 5, "until": 7}', 400, "There can be no 'until'"),
    ],
)
def test_a_wrong_request_hears_what_is_wrong(
    client: httpx.Client, world: World, path: str, body: str, status: int, message: str
) -> None:
    answer = client.post(f"/api/alerts/{path}", content=body, headers=JSON)
    assert (answer.status_code, message in answer.json()["error"]["message"]) == (status, True), answer.text
    assert world.following.told == []


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"content-type": "text/plain"}, 415),
        ({"content-type": "application/x-www-form-urlencoded"}, 415),
        ({}, 415),
        ({**JSON, "origin": "http://evil.example"}, 403),
        ({**JSON, "origin": "null"}, 403),
        ({**JSON, "sec-fetch-site": "cross-site"}, 403),
        ({**JSON, "host": "evil.example"}, 403),
    ],
)
def test_another_page_changes_nothing(client: httpx.Client, world: World, headers: dict[str, str], status: int) -> None:
    world.following.put(quiet("s1"))
    for path in ("ack", "silence"):
        body = '{"minutes": 5}' if path == "silence" else '{"rule": "overload", "key": "h1", "number": 1}'
        assert client.post(f"/api/alerts/{path}", content=body, headers=headers).status_code == status
    if status == 403:
        assert client.delete("/api/alerts/silence/s1", headers=headers).status_code == 403
    assert world.following.told == []


def test_silences_have_a_most(client: httpx.Client, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_module, "MAX_SILENCES", 2)
    answers = [client.post("/api/alerts/silence", json={"minutes": 5}) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 400]
    assert "2 silences hold already" in answers[2].text


def test_what_cannot_be_kept_is_told(client: httpx.Client, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: object) -> None:
        raise RiverrunError("The brokers do not answer")

    monkeypatch.setattr(world.following, "publish", broken)
    answer = client.post("/api/alerts/silence", json={"minutes": 5})
    assert (answer.status_code, answer.json()["error"]["message"]) == (400, "The brokers do not answer.")


def test_trouble_is_told_beside_what_is_known(client: httpx.Client, world: World) -> None:
    world.following.put(ChannelHealthRecord(name="sms", problem="it cannot be reached", since=7))
    world.following.change(trouble="No broker answers")
    state = client.get("/api/alerts").json()
    world.following.change(trouble="")
    assert (state["trouble"], state["count"], state["channels"][0]["since"]) == ("No broker answers", 1, 7)
