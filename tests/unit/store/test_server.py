"""The store's HTTP API and its client, over a real socket, with a real DuckDB behind them."""

import io
import json
import logging
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from riverrun.cluster.ports import FIRST_EPHEMERAL
from riverrun.errors import (
    PortTakenError,
    QueryCancelledError,
    QueryError,
    QueryRefusedError,
    QueryTimeoutError,
    StoreUnavailableError,
    UsageError,
)
from riverrun.store.client import Rows, StoreClient
from riverrun.store.contract import QueryLimits
from riverrun.store.server import FIRST_PORT, MAX_ROWS, StoreServer
from riverrun.web import guard
from support.duck_store import DuckStore

# Long enough to be cancelled, and over by itself before a test would hang.
SLOW = "select sum(a.x * b.x) from range(100000) a(x), range(100000) b(x)"


@pytest.fixture(scope="module")
def store() -> Iterator[DuckStore]:
    with DuckStore() as opened:
        yield opened


@pytest.fixture(scope="module")
def address(store: DuckStore) -> Iterator[str]:
    async def page(request: Request) -> PlainTextResponse:
        return PlainTextResponse("a dashboard")

    with StoreServer(store, limits=QueryLimits(1000, 30), routes=[Route("/", page)]) as server:
        yield server.start()


@pytest.fixture
def http(address: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=address, trust_env=False, timeout=60) as client:
        yield client


@pytest.fixture
def client(address: str) -> Iterator[StoreClient]:
    with StoreClient(address) as made:
        yield made


def wait_until(condition: Any) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_tables(http: httpx.Client) -> None:
    found = http.get("/api/tables").json()["tables"]
    assert [each["name"] for each in found] == ["house_load", "houses", "readings"]
    assert found[0]["rows"] == 30
    assert found[0]["state"] == "following"
    assert found[0]["positions"] == {"0": 7, "1": 9}
    assert found[0]["columns"][0] == {"name": "minute", "type": "timestamp"}
    one = http.get("/api/tables/houses").json()
    assert one["key"] == ["house_id"]
    missing = http.get("/api/tables/housse")
    assert missing.status_code == 404
    assert "Did you mean houses?" in missing.json()["error"]["message"]


def test_a_question_in_each_format(http: httpx.Client) -> None:
    asked = {"sql": "select house_id, street from houses order by 1", "limit": 2}
    answer = http.post("/api/query", json=asked)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    content = answer.json()
    assert content["rows"] == [{"house_id": "h0", "street": "Main"}, {"house_id": "h1", "street": "Main"}]
    assert content["more"] is True
    assert content["columns"] == [{"name": "house_id", "type": "text"}, {"name": "street", "type": "text"}]
    lines = http.post("/api/query", json={**asked, "format": "ndjson"}).text.splitlines()
    assert json.loads(lines[1]) == {"house_id": "h1", "street": "Main"}
    text = http.post("/api/query", json={**asked, "format": "csv"}).text
    assert text == "house_id,street\nh0,Main\nh1,Main\n"
    with pa.ipc.open_stream(http.post("/api/query", json={**asked, "format": "arrow"}).content) as reader:
        assert reader.read_all().num_rows == 2
    import pyarrow.parquet as pq

    parquet = http.post("/api/query", json={**asked, "format": "parquet"})
    assert pq.read_table(io.BytesIO(parquet.content)).column("street").to_pylist() == ["Main", "Main"]
    assert parquet.headers["x-riverrun-more"] == "true"


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"sql": "select nothing from houses"}, 400, "QUERY_INVALID"),
        ({"sql": "drop table houses"}, 403, "QUERY_REFUSED"),
        ({"sql": "select getenv('HOME')"}, 403, "QUERY_REFUSED"),
        ({"sql": "select cast('x' as bigint)"}, 400, "QUERY_INVALID"),
        ({"sql": 1}, 400, "USAGE"),
        ({}, 400, "USAGE"),
        ([], 400, "USAGE"),
        ({"sql": "select 1", "rows": 3}, 400, "USAGE"),
        ({"sql": "select 1", "limit": 0}, 400, "USAGE"),
        ({"sql": "select 1", "limit": 10**9}, 400, "USAGE"),
        ({"sql": "select 1", "limit": True}, 400, "USAGE"),
        ({"sql": "select 1", "seconds": 31}, 400, "USAGE"),
        ({"sql": "select 1", "seconds": -1}, 400, "USAGE"),
        ({"sql": "select 1", "format": "xml"}, 400, "USAGE"),
        ({"sql": SLOW, "seconds": 0.05}, 504, "QUERY_TIMEOUT"),
    ],
)
def test_an_error_has_its_status_and_code(http: httpx.Client, body: Any, status: int, code: str) -> None:
    answer = http.post("/api/query", json=body)
    assert answer.status_code == status
    assert answer.json()["error"]["code"] == code
    assert answer.json()["error"]["message"]


