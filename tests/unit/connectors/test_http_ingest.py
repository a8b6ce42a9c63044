"""HTTP ingest without a network: what is taken, what is told, what is refused."""

import asyncio
import contextlib
import gzip
import json
import logging
import os
import random
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from riverrun.cluster.ports import PortClaims
from riverrun.connectors.http import application as ingesting
from riverrun.connectors.http import request_body as reading_bodies
from riverrun.connectors.http.api_keys import ApiKey, ApiKeys, key_digest
from riverrun.connectors.http.record_parser import TopicRecordParser
from riverrun.connectors.http.request_body import MemoryShare, gunzip
from riverrun.connectors.http.responses import RequestRejectedError
from riverrun.errors import DeliveryError, QueueFullError, RecordTooLargeError
from support.ingest_process import app_of, server_of
from support.posting import Posting, fuzzed, reading

NDJSON = "application/x-ndjson"


@pytest.fixture
def http() -> Posting:
    return Posting()


# --- what is taken ---


def test_one_record(http: Posting) -> None:
    told = http.post(reading(3))
    assert (told.status, told.json) == (200, {"topic": "readings", "partition": 0, "offset": 0})
    ((topic, key, value),) = http.poster.sent
    assert (topic, key, json.loads(value)) == ("readings", "h3", reading(3))
    assert http.poster.headers == [[("riverrun.schema", b"Reading/1")]]


def test_a_list(http: Posting) -> None:
    told = http.post([reading(each) for each in range(3)])
    assert told.status == 200
    assert told.json == {
        "topic": "readings", "accepted": 3, "refused": 0, "records": [{"partition": 0, "offset": n} for n in range(3)],
    }  # fmt: skip
    assert [key for _, key, _ in http.poster.sent] == ["h0", "h1", "h2"]


def test_lines(http: Posting) -> None:
    body = b"\xef\xbb\xbf" + b"\r\n".join(json.dumps(reading(each)).encode() for each in range(3)) + b"\r\n\r\n"
    told = http.post(body, content_type=NDJSON)
    assert (told.status, told.json["accepted"]) == (200, 3)


@pytest.mark.parametrize("kind", ["application/json", NDJSON])
def test_gzip(http: Posting, kind: str) -> None:
    body = gzip.compress(json.dumps(reading(1)).encode())
    assert http.post(body, content_encoding="gzip", content_type=kind).status == 200
    # Several files in a row are one, as gzip has it.
    halves = json.dumps(reading(2)).encode()
    body = gzip.compress(halves[:9]) + gzip.compress(halves[9:]) + b"\0\0"
    assert http.post(body, content_encoding="gzip", content_type=kind).status == 200
    assert len(http.poster.sent) == 2


def test_some_are_bad(http: Posting) -> None:
    told = http.post([reading(0), reading(1, load_kw=-1), "x", reading(2)])
    assert told.status == 207
    assert (told.json["accepted"], told.json["refused"]) == (2, 2)
    first, second, third, fourth = told.json["records"]
    assert (first, fourth) == ({"partition": 0, "offset": 0}, {"partition": 0, "offset": 1})
    assert second["error"]["code"] == "RECORD_UNREADABLE"
    assert "$.load_kw" in second["error"]["message"]
    assert "object" in third["error"]["message"]
    assert len(http.poster.sent) == 2
    counts = http.ingest.counts["readings"]
    assert (counts.requests, counts.records, counts.refused) == (1, 2, 2)


def test_all_are_bad(http: Posting) -> None:
    assert http.post({"house_id": 1}).status == 422
    told = http.post([{"house_id": 1}, {}])
    assert (told.status, told.json["accepted"], told.json["refused"]) == (422, 0, 2)
    assert http.poster.sent == []


def test_any_json_for_a_topic_without_a_type(http: Posting) -> None:
    hook = {"action": "opened", "repository": {"full_name": "ada/engine"}}
    assert http.post(hook, "hooks").status == 200
    assert http.post(hook, "hooks", X_Key="ada").status == 200
    assert http.post(hook, "hooks", "?key=a%20b").status == 200
    assert http.post([1, "two", None, [3]], "hooks").json["accepted"] == 4
    assert [key for _, key, _ in http.poster.sent] == [None, b"ada", b"a b", None, None, None, None]
    assert http.poster.headers[0] == []


