"""The phones: a page, its files, and what happens as it happens (server-sent events)."""

import asyncio
import json
import mimetypes
from collections.abc import AsyncIterator
from functools import cache
from importlib.resources import files
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from riverrun.alerts.gateway.book import Book, Taken

POLICY = "; ".join([
    "default-src 'none'",
    "script-src 'self'",
    "style-src 'self'",
    "img-src 'self'",
    "connect-src 'self'",
    "base-uri 'none'",
    "form-action 'none'",
    "frame-ancestors 'none'",
    "require-trusted-types-for 'script'",
    "trusted-types 'none'",
])  # fmt: skip
MOST_VIEWERS = 50
# What a page begins with, and how often it hears something.
FIRST = 500
PING_SECONDS = 10.0


class Bell:
    """Tells the pages, in the server's loop, that something changed, from any thread."""

    def __init__(self) -> None:
        self._waiting: dict[asyncio.Event, asyncio.AbstractEventLoop] = {}
        self.closed = False

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self) -> asyncio.Event:
        event = asyncio.Event()
        self._waiting[event] = asyncio.get_running_loop()
        return event

    def remove(self, event: asyncio.Event) -> None:
        self._waiting.pop(event, None)

    def ring(self) -> None:
        for event, loop in list(self._waiting.items()):
            if not loop.is_closed():
                loop.call_soon_threadsafe(event.set)

    def close(self) -> None:
        self.closed = True
        self.ring()


class Page:
    def __init__(self, book: Book, bell: Bell) -> None:
        self._book = book
        self._bell = bell

    def routes(self) -> list[Route]:
        return [
            Route("/", self._index, methods=["GET"]),
            Route("/assets/{name}", self._asset, methods=["GET"]),
            Route("/live", self._live, methods=["GET"]),
        ]

    async def _index(self, request: Request) -> Response:  # noqa: ARG002
        return _file("phones.html")

    async def _asset(self, request: Request) -> Response:
        name = request.path_params["name"]
        return _file(name) if name in assets() else JSONResponse({"error": "There is no such file."}, 404)

    async def _live(self, request: Request) -> Response:
        if len(self._bell) >= MOST_VIEWERS:
            return JSONResponse({"error": f"{MOST_VIEWERS} pages look on already."}, 503)
        last = request.headers.get("last-event-id", "")
        after = int(last) if last.isdecimal() and len(last) < 16 else -1
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        return StreamingResponse(self._events(after), media_type="text/event-stream", headers=headers)

    async def _events(self, after: int) -> AsyncIterator[str]:
        event = self._bell.add()
        try:
            if after < 0:
                first = await run_in_threadpool(self._book.newest, FIRST)
                after = first[-1].change if first else 0
                yield _event("hello", after, [shown(each) for each in first])
            while not self._bell.closed:
                event.clear()
                while news := await run_in_threadpool(self._book.since, after):
                    after = news[-1].change
                    yield _event("news", after, [shown(each) for each in news])
                try:
                    async with asyncio.timeout(PING_SECONDS):
                        await event.wait()
                except TimeoutError:
                    yield _event("ping", after, [])
        finally:
            self._bell.remove(event)


def shown(each: Taken) -> dict[str, Any]:
    return {
        "id": each.number,
        "from": each.sender,
        "to": f"+{each.receiver}",
        "text": each.text,
        "parts": each.parts,
        "at": each.taken_at,
        "state": each.status.partition("_")[0].lower(),
        "template": each.template,
    }


def _event(name: str, number: int, content: list[dict[str, Any]]) -> str:
    return f"id: {number}\nevent: {name}\ndata: {json.dumps(content)}\n\n"


@cache
def assets() -> dict[str, bytes]:
    folder = files("riverrun.alerts.gateway") / "assets"
    return {each.name: each.read_bytes() for each in folder.iterdir() if each.is_file()}


def _file(name: str) -> Response:
    kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
    headers = {"cache-control": "no-cache", "content-security-policy": POLICY}
    return Response(assets()[name], headers=headers, media_type=kind)
