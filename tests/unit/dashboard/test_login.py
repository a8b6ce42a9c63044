"""The door: nobody passes it without a login, a login is one's own, and it ends."""

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
import trustme
from starlette.requests import Request

from riverrun.config import Project
from riverrun.config.spec import ServeSettings
from riverrun.dashboard import login as doors
from riverrun.dashboard.alerts.live import AlertsBroadcast
from riverrun.dashboard.json_requests import PASSWORD_USER as PASSWORD_LOGIN
from riverrun.dashboard.json_requests import USER_SCOPE_KEY, current_user
from riverrun.dashboard.login import safe_redirect_path
from riverrun.dashboard.public_access import allowed_hosts, open_login_gate
from riverrun.errors import ConfigError, DataDirectoryError, RiverrunError
from riverrun.store.client import StoreClient
from riverrun.store.server import StoreServer
from riverrun.web.auth import sessions as sessions_of
from riverrun.web.auth.password import HASH_FILE, TEXT_FILE, Password, project_password
from riverrun.web.auth.rate_limit import RequestLimiter, RequestRate
from riverrun.web.auth.sessions import LoginSessions
from riverrun.web.server import PublicListener
from support.alerted import MemoryFollowing, fired
from support.city import City, city_app
from support.guarded import PASSWORD, Guarded, cookie_parts

CLOSED = ("/", "/api/dashboards", "/api/live/main", "/api/tiles/main/city-load?at=1", "/api/tables", "/healthz", "/no")
HTML = {"accept": "text/html,*/*"}


@pytest.fixture(scope="module")
def guarded() -> Iterator[Guarded]:
    city = City(12)
    city.run(5)
    with Guarded(city_app(), city.store) as found:
        yield found


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


# --- who gets in ---


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("path", CLOSED)
def test_nothing_is_shown_without_a_login(guarded: Guarded, path: str, inside: bool) -> None:
    with guarded.client(inside=inside) as client:
        answer = client.get(path)
        assert answer.status_code == 401
        assert answer.json()["error"]["code"] == "LOGIN_REQUIRED"
        assert client.post("/api/query", json={"sql": "select 1"}).status_code == 401
        assert client.delete("/api/tables/house_load").status_code == 401


def test_a_reader_is_led_to_the_login_page_and_back(guarded: Guarded) -> None:
    with guarded.client(address="127.0.0.2") as client:
        led = client.get("/?d=more&f.street=Elm%20Street", headers=HTML)
        assert led.status_code == 303
        assert led.headers["location"] == "/login?next=%2F%3Fd%3Dmore%26f.street%3DElm%2520Street"
        page = client.get(led.headers["location"])
        assert page.status_code == 200
        assert "script-src 'self'" in page.headers["content-security-policy"]
        assert client.get("/api/login").json() == {"login": "password", "in": False, "who": ""}
        answer = client.post("/login", json={"password": PASSWORD})
        assert answer.status_code == 200
        found = cookie_parts(answer)
        assert found["samesite"] == "strict"
        assert "httponly" in found
        assert "secure" not in found
        assert found["path"] == "/"
        assert client.get("/api/dashboards").json()["app"] == "meters"
        assert client.get("/api/login").json() == {"login": "password", "in": True, "who": "password"}


@pytest.mark.parametrize("number", ["", "x", "null", "../..", "%00", "é".encode().decode("latin-1"), "A" * 43])
def test_a_forged_session_is_none(guarded: Guarded, number: str) -> None:
    with guarded.client() as client:
        answer = client.get("/api/dashboards", headers=[(b"cookie", f"riverrun={number}".encode("latin-1"))])
        assert answer.status_code == 401


def test_two_cookies_of_the_name_are_none(guarded: Guarded) -> None:
    good = guarded.sessions.create("test")
    with guarded.client() as client:
        assert client.get("/healthz", headers={"cookie": f"riverrun={good}"}).status_code == 200
        assert client.get("/healthz", headers={"cookie": f"riverrun=x; riverrun={good}"}).status_code == 401


def test_a_login_has_a_new_number_and_the_old_one_ends(guarded: Guarded) -> None:
    """Session fixation: who plants a number in a browser does not get into what its owner then logs in to."""
    planted, before = "planted-by-somebody-else", guarded.sessions.create("test")
    with guarded.client(address="127.0.0.3") as client:
        for number in (planted, before):
            answer = client.post("/login", json={"password": PASSWORD}, headers={"cookie": f"riverrun={number}"})
            assert cookie_parts(answer)["value"] not in {planted, before}
            assert guarded.sessions.find(number) is None


