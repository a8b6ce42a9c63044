"""Read the body of a request within limits: its size, its speed, its type, and its size when decompressed.

Memory is limited by a `MemoryBudget` that all requests share: what a request holds, compressed or not, is reserved before,
and released with the response. So a slow Kafka, or many senders, get 429 and do not crash us.
"""

import asyncio
import codecs
import contextlib
import zlib
from collections.abc import Iterable
from typing import Literal, NamedTuple, Self

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import Receive

from riverrun.connectors.http.responses import RequestRejectedError, too_many_requests
from riverrun.model.units import format_size
from riverrun.web.guard import limit_body

BODY_SECONDS = 30.0
BodyFormat = Literal["json", "lines"]

_NDJSON_TYPES = frozenset(
    {"application/x-ndjson", "application/ndjson", "application/jsonl", "application/x-jsonlines"}
)
_CHARSETS = frozenset({"", "utf-8", "utf8", "us-ascii", "ascii"})
_GZIP = frozenset({"gzip", "x-gzip"})
# How much is decompressed at a time before other requests get their turn.
_STEP_BYTES = 256 * 1024
# gzip may be several members in a row. Each costs a copy of what follows it.
_MAX_GZIP_MEMBERS = 100
# How long a rejected body is read on, so that its sender gets the response.
_DISCARD_SECONDS = 10.0


