"""The application: `POST /topics/NAME`, `GET /topics`, `GET /health`, `GET /metrics`.

A record is acknowledged when all in-sync replicas have it, and only then. What a request is told about each of its records
is what became of it: nothing is dropped without a word.
"""

import asyncio
import contextlib
import logging
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from riverrun.cluster.loopback import is_for_us
from riverrun.connectors.http.answers import AWAY_SECONDS, Refused, answer, answered, busy, encoded, problem
from riverrun.connectors.http.body import Budget, Kind, Share, discard, read, wanted
from riverrun.connectors.http.counts import Counts, exposition
from riverrun.connectors.http.keys import Keys
from riverrun.connectors.http.once import Job, Scribe, content_of, job_key
from riverrun.connectors.http.records import MOST_KEY_BYTES, Bad, Record, Taker
from riverrun.connectors.http.turns import Pace, Questions, Reservation, Room, Turns, guessed
from riverrun.errors import DeliveryError, QueueFullError, RecordTooLargeError, RiverrunError
from riverrun.kafka.producer.posting import Posted, Poster
from riverrun.model.near import nearest
from riverrun.store.manners import HEADERS, NO_PAGE, is_of_another_page

# Behind the deadline of a request: the client needs a moment to say of each record what became of it.
SPARE_SECONDS = 2.0
# Records that are checked or sent before the clock is looked at.
SLICE = 200
MOST_IDEMPOTENCY_KEY = 255
# How long Kafka may take to say that it is there.
HEALTH_SECONDS = 2.0
_LOG = logging.getLogger("riverrun.connectors.http")
_YES = frozenset({"1", "true", "yes"})
_NO = frozenset({"", "0", "false", "no"})
_CODES = {404: "NOT_FOUND", 405: "METHOD_NOT_ALLOWED"}


class _Sending(NamedTuple):
    """Records that were handed to the producer. `waiting` ends when each has its answer."""

    posted: Posted
    waiting: asyncio.Future[None]
    records: int