def test_logging_out_ends_it_for_good(guarded: Guarded) -> None:
    number = guarded.sessions.create("test")
    with guarded.client() as client:
        headers = {"cookie": f"riverrun={number}"}
        assert client.get("/healthz", headers=headers).status_code == 200
        answer = client.post("/logout", json={}, headers=headers)
        assert cookie_parts(answer)["max-age"] == "0"
        assert client.get("/healthz", headers=headers).status_code == 401


def test_a_live_page_ends_with_its_login(guarded: Guarded) -> None:
    number = guarded.sessions.create("test")
    ended = threading.Event()
    begun = threading.Event()

    def look_on() -> None:
        headers = {"cookie": f"riverrun={number}"}
        with guarded.client() as client, client.stream("GET", "/api/live/main", headers=headers) as answer:
            for _ in answer.iter_raw():
                begun.set()
        ended.set()

    thread = threading.Thread(target=look_on, daemon=True)
    thread.start()
    assert begun.wait(30)
    with guarded.client() as client:
        client.post("/logout", json={}, headers={"cookie": f"riverrun={number}"})
    assert ended.wait(30)


def test_sessions_end_by_themselves() -> None:
    now = 0.0
    sessions = LoginSessions(60, 300, lambda: now)
    first, second = sessions.create("a"), sessions.create("b")
    now = 59
    assert sessions.find(first) is not None
    now = 61
    assert sessions.find(second) is None
    assert sessions.find(first) is not None
    for now in range(100, 301, 50):
        assert (sessions.find(first) is None) == (now >= 300)
    assert len(sessions) == 0
    # A page that looks on is use; the end of all comes all the same.
    third = sessions.create("c")
    looking = sessions.find(third)
    assert looking is not None
    looking.open_requests = 1
    now += 200
    assert sessions.seconds_left(looking) == 60
    sessions.release(looking)
    assert sessions.find(third) is looking
    now += 101
    assert sessions.find(third) is None
    assert looking.ended.is_set()


def test_there_is_a_most_of_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions_of, "MAX_SESSIONS", 3)
    now = 0.0
    sessions, numbers = LoginSessions(60, 300, lambda: now), []
    for _ in range(5):
        now += 1
        numbers.append(sessions.create("a"))
    assert [sessions.find(number) is not None for number in numbers] == [False, False, True, True, True]


# --- the user's own commands ---


def test_commands_of_this_machine_have_a_token(guarded: Guarded) -> None:
    with StoreClient(guarded.inside, guarded.door.token) as client:
        assert client.query("select count(*) as n from prices").rows.column("n")[0].as_py() == 5
    for token in ("", "x", guarded.door.token[:-1]):
        with StoreClient(guarded.inside, token) as client, pytest.raises(RiverrunError, match="Log in first"):
            client.table_statuses()
    # From outside it is worth nothing.
    with StoreClient(guarded.outside, guarded.door.token) as client, pytest.raises(RiverrunError, match="Log in first"):
        client.table_statuses()


def test_a_viewer_changes_nothing(guarded: Guarded) -> None:
    with guarded.logged_in() as client:
        for method, path in (("DELETE", "/api/tables/prices"), ("POST", "/api/anything"), ("POST", "/api/queryx")):
            answer = client.request(method, path, headers={"content-type": "application/json"})
            assert answer.status_code == 403
            assert "where it is served" in answer.json()["error"]["message"]
        assert client.get("/api/tables/prices").status_code == 200
        assert client.delete("/api/query/none").status_code == 404


def test_a_viewer_looks_after_alerts_and_no_more() -> None:
    following = MemoryFollowing(*fired("h1"))
    with Guarded(city_app(), City(1).store, alerts=AlertsBroadcast("meters", following)) as guarded:
        with guarded.client() as stranger:
            for path in ("/api/alerts", "/api/alerts/count", "/api/alerts/live", "/api/alerts/case/overload/1?key=h1"):
                assert stranger.get(path).status_code == 401
            for method, path in (("POST", "ack"), ("POST", "silence"), ("DELETE", "silence/s1")):
                answer = stranger.request(method, f"/api/alerts/{path}", headers={"content-type": "application/json"})
                assert answer.status_code == 401
        assert following.started == 0
        with guarded.logged_in() as client:
            asked = {"rule": "overload", "key": "h1", "number": 1}
            assert client.post("/api/alerts/ack", json=asked).json()["by"] == "test"
            made = client.post("/api/alerts/silence", json={"minutes": 5}).json()
            assert client.delete(f"/api/alerts/silence/{made['id']}").status_code == 200
            for path in ("/api/alerts", "/api/alerts/case/overload/1", "/api/alerts/acks", "/api/alerts/silences/x"):
                assert client.post(path, json={}).status_code == 403
            elsewhere = client.post("/api/alerts/ack", json=asked, headers={"origin": "https://evil.test"})
            assert elsewhere.status_code == 403
    assert len(following.told) == 3