class MemoryBudget:
    """Bytes that all requests together may hold at a time. For one event loop."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0

    def reserve(self, size: int) -> bool:
        if self.held + size > self.limit:
            return False
        self.held += size
        return True

    def release(self, size: int) -> None:
        self.held -= size


class MemoryShare:
    """What one request has reserved of the budget, in a `with`."""

    def __init__(self, budget: MemoryBudget) -> None:
        self._budget = budget
        self._held = 0

    def grow_to(self, size: int) -> None:
        """Rejected with 429 when the budget is used up."""
        if size > self._held:
            if not self._budget.reserve(size - self._held):
                raise too_many_requests(
                    "Too many requests are being read or wait for Kafka; nothing of this one was taken"
                )
            self._held = size

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._budget.release(self._held)
        self._held = 0


class ContentHeaders(NamedTuple):
    """What the headers of a request say about its body."""

    body_format: BodyFormat
    gzipped: bool
    content_length: int | None


def parse_content_headers(headers: Headers, max_bytes: int) -> ContentHeaders:
    """Rejected with 415 or 413 if the headers alone say that it cannot be accepted.

    A page of another origin cannot send these types without a preflight (which is not answered); a form cannot at all.
    """
    media, _, parameters = headers.get("content-type", "").partition(";")
    media = media.strip().lower()
    is_json = media == "application/json" or (media.startswith("application/") and media.endswith("+json"))
    if not is_json and media not in _NDJSON_TYPES:
        raise RequestRejectedError(
            415,
            "NOT_JSON",
            "Records are application/json (one, or a list) or application/x-ndjson (one a line), "
            f"not {media[:80] or 'nothing'}",
            headers={"Accept": "application/json, application/x-ndjson"},
        )
    charset = _charset(parameters)
    if charset not in _CHARSETS:
        raise RequestRejectedError(415, "NOT_UTF8", f"Records are UTF-8, not {charset[:80]}")
    encoding = headers.get("content-encoding", "").strip().lower()
    if encoding not in _GZIP | {"", "identity"}:
        raise RequestRejectedError(
            415, "ENCODING", f"A body is packed with gzip or not at all, not {encoding[:80]}",
            headers={"Accept-Encoding": "gzip"},
        )  # fmt: skip
    length_text = headers.get("content-length", "")
    length = int(length_text) if length_text.isdecimal() and len(length_text) < 19 else None
    if (length_text and length is None) or (length is not None and length > max_bytes):
        raise too_large(max_bytes)
    return ContentHeaders("lines" if media in _NDJSON_TYPES else "json", encoding in _GZIP, length)


def _charset(parameters: str) -> str:
    for parameter in parameters.split(";"):
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "charset":
            return value.strip().strip('"').lower()
    return ""


def too_large(max_bytes: int) -> RequestRejectedError:
    return RequestRejectedError(
        413, "TOO_LARGE", f"A request has at most {format_size(max_bytes)} ({max_bytes} bytes), unpacked"
    )


async def read_body(
    receive: Receive, content_headers: ContentHeaders, share: MemoryShare, max_bytes: int, seconds: float
) -> bytes:
    """The body, decompressed, as UTF-8. `seconds`: the time of the whole request. Rejected: too large, too slow, no memory,
    not gzip, not UTF-8, or its sender disconnected."""
    if content_headers.content_length:
        share.grow_to(content_headers.content_length)
    chunks: list[bytes] = []
    size = 0
    receive_bounded = limit_body(receive, max_bytes, min(BODY_SECONDS, seconds))
    try:
        while True:
            message = await receive_bounded()
            if message["type"] != "http.request":
                raise RequestRejectedError(400, "INCOMPLETE", "The sender went away in the middle of its request")
            if chunk := message.get("body", b""):
                size += len(chunk)
                share.grow_to(size)
                chunks.append(chunk)
            if not message.get("more_body", False):
                break
    except HTTPException as error:
        if error.status_code == 413:
            raise too_large(max_bytes) from None
        raise RequestRejectedError(error.status_code, "TOO_SLOW", str(error.detail), headers=error.headers) from None
    body = b"".join(chunks) if len(chunks) != 1 else chunks[0]
    if content_headers.gzipped:
        del chunks
        body = await _decompress(body, share, max_bytes)
    if not body.isascii():
        await _check_utf8(body)
    return body


async def _check_utf8(body: bytes) -> None:
    decoder = codecs.getincrementaldecoder("utf-8")()
    for start in range(0, len(body), _STEP_BYTES):
        if start:
            await asyncio.sleep(0)
        # The bytes of a character that begins before this slice are decoded again with it.
        held = len(decoder.getstate()[0])
        try:
            decoder.decode(body[start : start + _STEP_BYTES], final=start + _STEP_BYTES >= len(body))
        except UnicodeDecodeError as error:
            at = start - held + error.start + 1
            raise RequestRejectedError(400, "NOT_UTF8", f"The request is not UTF-8 text (byte {at})") from None


async def _decompress(body: bytes, share: MemoryShare, max_bytes: int) -> bytes:
    pieces, size = [], len(body)
    for step in gunzip(body, max_bytes):
        # Reserves what is there and not what may come: every gzip body used to reserve the maximum.
        size += len(step)
        share.grow_to(size)
        pieces.append(step)
        if len(pieces) > 1:
            await asyncio.sleep(0)
    return b"".join(pieces)


async def discard_body(receive: Receive, headers: Headers, max_bytes: int, seconds: float) -> None:
    """Read a rejected body and drop it: a sender that is still sending would not get the response."""
    if "100-continue" in headers.get("expect", "").lower():
        return  # it waits before it sends
    left = max_bytes
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(min(_DISCARD_SECONDS, seconds)):
            while left > 0:
                message = await receive()
                left -= len(message.get("body", b""))
                if message["type"] != "http.request" or not message.get("more_body", False):
                    return


def gunzip(body: bytes, max_bytes: int) -> Iterable[bytes]:
    """What is packed in a body, in pieces, of all its members; refused as soon as it comes to more than `max_bytes`."""
    total = members = 0
    while body:
        members += 1
        if members > _MAX_GZIP_MEMBERS:
            raise RequestRejectedError(400, "NOT_GZIP", f"The body is gzip of more than {_MAX_GZIP_MEMBERS} parts")
        unpacker = zlib.decompressobj(31)
        while not unpacker.eof:
            try:
                piece = unpacker.decompress(body, min(_STEP_BYTES, max_bytes - total + 1))
            except zlib.error as error:
                raise RequestRejectedError(400, "NOT_GZIP", f"The body is not gzip: {error}") from None
            total += len(piece)
            if total > max_bytes:
                raise too_large(max_bytes)
            body = unpacker.unconsumed_tail
            if piece:
                yield piece
            elif not body and not unpacker.eof:
                raise RequestRejectedError(400, "NOT_GZIP", "The body is not gzip: it ends too early")
        # Zeros may follow as padding; anything else that is no member is rejected in the next iteration.
        body = unpacker.unused_data.lstrip(b"\0")
