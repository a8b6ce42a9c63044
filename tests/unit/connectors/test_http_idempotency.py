"""What is known of Idempotency-Keys: bounded in number, in time and in memory."""

import asyncio
import threading
from typing import Any

import msgspec
import pytest

from riverrun.config import KafkaSettings
from riverrun.connectors.http import idempotency
from riverrun.connectors.http.idempotency import (
    IdempotencyIndex,
    IdempotentWriter,
    StoredResponse,
    TransactionalRequest,
    request_digest,
    scoped_key,
)
from riverrun.connectors.http.responses import RequestRejectedError
from riverrun.kafka.connection import Connection


def told(at: int, size: int = 2) -> StoredResponse:
    return StoredResponse(at, "c", 200, msgspec.Raw(b'"' + b"x" * (size - 2) + b'"'))


def test_keys_go_when_their_time_is_over() -> None:
    known = IdempotencyIndex(window_ms=100, max_keys=3)
    for number in range(3):
        known.add(bytes([number]), number, told(number * 50))
    assert known.is_full
    assert known.offset_of(b"\0") == 0
    known.expire(now=99)
    assert known.is_full
    known.expire(now=100)
    assert (known.offset_of(b"\0"), known.offset_of(b"\1"), known.is_full) == (None, 1, False)
    known.expire(now=10_000)
    assert len(known) == 0


def test_the_newest_answers_are_at_hand() -> None:
    known = IdempotencyIndex(window_ms=100, max_keys=1000)
    size = idempotency.CACHE_BYTES // 4
    for number in range(10):
        known.add(bytes([number]), number, told(0, size))
    assert known.cached(b"\x09") is not None
    assert known.cached(b"\x00") is None
    assert known.offset_of(b"\x00") == 0
    for _ in range(10):
        known.add(b"\x09", 9, told(0, size))
    assert known.cached(b"\x08") is not None, "one key counts once"


def test_keys_are_of_their_sender_and_topic() -> None:
    found = {
        scoped_key("a", "b", "c"),
        scoped_key("ab", "", "c"),
        scoped_key("a", "b\0", "c"),
        scoped_key("a", "bc", ""),
    }
    assert len(found) == 4
    assert request_digest(b"a", b"b") != request_digest(b"ab", b"")


def scribe() -> IdempotentWriter:
    nowhere = Connection(KafkaSettings(bootstrap_servers="127.0.0.1:1"))
    return IdempotentWriter(nowhere, "app", window_ms=1000, max_keys=10, timeout_seconds=5)


def job() -> TransactionalRequest:
    return TransactionalRequest("t", [(None, b"1")], [], lambda _: (200, b"{}"), b"k", "c")


async def write(writer: IdempotentWriter, each: TransactionalRequest, seconds: float = 20) -> Any:
    return await writer.write(each, asyncio.get_running_loop().time() + seconds)


def test_whatever_goes_wrong_is_told_and_the_next_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    writer = scribe()
    monkeypatch.setattr(writer, "_process", lambda _: 1 / 0)
    with pytest.raises(RequestRejectedError) as refused:
        asyncio.run(write(writer, job()))
    assert refused.value.status == 503
    assert "are not written" in writer.problem
    assert "ZeroDivisionError" not in writer.problem, "it is shown to anybody; the log has the rest"
    monkeypatch.setattr(writer, "_process", lambda jobs: [each.respond((200, b"{}", False)) for each in jobs])
    assert asyncio.run(write(writer, job())) == (200, b"{}", False)
    assert asyncio.run(write(writer, job())) == (200, b"{}", False)
    assert writer.problem == ""
    writer.close()


def test_a_failure_is_told_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """A balancer that is told sends nothing any more, and nothing else would show that it is over."""
    writer = scribe()
    monkeypatch.setattr(writer, "_process", lambda _: 1 / 0)
    with pytest.raises(RequestRejectedError):
        asyncio.run(write(writer, job()))
    assert writer.problem
    monkeypatch.setattr(idempotency, "UNHEALTHY_SECONDS", 0)
    assert writer.problem == ""
    writer.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_ended_is_noticed_and_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    writer = scribe()

    def end(_: Any) -> None:
        raise SystemExit

    monkeypatch.setattr(writer, "_process", end)
    with pytest.raises(RequestRejectedError):
        asyncio.run(write(writer, job(), 1))
    assert writer._thread is not None
    writer._thread.join(30)
    assert "are not written" in writer.problem
    monkeypatch.setattr(writer, "_process", lambda jobs: [each.respond((200, b"{}", False)) for each in jobs])
    for _ in range(2):  # the first is answered a moment before the writer knows that all is well
        assert asyncio.run(write(writer, job())) == (200, b"{}", False)
    assert writer.problem == ""
    writer.close()


def test_a_request_that_was_given_up_holds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    writer, release = scribe(), threading.Event()
    monkeypatch.setattr(writer, "_process", lambda _: release.wait(30))
    first, second = job(), job()

    async def main() -> None:
        both = [asyncio.create_task(write(writer, each, 0.2)) for each in (first, second)]
        found = await asyncio.gather(*both, return_exceptions=True)
        assert [each.status for each in found if isinstance(each, RequestRejectedError)] == [503, 503]

    asyncio.run(main())
    assert second.abandoned
    assert list(second.records) == []
    release.set()
    writer.close()