def test_a_key_field_of_a_topic_without_a_type(http: Posting) -> None:
    told = http.post([{"host": "web-1", "status": 200}, {"status": 500}], "logs")
    assert told.status == 207
    assert http.poster.sent[0][1] == b"web-1"
    assert "no key field host" in told.json["records"][1]["error"]["message"]


@pytest.mark.parametrize("topic", ["readings", "logs"])
def test_a_key_that_the_record_has_is_not_given(http: Posting, topic: str) -> None:
    assert http.post(reading(1), topic, X_Key="x").code == "KEY_DECLARED"


def test_a_record_is_written_as_it_stands(http: Posting) -> None:
    body = b'[{"load_kw":1.50,\n "at":"2026-01-01T12:00:00+00:00", "house_id":"\\u0068", "more":[1]}]'
    assert http.post(body).status == 200
    assert http.poster.sent[0][2] == body[1:-1]
    assert http.poster.sent[0][1] == "h"


# --- what is refused ---


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"", 400, "EMPTY"),
        (b" \n", 400, "EMPTY"),
        (b"[]", 400, "EMPTY"),
        (b"{", 400, "INVALID_JSON"),
        (b'{"a":1}x', 400, "INVALID_JSON"),
        (b"[1,2", 400, "INVALID_JSON"),
        (b"nope", 400, "INVALID_JSON"),
        (b"[" * 100_000, 400, "INVALID_JSON"),
        (b'{"a":' * 50_000, 400, "INVALID_JSON"),
        (b'"\xff"', 400, "NOT_UTF8"),
        (b"[" + b"1," * 200 + b"1]", 413, "TOO_MANY"),
        (b"x" * (2**20 + 1), 413, "TOO_LARGE"),
        (b"5", 422, "RECORD_UNREADABLE"),
        (json.dumps(reading(1, note="x" * 100_000)).encode(), 413, "RECORD_TOO_LARGE"),
    ],
    ids=lambda each: str(each)[:20],
)
def test_bad_bodies(http: Posting, body: bytes, status: int, code: str) -> None:
    told = http.post(body)
    assert (told.status, told.code) == (status, code)
    assert http.poster.sent == []
    assert http.budget.held == 0


def test_too_large_without_saying_so(http: Posting) -> None:
    assert http.post(b"x" * (2**20 + 1), content_length="-").status == 413
    assert http.post(b"{}", content_length="99999999999999999999").status == 413


def test_a_list_of_very_many_is_not_even_read() -> None:
    http = Posting(max_body=2**22, memory=2**23)
    told = http.post(b"[" + b"1," * 1_500_000 + b"1]")
    assert (told.status, told.code) == (413, "TOO_MANY")


def test_too_many_lines(http: Posting) -> None:
    assert http.post(b"{}\n" * 101, content_type=NDJSON).code == "TOO_MANY"


def test_a_bomb(http: Posting) -> None:
    """A thousand times its size, refused on the way; also where it is one inside the limit for packed bodies."""
    bomb = gzip.compress(b"[" + b" " * 50_000_000 + b"]")
    told = http.post(bomb, content_encoding="gzip")
    assert (told.status, told.code) == (413, "TOO_LARGE")
    assert http.budget.held == 0
    pieces: list[int] = []
    with pytest.raises(RequestRejectedError):
        pieces.extend(len(each) for each in gunzip(bomb, 2**20))
    assert sum(pieces) <= 2**20


@pytest.mark.parametrize(
    "body",
    [b"{}", gzip.compress(b"{}")[:-9], gzip.compress(b"{}") + b"x", b"", gzip.compress(b"") * 101],
    # Not by their bytes: gzip writes the time into them, and two processes would not agree on the tests' names.
    ids=["plain", "cut off", "more behind it", "nothing", "many"],
)
def test_not_gzip(http: Posting, body: bytes) -> None:
    told = http.post(body, content_encoding="gzip")
    assert told.status == 400


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"content_type": "text/plain"}, 415),
        ({"content_type": "application/x-www-form-urlencoded"}, 415),
        ({"content_type": "multipart/form-data; boundary=x"}, 415),
        ({"content_type": ""}, 415),
        ({"content_type": "application/json; charset=latin-1"}, 415),
        ({"content_type": "application/json; charset=UTF-16"}, 415),
        ({"content_encoding": "br"}, 415),
        ({"content_encoding": "gzip, gzip"}, 415),
        ({"content_type": 'application/json; charset="UTF-8"'}, 200),
        ({"content_type": "application/cloudevents+json"}, 200),
        ({"content_encoding": "identity"}, 200),
        ({"idempotency_key": "x" * 256}, 400),
        ({"idempotency_key": ""}, 400),
        ({"origin": "https://evil.test"}, 403),
        ({"origin": "null"}, 403),
        ({"sec_fetch_site": "cross-site"}, 403),
        ({"host": "evil.test"}, 403),
        ({"host": "-"}, 403),
    ],
    ids=str,
)
def test_heads(http: Posting, headers: dict[str, str], status: int) -> None:
    told = http.post(reading(1), **headers)
    assert told.status == status
    assert len(http.poster.sent) == (1 if status == 200 else 0)


