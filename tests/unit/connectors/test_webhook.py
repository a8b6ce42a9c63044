"""The webhook sink against receivers that say too much, too slowly, or nothing."""

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Message

import riverrun as rr
from riverrun.config import KafkaSettings
from riverrun.connectors.contract import ConnectorContext
from riverrun.connectors.sink_runner import SinkJob, SinkRunner
from riverrun.connectors.status import ConnectorStatus
from riverrun.connectors.webhook import sink as sending
from riverrun.connectors.webhook.sink import WebhookSink
from riverrun.kafka.connection import Connection
from riverrun.kafka.consumer.record import Record, RecordDecoder

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
NOWHERE = Connection(KafkaSettings(bootstrap_servers="127.0.0.1:1"))


@contextlib.contextmanager
def receiving(answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """A receiver that reads requests and lets `answer` do what it likes with each; its address."""
    over = threading.Event()

    def serve(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            while not over.is_set() and _request(connection):
                answer(connection)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=accept, daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/hook"
        over.set()
        listener.shutdown(socket.SHUT_RDWR)


def _request(connection: socket.socket) -> bool:
    data = b""
    while b"\r\n\r\n" not in data:
        if not (piece := connection.recv(65536)):
            return False
        data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    while len(body) < length:
        body += connection.recv(65536)
    return True


def records(count: int) -> list[Record[Any]]:
    decoding: RecordDecoder[Any] = RecordDecoder({})
    values = [json.dumps({"n": number}).encode() for number in range(count)]
    return [
        Record(Message(topic="t", partition=0, offset=at, key=b"k%d" % at, value=value), decoding)
        for at, value in enumerate(values)
    ]


@contextlib.contextmanager
def sink(url: str, folder: Path, **options: Any) -> Iterator[tuple[WebhookSink, ConnectorContext]]:
    around = ConnectorContext(rr.App("hooks"), NOWHERE, folder, folder)
    made = WebhookSink(rr.webhook(url, **options), around)
    made.open()
    try:
        yield made, around
    finally:
        made.close()


def test_an_answer_without_end_is_not_read(tmp_path: Path) -> None:
    sent = [0]

    def endless(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 400 No\r\nTransfer-Encoding: chunked\r\n\r\n")
        while sent[0] < 50_000_000:
            connection.sendall(b"2710\r\n" + b"x" * 10_000 + b"\r\n")
            sent[0] += 10_000

    with receiving(endless) as url, sink(url, tmp_path, timeout_seconds=30) as (hook, _):
        (undone,) = hook.write(records(1))
    assert undone.reason.startswith("The receiver answered 400 No: xxx")
    assert len(undone.reason) < 400
    assert not undone.retry
    assert sent[0] < 50_000_000


@pytest.mark.parametrize("charset", ["utf8mb4", "nonsense", "base64", "idna"])
@pytest.mark.parametrize(("status", "again"), [("200 OK", None), ("404 No", False), ("503 Later", True)])
def test_an_answer_in_a_charset_that_nobody_knows(
    tmp_path: Path, charset: str, status: str, again: bool | None
) -> None:
    answer = f"HTTP/1.1 {status}\r\nContent-Type: text/plain; charset={charset}\r\nContent-Length: 3\r\n\r\nso\xe4"

    def answering(connection: socket.socket) -> None:
        connection.sendall(answer.encode("latin-1"))

    with receiving(answering) as url, sink(url, tmp_path, timeout_seconds=30) as (hook, _):
        undone = hook.write(records(1))
    assert [each.retry for each in undone] == ([] if again is None else [again])
    if undone:
        assert undone[0].reason == f"The receiver answered {status}: so\ufffd"


def test_a_record_that_was_taken_is_not_sent_again_for_what_its_answer_says(tmp_path: Path) -> None:
    """Its body is none of our business, and may be cut off or late."""

    def cut_off(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 100\r\n\r\nnot gzip")
        connection.shutdown(socket.SHUT_RDWR)

    with receiving(cut_off) as url, sink(url, tmp_path, timeout_seconds=30) as (hook, _):
        assert hook.write(records(1)) == []


def test_an_answer_that_comes_while_the_clock_is_looked_at_is_taken(tmp_path: Path) -> None:
    """`result` timed out, and before anybody looked again the request was done."""

    class Late:
        def __init__(self) -> None:
            self.asked = 0

        def result(self, timeout: float | None = None) -> list[Any]:  # noqa: ARG002
            self.asked += 1
            if self.asked == 1:
                raise TimeoutError
            return []

        def done(self) -> bool:
            return True

    with sink("http://127.0.0.1:1/hook", tmp_path) as (hook, _), pytest.MonkeyPatch.context() as patched:

        def late(sent: Any, _: Any) -> Late:
            sent.close()
            return Late()

        patched.setattr("asyncio.run_coroutine_threadsafe", late)
        assert hook.write(records(1)) == []


def test_one_time_limit_for_all_of_a_request(tmp_path: Path) -> None:
    def dripping(connection: socket.socket) -> None:
        for number in range(600):
            connection.sendall(b"HTTP/1.1 200 OK\r\nX-Padding: "[number : number + 1] or b"x")
            time.sleep(0.05)

    began = time.monotonic()
    with receiving(dripping) as url, sink(url, tmp_path, timeout_seconds=0.5) as (hook, _):
        (undone,) = hook.write(records(1))
    assert undone.reason == "No answer within 0.5 s"
    assert undone.retry
    # It would drip for half a minute.
    assert time.monotonic() - began < 15


def test_the_end_does_not_wait_for_receivers(tmp_path: Path) -> None:
    asked, release = threading.Event(), threading.Event()

    def silent(_: socket.socket) -> None:
        asked.set()
        release.wait(60)

    with receiving(silent) as url, sink(url, tmp_path, timeout_seconds=50) as (hook, around):
        found: list[Any] = []
        writing = threading.Thread(target=lambda: found.extend(hook.write(records(8))))
        writing.start()
        assert asked.wait(30)
        around.stop.set()
        writing.join(20)
        assert not writing.is_alive()
        assert [each.retry for each in found] == [True] * 8
        hook.close()
        ours = [each for each in threading.enumerate() if each.name == "riverrun-webhook" and not each.daemon]
        assert ours == [], "they would hold up the end of the process"
        release.set()


def test_a_slow_receiver_gets_what_it_can_take_in_the_time_of_a_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "WRITE_SECONDS", 0.5)

    def slow(connection: socket.socket) -> None:
        time.sleep(0.1)
        connection.sendall(OK)

    with receiving(slow) as url, sink(url, tmp_path, connections=1) as (hook, _):
        undone = hook.write(records(40))
    assert 0 < len(undone) < 40
    assert all(each.retry for each in undone)
    assert "slow" in undone[0].reason


def test_a_batch_that_is_sent_record_by_record_keeps_the_time_of_a_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A receiver that refuses the whole array got all its records one after the other, however long each took."""
    monkeypatch.setattr(sending, "WRITE_SECONDS", 2.0)
    refusal = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 2\r\n\r\n{}"
    answers = iter([refusal])

    def slow(connection: socket.socket) -> None:
        time.sleep(0.1)
        connection.sendall(next(answers, OK))

    with receiving(slow) as url, sink(url, tmp_path, send="batch") as (hook, _):
        undone = hook.write(records(60))
    assert 0 < len(undone) < 60
    assert all(each.retry and "slow" in each.reason for each in undone)
    assert [each.record.offset for each in undone] == list(range(60 - len(undone), 60)), "the rest, in its order"


def test_batches_shrink_when_they_take_too_long_and_grow_again() -> None:
    made_sink: Any = type("Sink", (), {"batch": 100, "retries": 1})()
    standing = ConnectorStatus("sink", "out", "all", "t")
    runner = SinkRunner(NOWHERE, SinkJob("app", "out", "t", made_sink), standing, threading.Event())
    sizes = []
    for seconds in (61, 61, 61, 10, 0.1, 0.1, 0.1, 0.1):
        runner._resize(runner._batch_size, seconds)
        sizes.append(runner._batch_size)
    assert sizes == [50, 25, 12, 12, 24, 48, 96, 100]
    for _ in range(10):
        runner._resize(runner._batch_size, 61)
    assert runner._batch_size == 1