def test_an_error_has_parts_for_a_page(http: httpx.Client) -> None:
    parts = http.post("/api/query", json={"sql": "drop table houses"}).json()["error"]["parts"]
    assert parts == {
        "what": "DROP is not how a question begins", "expected": "SELECT, WITH or FROM", "found": "",
        "hint": "Questions only read the store's tables", "lines": [],
    }  # fmt: skip


def test_the_language_and_its_limits(http: httpx.Client) -> None:
    content = http.get("/api/sql").json()
    assert content["limits"] == {"rows": 1000, "seconds": 30, "most_rows": MAX_ROWS}
    assert "group by" in content["words"]


def test_what_is_not_a_question_for_us(http: httpx.Client) -> None:
    simple = http.post("/api/query", content=b'{"sql": "select 1"}', headers={"content-type": "text/plain"})
    assert simple.status_code == 415
    assert http.post("/api/query", content=b"{", headers={"content-type": "application/json"}).status_code == 400
    large = http.post("/api/query", json={"sql": "x" * 300_000})
    assert large.status_code == 413
    assert large.json()["error"]["code"] == "TOO_LARGE"
    assert http.get("/api/query").status_code == 405
    assert http.get("/nowhere").json()["error"] == {
        "code": "NOT_FOUND", "message": "There is no /nowhere", "retryable": False, "fields": {},
    }  # fmt: skip


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example:8480", "localhost.evil", "192.168.1.2", ""])
@pytest.mark.parametrize("path", ["/api/tables", "/healthz", "/", "/nowhere"])
def test_a_name_that_is_not_this_machines_is_refused(http: httpx.Client, host: str, path: str) -> None:
    assert http.get(path, headers={"host": host}).status_code == 403


def test_headers_of_every_answer(http: httpx.Client) -> None:
    for path in ("/api/tables", "/nowhere", "/healthz", "/"):
        headers = http.get(path, headers={"origin": "http://evil.example"}).headers
        assert headers["cache-control"] == "no-store"
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["server"] == "riverrun"
        assert not [name for name in headers if name.startswith("access-control")]


def test_it_carries_other_routes(http: httpx.Client) -> None:
    assert http.get("/").text == "a dashboard"


def test_health_follows_the_tables(http: httpx.Client, store: DuckStore) -> None:
    assert http.get("/healthz").json() == {"healthy": True, "failing": []}
    store.failing = "houses"
    try:
        answer = http.get("/healthz")
    finally:
        store.failing = ""
    assert answer.status_code == 503
    assert answer.json() == {"healthy": False, "failing": ["houses"]}


def test_the_client_gives_what_the_store_gives(client: StoreClient, store: DuckStore) -> None:
    for sql in ("select * from readings order by at", "select sum(load_kw) from house_load where minute = latest"):
        assert client.query(sql).rows == store.query(sql).rows
    answer = client.query("select * from house_load", QueryLimits(rows=7))
    assert answer.rows.num_rows == 7
    assert answer.more
    assert list(client.tables) == list(store.tables)
    assert [(each.table, each.rows, each.positions) for each in client.table_statuses()] == [
        (each.table, each.rows, each.positions) for each in store.table_statuses()
    ]


@pytest.mark.parametrize(
    ("sql", "error"),
    [
        ("select x from houses", QueryError),
        ("select getenv('x')", QueryRefusedError),
        ("copy houses to 'x'", QueryRefusedError),
    ],
)
def test_the_client_raises_what_the_store_raises(
    client: StoreClient, store: DuckStore, sql: str, error: type[QueryError]
) -> None:
    with pytest.raises(error) as there:
        store.query(sql)
    with pytest.raises(error) as here:
        client.query(sql)
    assert str(here.value) == str(there.value)
    assert here.value.code == there.value.code


def test_time_is_over(client: StoreClient) -> None:
    with pytest.raises(QueryTimeoutError):
        client.query(SLOW, QueryLimits(seconds=0.05))
    with pytest.raises(UsageError):
        client.query("select 1", QueryLimits(seconds=600))


def test_cancel_by_name(client: StoreClient, store: DuckStore) -> None:
    ended: list[BaseException] = []

    def ask() -> None:
        try:
            client.query(SLOW, name="slow one")
        except BaseException as error:  # noqa: BLE001
            ended.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    wait_until(lambda: "slow one" in store._running)
    with pytest.raises(QueryError, match="runs already"):
        client.query("select 1", name="slow one")
    assert client.cancel("slow one")
    thread.join(30)
    assert isinstance(ended[0], QueryCancelledError)
    assert not client.cancel("slow one")


