"""The application: `POST /topics/NAME`, `GET /topics`, `GET /health`, `GET /metrics`.

A record is acknowledged when all in-sync replicas have it, and only then. The response says for each record of the request
what became of it: nothing is dropped silently.
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

from riverrun.cluster.loopback import is_allowed_host
from riverrun.connectors.http.api_keys import ApiKeys
from riverrun.connectors.http.flow_control import (
    LargeRequestLock,
    LoopYielder,
    QueueCapacity,
    Reservation,
    SingleFlight,
    estimate_records,
)
from riverrun.connectors.http.idempotency import IdempotentWriter, TransactionalRequest, request_digest, scoped_key
from riverrun.connectors.http.metrics import IngestCounts, prometheus_text
from riverrun.connectors.http.record_parser import MAX_KEY_BYTES, KeyValue, RejectedRecord, TopicRecordParser
from riverrun.connectors.http.request_body import (
    BodyFormat,
    MemoryBudget,
    MemoryShare,
    discard_body,
    parse_content_headers,
    read_body,
)
from riverrun.connectors.http.responses import (
    KAFKA_RETRY_SECONDS,
    RequestRejectedError,
    bytes_response,
    encode_json,
    error_body,
    json_response,
    too_many_requests,
)
from riverrun.errors import DeliveryError, QueueFullError, RecordTooLargeError, RiverrunError
from riverrun.kafka.producer.request_producer import RequestDelivery, RequestProducer
from riverrun.model.suggest import nearest
from riverrun.web.guard import API_CONTENT_POLICY, SECURITY_HEADERS, is_cross_origin

# Added to the deadline of a request: the client needs a moment to report on each record.
DELIVERY_REPORT_SECONDS = 2.0
# Records that are checked or sent before the clock is checked.
SLICE_RECORDS = 200
MAX_IDEMPOTENCY_KEY_LENGTH = 255
# How long Kafka may take to answer a health check.
HEALTH_SECONDS = 2.0
_LOG = logging.getLogger("riverrun.connectors.http")
_YES = frozenset({"1", "true", "yes"})
_NO = frozenset({"", "0", "false", "no"})
_ERROR_CODES = {404: "NOT_FOUND", 405: "METHOD_NOT_ALLOWED"}


class _PendingDelivery(NamedTuple):
    """Records that were handed to the producer. `done` ends when each has its answer."""

    posted: RequestDelivery
    done: asyncio.Future[None]
    records: int


class IngestApplication:
    """`parsers` are the topics that can be posted to. `local`: only this machine reaches us, by its own names."""

    def __init__(
        self,
        parsers: Mapping[str, TopicRecordParser],
        poster: RequestProducer,
        writer: IdempotentWriter,
        *,
        keys: ApiKeys,
        budget: MemoryBudget,
        max_body: int,
        max_records: int,
        timeout_seconds: float,
        local: bool = True,
    ) -> None:
        self._parsers = parsers
        self._poster = poster
        self._writer = writer
        self._keys = keys
        self._budget = budget
        self._max_body = max_body
        self._max_records = max_records
        self._timeout = timeout_seconds
        self._local = local
        self._capacity = QueueCapacity(poster)
        self._large_requests = LargeRequestLock()
        self._kafka_calls = SingleFlight()
        self._checked_topics: set[str] = set()
        self._kafka_down = False
        self.counts = {name: IngestCounts() for name in parsers}

    def application(self) -> ASGIApp:
        app = Starlette(
            routes=[
                Route("/topics/{name}", self._post, methods=["POST"]),
                Route("/topics", self._topics),
                Route("/health", self._health),
                Route("/metrics", self._metrics),
            ],
            exception_handlers={
                RequestRejectedError: _on_rejected,
                HTTPException: _on_http_error,
                Exception: _on_other_error,
            },
        )
        return _IngestGuard(app, local=self._local)

    # --- posting ---

    async def _post(self, request: Request) -> Response:
        # Starts before the body is read: everything below, waiting included, ends by this deadline.
        deadline = asyncio.get_running_loop().time() + self._timeout
        name = request.path_params["name"]
        key_name = self._keys.authorize(request.headers, name)
        parser = self._parser_for(name)
        counts = self.counts[name]
        counts.requests += 1
        content_headers = parse_content_headers(request.headers, self._max_body)
        key, atomic, idempotency_key = _record_key(request), _flag(request, "atomic"), _idempotency_key(request.headers)
        with Reservation(self._capacity) as reservation, MemoryShare(self._budget) as share:
            try:
                # Before the body is read: a request without room is not worth reading. Only checked, not reserved: the body
                # may come slowly, and have few records for its length.
                self._capacity.check(estimate_records(content_headers, self._max_records))
                share.grow_to(content_headers.content_length or 0)
            except RequestRejectedError:
                await discard_body(request.receive, request.headers, self._max_body, self._timeout)
                raise
            body = await read_body(request.receive, content_headers, share, self._max_body, self._timeout)
            counts.bytes += len(body)
            async with self._large_requests.acquire(len(body), deadline):
                single, parsed = await self._parse_records(parser, body, content_headers.body_format, key)
            good: list[KeyValue] = [record for record in parsed if not isinstance(record, RejectedRecord)]
            counts.refused += len(parsed) - len(good)
            if not good or (atomic and len(good) < len(parsed)):
                return _rejected_response(name, parsed, single=single)
            reservation.resize(len(good))
            if asyncio.get_running_loop().time() >= deadline:
                raise too_many_requests(
                    "The time of the request was over before its records were checked; nothing of it was taken"
                )
            await self._ensure_topic(name, deadline)
            if atomic or idempotency_key:
                digest = request_digest(
                    name.encode(), key or b"", content_headers.body_format.encode(), str(atomic).encode(), body
                )
                transactional_request = TransactionalRequest(
                    name, good, parser.headers, lambda positions: _success_response(name, parsed, positions, single=single),
                    scoped_key(key_name, name, idempotency_key) if idempotency_key else b"",
                    digest if idempotency_key else "",
                )  # fmt: skip
                return await self._write_idempotent(transactional_request, counts, deadline)
            async with self._large_requests.acquire(len(body), deadline):
                sending = await self._send(parser, good)
            reservation.resize(0)
            return await self._respond(parser, parsed, sending, deadline, single=single)

    async def _parse_records(
        self, parser: TopicRecordParser, body: bytes, body_format: BodyFormat, key: bytes | None
    ) -> tuple[bool, list[KeyValue | RejectedRecord]]:
        """Whether the body is a single record, and the records, each checked."""
        single, slices = parser.split(body, body_format, key, self._max_records)
        yielder = LoopYielder()
        parsed: list[KeyValue | RejectedRecord] = []
        for values in slices:
            for first in range(0, len(values), SLICE_RECORDS):
                parsed += parser.records(values[first : first + SLICE_RECORDS], key)
                await yielder.yield_if_due()
            await yielder.yield_if_due()
        return single, parsed

    def _parser_for(self, name: str) -> TopicRecordParser:
        parser = self._parsers.get(name)
        if parser is None:
            near = nearest(name, self._parsers)
            hint = f"Did you mean {near}?" if near else f"Topics that do: {', '.join(sorted(self._parsers))}."
            raise RequestRejectedError(
                404, "TOPIC_NOT_FOUND", f"There is no topic {name[:249]} that takes records by HTTP. {hint}"
            )
        return parser

    async def _ensure_topic(self, name: str, deadline: float) -> None:
        """Checked before the first record: otherwise a missing topic only shows when its records time out."""
        if name in self._checked_topics:
            return
        try:
            await self._kafka_calls.call(
                f"topic-{name}", lambda: self._poster.check_topic(name, self._timeout), deadline
            )
        except RequestRejectedError:
            self._kafka_down = True
            raise
        self._checked_topics.add(name)

    async def _send(self, parser: TopicRecordParser, good: Sequence[KeyValue]) -> "_PendingDelivery":
        """Hand the records to the producer, in slices."""
        loop = asyncio.get_running_loop()
        done_future: asyncio.Future[None] = loop.create_future()

        def set_done() -> None:
            if not done_future.done():
                done_future.set_result(None)

        def done() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
                loop.call_soon_threadsafe(set_done)

        posted = self._poster.begin(len(good), done)
        try:
            yielder = LoopYielder()
            for first in range(0, len(good), SLICE_RECORDS):
                if not self._poster.add(posted, parser.topic, good[first : first + SLICE_RECORDS], parser.headers):
                    break
                await yielder.yield_if_due()
        finally:
            self._poster.end(posted)
        return _PendingDelivery(posted, done_future, len(good))

    async def _respond(
        self,
        parser: TopicRecordParser,
        parsed: Sequence[KeyValue | RejectedRecord],
        sending: "_PendingDelivery",
        deadline: float,
        *,
        single: bool,
    ) -> Response:
        # The client reports every record as timed out a moment after its deadline. That is worth waiting for.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(deadline + DELIVERY_REPORT_SECONDS):
                await sending.done
        posted = sending.posted
        counts = self.counts[parser.topic]
        acknowledged = [position for position in posted.positions if position is not None]
        counts.failed += sending.records - len(acknowledged)
        counts.records += len(acknowledged)
        if len(acknowledged) == sending.records:
            self._kafka_down = False
            status, body = _success_response(parser.topic, parsed, acknowledged, single=single)
            return bytes_response(status, body)
        return self._partial_response(parser.topic, parsed, posted, single=single)

    def _partial_response(
        self, topic: str, parsed: Sequence[KeyValue | RejectedRecord], posted: RequestDelivery, *, single: bool
    ) -> Response:
        """Some records are not acknowledged. The response has a result for each, and says which may have been written."""
        # Copied once: the client may report more meanwhile.
        positions, errors = list(posted.positions), dict(posted.errors)
        error_types = {type(errors.get(number)) for number, position in enumerate(positions) if position is None}
        if error_types == {QueueFullError} and not any(positions):
            raise too_many_requests("Kafka is slower than the records come; nothing of this request was taken")
        status, retry_after = (207, 0) if error_types == {RecordTooLargeError} else (503, KAFKA_RETRY_SECONDS)
        self._kafka_down = self._kafka_down or status == 503
        results, accepted = [], 0
        # Thousands fail alike: each error is encoded once.
        encoded_errors: dict[int, bytes] = {}
        numbers = iter(range(len(positions)))
        for record in parsed:
            if isinstance(record, RejectedRecord):
                results.append(_rejected_json(record))
                continue
            number = next(numbers)
            position = positions[number]
            if position is not None:
                accepted += 1
                results.append(_OFFSET_JSON % position)
                continue
            error = errors.get(number)
            if id(error) not in encoded_errors:
                encoded_errors[id(error)] = _undelivered_json(error)
            results.append(encoded_errors[id(error)])
        if single:
            return bytes_response(413 if status == 207 else 503, results[0], retry_after=retry_after)
        return bytes_response(status, _batch_json(topic, accepted, results), retry_after=retry_after)

    async def _write_idempotent(self, request: TransactionalRequest, counts: IngestCounts, deadline: float) -> Response:
        count = len(request.records)  # a job that is given up drops them
        try:
            status, body, replayed = await self._writer.write(request, deadline)
        except RequestRejectedError as refused:
            if refused.status == 503:
                counts.failed += count
                self._kafka_down = True
            raise
        self._kafka_down = False
        if replayed:
            counts.repeated += 1
        else:
            counts.records += count
        return bytes_response(status, body, headers={"Idempotency-Replayed": "true"} if replayed else None)

    # --- reading ---

    async def _topics(self, request: Request) -> Response:
        self._keys.authorize(request.headers)
        return json_response(200, {"topics": sorted(self._parsers)})

    async def _health(self, request: Request) -> Response:  # noqa: ARG002
        """Without a key: for load balancers. After a failure Kafka is asked, since maybe nobody posts to find out."""
        if self._writer.problem:
            return json_response(
                503, {"healthy": False, "problem": self._writer.problem}, retry_after=KAFKA_RETRY_SECONDS
            )
        if self._kafka_down:
            topic, deadline = next(iter(self._parsers)), asyncio.get_running_loop().time() + HEALTH_SECONDS
            try:
                await self._kafka_calls.call("health", lambda: self._poster.ping(topic, HEALTH_SECONDS), deadline)
                self._kafka_down = False
            except RequestRejectedError:
                return json_response(503, {"healthy": False}, retry_after=KAFKA_RETRY_SECONDS)
        return json_response(200, {"healthy": True})

    async def _metrics(self, request: Request) -> Response:
        self._keys.authorize(request.headers)
        metrics = self._poster.metrics()
        gauges = {
            "held_bytes": ("Bytes of requests that are read or wait for Kafka.", float(self._budget.held)),
            "queued_records": ("Records that wait for Kafka.", float(metrics.queued)),
            "foreign_keys": (
                "Records among the Idempotency-Keys that cannot be read, passed over.",
                float(self._writer.unreadable_keys),
            ),
        }
        return PlainTextResponse(prometheus_text(self.counts, gauges), media_type="text/plain; version=0.0.4")


# --- parameters of a request ---


def _record_key(request: Request) -> bytes | None:
    """The key for the records of a topic that has none of its own: X-Key, or ?key=."""
    headers = [value for name, value in request.scope["headers"] if name == b"x-key"]
    given = headers[:1] or [
        value_text.encode("utf-8", "surrogateescape") for value_text in request.query_params.getlist("key")[:1]
    ]
    if not given:
        return None
    key = bytes(given[0])
    if len(key) > MAX_KEY_BYTES:
        raise RequestRejectedError(400, "KEY", f"A key has at most {MAX_KEY_BYTES} bytes")
    return key


def _flag(request: Request, name: str) -> bool:
    text = request.query_params.get(name, "").lower()
    if text not in _YES | _NO:
        raise RequestRejectedError(400, "USAGE", f"{name} is true or false, not {text[:80]}")
    return text in _YES


def _idempotency_key(headers: Headers) -> str:
    values = headers.getlist("idempotency-key")
    if not values:
        return ""
    if len(values) > 1 or not 1 <= len(values[0]) <= MAX_IDEMPOTENCY_KEY_LENGTH or not values[0].isprintable():
        raise RequestRejectedError(
            400, "USAGE", f"An Idempotency-Key is one text of 1 to {MAX_IDEMPOTENCY_KEY_LENGTH} printable characters"
        )
    return values[0]


# --- responses ---


_OFFSET_JSON = b'{"partition":%d,"offset":%d}'


def _success_response(
    topic: str, parsed: Sequence[KeyValue | RejectedRecord], positions: Sequence[tuple[int, int]], *, single: bool
) -> tuple[int, bytes]:
    """All valid records are in Kafka, in their order."""
    if single:
        return 200, encode_json({"topic": topic, "partition": positions[0][0], "offset": positions[0][1]})
    if len(positions) == len(parsed):
        return 200, _batch_json(topic, len(positions), [_OFFSET_JSON % position for position in positions])
    left = iter(positions)
    results = [
        _rejected_json(record) if isinstance(record, RejectedRecord) else _OFFSET_JSON % next(left) for record in parsed
    ]
    return 207, _batch_json(topic, len(positions), results)


def _rejected_response(topic: str, parsed: Sequence[KeyValue | RejectedRecord], *, single: bool) -> Response:
    bad = [record for record in parsed if isinstance(record, RejectedRecord)]
    too_large = all(record.code == RecordTooLargeError.code for record in bad)
    status = 413 if too_large else 422
    if single:
        return bytes_response(status, _rejected_json(bad[0]))
    left = encode_json({"error": error_body("NOT_TAKEN", "others of the request are bad, and it is atomic")})
    return bytes_response(
        status,
        _batch_json(
            topic, 0, [_rejected_json(record) if isinstance(record, RejectedRecord) else left for record in parsed]
        ),
    )


def _rejected_json(rejected: RejectedRecord) -> bytes:
    return encode_json({"error": error_body(rejected.code, rejected.reason)})


def _undelivered_json(error: RiverrunError | None) -> bytes:
    code = error.code if error is not None else DeliveryError.code
    text = error.what if error is not None else "Kafka has not answered; it may or may not have been written"
    return encode_json({"error": error_body(code, text, retryable=code != RecordTooLargeError.code)})


def _batch_json(topic: str, accepted: int, results: Sequence[bytes]) -> bytes:
    """The response for several records, from the result of each."""
    head = encode_json({"topic": topic, "accepted": accepted, "refused": len(results) - accepted})
    return b'%b,"records":[%b]}' % (head[:-1], b",".join(results))


async def _on_rejected(request: Request, error: Exception) -> Response:  # noqa: ARG001
    assert isinstance(error, RequestRejectedError)  # noqa: S101
    return error.response()


async def _on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101
    message = f"There is no {request.url.path[:300]}" if error.status_code == 404 else str(error.detail)
    content = error_body(_ERROR_CODES.get(error.status_code, "HTTP"), message)
    return json_response(error.status_code, {"error": content}, headers=error.headers)


async def _on_other_error(request: Request, error: Exception) -> Response:
    _LOG.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return json_response(500, {"error": error_body("INTERNAL", "Something went wrong on our side")})


class _IngestGuard:
    """Wraps every request: checks its host name and the page it comes from, and sets the headers of every response."""

    def __init__(self, app: ASGIApp, *, local: bool) -> None:
        self._app = app
        self._local = local

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["Cache-Control"] = "no-store"
                headers["Content-Security-Policy"] = API_CONTENT_POLICY
                headers["Server"] = "riverrun"
                for name, value in SECURITY_HEADERS.items():
                    headers[name] = value
            await send(message)

        rejection = self._rejection(scope)
        if rejection is not None:
            await rejection.response()(scope, receive, send_with_headers)
        else:
            await self._app(scope, receive, send_with_headers)

    def _rejection(self, scope: Scope) -> RequestRejectedError | None:
        headers = Headers(scope=scope)
        # Beyond this machine a key is required, which a page that reached us by a DNS name of its own does not have.
        if self._local and not is_allowed_host(headers.getlist("host")):
            return RequestRejectedError(403, "FORBIDDEN", "This server answers only to 127.0.0.1, localhost and [::1]")
        if is_cross_origin(scope, headers):
            return RequestRejectedError(403, "FORBIDDEN", "This server does not answer to pages of others")
        return None