def test_a_slow_body(http: Posting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading_bodies, "BODY_SECONDS", 0.05)
    told = asyncio.run(http.call("POST", "/topics/readings", b"{}", {"content-type": "application/json"}, stall=True))
    assert (told.status, told.code, told.headers["connection"]) == (408, "TOO_SLOW", "close")
    assert http.budget.held == 0


def test_a_sender_that_goes_away(http: Posting) -> None:
    told = asyncio.run(http.call("POST", "/topics/readings", b"{}", {"content-type": "application/json"}, leave=True))
    assert (told.status, told.code) == (400, "INCOMPLETE")
    assert http.poster.sent == []


def test_other_paths_and_methods(http: Posting) -> None:
    told = http.post(reading(1), "reading")
    assert (told.status, told.code) == (404, "TOPIC_NOT_FOUND")
    assert "Did you mean readings?" in told.json["error"]["message"]
    assert http.ask("GET", "/nowhere").code == "NOT_FOUND"
    for method in ("GET", "PUT", "DELETE", "PATCH"):
        told = http.ask(method, "/topics/readings")
        assert (told.status, told.code, told.headers["allow"]) == (405, "METHOD_NOT_ALLOWED", "POST")
    # Nobody is told that another page may.
    told = http.ask("OPTIONS", "/topics/readings", headers={"origin": "https://evil.test"})
    assert told.status == 403
    assert not [name for name in told.headers if name.startswith("access-control")]


def test_fuzzed_bodies(http: Posting, caplog: pytest.LogCaptureFixture) -> None:
    """4xx and nothing else. Ten thousand others against a real server: tests/integration/test_http_ingest.py."""

    async def main() -> dict[int, int]:
        found: dict[int, int] = {}
        for body, headers in fuzzed(seed=9, count=2_000):
            told = await http.call("POST", "/topics/readings", body, headers)
            found[told.status] = found.get(told.status, 0) + 1
            assert 400 <= told.status < 500, (told.status, body, headers)
            assert told.json
        return found

    with caplog.at_level(logging.ERROR):
        found = asyncio.run(main())
    assert set(found) == {400, 422}
    assert http.poster.sent == []
    assert http.scribe.jobs == []
    assert http.budget.held == 0
    assert not caplog.records


# --- who may ---


def keys() -> ApiKeys:
    return ApiKeys((ApiKey("all", key_digest("k" * 20)), ApiKey("some", key_digest("s" * 20), frozenset({"hooks"}))))


@pytest.mark.parametrize(
    "given",
    [{}, {"authorization": "Bearer x"}, {"authorization": "Basic x"}, {"x_api_key": ""}, {"authorization": "k"}],
)
def test_no_key(given: dict[str, str]) -> None:
    http = Posting(keys=keys(), local=False)
    for topic in ("readings", "not-there"):
        told = http.post(reading(1), topic, **given)
        assert (told.status, told.code) == (401, "UNAUTHORIZED")
        assert told.headers["www-authenticate"].startswith("Bearer")
    for path in ("/metrics", "/topics"):
        assert (
            http.ask("GET", path, headers={name.replace("_", "-"): each for name, each in given.items()}).status == 401
        )
    assert http.ask("GET", "/health").json == {"healthy": True}