def test_a_client_that_leaves_takes_its_question_along(address: str, store: DuckStore) -> None:
    host, _, port = address.removeprefix("http://").partition(":")
    body = json.dumps({"sql": SLOW, "name": "left alone"}).encode()
    head = f"POST /api/query HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {len(body)}\r\n\r\n"
    with socket.create_connection((host, int(port)), timeout=30) as leaving:
        leaving.sendall(head.encode() + body)
        wait_until(lambda: "left alone" in store._running)
    wait_until(lambda: "left alone" not in store._running)


def test_a_client_that_leaves_before_all_is_said_is_no_error(
    address: str, http: httpx.Client, caplog: pytest.LogCaptureFixture
) -> None:
    host, _, port = address.removeprefix("http://").partition(":")
    head = f"POST /api/query HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n"
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            with socket.create_connection((host, int(port)), timeout=30) as leaving:
                leaving.sendall(head.encode() + b'{"sql": ')
        # One server, one loop: what it answers now comes after what it made of those.
        assert http.get("/api/tables").status_code == 200
    assert not caplog.records


def test_many_at_once(client: StoreClient) -> None:
    found: list[int] = []

    def ask() -> None:
        found.append(client.query("select count(*) as n from house_load").rows.column("n")[0].as_py())

    threads = [threading.Thread(target=ask) for _ in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == [30] * 24


def test_a_table_is_removed(store: DuckStore) -> None:
    with DuckStore() as own, StoreServer(own) as server, StoreClient(server.start()) as client:
        client.remove("houses")
        assert "houses" not in own.tables
        with pytest.raises(QueryError, match="There is no table houses"):
            client.remove("houses")


def test_it_listens_on_loopback_only_and_close_ends_it(store: DuckStore) -> None:
    server = StoreServer(store)
    address = server.start()
    assert address.startswith("http://127.0.0.1:")
    assert FIRST_PORT <= int(address.rpartition(":")[2]) < FIRST_EPHEMERAL
    assert server.start() == address
    server.close()
    server.close()
    with StoreClient(address) as client, pytest.raises(StoreUnavailableError) as caught:
        client.query("select 1")
    assert "riverrun serve" in str(caught.value)


def test_a_port_that_was_asked_for(store: DuckStore) -> None:
    with StoreServer(store) as first:
        port = int(first.start().rpartition(":")[2])
        with pytest.raises(PortTakenError) as caught:
            StoreServer(store, port).start()
        assert "store.port" in str(caught.value)
    with StoreServer(store, port) as again:
        assert again.start() == f"http://127.0.0.1:{port}"


def test_close_ends_the_questions_that_run() -> None:
    with DuckStore() as own:
        server = StoreServer(own)
        address = server.start()
        ended: list[BaseException] = []

        def ask() -> None:
            with StoreClient(address) as client:
                try:
                    client.query(SLOW)
                except BaseException as error:  # noqa: BLE001
                    ended.append(error)

        thread = threading.Thread(target=ask)
        thread.start()
        wait_until(lambda: own._running)
        server.close()
        thread.join(30)
        assert isinstance(ended[0], QueryCancelledError | StoreUnavailableError)


def test_rows_for_python(store: DuckStore) -> None:
    rows = Rows(store.query("select house_id, street from houses order by 1"))
    assert list(rows)[2] == {"house_id": "h2", "street": "Oak"}
    assert len(rows) == 3
    assert rows.arrow().num_rows == 3
    assert rows.pandas()["street"].tolist() == ["Main", "Main", "Oak"]
    assert rows.polars()["house_id"].to_list() == ["h0", "h1", "h2"]
    assert repr(rows) == "<3 rows of house_id, street>"


def test_requests_have_a_size() -> None:
    assert guard.MAX_BODY_BYTES >= 64 * 1024


# --- a copy of the tables ---


def test_a_snapshot_leaves_nothing_behind(http: httpx.Client, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(DuckStore, "folder", tmp_path)
    answer = http.post("/api/snapshot", json={})
    assert answer.status_code == 200
    assert answer.content[8:12] == b"DUCK"
    until_gone = time.monotonic() + 10
    while list(tmp_path.iterdir()) and time.monotonic() < until_gone:
        time.sleep(0.01)
    assert not list(tmp_path.iterdir())


def test_no_page_of_another_origin_makes_one(http: httpx.Client) -> None:
    assert http.post("/api/snapshot", content="{}", headers={"content-type": "text/plain"}).status_code == 415
    assert http.get("/api/snapshot").status_code == 405


def test_one_at_a_time(http: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def slow(self: DuckStore, path: Path) -> None:
        begun.set()
        assert go_on.wait(30)
        path.write_bytes(b"copy")

    monkeypatch.setattr(DuckStore, "snapshot", slow)
    first = threading.Thread(target=lambda: http.post("/api/snapshot", json={}))
    first.start()
    assert begun.wait(30)
    refused = http.post("/api/snapshot", json={})
    go_on.set()
    first.join()
    assert refused.status_code == 503
    assert "is being made" in refused.json()["error"]["message"]
