"""Sends records to an HTTP address: at least once, each with a key that is the same at every attempt.

What may pass (no answer, 408, 425, 429, 5xx) is tried again for as long as it takes, and not before the time the receiver
asks for (Retry-After). What cannot (any other answer but 2xx, a redirect included) goes to the dead letters with the status
and the beginning of the answer. Nothing is left out silently.
"""

import asyncio
import contextlib
import hashlib
import threading
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

import httpx
import msgspec

from riverrun.config.spec import is_loopback
from riverrun.connectors.contract import ConnectorContext
from riverrun.errors import ConfigError, RecordUnreadableError
from riverrun.kafka.consumer.record import Record
from riverrun.model.connector import FailedRecord, Sink
from riverrun.model.connectors.webhook import check_url, webhook

RETRYABLE_STATUSES = frozenset({408, 425, 429})
# What is kept of an answer, in characters, and what is read of it at most, in bytes.
MAX_REASON_CHARACTERS = 300
MAX_RESPONSE_BYTES = 64 * 1024
MAX_RETRY_AFTER_SECONDS = 3600.0
# How long one call of `write` begins requests. What is left then is given again.
WRITE_SECONDS = 30.0
# How often the end is looked for, and how long connections may take to close.
_STOP_POLL_SECONDS = 0.1
_CLOSE_SECONDS = 2.0
BATCH_RECORDS_HEADER = "X-Riverrun-Records"
RECORD_HEADER = "X-Riverrun-Record"

_encode = msgspec.json.Encoder().encode
_raw = msgspec.json.Decoder(msgspec.Raw).decode


class WebhookSink(Sink):
    """`riverrun.webhook`. Requests are made in an event loop of its own, in a thread that never holds up the end of the
    process: there a request has one time limit for all of it, and can be given up at any moment."""

    def __init__(self, declared: webhook, context: ConnectorContext) -> None:
        self._declared = declared
        self.batch = declared.max_records  # type: ignore[misc]
        self._headers = _headers(declared, context)
        self._url = declared.url
        if self._url.startswith(("env:", "file:")):
            self._url = context.secret(self._url, "url of riverrun.webhook").reveal()
            check_url(self._url, shown="what url refers to", allow_http=declared.allow_http)
        self._app = context.app.name
        self._halt = context.stop
        self._loop: asyncio.AbstractEventLoop | None = None
        self._client: httpx.AsyncClient | None = None

    def open(self) -> None:
        declared = self._declared
        self._client = httpx.AsyncClient(
            headers=self._headers,
            # For each single step; the limit for all of them is in `_post`.
            timeout=declared.timeout_seconds,
            limits=httpx.Limits(max_connections=declared.connections, max_keepalive_connections=declared.connections),
            follow_redirects=False,
            # A proxy is for other machines.
            trust_env=not is_loopback(urlsplit(self._url).hostname or ""),
        )
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=_run_loop, args=(self._loop,), name="riverrun-webhook", daemon=True)
        self._thread.start()

    def close(self) -> None:
        client, self._client = self._client, None
        loop, self._loop = self._loop, None
        if client is not None and loop is not None:
            closing = asyncio.run_coroutine_threadsafe(client.aclose(), loop)
            with contextlib.suppress(TimeoutError, httpx.HTTPError, OSError):
                closing.result(_CLOSE_SECONDS)
            loop.call_soon_threadsafe(loop.stop)
            self._thread.join(_CLOSE_SECONDS)

    def write(self, records: Sequence[Any]) -> list[FailedRecord]:
        assert self._loop is not None  # noqa: S101  -- opened before it writes
        sending = asyncio.run_coroutine_threadsafe(self._send(records), self._loop)
        while True:
            try:
                return sending.result(_STOP_POLL_SECONDS)
            except TimeoutError:
                if sending.done():
                    return sending.result()
                if self._halt.is_set():
                    # Whoever is being asked may still take it: then it is asked again with the same key.
                    sending.cancel()
                    return [FailedRecord(record, "It is to end", retry=True) for record in records]

    async def _send(self, records: Sequence[Any]) -> list[FailedRecord]:
        deadline = time.monotonic() + WRITE_SECONDS
        if self._declared.send == "batch":
            return await self._send_batch(records, deadline)
        # Records of a key follow each other; without a key they may go in any order.
        records_by_key: dict[Any, list[Record[Any]]] = {}
        for record in records:
            records_by_key.setdefault(record.key if record.key is not None else str(record), []).append(record)
        connections = asyncio.Semaphore(self._declared.connections)

        async def send(lane: list[Record[Any]]) -> list[FailedRecord]:
            async with connections:
                return await self._send_in_order(lane, deadline)

        return [each for undone in await asyncio.gather(*map(send, records_by_key.values())) for each in undone]

    async def _send_in_order(self, records: list[Record[Any]], deadline: float) -> list[FailedRecord]:
        undone: list[FailedRecord] = []
        for number, record in enumerate(records):
            if time.monotonic() > deadline:
                return undone + _given_again(records[number:])
            try:
                body = _body(record)
            except RecordUnreadableError as error:
                undone.append(FailedRecord(record, str(error)))
                continue
            headers = {self._declared.key_header: self._idempotency_key([record]), RECORD_HEADER: str(record)}
            problem = await self._post(body, headers)
            if problem is None:
                continue
            undone.append(FailedRecord(record, *problem))
            if problem[1]:
                # Those behind it wait for it: they are of the same key.
                undone += [FailedRecord(each, problem[0], True, problem[2]) for each in records[number + 1 :]]
                break
        return undone

    async def _send_batch(self, records: Sequence[Record[Any]], deadline: float) -> list[FailedRecord]:
        undone: list[FailedRecord] = []
        good: list[Record[Any]] = []
        bodies: list[bytes] = []
        for record in records:
            try:
                bodies.append(_body(record))
                good.append(record)
            except RecordUnreadableError as error:
                undone.append(FailedRecord(record, str(error)))
        if not good:
            return undone
        headers = {self._declared.key_header: self._idempotency_key(good), BATCH_RECORDS_HEADER: str(len(good))}
        problem = await self._post(b"[" + b",".join(bodies) + b"]", headers)
        if problem is not None and not problem[1] and len(good) > 1:
            # One of them may be to blame: each alone, as an array of one.
            for number, record in enumerate(good):
                if time.monotonic() > deadline:
                    return undone + _given_again(good[number:])
                undone += await self._send_batch([record], deadline)
            return undone
        return undone + [FailedRecord(each, *problem) for each in good if problem is not None]

    async def _post(self, body: bytes, headers: Mapping[str, str]) -> tuple[str, bool, float] | None:
        """None when it was taken; else why not, whether it may be later, and after how long."""
        assert self._client is not None  # noqa: S101  -- opened before it writes
        response: httpx.Response | None = None
        excerpt = ""
        try:
            async with (
                asyncio.timeout(self._declared.timeout_seconds),
                self._client.stream(self._declared.method, self._url, content=body, headers=dict(headers)) as response,
            ):
                # Read to its end, where it has one soon, for the sake of the connection.
                excerpt = await _response_excerpt(response)
        # With a status it is decided: a body that is late, cut off or not what it says does not change that.
        except (TimeoutError, httpx.TimeoutException):
            if response is None:
                return f"No answer within {self._declared.timeout_seconds:g} s", True, 0.0
        except httpx.HTTPError as error:
            if response is None:
                return f"{type(error).__name__}: {error}", True, 0.0
        status = response.status_code
        if response.is_success:
            return None
        reason = f"The receiver answered {status} {response.reason_phrase}{f': {excerpt}' if excerpt else ''}"
        if status in RETRYABLE_STATUSES or status >= 500:
            return reason, True, retry_after(response.headers.get("Retry-After", ""))
        return reason, False, 0.0

    def _idempotency_key(self, records: Sequence[Record[Any]]) -> str:
        """The same for the same records, whoever sends them again: app and places."""
        digest = hashlib.sha256(self._app.encode())
        for record in records:
            digest.update(f"\0{record}".encode())
        return digest.hexdigest()[:32]


