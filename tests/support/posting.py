"""HTTP ingest for tests: the application without a network or a broker, and bodies that are none."""

import asyncio
import json
import random
import string
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from riverrun.connectors.http.api_keys import ApiKeys
from riverrun.connectors.http.application import IngestApplication
from riverrun.connectors.http.idempotency import TransactionalRequest
from riverrun.connectors.http.record_parser import KeyValue, TopicRecordParser
from riverrun.connectors.http.request_body import MemoryBudget
from riverrun.connectors.http.responses import RequestRejectedError
from riverrun.errors import BrokerUnreachableError, RiverrunError
from riverrun.kafka.producer.metrics import ProducerMetrics
from riverrun.model.connectors.http import http
from riverrun.model.event import Event, event_time, key
from riverrun.model.event import field as limited
from riverrun.model.topic import Topic

CHUNK = 65536
AT = "2026-01-01T12:00:00Z"


class Reading(Event):
    house_id: str = key()
    load_kw: float = limited(ge=0)
    at: datetime = event_time()


def reading(number: int = 0, **other: Any) -> dict[str, Any]:
    return {"house_id": f"h{number % 7}", "load_kw": number / 10, "at": AT} | other


@dataclass
class FakePosted:
    done: Callable[[], None]
    positions: list[tuple[int, int] | None]
    errors: dict[int, RiverrunError] = field(default_factory=dict)


@dataclass
class FakePoster:
    """Kafka as it is told to be: `error` fails records by their number, `full` has no room."""

    sent: list[tuple[str, str | bytes | None, bytes]] = field(default_factory=list)
    headers: list[Any] = field(default_factory=list)
    errors: dict[int, RiverrunError] = field(default_factory=dict)
    away: bool = False
    full: bool = False

    # Records that may wait; and whether Kafka answers for none of them, nor any question until its time is over.
    queue: int = 100_000
    stopped: bool = False
    waiting: int = 0
    looked_up: int = 0
    # Questions are not answered before it is set.
    release: threading.Event | None = None

    def check_topic(self, topic: str, seconds: float) -> None:
        self.looked_up += 1
        if self.release is not None:
            self.release.wait(60)
        elif self.stopped:
            time.sleep(seconds)
        if self.away or self.stopped:
            raise BrokerUnreachableError(f"No broker answered while looking for {topic}")

    def ping(self, topic: str, seconds: float) -> None:
        self.check_topic(topic, seconds)

    def has_capacity(self, count: int) -> bool:
        return not self.full and self.waiting + count <= self.queue

    def begin(self, count: int, done: Callable[[], None]) -> FakePosted:  # noqa: ARG002
        return FakePosted(done, [], dict(self.errors))

    def add(self, posted: FakePosted, topic: str, records: Sequence[KeyValue], headers: Any) -> bool:
        for record in records:
            lost = self.stopped or len(posted.positions) in self.errors
            posted.positions.append(None if lost else (0, len(self.sent)))
            self.sent.append((topic, *record))
        self.headers.append(headers)
        self.waiting += len(records) if self.stopped else 0
        return True

    def end(self, posted: FakePosted) -> None:
        if not self.stopped:
            posted.done()

    def metrics(self) -> ProducerMetrics:
        return ProducerMetrics(len(self.sent), len(self.sent), 0, 0, 0)


@dataclass
class FakeScribe:
    jobs: list[TransactionalRequest] = field(default_factory=list)
    refused: RequestRejectedError | None = None
    problem: str = ""
    unreadable_keys: int = 0

    async def write(self, job: TransactionalRequest, deadline: float) -> tuple[int, bytes, bool]:  # noqa: ARG002
        if self.refused is not None:
            job.records = ()  # as the real one does with what it gives up
            raise self.refused
        again = any(each.key == job.key for each in self.jobs if job.key)
        self.jobs.append(job)
        return *job.make_response([(0, number) for number in range(len(job.records))]), again


@dataclass
class Told:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        return str(self.json["error"]["code"])


