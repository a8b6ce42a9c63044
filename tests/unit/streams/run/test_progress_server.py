"""The HTTP server of a pipeline, over a real socket."""

import json
import socket
import threading
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPResponse
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families as parse

from riverrun.cluster.ports import FIRST_EPHEMERAL
from riverrun.errors import PortTakenError
from riverrun.model.progress import PipelineProgress, StreamProgress
from riverrun.streams.run import progress_server
from riverrun.streams.run.progress_server import FIRST_PORT, ProgressServer


class Pipeline:
    """What a server is asked to show; `broken` makes looking fail."""

    def __init__(self) -> None:
        self.broken = False
        self.progress = PipelineProgress(
            "meters", "meters.py", 1, "", streams=[StreamProgress("loads", phase="running"), StreamProgress("straßen")]
        )

    def snapshot(self) -> PipelineProgress:
        if self.broken:
            raise RuntimeError("the session is gone")
        return self.progress


class Client:
    """One request per connection, closed at the end."""

    def __init__(self, address: str) -> None:
        host, _, port = address.removeprefix("http://").partition(":")
        self.host, self.port = host, int(port)

    def ask(self, path: str, method: str = "GET", **headers: str) -> tuple[HTTPResponse, bytes]:
        connection = HTTPConnection(self.host, self.port, timeout=10)
        try:
            connection.request(method, path, headers=headers)
            response = connection.getresponse()
            return response, response.read()
        finally:
            connection.close()

    def json(self, path: str, **headers: str) -> tuple[int, Any]:
        response, body = self.ask(path, **headers)
        assert response.headers["Content-Type"] == "application/json"
        return response.status, json.loads(body)

    def raw(self, text: bytes) -> bytes:
        with socket.create_connection((self.host, self.port), timeout=10) as sent:
            sent.sendall(text)
            answer = b""
            while part := sent.recv(65536):
                answer += part
            return answer


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[Pipeline, Client]]:
    """One server for all tests that only ask."""
    shown = Pipeline()
    with ProgressServer(shown.snapshot) as server:
        yield shown, Client(server.start())


@pytest.fixture
def pipeline(served: tuple[Pipeline, Client]) -> Pipeline:
    fresh = Pipeline()
    served[0].broken, served[0].progress = False, fresh.progress
    return served[0]


@pytest.fixture
def client(served: tuple[Pipeline, Client], pipeline: Pipeline) -> Client:
    return served[1]


def test_all_streams_and_one(client: Client, pipeline: Pipeline) -> None:
    assert client.json("/api/streams") == (200, pipeline.progress.as_dict())
    assert client.json("/api/streams?pretty=1") == (200, pipeline.progress.as_dict())
    assert client.json("/api/streams/loads") == (200, pipeline.progress.streams[0].as_dict())
    assert client.json("/api/streams/stra%C3%9Fen")[1]["name"] == "straßen"


def test_metrics(client: Client) -> None:
    response, body = client.ask("/metrics")
    assert response.status == 200
    assert response.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert "riverrun_stream_lag_offsets" in {family.name for family in parse(body.decode())}
    response, body = client.ask("/metrics", Accept="application/openmetrics-text;version=nonsense")
    assert response.headers["Content-Type"].startswith("application/openmetrics-text")


def test_health_follows_the_streams(client: Client, pipeline: Pipeline) -> None:
    assert client.json("/healthz") == (200, {"healthy": True, "failed": []})
    pipeline.progress.streams[0].phase = "failed"
    assert client.json("/healthz") == (503, {"healthy": False, "failed": ["loads"]})


@pytest.mark.parametrize("path", ["/", "/metrics/", "/api", "/api/streams/", "/api/streams/none", "/../etc/passwd"])
def test_anything_else_is_not_there(client: Client, path: str) -> None:
    status, answer = client.json(path)
    assert status == 404
    assert answer["known"]


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH", "HEAD"])
def test_only_get(client: Client, method: str) -> None:
    response, body = client.ask("/api/streams", method)
    assert response.status == 405
    assert response.headers["Allow"] == "GET"
    assert (body == b"") == (method == "HEAD")


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example:9404", "localhost.evil", "192.168.1.2", "", "::1"]
)
@pytest.mark.parametrize("path", ["/metrics", "/api/streams", "/healthz", "/nowhere"])
def test_a_name_that_is_not_this_machines_is_refused(client: Client, host: str, path: str) -> None:
    assert client.json(path, Host=host)[0] == 403


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.1:1", "localhost", "LOCALHOST:9404", "[::1]", "[::1]:9404"])
def test_names_of_this_machine(client: Client, host: str) -> None:
    assert client.json("/healthz", Host=host)[0] == 200


