"""Attacks on the server, as requests: from foreign names and pages, too large, too slow, malformed. Each is tried for
real, on the socket for others and on the one for this machine.

Those that need a browser are in tests/integration/test_dashboard_security.py."""

import contextlib
import re
import socket
import time
from collections.abc import Iterator

import pytest

from riverrun.dashboard.live import hub
from riverrun.dashboard.responses import assets
from riverrun.dashboard.routes import CONTENT_SECURITY_POLICY
from riverrun.web import guard, server
from support.city import City, city_app
from support.guarded import Guarded
from support.hostile import HOSTILE
from support.memory_store import MemoryStore

BOTH = pytest.mark.parametrize("inside", [False, True], ids=["outside", "inside"])


@pytest.fixture(scope="module")
def store() -> MemoryStore:
    city = City(12)
    city.run(5)
    return city.store


@pytest.fixture(scope="module")
def guarded(store: MemoryStore) -> Iterator[Guarded]:
    with Guarded(city_app(), store) as found:
        yield found


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1]) if answer else 0


# --- names and origins ---


@BOTH
@pytest.mark.parametrize(
    "host",
    ["evil.test", "evil.test:8440", "dash.test.evil.test", "127.0.0.1.evil.test", "127.1", "2130706433", "0.0.0.0",  # noqa: S104
     "dash.test@evil.test", "evil.test#dash.test", "", "dash.test, evil.test", "[::1].evil.test", "dash.test:x"],
)  # fmt: skip
def test_a_foreign_name(guarded: Guarded, host: str, inside: bool) -> None:
    """DNS rebinding: a page can make its own name point here; the name is what gives it away."""
    for path in ("/", "/login", "/api/login", "/assets/main.js", "/api/tables"):
        answer = guarded.raw(
            f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode(), inside=inside
        )
        assert status(answer) in {400, 403}


@BOTH
def test_two_names_or_none(guarded: Guarded, inside: bool) -> None:
    two = b"GET /login HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: evil.test\r\nConnection: close\r\n\r\n"
    assert status(guarded.raw(two, inside=inside)) in {400, 403}
    assert status(guarded.raw(b"GET /login HTTP/1.0\r\n\r\n", inside=inside)) in {400, 403}


def test_our_own_names(guarded: Guarded) -> None:
    for host in ("127.0.0.1", "DASH.test", "dash.test:8440"):
        head = f"GET /login HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
        assert status(guarded.raw(head.encode())) == 200
    # What others may call it is not what this machine calls itself.
    assert (
        status(guarded.raw(b"GET /login HTTP/1.1\r\nHost: dash.test\r\nConnection: close\r\n\r\n", inside=True)) == 403
    )


@BOTH
@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.test"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:1"},
        {"origin": "http://127.0.0.1"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"},
    ],
    ids=str,
)
def test_a_page_of_another_origin_changes_nothing(
    guarded: Guarded, store: MemoryStore, headers: dict[str, str], inside: bool
) -> None:
    with guarded.logged_in(inside=inside) as client:
        asked = len(store.asked)
        for path, body in (("/api/query", {"sql": "select 1 as n"}), ("/logout", {}), ("/login", {"password": "x"})):
            assert client.post(path, json=body, headers=headers).status_code == 403
        assert client.delete("/api/tables/prices", headers=headers).status_code == 403
        assert client.delete("/api/query/x", headers=headers).status_code == 403
        assert len(store.asked) == asked
        # Nobody was logged out.
        assert client.get("/api/login").json()["in"] is True


def test_a_page_of_another_origin_does_not_even_look(guarded: Guarded) -> None:
    """A stream that a foreign page may not read would still take a viewer's place."""
    with guarded.logged_in() as client:
        for headers in ({"origin": "https://evil.test"}, {"sec-fetch-site": "cross-site", "sec-fetch-mode": "cors"}):
            assert client.get("/api/live/main", headers=headers).status_code == 403
        frame = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "iframe"}
        assert client.get("/", headers=frame).status_code == 403
        # Following a link to here is allowed.
        assert client.get("/", headers=frame | {"sec-fetch-dest": "document"}).status_code == 200


def test_our_own_page_may(guarded: Guarded) -> None:
    with guarded.logged_in() as client:
        own = {"origin": guarded.outside, "sec-fetch-site": "same-origin"}
        assert client.post("/api/query", json={"sql": "select 1 as n"}, headers=own).status_code == 200