class Posting:
    """The application, with one typed topic (`readings`), one without a type (`hooks`) and one keyed by a field
    (`logs`)."""

    def __init__(
        self, *, keys: ApiKeys | None = None, local: bool = True, max_body: int = 2**20, memory: int = 2**22,
        max_records: int = 100, timeout: float = 5,
    ) -> None:  # fmt: skip
        self.poster, self.scribe, self.budget = FakePoster(), FakeScribe(), MemoryBudget(memory)
        given = [
            (Topic("readings", Reading), http()), (Topic[Any]("hooks"), http()), (Topic[Any]("logs"), http(key="host")),
        ]  # fmt: skip
        self.ingest = IngestApplication(
            {topic.name: TopicRecordParser(topic, source, 100_000) for topic, source in given},
            self.poster,  # type: ignore[arg-type]
            self.scribe,  # type: ignore[arg-type]
            keys=keys or ApiKeys(),
            budget=self.budget,
            max_body=max_body,
            max_records=max_records,
            timeout_seconds=timeout,
            local=local,
        )
        self._app = self.ingest.application()

    def ask(self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None) -> Told:
        return asyncio.run(self.call(method, path, body, headers))

    def post(self, body: Any, topic: str = "readings", query: str = "", **headers: str) -> Told:
        """JSON, unless it is bytes already. `X_Key` is X-Key."""
        named = {name.replace("_", "-").lower(): value for name, value in headers.items()}
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.ask("POST", f"/topics/{topic}{query}", data, {"content-type": "application/json"} | named)

    async def call(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        *,
        stall: bool | asyncio.Event = False,
        leave: bool = False,
    ) -> Told:
        """`stall`: the body never ends, or not before this event; `leave`: the sender goes away before it does."""
        where, _, query = path.partition("?")
        given = {"host": "127.0.0.1:8470", "content-length": str(len(body))} | {
            name.lower(): value for name, value in (headers or {}).items()
        }
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http",
            "path": where, "raw_path": where.encode(), "query_string": query.encode(), "root_path": "",
            "headers": [(name.encode(), value.encode("latin-1")) for name, value in given.items() if value != "-"],
            "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 8470),
        }  # fmt: skip
        parts = [body[at : at + CHUNK] for at in range(0, len(body), CHUNK)] or [b""]
        told = Told(0, {}, b"")

        async def receive() -> dict[str, Any]:
            if not parts:
                return {"type": "http.disconnect"}
            part = parts.pop(0)
            if not parts and isinstance(stall, asyncio.Event):
                await stall.wait()
            elif not parts and stall:
                await asyncio.sleep(3600)
            return {"type": "http.request", "body": part, "more_body": bool(parts) or leave}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                told.status = message["status"]
                told.headers |= {name.decode(): value.decode() for name, value in message["headers"]}
            else:
                told.body += message.get("body", b"")

        await self._app(scope, receive, send)
        return told


# --- bodies that are no readings ---


def fuzzed(seed: int, count: int) -> list[tuple[bytes, dict[str, str]]]:
    """So many bodies (with their headers) of which none has a reading in it, by a judge that is not ours."""
    chance = random.Random(seed)
    found: list[tuple[bytes, dict[str, str]]] = []
    while len(found) < count:
        body = _mutated(chance)
        kind = chance.choice(["application/json", "application/json; charset=utf-8", "application/x-ndjson"])
        if has_reading(body, lines=kind.endswith("ndjson")):
            continue
        headers = {"content-type": kind}
        if chance.random() < 0.1:
            headers["content-encoding"] = "gzip"  # which it is not
        if chance.random() < 0.02:
            headers["idempotency-key"] = "".join(chance.choices(string.printable[:94], k=chance.randrange(1, 300)))
        found.append((body, headers))
    return found


def _mutated(chance: random.Random) -> bytes:
    kind = chance.randrange(8)
    if kind == 0:
        return chance.randbytes(chance.randrange(200))
    if kind == 1:
        return (chance.choice(["[", "{", '{"a":', '"', "[1,"]) * chance.randrange(1, 3000)).encode()
    if kind == 2:
        return json.dumps(_value(chance, 0)).encode()
    if kind == 3:
        # Its fields, of other types or out of bounds.
        odd: list[Any] = [None, -1, True, [], {}, "", "x", 1e308, -0.5, "2026-01-01", 10**30, "\ud800", "\0"]
        made = reading(1) | {chance.choice(["house_id", "load_kw", "at"]): chance.choice(odd)}
        return json.dumps([made] * chance.randrange(1, 4) if chance.random() < 0.5 else made).encode()
    if kind == 4:
        made = reading(1)
        del made[chance.choice(list(made))]
        return json.dumps(made).encode()
    body = bytearray(json.dumps([reading(each) for each in range(chance.randrange(1, 3))]).encode())
    for _ in range(chance.randrange(1, 12)):
        at = chance.randrange(len(body))
        if kind == 5:
            body[at] = chance.randrange(256)
        elif kind == 6:
            del body[at : at + chance.randrange(1, 9)]
            body = body or bytearray(b" ")
        else:
            body[at:at] = chance.choice(
                [b"\xff", b"\0", b"{", b"]", b",", b'"', b"\\", b"\\u12", b"NaN", b"\n", b"1e9"]
            )
    return bytes(body)


def _value(chance: random.Random, depth: int) -> Any:
    kind = chance.randrange(7 if depth < 4 else 5)
    if kind == 5:
        return [_value(chance, depth + 1) for _ in range(chance.randrange(4))]
    if kind == 6:
        return {
            chance.choice(["house_id", "load_kw", "at", "x", "", "\u2028"]): _value(chance, depth + 1)
            for _ in range(chance.randrange(4))
        }
    return chance.choice([None, True, chance.random() * 1e9, chance.randrange(-(2**70), 2**70), "text", "é\u0000"])


def has_reading(body: bytes, *, lines: bool) -> bool:
    """Whether any value of a body is a reading, by Python's own parser; in doubt it says yes."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return False
    values: list[Any] = []
    for each in text.split("\n") if lines else [text]:
        try:
            found = json.loads(each.strip("\ufeff \t\r\n"), strict=False)
        except (ValueError, RecursionError):
            continue
        values += found if isinstance(found, list) and not lines else [found]
    return any(_is_reading(value) for value in values)


def _is_reading(value: Any) -> bool:
    if not isinstance(value, dict) or not isinstance(value.get("house_id"), str):
        return False
    load, at = value.get("load_kw"), value.get("at")
    if isinstance(load, bool) or not isinstance(load, int | float) or not load >= 0:
        return False
    if not isinstance(at, str):
        return False
    try:
        return datetime.fromisoformat(at).tzinfo is not None
    except ValueError:
        return False