def _given_again(records: Sequence[Record[Any]]) -> list[FailedRecord]:
    """The time of a batch is over, and the group must not wait for one member: these come again, in a smaller batch."""
    reason = f"The receiver is slow: {WRITE_SECONDS:g} s were not enough for a batch"
    return [FailedRecord(record, reason, retry=True) for record in records]


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    """Until it is stopped; what is under way then is given up."""
    try:
        loop.run_forever()
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.wait(left))
    finally:
        loop.close()


async def _response_excerpt(response: httpx.Response) -> str:
    """What the receiver says, as far as anybody wants to know. One that is longer costs its connection. Read as UTF-8,
    whatever it says of itself: it is for people, and a name of a charset may be anything."""
    body = b""
    async for piece in response.aiter_bytes():
        body += piece
        if len(body) >= MAX_RESPONSE_BYTES:
            break
    return " ".join(body.decode(errors="replace")[:MAX_REASON_CHARACTERS].split())


def _body(record: Record[Any]) -> bytes:
    """The value as JSON; null for a deletion. RecordUnreadableError when it is not what its topic promises."""
    if record.deleted:
        return b"null"
    value = record.raw or b""
    _ = record.value  # which checks it
    return value


def retry_after(text: str, now: datetime | None = None) -> float:
    """The seconds that a Retry-After header asks for: a number, or a date. 0 where it says nothing that can be followed."""
    text = text.strip()
    if text.isdigit():
        return min(float(text), MAX_RETRY_AFTER_SECONDS)
    try:
        until = parsedate_to_datetime(text)
    except (ValueError, TypeError):
        return 0.0
    until = until if until.tzinfo is not None else until.replace(tzinfo=UTC)
    return min(max(0.0, (until - (now or datetime.now(UTC))).total_seconds()), MAX_RETRY_AFTER_SECONDS)


def _headers(declared: webhook, context: ConnectorContext) -> dict[str, str]:
    headers = {"Content-Type": "application/json", "User-Agent": "riverrun"} | dict(declared.headers or {})
    problems: list[str] = []
    for name, reference in dict(declared.secret_headers or {}).items():
        try:
            headers[name] = context.secret(reference, f"secret_headers[{name!r}] of riverrun.webhook").reveal()
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(problems)
    return headers