class Ingest:
    """`takers` are the topics that can be posted to. `local`: only this machine reaches us, by its own names."""

    def __init__(
        self,
        takers: Mapping[str, Taker],
        poster: Poster,
        scribe: Scribe,
        *,
        keys: Keys,
        budget: Budget,
        max_body: int,
        max_records: int,
        timeout_seconds: float,
        local: bool = True,
    ) -> None:
        self._takers = takers
        self._poster = poster
        self._scribe = scribe
        self._keys = keys
        self._budget = budget
        self._max_body = max_body
        self._max_records = max_records
        self._timeout = timeout_seconds
        self._local = local
        self._room = Room(poster)
        self._turns = Turns()
        self._questions = Questions()
        self._looked_up: set[str] = set()
        self._away = False
        self.counts = {name: Counts() for name in takers}

    def application(self) -> ASGIApp:
        app = Starlette(
            routes=[
                Route("/topics/{name}", self._post, methods=["POST"]),
                Route("/topics", self._topics),
                Route("/health", self._health),
                Route("/metrics", self._metrics),
            ],
            exception_handlers={Refused: _refused, HTTPException: _http_error, Exception: _other_error},
        )
        return _Manners(app, local=self._local)

    # --- posting ---

    async def _post(self, request: Request) -> Response:
        # From here on, the body's own time included: all that follows, waiting too, ends by then.
        deadline = asyncio.get_running_loop().time() + self._timeout
        name = request.path_params["name"]
        who = self._keys.check(request.headers, name)
        taker = self._taker(name)
        counts = self.counts[name]
        counts.requests += 1
        said = wanted(request.headers, self._max_body)
        key, atomic, repeat = _key(request), _flag(request, "atomic"), _idempotency_key(request.headers)
        with Reservation(self._room) as reservation, Share(self._budget) as share:
            try:
                # Before the body is read: what has no room is not worth reading. Only asked, not reserved: it may come
                # slowly, and have few records for its length.
                self._room.check(guessed(said, self._max_records))
                share.grow_to(said.length or 0)
            except Refused:
                await discard(request.receive, request.headers, self._max_body, self._timeout)
                raise
            body = await read(request.receive, said, share, self._max_body, self._timeout)
            counts.bytes += len(body)
            async with self._turns.turn(len(body), deadline):
                alone, found = await self._checked(taker, body, said.kind, key)
            good: list[Record] = [each for each in found if not isinstance(each, Bad)]
            counts.refused += len(found) - len(good)
            if not good or (atomic and len(good) < len(found)):
                return _none_taken(name, found, alone=alone)
            reservation.become(len(good))
            if asyncio.get_running_loop().time() >= deadline:
                raise busy("The time of the request was over before its records were checked; nothing of it was taken")
            await self._look_up(name, deadline)
            if atomic or repeat:
                content = content_of(name.encode(), key or b"", said.kind.encode(), str(atomic).encode(), body)
                job = Job(
                    name, good, taker.headers, lambda places: _taken(name, found, places, alone=alone),
                    job_key(who, name, repeat) if repeat else b"", content if repeat else "",
                )  # fmt: skip
                return await self._once(job, counts, deadline)
            async with self._turns.turn(len(body), deadline):
                sending = await self._send(taker, good)
            reservation.become(0)
            return await self._answer(taker, found, sending, deadline, alone=alone)

    async def _checked(
        self, taker: Taker, body: bytes, kind: Kind, key: bytes | None
    ) -> tuple[bool, list[Record | Bad]]:
        """Whether it is one record by itself, and the records, each checked."""
        alone, slices = taker.split(body, kind, key, self._max_records)
        pace = Pace()
        found: list[Record | Bad] = []
        for values in slices:
            for first in range(0, len(values), SLICE):
                found += taker.records(values[first : first + SLICE], key)
                await pace.rest()
            await pace.rest()
        return alone, found

    def _taker(self, name: str) -> Taker:
        taker = self._takers.get(name)
        if taker is None:
            near = nearest(name, self._takers)
            hint = f"Did you mean {near}?" if near else f"Topics that do: {', '.join(sorted(self._takers))}."
            raise Refused(404, "TOPIC_NOT_FOUND", f"There is no topic {name[:249]} that takes records by HTTP. {hint}")
        return taker

    async def _look_up(self, name: str, deadline: float) -> None:
        """Before the first record: a topic that is not there would only be known when its records time out."""
        if name in self._looked_up:
            return
        try:
            await self._questions.ask(f"topic-{name}", lambda: self._poster.look_up(name, self._timeout), deadline)
        except Refused:
            self._away = True
            raise
        self._looked_up.add(name)

    async def _send(self, taker: Taker, good: Sequence[Record]) -> "_Sending":
        """Hand the records to the producer, in slices."""
        loop = asyncio.get_running_loop()
        waiting: asyncio.Future[None] = loop.create_future()

        def tell() -> None:
            if not waiting.done():
                waiting.set_result(None)

        def done() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
                loop.call_soon_threadsafe(tell)

        posted = self._poster.begin(len(good), done)
        try:
            pace = Pace()
            for first in range(0, len(good), SLICE):
                if not self._poster.add(posted, taker.topic, good[first : first + SLICE], taker.headers):
                    break
                await pace.rest()
        finally:
            self._poster.end(posted)
        return _Sending(posted, waiting, len(good))

    async def _answer(
        self, taker: Taker, found: Sequence[Record | Bad], sending: "_Sending", deadline: float, *, alone: bool
    ) -> Response:
        # The client says of every record that it timed out, a moment after its deadline. That is worth waiting for.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(deadline + SPARE_SECONDS):
                await sending.waiting
        posted = sending.posted
        counts = self.counts[taker.topic]
        acknowledged = [each for each in posted.places if each is not None]
        counts.failed += sending.records - len(acknowledged)
        counts.records += len(acknowledged)
        if len(acknowledged) == sending.records:
            self._away = False
            status, body = _taken(taker.topic, found, acknowledged, alone=alone)
            return answered(status, body)
        return self._partly(taker.topic, found, posted, alone=alone)

    def _partly(self, topic: str, found: Sequence[Record | Bad], posted: Posted, *, alone: bool) -> Response:
        """Some are not acknowledged. Each is told what became of it; one that may have been written says so."""
        # Once: the client may report more while this looks.
        places, errors = list(posted.places), dict(posted.errors)
        kinds = {type(errors.get(number)) for number, place in enumerate(places) if place is None}
        if kinds == {QueueFullError} and not any(places):
            raise busy("Kafka is slower than the records come; nothing of this request was taken")
        status, later = (207, 0) if kinds == {RecordTooLargeError} else (503, AWAY_SECONDS)
        self._away = self._away or status == 503
        results, accepted = [], 0
        # Thousands fail alike: what they are told is written once.
        told: dict[int, bytes] = {}
        numbers = iter(range(len(places)))
        for each in found:
            if isinstance(each, Bad):
                results.append(_bad(each))
                continue
            number = next(numbers)
            place = places[number]
            if place is not None:
                accepted += 1
                results.append(_PLACE % place)
                continue
            error = errors.get(number)
            if id(error) not in told:
                told[id(error)] = _undelivered(error)
            results.append(told[id(error)])
        if alone:
            return answered(413 if status == 207 else 503, results[0], retry_after=later)
        return answered(status, _batch(topic, accepted, results), retry_after=later)

    async def _once(self, job: Job, counts: Counts, deadline: float) -> Response:
        count = len(job.records)  # a job that is given up lets them go
        try:
            status, body, again = await self._scribe.write(job, deadline)
        except Refused as refused:
            if refused.status == 503:
                counts.failed += count
                self._away = True
            raise
        self._away = False
        if again:
            counts.repeated += 1
        else:
            counts.records += count
        return answered(status, body, headers={"Idempotency-Replayed": "true"} if again else None)

    # --- looking ---

    async def _topics(self, request: Request) -> Response:
        self._keys.check(request.headers)
        return answer(200, {"topics": sorted(self._takers)})

    async def _health(self, request: Request) -> Response:  # noqa: ARG002
        """Without a key: for load balancers. After a failure Kafka is asked, since nobody may post to find out."""
        if self._scribe.problem:
            return answer(503, {"healthy": False, "problem": self._scribe.problem}, retry_after=AWAY_SECONDS)
        if self._away:
            topic, deadline = next(iter(self._takers)), asyncio.get_running_loop().time() + HEALTH_SECONDS
            try:
                await self._questions.ask("health", lambda: self._poster.reach(topic, HEALTH_SECONDS), deadline)
                self._away = False
            except Refused:
                return answer(503, {"healthy": False}, retry_after=AWAY_SECONDS)
        return answer(200, {"healthy": True})

    async def _metrics(self, request: Request) -> Response:
        self._keys.check(request.headers)
        metrics = self._poster.metrics()
        gauges = {
            "held_bytes": ("Bytes of requests that are read or wait for Kafka.", float(self._budget.held)),
            "queued_records": ("Records that wait for Kafka.", float(metrics.queued)),
            "foreign_keys": (
                "Records among the Idempotency-Keys that cannot be read, passed over.",
                float(self._scribe.foreign),
            ),
        }
        return PlainTextResponse(exposition(self.counts, gauges), media_type="text/plain; version=0.0.4")