def test_all_who_know_the_password_are_one_viewer() -> None:
    scope = {"type": "http", "headers": []}
    assert current_user(Request({**scope, USER_SCOPE_KEY: PASSWORD_LOGIN})) == "a viewer"
    assert current_user(Request({**scope, USER_SCOPE_KEY: "ada@example.org"})) == "ada@example.org"
    assert current_user(Request(scope)) == "this machine"


# --- how often ---


def test_guessing_is_slow(guarded: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []

    def matches(_: Password, text: str) -> bool:
        tried.append(text)
        return text == PASSWORD

    monkeypatch.setattr(Password, "matches", matches)
    # A server behind a proxy on this machine would believe what 127.0.0.1 says of others.
    with guarded.client(address="127.0.0.1") as client:
        answers = [client.post("/login", json={"password": f"guess {n}"}) for n in range(8)]
        assert [answer.status_code for answer in answers] == [401] * 5 + [429] * 3
        assert 1 <= int(answers[-1].headers["retry-after"]) <= 12
        # Not even the right one is looked at now, and what a header says of the address is not believed.
        lies = {"x-forwarded-for": "192.0.2.1", "forwarded": "for=192.0.2.1", "x-real-ip": "192.0.2.1"}
        assert client.post("/login", json={"password": PASSWORD}, headers=lies).status_code == 429
    assert len(tried) == 5
    with guarded.client(address="127.0.0.10") as other:
        for _ in range(7):
            assert other.post("/login", json={"password": PASSWORD}).status_code == 200


def test_guessing_from_everywhere_is_slow_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Password, "matches", lambda *_: False)
    city = City(12)
    with Guarded(city_app(), city.store) as guarded:
        statuses = []
        for number in range(60):
            with guarded.client(address=f"127.0.1.{number + 1}") as client:
                statuses.append(client.post("/login", json={"password": "x"}).status_code)
        assert statuses[:50] == [401] * 50
        assert 429 in statuses[50:]


def test_questions_of_one_login_have_a_rate(guarded: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    # As many at once as there are, and then so few that a machine as slow as any is faster.
    monkeypatch.setattr(guarded.door, "_query_limit", RequestLimiter(RequestRate(doors.QUERY_RATE.burst, 0.001)))
    with guarded.logged_in() as client, guarded.logged_in() as other:
        statuses = [client.post("/api/query", json={"sql": ""}).status_code for _ in range(32)]
        assert statuses == [400] * 30 + [429] * 2
        assert other.post("/api/query", json={"sql": "select 1 as one"}).status_code == 200


def test_one_login_does_not_take_all_the_room(guarded: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doors, "MAX_REQUESTS_PER_SESSION", 2)
    with guarded.logged_in() as client, guarded.logged_in() as other:
        with client.stream("GET", "/api/live/main") as first, client.stream("GET", "/api/live/main") as second:
            assert (first.status_code, second.status_code) == (200, 200)
            assert client.get("/api/live/main").status_code == 429
            assert other.get("/api/dashboards").status_code == 200
        # Who goes away makes room.
        wait_until(lambda: client.get("/healthz").status_code == 200)


# --- the password ---


def test_a_password_is_made_once_and_kept_as_a_hash(tmp_path: Path) -> None:
    told: list[str] = []
    settings = ServeSettings(host="192.0.2.7", insecure=True)
    assert open_login_gate(ServeSettings(), Project(tmp_path), told.append) is None
    assert not (tmp_path / ".riverrun").exists()
    assert open_login_gate(settings, Project(tmp_path), told.append) is not None
    home = tmp_path / ".riverrun"
    text = (home / TEXT_FILE).read_text().strip()
    assert len(text) == 27
    assert told[0] == f"a password for the dashboards is made, in {home / TEXT_FILE}"
    assert "without TLS" in told[1]
    assert text not in "".join(told)
    assert [oct((home / name).stat().st_mode)[-3:] for name in (TEXT_FILE, HASH_FILE)] == ["600", "600"]
    assert text not in (home / HASH_FILE).read_text()
    (home / TEXT_FILE).unlink()
    told.clear()
    assert open_login_gate(settings, Project(tmp_path), told.append) is not None
    assert not [each for each in told if "made" in each]
    again = project_password(home)
    assert again.matches(text)
    assert not again.matches(text[:-1])
    assert text not in repr(again)


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"scrypt": [2, 8, 1], "salt": "", "hash": ""}'])
def test_a_damaged_password_lets_nobody_in(tmp_path: Path, content: str) -> None:
    (tmp_path / HASH_FILE).write_text(content)
    with pytest.raises(DataDirectoryError, match="is damaged"):
        project_password(tmp_path)


