"""Sends records to an HTTP URL: at least once, each with a key that is the same at every attempt.

Temporary failures (no answer, 408, 425, 429, 5xx) are retried for as long as it takes, and not before the time the receiver
asks for (Retry-After). Others (any other answer but 2xx, a redirect included) go to the dead letters with the status and the
beginning of the answer. Nothing is left out silently.
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
# How much of an answer is kept, in characters, and how much is read at most, in bytes.
MAX_REASON_CHARACTERS = 300
MAX_RESPONSE_BYTES = 64 * 1024
MAX_RETRY_AFTER_SECONDS = 3600.0
# How long one call of `write` starts requests. The rest is retried.
WRITE_SECONDS = 30.0
# How often the stop is checked, and how long connections may take to close.
_STOP_POLL_SECONDS = 0.1
_CLOSE_SECONDS = 2.0
BATCH_RECORDS_HEADER = "X-Riverrun-Records"
RECORD_HEADER = "X-Riverrun-Record"

_encode = msgspec.json.Encoder().encode
_raw = msgspec.json.Decoder(msgspec.Raw).decode


class WebhookSink(Sink):
    """`riverrun.webhook`. Requests run in an event loop of its own, in a thread that never delays the end of the process:
    there a request has one time limit in total, and can be cancelled at any moment."""

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
            # For each single step; the total limit is in `_post`.
            timeout=declared.timeout_seconds,
            limits=httpx.Limits(max_connections=declared.connections, max_keepalive_connections=declared.connections),
            follow_redirects=False,
            # A proxy is only for other machines.
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
                    # The receiver may still take it: then it is sent again with the same key.
                    sending.cancel()
                    return [FailedRecord(record, "It is to end", retry=True) for record in records]

    async def _send(self, records: Sequence[Any]) -> list[FailedRecord]:
        deadline = time.monotonic() + WRITE_SECONDS
        if self._declared.send == "batch":
            return await self._send_batch(records, deadline)
        # Records of a key are sent in order; without a key they may go in any order.
        records_by_key: dict[Any, list[Record[Any]]] = {}
        for record in records:
            records_by_key.setdefault(record.key if record.key is not None else str(record), []).append(record)
        connections = asyncio.Semaphore(self._declared.connections)

        async def send(same_key_records: list[Record[Any]]) -> list[FailedRecord]:
            async with connections:
                return await self._send_in_order(same_key_records, deadline)

        return [
            failed
            for failed_records in await asyncio.gather(*map(send, records_by_key.values()))
            for failed in failed_records
        ]

    async def _send_in_order(self, records: list[Record[Any]], deadline: float) -> list[FailedRecord]:
        failed: list[FailedRecord] = []
        for number, record in enumerate(records):
            if time.monotonic() > deadline:
                return failed + _given_again(records[number:])
            try:
                body = _body(record)
            except RecordUnreadableError as error:
                failed.append(FailedRecord(record, str(error)))
                continue
            headers = {self._declared.key_header: self._idempotency_key([record]), RECORD_HEADER: str(record)}
            problem = await self._post(body, headers)
            if problem is None:
                continue
            failed.append(FailedRecord(record, *problem))
            if problem[1]:
                # Those behind it wait for it: they have the same key.
                failed += [FailedRecord(later, problem[0], True, problem[2]) for later in records[number + 1 :]]
                break
        return failed

    async def _send_batch(self, records: Sequence[Record[Any]], deadline: float) -> list[FailedRecord]:
        failed: list[FailedRecord] = []
        good: list[Record[Any]] = []
        bodies: list[bytes] = []
        for record in records:
            try:
                bodies.append(_body(record))
                good.append(record)
            except RecordUnreadableError as error:
                failed.append(FailedRecord(record, str(error)))
        if not good:
            return failed
        headers = {self._declared.key_header: self._idempotency_key(good), BATCH_RECORDS_HEADER: str(len(good))}
        problem = await self._post(b"[" + b",".join(bodies) + b"]", headers)
        if problem is not None and not problem[1] and len(good) > 1:
            # One of them may be the cause: send each alone, as an array of one.
            for number, record in enumerate(good):
                if time.monotonic() > deadline:
                    return failed + _given_again(good[number:])
                failed += await self._send_batch([record], deadline)
            return failed
        return failed + [FailedRecord(sent, *problem) for sent in good if problem is not None]

    async def _post(self, body: bytes, headers: Mapping[str, str]) -> tuple[str, bool, float] | None:
        """None when it was accepted; else why not, whether to retry, and after how long."""
        assert self._client is not None  # noqa: S101  -- opened before it writes
        response: httpx.Response | None = None
        excerpt = ""
        try:
            async with (
                asyncio.timeout(self._declared.timeout_seconds),
                self._client.stream(self._declared.method, self._url, content=body, headers=dict(headers)) as response,
            ):
                # Read to its end, if it is short, so that the connection can be reused.
                excerpt = await _response_excerpt(response)
        # The status decides: a body that is late, truncated or invalid does not change that.
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
        """The same for the same records, whoever sends them again: a hash of the app and their positions."""
        digest = hashlib.sha256(self._app.encode())
        for record in records:
            digest.update(f"\0{record}".encode())
        return digest.hexdigest()[:32]


def _given_again(records: Sequence[Record[Any]]) -> list[FailedRecord]:
    """The time of a batch is over, and the group must not wait for one member: these come again, in a smaller batch."""
    reason = f"The receiver is slow: {WRITE_SECONDS:g} s were not enough for a batch"
    return [FailedRecord(record, reason, retry=True) for record in records]


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    """Run until it is stopped; then cancel what is left."""
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
    """The beginning of the receiver's answer. A longer one costs its connection. Decoded as UTF-8, whatever charset it
    declares: it is for people, and a charset's name may be anything."""
    body = b""
    async for piece in response.aiter_bytes():
        body += piece
        if len(body) >= MAX_RESPONSE_BYTES:
            break
    return " ".join(body.decode(errors="replace")[:MAX_REASON_CHARACTERS].split())


def _body(record: Record[Any]) -> bytes:
    """The value as JSON; null for a deletion. RecordUnreadableError when it does not match its topic's type."""
    if record.deleted:
        return b"null"
    value = record.raw or b""
    _ = record.value  # which checks it
    return value


def retry_after(text: str, now: datetime | None = None) -> float:
    """The seconds that a Retry-After header asks for: a number, or a date. 0 if it is neither."""
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