@pytest.mark.parametrize(
    "given",
    [
        {"authorization": f"Bearer {'k' * 20}"},
        {"authorization": f"bearer  {'k' * 20} "},
        {"x_api_key": "k" * 20},
        {"authorization": "Basic eDpra2tra2tra2tra2tra2tra2traw=="},
    ],
)
def test_a_key(given: dict[str, str]) -> None:
    http = Posting(keys=keys(), local=False)
    # Beyond this machine any name will do: the key is what counts.
    assert http.post(reading(1), host="ingest.example.org", **given).status == 200


def test_a_key_for_some_topics() -> None:
    http = Posting(keys=keys())
    some = {"x_api_key": "s" * 20}
    assert http.post({}, "hooks", **some).status == 200
    told = http.post(reading(1), **some)
    assert (told.status, told.code) == (403, "FORBIDDEN")


# --- when Kafka is slow, or away ---


def test_no_room_in_the_queue(http: Posting) -> None:
    http.poster.full = True
    told = http.post(reading(1))
    assert (told.status, told.code, told.headers["retry-after"]) == (429, "BUSY", "1")
    assert told.json["error"]["retryable"] is True


def test_no_room_in_memory() -> None:
    http = Posting(memory=2**20)
    assert http.budget.reserve(2**20)
    assert http.post(reading(1)).status == 429
    assert http.post(reading(1), content_length="-").status == 429
    http.budget.release(2**20)
    assert http.post(reading(1)).status == 200
    assert http.budget.held == 0


def test_what_a_packed_body_unpacks_to_needs_room_too() -> None:
    http = Posting(memory=2**20)
    http.budget.reserve(2**20 - 5000)
    told = http.post(gzip.compress(b" " * 500_000), content_encoding="gzip")
    assert told.status == 429
    assert http.budget.held == 2**20 - 5000


def test_packed_bodies_take_the_room_they_need() -> None:
    """Each reserved as much as the largest body may have: of eight at a time five were refused on an idle server."""
    http = Posting(memory=2**22, max_body=2**22, max_records=10_000)
    rows = [reading(number, note=random.Random(number).randbytes(40).hex()) for number in range(2_000)]
    body = gzip.compress(json.dumps(rows).encode())
    assert len(body) > 64 * 1024
    head = {"content-type": "application/json", "content-encoding": "gzip"}

    async def main() -> list[int]:
        asked = [http.call("POST", "/topics/readings", body, head) for _ in range(8)]
        return [told.status for told in await asyncio.gather(*asked)]

    assert asyncio.run(main()) == [200] * 8
    assert http.budget.held == 0


def test_every_answer_is_in_time_while_kafka_stands_still(monkeypatch: pytest.MonkeyPatch) -> None:
    http = Posting(max_body=2**24, memory=2**26, max_records=10_000, timeout=4)
    http.poster.queue = 50_000
    http.post(reading(1))  # which looks the topic up
    http.poster.stopped = True
    body = json.dumps([reading(number) for number in range(10_000)]).encode()
    head = {"content-type": "application/json"}
    slices: list[int] = []
    check, add = TopicRecordParser.records, http.poster.add

    def checked(self: TopicRecordParser, values: Any, key: Any) -> Any:
        slices.append(len(values))
        return check(self, values, key)

    def added(posted: Any, topic: str, records: Any, headers: Any) -> bool:
        slices.append(len(records))
        return add(posted, topic, records, headers)

    monkeypatch.setattr(TopicRecordParser, "records", checked)
    monkeypatch.setattr(http.poster, "add", added)

    async def main() -> tuple[list[int], int]:
        posts = [asyncio.create_task(http.call("POST", "/topics/readings", body, head)) for _ in range(24)]
        looks = 0
        # Far beyond the deadline and its spare: a crowded machine is not what is tested.
        async with asyncio.timeout(60):
            while not all(post.done() for post in posts):
                assert (await http.call("GET", "/metrics")).status == 200
                looks += 1
                await asyncio.sleep(0.05)
        return [post.result().status for post in posts], looks

    statuses, looks = asyncio.run(main())
    assert set(statuses) == {429, 503}
    # On a crowded machine some of the five do not get their turn in time.
    assert 1 <= statuses.count(503) <= 5, "as many as have room are taken"
    assert max(slices) <= ingesting.SLICE_RECORDS, "more at a time holds the event loop up"
    assert looks > 1, "others are answered meanwhile"
    assert (http.budget.held, http.ingest._capacity.reserved) == (0, 0)