# --- what a request says ---


def _key(request: Request) -> bytes | None:
    """The key for the records of a topic that has none of its own: X-Key, or ?key=."""
    headers = [value for name, value in request.scope["headers"] if name == b"x-key"]
    given = headers[:1] or [each.encode("utf-8", "surrogateescape") for each in request.query_params.getlist("key")[:1]]
    if not given:
        return None
    found = bytes(given[0])
    if len(found) > MOST_KEY_BYTES:
        raise Refused(400, "KEY", f"A key has at most {MOST_KEY_BYTES} bytes")
    return found


def _flag(request: Request, name: str) -> bool:
    told = request.query_params.get(name, "").lower()
    if told not in _YES | _NO:
        raise Refused(400, "USAGE", f"{name} is true or false, not {told[:80]}")
    return told in _YES


def _idempotency_key(headers: Headers) -> str:
    found = headers.getlist("idempotency-key")
    if not found:
        return ""
    if len(found) > 1 or not 1 <= len(found[0]) <= MOST_IDEMPOTENCY_KEY or not found[0].isprintable():
        raise Refused(
            400, "USAGE", f"An Idempotency-Key is one text of 1 to {MOST_IDEMPOTENCY_KEY} printable characters"
        )
    return found[0]


# --- what it is told ---


_PLACE = b'{"partition":%d,"offset":%d}'


