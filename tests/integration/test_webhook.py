"""The webhook sink against a receiver that is away, slow, asks for patience, and refuses."""

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import riverrun as rr
from riverrun.testing import KafkaUnderTest
from support.connecting import Numbers, Reading, header_of, records_in, running, wait_until


class Receiver:
    """Takes what is posted. `answers` says what to answer to a load, once each."""

    def __init__(self) -> None:
        self.got: list[tuple[str, Any]] = []
        self.asked: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.answers: dict[float, list[tuple[int, dict[str, str]]]] = {}
        self.lock = threading.Lock()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                status, headers = receiver.take(body, dict(self.headers))
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                said = b"" if status == 200 else b"no, thank you"
                self.send_header("Content-Length", str(len(said)))
                self.end_headers()
                self.wfile.write(said)

            def log_message(self, *_: Any) -> None:
                """Quietly."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}/hook"

    def take(self, body: Any, headers: dict[str, str]) -> tuple[int, dict[str, str]]:
        with self.lock:
            key = headers["Idempotency-Key"]
            self.asked.append(key)
            self.headers.append(headers)
            loads = [each["load_kw"] for each in (body if isinstance(body, list) else [body])]
            for load in loads:
                if waiting := self.answers.get(load):
                    return waiting.pop(0)
            self.got.append((key, body))
            return 200, {}

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    found = Receiver()
    yield found
    found.close()


def test_what_may_pass_is_tried_again_and_what_cannot_is_a_dead_letter(
    kafka: KafkaUnderTest, kafka_topic: Callable[..., str], tmp_path: Path, receiver: Receiver,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("HOOK_TOKEN", "Bearer of-a-secret")
    app = rr.App("hooks")
    topic = app.topic(kafka_topic(), Reading)
    app.source(topic, Numbers(30))
    hook = rr.webhook(receiver.url, secret_headers={"Authorization": "env:HOOK_TOKEN"}, headers={"X-Team": "ops"})
    app.sink(topic, hook, name="hook")
    receiver.answers = {
        3.0: [(503, {}), (500, {})],
        5.0: [(429, {"Retry-After": "1"})],
        7.0: [(400, {})],
        9.0: [(302, {"Location": "http://127.0.0.1:1/"})],
    }
    with running(app, kafka.connection, tmp_path) as process:
        wait_until(lambda: len({key for key, _ in receiver.got}) == 28)
        letters = wait_until(lambda: len(found := records_in(kafka.connection, f"{topic.name}.dead")) == 2 and found)
        sink = next(standing for standing in process.statuses if standing.kind == "sink")
        wait_until(lambda: (sink.records, sink.dead_letters) == (30, 2))
    assert sorted(body["load_kw"] for _, body in receiver.got) == [float(n) for n in range(30) if n not in (7, 9)]
    reasons = sorted(header_of(letter, "riverrun.dead.message") for letter in letters)
    assert reasons == [
        "The receiver answered 302 Found: no, thank you.",
        "The receiver answered 400 Bad Request: no, thank you.",
    ]
    # The key of a record is the same at each attempt, and nobody else's.
    assert len(set(receiver.asked)) == 30
    assert len(receiver.asked) == 33
    assert {header["Authorization"] for header in receiver.headers} == {"Bearer of-a-secret"}
    assert {header["X-Team"] for header in receiver.headers} == {"ops"}


def test_a_batch_is_one_request_and_one_bad_record_does_not_take_the_others_along(
    kafka: KafkaUnderTest, kafka_topic: Callable[..., str], tmp_path: Path, receiver: Receiver
) -> None:
    app = rr.App("batches")
    topic = app.topic(kafka_topic(), Reading)
    app.source(topic, Numbers(40, bite=40))
    app.sink(topic, rr.webhook(receiver.url, send="batch", max_records=20), name="hook")
    receiver.answers = {7.0: [(422, {}), (422, {})]}
    with running(app, kafka.connection, tmp_path):
        wait_until(lambda: len(records_in(kafka.connection, f"{topic.name}.dead")) == 1)
        wait_until(lambda: sum(len(body) for _, body in receiver.got) == 39)
    assert max(len(body) for _, body in receiver.got) > 1


def test_a_receiver_that_is_away_is_waited_for(
    kafka: KafkaUnderTest, kafka_topic: Callable[..., str], tmp_path: Path
) -> None:
    gone = Receiver()
    port = gone.server.server_address[1]
    gone.close()
    app = rr.App("away")
    topic = app.topic(kafka_topic(), Reading)
    app.source(topic, Numbers(5))
    app.sink(topic, rr.webhook(f"http://127.0.0.1:{port}/hook", timeout_seconds=1), name="hook")
    with running(app, kafka.connection, tmp_path) as process:
        sink = wait_until(
            lambda: next((standing for standing in process.statuses if standing.state == "retrying"), None)
        )
        assert "ConnectError" in sink.error
    assert records_in(kafka.connection, f"{topic.name}.dead") == []