def test_first_posts_share_one_look_up_and_health_does_not_wait_with_them() -> None:
    http = Posting(timeout=50)
    http.poster.away, http.poster.release = True, threading.Event()
    head = {"content-type": "application/json"}
    body = json.dumps(reading(1)).encode()

    async def main() -> tuple[int, list[int]]:
        posts = [asyncio.create_task(http.call("POST", "/topics/readings", body, head)) for _ in range(40)]
        async with asyncio.timeout(30):
            while not http.poster.looked_up:  # noqa: ASYNC110  -- another thread counts it
                await asyncio.sleep(0.01)
        health = await http.call("GET", "/health")
        assert not any(post.done() for post in posts)
        assert http.poster.release is not None
        http.poster.release.set()
        return health.status, [(await post).status for post in posts]

    health, statuses = asyncio.run(main())
    assert health == 200, "nothing had failed by then"
    assert set(statuses) == {503}
    assert http.poster.looked_up == 1


def test_a_look_up_that_is_not_answered_ends_with_its_request() -> None:
    http = Posting(timeout=0.1)
    http.poster.release = threading.Event()
    told = http.post(reading(1))
    assert (told.status, told.code) == (503, "KAFKA_UNREACHABLE")
    assert not http.poster.release.is_set()
    http.poster.release.set()


def test_slow_uploads_keep_nobody_else_out() -> None:
    """Ten of 1 MB with a few records in each: by their length they would be all that has room."""
    http = Posting(max_body=2**21, memory=2**25, max_records=10_000)
    http.poster.queue = 20_000
    head = {"content-type": "application/json"}
    large = json.dumps([reading(number, note="x" * 90_000) for number in range(10)]).encode()

    async def main() -> tuple[list[int], list[int]]:
        sent = asyncio.Event()
        slow = [asyncio.create_task(http.call("POST", "/topics/readings", large, head, stall=sent)) for _ in range(10)]
        async with asyncio.timeout(30):
            while http.budget.held < 10 * len(large) and not any(each.done() for each in slow):  # noqa: ASYNC110
                await asyncio.sleep(0)
        body = json.dumps([reading(number) for number in range(5)]).encode()
        others = [(await http.call("POST", "/topics/readings", body, head)).status for _ in range(5)]
        sent.set()
        return others, [(await each).status for each in slow]

    others, slow = asyncio.run(main())
    assert others == [200] * 5
    assert slow == [200] * 10
    assert (http.budget.held, http.ingest._capacity.reserved) == (0, 0)


def test_room_is_asked_for_again_when_it_is_known_how_many_there_are() -> None:
    http = Posting(max_records=10_000)
    http.poster.queue = 1000
    told = http.post(b"[" + b"1," * 2000 + b"1]", "hooks")
    assert (told.status, http.poster.sent) == (429, [])
    assert http.ingest._capacity.reserved == 0


def test_no_room_is_said_before_a_body_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    http = Posting(max_body=2**22, memory=2**23)
    http.poster.full = True
    monkeypatch.setattr(TopicRecordParser, "split", lambda *_: pytest.fail("it was parsed"))
    monkeypatch.setattr(MemoryShare, "grow_to", lambda *_: pytest.fail("it was kept"))
    assert http.post(b"[" + b"1," * 500_000 + b"1]").status == 429
    assert http.ingest._capacity.reserved == 0


def test_health_tells_of_a_writer_that_ended(http: Posting) -> None:
    http.scribe.problem = "Requests with an Idempotency-Key are not written at the moment"
    told = http.ask("GET", "/health")
    assert (told.status, told.json["healthy"]) == (503, False)
    assert "are not written" in told.json["problem"]


def test_kafka_is_away(http: Posting) -> None:
    http.poster.away = True
    told = http.post(reading(1))
    assert (told.status, told.code, told.headers["retry-after"]) == (503, "KAFKA_UNREACHABLE", "5")
    assert http.ask("GET", "/health").status == 503
    http.poster.away = False
    assert http.ask("GET", "/health").status == 200