def test_no_host_or_two_are_refused(client: Client) -> None:
    assert b" 403 " in client.raw(b"GET /healthz HTTP/1.0\r\n\r\n").splitlines()[0]
    two = b"GET /healthz HTTP/1.0\r\nHost: localhost\r\nHost: evil.example\r\n\r\n"
    assert b" 403 " in client.raw(two).splitlines()[0]


def test_headers_of_every_answer(client: Client) -> None:
    for path in ("/metrics", "/api/streams", "/nowhere"):
        response, _ = client.ask(path, Origin="http://evil.example")
        assert response.headers["Cache-Control"] == "no-store"
        assert response.headers["X-Content-Type-Options"] == "nosniff"
        assert response.headers["Server"].strip() == "riverrun"
        assert not [name for name in response.headers if name.lower().startswith("access-control")]


def test_a_snapshot_that_fails_is_told_and_the_server_goes_on(client: Client, pipeline: Pipeline) -> None:
    pipeline.broken = True
    for path in ("/metrics", "/api/streams", "/api/streams/loads", "/healthz"):
        assert client.json(path) == (500, {"error": "RuntimeError: the session is gone"})
    pipeline.broken = False
    assert client.json("/healthz")[0] == 200


@pytest.mark.parametrize(
    "garbage", [b"\x16\x03\x01\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/9\r\n\r\n", b"GET /" + b"a" * 70000]
)
def test_garbage_is_refused_and_the_server_goes_on(
    client: Client, garbage: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    try:
        answer = client.raw(garbage)
    except ConnectionResetError:
        answer = b""
    assert b" 200 " not in answer
    assert client.json("/healthz")[0] == 200
    assert capfd.readouterr() == ("", "")


def test_a_client_that_leaves_early_is_no_noise(client: Client, capfd: pytest.CaptureFixture[str]) -> None:
    for _ in range(5):
        with socket.create_connection((client.host, client.port)) as gone:
            gone.sendall(b"GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n")
    assert client.json("/healthz")[0] == 200
    assert capfd.readouterr() == ("", "")


def test_silent_clients_are_few_and_do_not_stay(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_server, "MAX_CLIENTS", 3)
    monkeypatch.setattr(progress_server._ProgressHandler, "timeout", 0.3)
    with ProgressServer(pipeline.snapshot) as server:
        client = Client(server.start())
        silent = [socket.create_connection((client.host, client.port), timeout=10) for _ in range(8)]
        try:
            # Those above the limit are hung up on at once, the others at the end of their time.
            assert [each.recv(1) for each in silent] == [b""] * 8
        finally:
            for each in silent:
                each.close()
        assert client.json("/healthz")[0] == 200


def test_many_at_once(client: Client) -> None:
    answers: list[int] = []
    threads = [threading.Thread(target=lambda: answers.append(client.json("/api/streams")[0])) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert answers == [200] * 16


def test_free_ports_are_passed_over_when_taken(pipeline: Pipeline) -> None:
    with ProgressServer(pipeline.snapshot) as one, ProgressServer(pipeline.snapshot) as other:
        ports = [Client(each.start()).port for each in (one, other)]
    assert FIRST_PORT <= ports[0] < FIRST_EPHEMERAL
    assert FIRST_PORT <= ports[1] < FIRST_EPHEMERAL
    assert ports[0] != ports[1]


def test_a_port_that_was_asked_for(pipeline: Pipeline) -> None:
    with ProgressServer(pipeline.snapshot) as first:
        port = Client(first.start()).port
        with pytest.raises(PortTakenError) as caught, ProgressServer(pipeline.snapshot, port):
            pass
        assert caught.value.fields["port"] == port
        assert "streams.port" in str(caught.value)
        assert "kafka" not in str(caught.value)
    # Closed: the same port can be had at once.
    with ProgressServer(pipeline.snapshot, port) as again:
        assert again.start() == f"http://127.0.0.1:{port}"
        assert Client(again.start()).json("/healthz")[0] == 200


def test_it_listens_on_loopback_only_and_close_ends_it(pipeline: Pipeline) -> None:
    before = threading.enumerate()
    server = ProgressServer(pipeline.snapshot)
    client = Client(server.start())
    assert client.host == "127.0.0.1"
    server.close()
    server.close()
    with pytest.raises(ConnectionRefusedError):
        client.ask("/healthz")
    left = [thread.name for thread in threading.enumerate() if thread not in before]
    assert "riverrun-progress" not in left
