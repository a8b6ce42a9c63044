"""The body of a request, read within limits: how large, how slow, what it is, and what it unpacks to.

Memory is kept by a `Budget` that all requests share: what a request holds, packed or not, is taken from it before it is
held, and given back with the answer. So a slow Kafka, or many senders, are answered with 429 and not with our end.
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

from riverrun.connectors.http.answers import Refused, busy
from riverrun.model.quantity import size_text
from riverrun.store.manners import bounded

BODY_SECONDS = 30.0
Kind = Literal["json", "lines"]

_LINES = frozenset({"application/x-ndjson", "application/ndjson", "application/jsonl", "application/x-jsonlines"})
_CHARSETS = frozenset({"", "utf-8", "utf8", "us-ascii", "ascii"})
_GZIP = frozenset({"gzip", "x-gzip"})
# What is unpacked at a time before others have their turn.
_STEP = 256 * 1024
# gzip may be several files in a row. Each costs a copy of what follows it.
_MEMBERS = 100
# How long a body that is not taken is read on, so that its sender hears why.
_DISCARD_SECONDS = 10.0


class Budget:
    """Bytes that may be held at a time, by all together. For one event loop."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.held = 0

    def take(self, size: int) -> bool:
        if self.held + size > self.most:
            return False
        self.held += size
        return True

    def give_back(self, size: int) -> None:
        self.held -= size


class Share:
    """What one request has of the budget, in a `with`."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._held = 0

    def grow_to(self, size: int) -> None:
        """Refused with 429 when there is no room."""
        if size > self._held:
            if not self._budget.take(size - self._held):
                raise busy("Too many requests are being read or wait for Kafka; nothing of this one was taken")
            self._held = size

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._budget.give_back(self._held)
        self._held = 0


class Wanted(NamedTuple):
    """What the head of a request says of its body."""

    kind: Kind
    packed: bool
    length: int | None


def wanted(headers: Headers, most: int) -> Wanted:
    """Refused with 415 or 413 where the head alone says that it cannot be taken.

    A page of others cannot send one of these types without asking first (nobody answers that); a form cannot at all.
    """
    media, _, parameters = headers.get("content-type", "").partition(";")
    media = media.strip().lower()
    is_json = media == "application/json" or (media.startswith("application/") and media.endswith("+json"))
    if not is_json and media not in _LINES:
        raise Refused(
            415,
            "NOT_JSON",
            "Records are application/json (one, or a list) or application/x-ndjson (one a line), "
            f"not {media[:80] or 'nothing'}",
            headers={"Accept": "application/json, application/x-ndjson"},
        )
    charset = _charset(parameters)
    if charset not in _CHARSETS:
        raise Refused(415, "NOT_UTF8", f"Records are UTF-8, not {charset[:80]}")
    encoding = headers.get("content-encoding", "").strip().lower()
    if encoding not in _GZIP | {"", "identity"}:
        raise Refused(
            415, "ENCODING", f"A body is packed with gzip or not at all, not {encoding[:80]}",
            headers={"Accept-Encoding": "gzip"},
        )  # fmt: skip
    told = headers.get("content-length", "")
    length = int(told) if told.isdecimal() and len(told) < 19 else None
    if (told and length is None) or (length is not None and length > most):
        raise too_large(most)
    return Wanted("lines" if media in _LINES else "json", encoding in _GZIP, length)


def _charset(parameters: str) -> str:
    for each in parameters.split(";"):
        name, _, value = each.partition("=")
        if name.strip().lower() == "charset":
            return value.strip().strip('"').lower()
    return ""


def too_large(most: int) -> Refused:
    return Refused(413, "TOO_LARGE", f"A request has at most {size_text(most)} ({most} bytes), unpacked")


async def read(receive: Receive, said: Wanted, share: Share, most: int, seconds: float) -> bytes:
    """The body, unpacked, as UTF-8. `seconds`: what the request has for everything. Refused: too large, too slow, no room,
    not gzip, not UTF-8, or its sender is gone."""
    if said.length:
        share.grow_to(said.length)
    chunks: list[bytes] = []
    size = 0
    bounds = bounded(receive, most, min(BODY_SECONDS, seconds))
    try:
        while True:
            message = await bounds()
            if message["type"] != "http.request":
                raise Refused(400, "INCOMPLETE", "The sender went away in the middle of its request")
            if chunk := message.get("body", b""):
                size += len(chunk)
                share.grow_to(size)
                chunks.append(chunk)
            if not message.get("more_body", False):
                break
    except HTTPException as error:
        if error.status_code == 413:
            raise too_large(most) from None
        raise Refused(error.status_code, "TOO_SLOW", str(error.detail), headers=error.headers) from None
    body = b"".join(chunks) if len(chunks) != 1 else chunks[0]
    if said.packed:
        del chunks
        body = await _unpacked(body, share, most)
    if not body.isascii():
        await _check_utf8(body)
    return body


async def _check_utf8(body: bytes) -> None:
    decoder = codecs.getincrementaldecoder("utf-8")()
    for start in range(0, len(body), _STEP):
        if start:
            await asyncio.sleep(0)
        # What a character has of its bytes before the slice is read again with it.
        held = len(decoder.getstate()[0])
        try:
            decoder.decode(body[start : start + _STEP], final=start + _STEP >= len(body))
        except UnicodeDecodeError as error:
            at = start - held + error.start + 1
            raise Refused(400, "NOT_UTF8", f"The request is not UTF-8 text (byte {at})") from None


async def _unpacked(body: bytes, share: Share, most: int) -> bytes:
    found, size = [], len(body)
    for step in gunzip(body, most):
        # Room for what is there and not for what may come: every gzip body used to reserve the largest there may be.
        size += len(step)
        share.grow_to(size)
        found.append(step)
        if len(found) > 1:
            await asyncio.sleep(0)
    return b"".join(found)


async def discard(receive: Receive, headers: Headers, most: int, seconds: float) -> None:
    """Read a body that is not taken, and forget it: a sender that is still sending would not hear the answer."""
    if "100-continue" in headers.get("expect", "").lower():
        return  # it waits before it sends
    left = most
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(min(_DISCARD_SECONDS, seconds)):
            while left > 0:
                message = await receive()
                left -= len(message.get("body", b""))
                if message["type"] != "http.request" or not message.get("more_body", False):
                    return


def gunzip(body: bytes, most: int) -> Iterable[bytes]:
    """What is packed in a body, in pieces, of all its members; Refused as soon as it comes to more than `most`."""
    taken = members = 0
    while body:
        members += 1
        if members > _MEMBERS:
            raise Refused(400, "NOT_GZIP", f"The body is gzip of more than {_MEMBERS} parts")
        unpacker = zlib.decompressobj(31)
        while not unpacker.eof:
            try:
                piece = unpacker.decompress(body, min(_STEP, most - taken + 1))
            except zlib.error as error:
                raise Refused(400, "NOT_GZIP", f"The body is not gzip: {error}") from None
            taken += len(piece)
            if taken > most:
                raise too_large(most)
            body = unpacker.unconsumed_tail
            if piece:
                yield piece
            elif not body and not unpacker.eof:
                raise Refused(400, "NOT_GZIP", "The body is not gzip: it ends too early")
        # Zeros may follow as padding; anything else that is no member is refused in the next turn.
        body = unpacker.unused_data.lstrip(b"\0")