@BOTH
@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""]
)
def test_what_a_form_could_send_is_refused(guarded: Guarded, kind: str, inside: bool) -> None:
    """Such requests are sent by any page, without asking first."""
    headers = {"content-type": kind} if kind else {}
    with guarded.logged_in(inside=inside) as client:
        for path in ("/api/query", "/logout", "/login"):
            answer = client.post(path, content=b'{"sql": "select 1", "password": "x"}', headers=headers)
            assert answer.status_code == 415
        assert client.get("/api/login").json()["in"] is True


@BOTH
def test_nobody_is_told_that_another_page_may(guarded: Guarded, inside: bool) -> None:
    with guarded.logged_in(inside=inside) as client:
        ask = {"origin": "https://evil.test", "access-control-request-method": "POST"}
        for path in ("/api/query", "/login", "/api/login"):
            answer = client.options(path, headers=ask)
            assert answer.status_code in {403, 405}
            assert not [name for name in answer.headers if name.startswith("access-control")]


# --- large, slow and malformed ---


@BOTH
def test_a_huge_body(guarded: Guarded, inside: bool) -> None:
    head = "POST /login HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nConnection: close\r\n"
    # Refused by what it says of itself, before any of it comes,
    told = guarded.raw(f"{head}Content-Length: 99999999999\r\n\r\n".encode(), inside=inside)
    assert status(told) == 413
    # and when it does not say.
    with guarded.client(inside=inside, address="127.0.0.5") as client:
        chunks = (b"x" * 65536 for _ in range(20))
        answer = client.post("/login", content=chunks, headers={"content-type": "application/json"})
        assert answer.status_code == 413