def test_some_are_not_acknowledged(http: Posting) -> None:
    http.poster.errors = {1: DeliveryError("A record for readings was not acknowledged in time")}
    told = http.post([reading(0), reading(1), {}])
    assert (told.status, told.headers["retry-after"]) == (503, "5")
    first, second, third = told.json["records"]
    assert first == {"partition": 0, "offset": 0}
    assert (second["error"]["code"], second["error"]["retryable"]) == ("DELIVERY_FAILED", True)
    assert third["error"]["code"] == "RECORD_UNREADABLE"
    counts = http.ingest.counts["readings"]
    assert (counts.records, counts.failed, counts.refused) == (1, 1, 1)


@pytest.mark.parametrize(
    ("error", "alone", "status"),
    [
        (QueueFullError("full"), True, 429),
        (RecordTooLargeError("large"), True, 413),
        (RecordTooLargeError("large"), False, 207),
    ],
)
def test_what_the_client_refuses(http: Posting, error: Any, alone: bool, status: int) -> None:
    http.poster.errors = {0: error}
    assert http.post(reading(0) if alone else [reading(0), reading(1)]).status == status


# --- once and whole ---


def test_an_idempotency_key(http: Posting) -> None:
    first = http.post([reading(1), {}], idempotency_key="a-1")
    assert (first.status, "idempotency-replayed" in first.headers) == (207, False)
    again = http.post([reading(1), {}], idempotency_key="a-1")
    assert (again.status, again.body, again.headers["idempotency-replayed"]) == (207, first.body, "true")
    one, two = http.scribe.jobs
    assert one.key == two.key
    assert one.digest == two.digest
    http.post([reading(2)], idempotency_key="a-1")
    assert http.scribe.jobs[2].key == one.key
    assert http.scribe.jobs[2].digest != one.digest
    # The same key for another topic, or of another sender, is another.
    http.post({}, "hooks", idempotency_key="a-1")
    assert http.scribe.jobs[3].key != one.key
    assert http.poster.sent == []
    assert http.ingest.counts["readings"].repeated == 2


def test_a_request_that_was_not_written_counts_its_records_as_failed(http: Posting) -> None:
    http.scribe.refused = RequestRejectedError(503, "KAFKA_UNREACHABLE", "Kafka has not answered in time")
    assert http.post([reading(1), reading(2)], idempotency_key="a-1").status == 503
    assert http.ingest.counts["readings"].failed == 2


def test_all_or_nothing(http: Posting) -> None:
    told = http.post([reading(1), {}], query="?atomic=true")
    assert (told.status, told.json["accepted"]) == (422, 0)
    assert told.json["records"][0]["error"]["code"] == "NOT_TAKEN"
    assert http.scribe.jobs == []
    assert http.post([reading(1), reading(2)], query="?atomic=true").json["accepted"] == 2
    assert len(http.scribe.jobs[0].records) == 2
    assert http.post(reading(1), query="?atomic=maybe").status == 400


# --- looking ---


def test_what_there_is(http: Posting) -> None:
    assert http.ask("GET", "/topics").json == {"topics": ["hooks", "logs", "readings"]}
    http.post([reading(1), {}])
    text = http.ask("GET", "/metrics").body.decode()
    assert 'riverrun_ingest_records_total{topic="readings"} 1\n' in text
    assert 'riverrun_ingest_refused_total{topic="readings"} 1\n' in text
    assert "riverrun_ingest_held_bytes 0\n" in text


def test_every_answer_has_its_headers(http: Posting) -> None:
    for told in (http.post(reading(1)), http.post(b"x"), http.ask("GET", "/health"), http.ask("GET", "/nowhere")):
        assert told.headers["x-content-type-options"] == "nosniff"
        assert told.headers["content-security-policy"].startswith("default-src 'none'")
        assert told.headers["server"] == "riverrun"


# --- where it listens ---


def test_a_port_that_another_program_has_by_now_is_said(tmp_path: Path) -> None:
    notices: list[str] = []
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        contextlib.closing(PortClaims(tmp_path / "claims")) as claims,
    ):
        port = taken.getsockname()[1]
        server = server_of("127.0.0.1:1", tmp_path, app_of("readings"), notice=notices.append)
        with server._listen(claims, port) as moved:
            now = moved.getsockname()[1]
    assert now != port
    [notice] = notices
    assert f"port {port} is taken by " in notice
    assert f"(pid {os.getpid()})" in notice
    assert f"HTTP ingest is at port {now} instead; set ingest.port" in notice
    with contextlib.closing(PortClaims(tmp_path / "claims")) as claims, server._listen(claims, now):
        assert len(notices) == 1
