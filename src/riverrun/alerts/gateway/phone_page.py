"""The page that shows the phones: its files, and live updates (server-sent events)."""

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

from riverrun.alerts.gateway.message_store import AcceptedMessage, MessageStore

CONTENT_SECURITY_POLICY = "; ".join([
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
MAX_VIEWERS = 50
# How many messages a page starts with, and how often it gets a ping.
INITIAL_MESSAGES = 500
PING_SECONDS = 10.0


class EventStream:
    """Notifies the pages, in the server's event loop, of changes; from any thread."""

    def __init__(self) -> None:
        self._subscribers: dict[asyncio.Event, asyncio.AbstractEventLoop] = {}
        self.closed = False

    def __len__(self) -> int:
        return len(self._subscribers)

    def subscribe(self) -> asyncio.Event:
        event = asyncio.Event()
        self._subscribers[event] = asyncio.get_running_loop()
        return event

    def unsubscribe(self, event: asyncio.Event) -> None:
        self._subscribers.pop(event, None)

    def notify(self) -> None:
        for event, loop in list(self._subscribers.items()):
            if not loop.is_closed():
                loop.call_soon_threadsafe(event.set)

    def close(self) -> None:
        self.closed = True
        self.notify()


class PhonePage:
    def __init__(self, store: MessageStore, event_stream: EventStream) -> None:
        self._store = store
        self._event_stream = event_stream

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
        if len(self._event_stream) >= MAX_VIEWERS:
            return JSONResponse({"error": f"{MAX_VIEWERS} pages look on already."}, 503)
        last = request.headers.get("last-event-id", "")
        after = int(last) if last.isdecimal() and len(last) < 16 else -1
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        return StreamingResponse(self._events(after), media_type="text/event-stream", headers=headers)

    async def _events(self, after: int) -> AsyncIterator[str]:
        event = self._event_stream.subscribe()
        try:
            if after < 0:
                first = await run_in_threadpool(self._store.newest, INITIAL_MESSAGES)
                after = first[-1].change if first else 0
                yield _sse_event("hello", after, [message_json(message) for message in first])
            while not self._event_stream.closed:
                event.clear()
                while changed := await run_in_threadpool(self._store.changed_since, after):
                    after = changed[-1].change
                    yield _sse_event("news", after, [message_json(message) for message in changed])
                try:
                    async with asyncio.timeout(PING_SECONDS):
                        await event.wait()
                except TimeoutError:
                    yield _sse_event("ping", after, [])
        finally:
            self._event_stream.unsubscribe(event)


def message_json(message: AcceptedMessage) -> dict[str, Any]:
    return {
        "id": message.number,
        "from": message.sender,
        "to": f"+{message.receiver}",
        "text": message.text,
        "parts": message.parts,
        "at": message.accepted_at,
        "state": message.status.partition("_")[0].lower(),
        "template": message.template,
    }


def _sse_event(name: str, number: int, content: list[dict[str, Any]]) -> str:
    return f"id: {number}\nevent: {name}\ndata: {json.dumps(content)}\n\n"


@cache
def assets() -> dict[str, bytes]:
    folder = files("riverrun.alerts.gateway") / "assets"
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}


def _file(name: str) -> Response:
    kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
    headers = {"cache-control": "no-cache", "content-security-policy": CONTENT_SECURITY_POLICY}
    return Response(assets()[name], headers=headers, media_type=kind)
