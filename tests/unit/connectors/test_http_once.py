"""What is known of Idempotency-Keys: bounded in number, in time and in memory."""

import asyncio
import threading
from typing import Any

import msgspec
import pytest

from riverrun.config import KafkaSettings
from riverrun.connectors.http import once
from riverrun.connectors.http.answers import Refused
from riverrun.connectors.http.once import Answered, Job, Known, Scribe, content_of, job_key
from riverrun.kafka.connection import Connection


def told(at: int, size: int = 2) -> Answered:
    return Answered(at, "c", 200, msgspec.Raw(b'"' + b"x" * (size - 2) + b'"'))


def test_keys_go_when_their_time_is_over() -> None:
    known = Known(window_ms=100, most=3)
    for number in range(3):
        known.add(bytes([number]), number, told(number * 50))
    assert known.full
    assert known.find(b"\0") == 0
    known.forget_old(now=99)
    assert known.full
    known.forget_old(now=100)
    assert (known.find(b"\0"), known.find(b"\1"), known.full) == (None, 1, False)
    known.forget_old(now=10_000)
    assert len(known) == 0


def test_the_newest_answers_are_at_hand() -> None:
    known = Known(window_ms=100, most=1000)
    size = once.RECENT_BYTES // 4
    for number in range(10):
        known.add(bytes([number]), number, told(0, size))
    assert known.recent(b"\x09") is not None
    assert known.recent(b"\x00") is None
    assert known.find(b"\x00") == 0
    for _ in range(10):
        known.add(b"\x09", 9, told(0, size))
    assert known.recent(b"\x08") is not None, "one key counts once"


def test_keys_are_of_their_sender_and_topic() -> None:
    found = {job_key("a", "b", "c"), job_key("ab", "", "c"), job_key("a", "b\0", "c"), job_key("a", "bc", "")}
    assert len(found) == 4
    assert content_of(b"a", b"b") != content_of(b"ab", b"")


def scribe() -> Scribe:
    nowhere = Connection(KafkaSettings(bootstrap_servers="127.0.0.1:1"))
    return Scribe(nowhere, "app", window_ms=1000, most_keys=10, timeout_seconds=5)


def job() -> Job:
    return Job("t", [(None, b"1")], [], lambda _: (200, b"{}"), b"k", "c")


async def write(writer: Scribe, each: Job, seconds: float = 20) -> Any:
    return await writer.write(each, asyncio.get_running_loop().time() + seconds)


def test_whatever_goes_wrong_is_told_and_the_next_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    writer = scribe()
    monkeypatch.setattr(writer, "_take", lambda _: 1 / 0)
    with pytest.raises(Refused) as refused:
        asyncio.run(write(writer, job()))
    assert refused.value.status == 503
    assert "are not written" in writer.problem
    assert "ZeroDivisionError" not in writer.problem, "it is shown to anybody; the log has the rest"
    monkeypatch.setattr(writer, "_take", lambda jobs: [each.told((200, b"{}", False)) for each in jobs])
    assert asyncio.run(write(writer, job())) == (200, b"{}", False)
    assert asyncio.run(write(writer, job())) == (200, b"{}", False)
    assert writer.problem == ""
    writer.close()


def test_a_failure_is_told_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """A balancer that is told sends nothing any more, and nothing else would show that it is over."""
    writer = scribe()
    monkeypatch.setattr(writer, "_take", lambda _: 1 / 0)
    with pytest.raises(Refused):
        asyncio.run(write(writer, job()))
    assert writer.problem
    monkeypatch.setattr(once, "TOLD_SECONDS", 0)
    assert writer.problem == ""
    writer.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_ended_is_noticed_and_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    writer = scribe()

    def end(_: Any) -> None:
        raise SystemExit

    monkeypatch.setattr(writer, "_take", end)
    with pytest.raises(Refused):
        asyncio.run(write(writer, job(), 1))
    assert writer._thread is not None
    writer._thread.join(30)
    assert "are not written" in writer.problem
    monkeypatch.setattr(writer, "_take", lambda jobs: [each.told((200, b"{}", False)) for each in jobs])
    for _ in range(2):  # the first is answered a moment before the writer knows that all is well
        assert asyncio.run(write(writer, job())) == (200, b"{}", False)
    assert writer.problem == ""
    writer.close()


def test_a_request_that_was_given_up_holds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    writer, release = scribe(), threading.Event()
    monkeypatch.setattr(writer, "_take", lambda _: release.wait(30))
    first, second = job(), job()

    async def main() -> None:
        both = [asyncio.create_task(write(writer, each, 0.2)) for each in (first, second)]
        found = await asyncio.gather(*both, return_exceptions=True)
        assert [each.status for each in found if isinstance(each, Refused)] == [503, 503]

    asyncio.run(main())
    assert second.given_up
    assert list(second.records) == []
    release.set()
    writer.close()