def _taken(
    topic: str, found: Sequence[Record | Bad], places: Sequence[tuple[int, int]], *, alone: bool
) -> tuple[int, bytes]:
    """All good ones are in Kafka, in their order."""
    if alone:
        return 200, encoded({"topic": topic, "partition": places[0][0], "offset": places[0][1]})
    if len(places) == len(found):
        return 200, _batch(topic, len(places), [_PLACE % each for each in places])
    left = iter(places)
    results = [_bad(each) if isinstance(each, Bad) else _PLACE % next(left) for each in found]
    return 207, _batch(topic, len(places), results)


def _none_taken(topic: str, found: Sequence[Record | Bad], *, alone: bool) -> Response:
    bad = [each for each in found if isinstance(each, Bad)]
    too_large = all(each.code == RecordTooLargeError.code for each in bad)
    status = 413 if too_large else 422
    if alone:
        return answered(status, _bad(bad[0]))
    left = encoded({"error": problem("NOT_TAKEN", "others of the request are bad, and it is atomic")})
    return answered(status, _batch(topic, 0, [_bad(each) if isinstance(each, Bad) else left for each in found]))


def _bad(each: Bad) -> bytes:
    return encoded({"error": problem(each.code, each.reason)})


def _undelivered(error: RiverrunError | None) -> bytes:
    code = error.code if error is not None else DeliveryError.code
    text = error.what if error is not None else "Kafka has not answered; it may or may not have been written"
    return encoded({"error": problem(code, text, retryable=code != RecordTooLargeError.code)})


def _batch(topic: str, accepted: int, results: Sequence[bytes]) -> bytes:
    """The answer for several records, of what each is told."""
    head = encoded({"topic": topic, "accepted": accepted, "refused": len(results) - accepted})
    return b'%b,"records":[%b]}' % (head[:-1], b",".join(results))


async def _refused(request: Request, error: Exception) -> Response:  # noqa: ARG001
    assert isinstance(error, Refused)  # noqa: S101
    return error.response()


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101
    message = f"There is no {request.url.path[:300]}" if error.status_code == 404 else str(error.detail)
    found = problem(_CODES.get(error.status_code, "HTTP"), message)
    return answer(error.status_code, {"error": found}, headers=error.headers)


async def _other_error(request: Request, error: Exception) -> Response:
    _LOG.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return answer(500, {"error": problem("INTERNAL", "Something went wrong on our side")})


class _Manners:
    """Around every request: who may call us by which name and from which page, and the headers of every answer."""

    def __init__(self, app: ASGIApp, *, local: bool) -> None:
        self._app = app
        self._local = local

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["Cache-Control"] = "no-store"
                headers["Content-Security-Policy"] = NO_PAGE
                headers["Server"] = "riverrun"
                for name, value in HEADERS.items():
                    headers[name] = value
            await send(message)

        refused = self._refused(scope)
        if refused is not None:
            await refused.response()(scope, receive, sent)
        else:
            await self._app(scope, receive, sent)

    def _refused(self, scope: Scope) -> Refused | None:
        headers = Headers(scope=scope)
        # Beyond this machine a key is asked for, which a page that came by a name of its own does not have.
        if self._local and not is_for_us(headers.getlist("host")):
            return Refused(403, "FORBIDDEN", "This server answers only to 127.0.0.1, localhost and [::1]")
        if is_of_another_page(scope, headers):
            return Refused(403, "FORBIDDEN", "This server does not answer to pages of others")
        return None