@pytest.mark.parametrize(
    "body", [b"", b"{}", b"[]", b"{", b'{"password": 1}', json.dumps({"password": "x" * 1001}).encode()]
)
def test_what_is_no_login(guarded: Guarded, body: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Password, "matches", lambda *_: pytest.fail("it was compared"))
    with guarded.client(address=f"127.0.2.{len(body) % 200 + 1}") as client:
        answer = client.post("/login", content=body, headers={"content-type": "application/json"})
        assert answer.status_code == 400


def test_nothing_secret_is_logged(guarded: Guarded, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG), guarded.client(address="127.0.0.4") as client:
        answer = client.post("/login", json={"password": PASSWORD})
        client.post("/login", json={"password": "wrong-guess"})
        number = cookie_parts(answer)["value"]
        client.get("/api/dashboards")
        client.get("/nowhere")
        client.post("/logout", json={})
        with StoreClient(guarded.inside, guarded.door.token) as local:
            local.table_statuses()
    ours = "\n".join(record.getMessage() for record in caplog.records if not record.name.startswith("http"))
    for secret in (PASSWORD, "wrong-guess", number, guarded.door.token):
        assert secret not in ours
    assert guarded.door.token not in repr(guarded.door)


# --- TLS, and where one is led ---


def test_tls(tmp_path: Path) -> None:
    authority = trustme.CA()
    own = authority.issue_cert("127.0.0.1", "dash.test")
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    certificate.write_bytes(b"".join(cert_chain_pem.bytes() for cert_chain_pem in own.cert_chain_pems))
    key.write_bytes(own.private_key_pem.bytes())
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    city = City(12)
    import ssl

    trusting = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
    with Guarded(city_app(), city.store, certificate=certificate, key=key) as guarded:
        assert guarded.outside.startswith("https://127.0.0.1:")
        with guarded.client(verify=trusting) as client:
            found = cookie_parts(client.post("/login", json={"password": PASSWORD}), "__Host-riverrun")
            assert {"secure", "httponly"} <= set(found)
            assert client.get("/api/dashboards").status_code == 200
            # The page's own origin has the same scheme as the page.
            origin = guarded.outside.replace("https", "http")
            assert client.post("/logout", json={}, headers={"origin": origin}).status_code == 403
            assert client.post("/logout", json={}, headers={"origin": guarded.outside}).status_code == 200
        with pytest.raises(httpx.HTTPError), httpx.Client(trust_env=False) as plain:
            plain.get(guarded.outside.replace("https", "http"))
        with StoreClient(guarded.inside, guarded.door.token) as local:
            assert local.table_statuses()
    swapped = PublicListener("127.0.0.1", 0, ("127.0.0.1",), guarded.door.middleware, key, certificate)
    with pytest.raises(ConfigError, match=r"serve\.ssl_certificate_file .* cannot be used"):
        StoreServer(city.store, public=swapped).start()


def test_an_address_that_is_not_ours(guarded: Guarded) -> None:
    for port in (0, 8765):
        nowhere = PublicListener("192.0.2.7", port, ("192.0.2.7",), guarded.door.middleware)
        with pytest.raises(ConfigError, match=r"serve\.host 192\.0\.2\.7 is no address of this machine"):
            StoreServer(City(1).store, public=nowhere).start()


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("/?d=more", "/?d=more"),
        ("/sql?q=select+1", "/sql?q=select+1"),
        ("//evil.test/", "/"),
        ("/\\evil.test", "/"),
        ("https://evil.test/", "/"),
        ("javascript:alert(1)", "/"),
        ("/x\r\nset-cookie: a=b", "/"),
        ("/\tx", "/"),
        ("", "/"),
        ('/"><script>', "/%22%3E%3Cscript%3E"),
    ],
)
def test_one_is_led_to_our_own_pages_only(text: str, path: str) -> None:
    assert safe_redirect_path(text) == path


def test_names() -> None:
    assert allowed_hosts(ServeSettings(host="::", names="Dash.Example, 2001:db8::7")) == (
        "dash.example",
        "[2001:db8::7]",
    )
    assert allowed_hosts(ServeSettings(host="192.0.2.7")) == ("192.0.2.7",)
    assert allowed_hosts(ServeSettings(host="::1", names="a")) == ("a", "[::1]")
