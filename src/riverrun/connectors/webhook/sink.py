"""Sends records to an HTTP address: at least once, each with a key that is the same at every attempt.

What may pass (no answer, 408, 425, 429, 5xx) is tried again for as long as it takes, and not before the time the receiver
asks for (Retry-After). What cannot (any other answer but 2xx, a redirect included) goes to the dead letters with the status
and the beginning of the answer. Nothing is left out silently.
"""

import hashlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

import httpx
import msgspec

from riverrun.config.spec import is_loopback
from riverrun.connectors.contract import Around
from riverrun.errors import ConfigError, RecordUnreadableError
from riverrun.kafka.consumer.record import Record
from riverrun.model.connector import Sink, Undone
from riverrun.model.connectors.webhook import check_url, webhook

PASSING = frozenset({408, 425, 429})
MOST_ANSWER = 300
MOST_WAIT_SECONDS = 3600.0
BATCH_RECORDS_HEADER = "X-Riverrun-Records"
PLACE_HEADER = "X-Riverrun-Record"

_encode = msgspec.json.Encoder().encode
_raw = msgspec.json.Decoder(msgspec.Raw).decode


class WebhookSink(Sink):
    """`riverrun.webhook`."""

    def __init__(self, declared: webhook, around: Around) -> None:
        self._declared = declared
        self.batch = declared.most_records  # type: ignore[misc]
        self._headers = _headers(declared, around)
        self._url = declared.url
        if self._url.startswith(("env:", "file:")):
            self._url = around.secret(self._url, "url of riverrun.webhook").reveal()
            check_url(self._url, shown="what url refers to", allow_http=declared.allow_http)
        self._app = around.app.name
        self._client: httpx.Client | None = None
        self._crew: ThreadPoolExecutor | None = None

    def open(self) -> None:
        declared = self._declared
        self._client = httpx.Client(
            headers=self._headers,
            timeout=httpx.Timeout(declared.timeout_seconds, connect=min(5.0, declared.timeout_seconds)),
            limits=httpx.Limits(max_connections=declared.connections, max_keepalive_connections=declared.connections),
            follow_redirects=False,
            # A proxy is for other machines.
            trust_env=not is_loopback(urlsplit(self._url).hostname or ""),
        )
        self._crew = ThreadPoolExecutor(declared.connections, thread_name_prefix="riverrun-webhook")

    def close(self) -> None:
        client, self._client = self._client, None
        crew, self._crew = self._crew, None
        if crew is not None:
            crew.shutdown(wait=True, cancel_futures=True)
        if client is not None:
            client.close()

    def write(self, records: Sequence[Any]) -> list[Undone]:
        if self._declared.send == "batch":
            return self._send_batch(records)
        assert self._crew is not None  # noqa: S101  -- opened before it writes
        # Records of a key follow each other; without a key they may go in any order.
        lanes: dict[Any, list[Record[Any]]] = {}
        for record in records:
            lanes.setdefault(record.key if record.key is not None else str(record), []).append(record)
        return [each for undone in self._crew.map(self._send_lane, lanes.values()) for each in undone]

    def _send_lane(self, records: list[Record[Any]]) -> list[Undone]:
        undone: list[Undone] = []
        for number, record in enumerate(records):
            try:
                body = _body(record)
            except RecordUnreadableError as error:
                undone.append(Undone(record, str(error)))
                continue
            problem = self._post(body, {self._declared.key_header: self._key([record]), PLACE_HEADER: str(record)})
            if problem is None:
                continue
            undone.append(Undone(record, *problem))
            if problem[1]:
                # Those behind it wait for it: they are of the same key.
                undone += [Undone(each, problem[0], True, problem[2]) for each in records[number + 1 :]]
                break
        return undone

    def _send_batch(self, records: Sequence[Record[Any]]) -> list[Undone]:
        undone: list[Undone] = []
        good: list[Record[Any]] = []
        bodies: list[bytes] = []
        for record in records:
            try:
                bodies.append(_body(record))
                good.append(record)
            except RecordUnreadableError as error:
                undone.append(Undone(record, str(error)))
        if not good:
            return undone
        headers = {self._declared.key_header: self._key(good), BATCH_RECORDS_HEADER: str(len(good))}
        problem = self._post(b"[" + b",".join(bodies) + b"]", headers)
        if problem is not None and not problem[1] and len(good) > 1:
            # One of them may be to blame: each alone, as an array of one.
            return undone + [each for record in good for each in self._send_batch([record])]
        return undone + [Undone(each, *problem) for each in good if problem is not None]

    def _post(self, body: bytes, headers: Mapping[str, str]) -> tuple[str, bool, float] | None:
        """None when it was taken; else why not, whether it may be later, and after how long."""
        assert self._client is not None  # noqa: S101  -- opened before it writes
        try:
            answer = self._client.request(self._declared.method, self._url, content=body, headers=dict(headers))
        except httpx.TimeoutException as error:
            return f"No answer within {self._declared.timeout_seconds:g} s ({type(error).__name__})", True, 0.0
        except httpx.HTTPError as error:
            return f"{type(error).__name__}: {error}", True, 0.0
        status = answer.status_code
        if 200 <= status < 300:
            return None
        said = " ".join(answer.text[:MOST_ANSWER].split())
        reason = f"The receiver answered {status} {answer.reason_phrase}{f': {said}' if said else ''}"
        if status in PASSING or status >= 500:
            return reason, True, retry_after(answer.headers.get("Retry-After", ""))
        return reason, False, 0.0

    def _key(self, records: Sequence[Record[Any]]) -> str:
        """The same for the same records, whoever sends them again: app and places."""
        digest = hashlib.sha256(self._app.encode())
        for each in records:
            digest.update(f"\0{each}".encode())
        return digest.hexdigest()[:32]


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
        return min(float(text), MOST_WAIT_SECONDS)
    try:
        until = parsedate_to_datetime(text)
    except (ValueError, TypeError):
        return 0.0
    until = until if until.tzinfo is not None else until.replace(tzinfo=UTC)
    return min(max(0.0, (until - (now or datetime.now(UTC))).total_seconds()), MOST_WAIT_SECONDS)


def _headers(declared: webhook, around: Around) -> dict[str, str]:
    found = {"Content-Type": "application/json", "User-Agent": "riverrun"} | dict(declared.headers or {})
    problems: list[str] = []
    for name, reference in dict(declared.secret_headers or {}).items():
        try:
            found[name] = around.secret(reference, f"secret_headers[{name!r}] of riverrun.webhook").reveal()
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(problems)
    return found