@BOTH
def test_a_huge_head(guarded: Guarded, inside: bool) -> None:
    answer = guarded.raw(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: " + b"x" * 200_000, inside=inside)
    assert status(answer) in {0, 400, 431}


@BOTH
@pytest.mark.parametrize("data", [b"", b"GET / HTTP/1.1\r\nHost: 127."])
def test_a_slow_head(guarded: Guarded, data: bytes, inside: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who opens connections and says little keeps none of them."""
    monkeypatch.setattr(server, "HEAD_SECONDS", 0.3)
    began = time.monotonic()
    guarded.raw(data, inside=inside, seconds=20)
    assert time.monotonic() - began < 15


def test_a_dripping_head_is_no_better(guarded: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "HEAD_SECONDS", 0.5)
    with socket.create_connection(("127.0.0.1", int(guarded.outside.rpartition(":")[2])), timeout=20) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n")
        deadline = time.monotonic() + 20
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            while time.monotonic() < deadline:
                connection.sendall(b"X: y\r\n")
                time.sleep(0.05)
        assert time.monotonic() < deadline


def test_connections_have_a_most(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others cannot use up the files that the store needs."""
    monkeypatch.setattr(server, "MAX_CONNECTIONS", 3)
    with Guarded(city_app(), store) as guarded, contextlib.ExitStack() as kept:
        there = ("127.0.0.1", int(guarded.outside.rpartition(":")[2]))
        ask = b"GET /login HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
        for _ in range(3):
            connection = kept.enter_context(socket.create_connection(there, timeout=20))
            connection.sendall(ask)
            assert status(connection.recv(65536)) == 200
        assert guarded.raw(ask) == b""
        with guarded.logged_in(inside=True) as client:
            assert client.get("/healthz").status_code == 200


@BOTH
def test_a_slow_body(guarded: Guarded, inside: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "BODY_SECONDS", 0.3)
    monkeypatch.setattr(server, "HEAD_SECONDS", 0.3)
    head = b"POST /login HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
    began = time.monotonic()
    assert status(guarded.raw(head, inside=inside, seconds=20)) == 408
    assert time.monotonic() - began < 15


@pytest.mark.parametrize(
    "head",
    [
        "GET /login?next=/x%0d%0aset-cookie:%20a=b HTTP/1.1\r\nHost: 127.0.0.1",
        "GET /%0d%0aset-cookie:%20a=b HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: text/html",
        "GET /?x=%0d%0aset-cookie:%20a=b HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: text/html",
        "GET /?x=\rset-cookie: HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: text/html",
        "GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: text/html\nset-cookie: a=b",
        "GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n set-cookie: a=b",
    ],
)
def test_header_injection(guarded: Guarded, head: str) -> None:
    answer = guarded.raw(f"{head}\r\nConnection: close\r\n\r\n".encode("latin-1"))
    above = answer.partition(b"\r\n\r\n")[0].lower()
    assert not re.search(rb"[\r\n]\s*set-cookie", above)
    assert status(answer) in {200, 303, 400, 403}


@BOTH
def test_smuggled_requests(guarded: Guarded, inside: bool) -> None:
    """Two lengths, or a length and chunks: there is no second reading of it."""
    for lengths in ("Content-Length: 5\r\nContent-Length: 60", "Content-Length: 60\r\nTransfer-Encoding: chunked",
                    "Transfer-Encoding: chunked, identity", "Transfer-Encoding: x"):  # fmt: skip
        sent = f"POST /logout HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n{lengths}\r\n"
        sent += (
            "Connection: close\r\n\r\n0\r\n\r\nGET /api/login HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
        )
        answer = guarded.raw(sent.encode(), inside=inside)
        assert answer.count(b"HTTP/1.1 ") <= 1
        assert b'"login"' not in answer


@BOTH
@pytest.mark.parametrize(
    "path",
    ["/assets/../routes.py", "/assets/%2e%2e/routes.py", "/assets/..%2froutes.py", "/assets/%2e%2e%2fconfig%2fspec.py",
     "/assets//etc/passwd", "/assets/%2fetc%2fpasswd", "/assets/..\\routes.py", "/assets/main.js%00.html", "/assets/",
     "/assets/....//routes.py", "//assets/../../etc/passwd"],
)  # fmt: skip
def test_path_traversal(guarded: Guarded, path: str, inside: bool) -> None:
    cookie = f"Cookie: riverrun={guarded.sessions.create('test')}"
    head = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{cookie}\r\nConnection: close\r\n\r\n"
    answer = guarded.raw(head.encode(), inside=inside)
    assert status(answer) in {400, 404}
    assert b"import" not in answer
    assert b"root:" not in answer


# --- what is asked, and what is answered ---


def test_a_request_does_not_choose_a_tiles_sql(guarded: Guarded, store: MemoryStore) -> None:
    with guarded.logged_in() as client:
        store.asked.clear()
        sql = "select 'chosen' as n"
        for path in ("/api/tiles/main/city-load", f"/api/tiles/main/{sql}", f"/api/tiles/{sql}/city-load"):
            client.get(path, params={"at": 1_800_000_000_000, "sql": sql, "source": sql, "query": sql, "f.street": sql})
        client.get("/api/tiles/main/city-load", params={"at": 1, f"f.{sql}": "x"})
        chosen = [each for each in store.asked if "chosen" in each]
        # As a filter's value it is a text among texts.
        assert all("'select ''chosen'' as n'" in each for each in chosen)
        assert store.asked


@pytest.mark.parametrize("sql", HOSTILE[::6])
def test_questions_only_read(guarded: Guarded, sql: str) -> None:
    """All of them, on both stores: tests/unit/store/test_sql_hostile.py. Here some, by the way others take."""
    with guarded.logged_in() as client:
        answer = client.post("/api/query", json={"sql": sql})
        assert answer.status_code in {400, 403}
        assert answer.json()["error"]["code"].startswith("QUERY")


def test_viewers_have_a_most(guarded: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "MAX_VIEWERS", 2)
    with contextlib.ExitStack() as looking:
        kept, first = [], b""
        for expected in (200, 200, 503):
            client = looking.enter_context(guarded.logged_in())
            answer = looking.enter_context(client.stream("GET", "/api/live/main"))
            assert answer.status_code == expected
            chunks = answer.iter_raw()
            first = next(chunks)
            kept.append(chunks)
        assert b"look on already" in first


@BOTH
def test_every_answer_says_what_its_page_may_do(guarded: Guarded, inside: bool) -> None:
    with guarded.logged_in(inside=inside) as client:
        pages = ["/", "/login"]
        for path in [
            *pages,
            *(f"/assets/{name}" for name in assets()),
            "/api/dashboards",
            "/api/tables",
            "/healthz",
            "/no",
        ]:
            answer = client.get(path)
            found = answer.headers
            policy = found["content-security-policy"]
            assert policy == CONTENT_SECURITY_POLICY if path in pages else "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert found["x-content-type-options"] == "nosniff"
            assert found["referrer-policy"] == "no-referrer"
            assert found["cross-origin-resource-policy"] == "same-origin"
            assert found["server"] == "riverrun"
            assert "access-control-allow-origin" not in found


@BOTH
def test_nothing_tells_numbers_of_the_inside(guarded: Guarded, inside: bool) -> None:
    """/metrics is the streams' own, on 127.0.0.1; here is none, and an error has no traceback."""
    with guarded.logged_in(inside=inside) as client:
        assert client.get("/metrics").status_code == 404
        for path in ("/api/tiles/main/x?at=1", "/api/live/none", "/api/tables/%00", "/api/tiles/%ff/x?at=1"):
            text = client.get(path).text
            assert "Traceback" not in text
            assert ".py" not in text
