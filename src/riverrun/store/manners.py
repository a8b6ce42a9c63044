"""Around every request: by which name and from which page one may call, how much may be sent and how slowly, and the
headers of every answer.

No page of another origin gets through: not by a name of its own that points here (DNS rebinding: the Host header tells),
not by a form or a plain-text request on a user's behalf (the Origin and Sec-Fetch-Site headers tell, and what changes
something is JSON, which another page may not send without asking first; nobody answers that).
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from riverrun.cluster.loopback import NAMES, is_for_us
from riverrun.store.listening import AMBIGUOUS, OUTSIDE
from riverrun.store.proxies import PROXIED

MOST_BYTES = 256 * 1024
# How long the body of a request may take to arrive.
BODY_SECONDS = 15.0
# What a request has in its scope when its Host header has been found good.
HOST_IS_GOOD = "riverrun.host"
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
# An answer that is no page loads and runs nothing at all. Pages have a policy of their own.
NO_PAGE = "default-src 'none'; frame-ancestors 'none'"
_BODIES = frozenset({"POST", "PUT", "PATCH"})


class Manners:
    """`names`: what others may call this machine; on 127.0.0.1 it has its own names. `https_only`: others come by https."""

    def __init__(self, app: ASGIApp, names: Collection[str] = (), *, https_only: bool = False) -> None:
        self._app = app
        self._names = names
        self._https_only = https_only

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                # The files of a page say themselves how long they may be kept.
                headers.setdefault("Cache-Control", "no-store")
                headers.setdefault("Content-Security-Policy", NO_PAGE)
                headers["Server"] = "riverrun"
                for name, value in HEADERS.items():
                    headers[name] = value
            await send(message)

        refused = self._refused(scope)
        if refused is not None:
            await refused(scope, receive, sent)
            return
        scope[HOST_IS_GOOD] = True
        # Whoever goes away in the middle of a request is not there to be told, and it is no fault of ours.
        with contextlib.suppress(ClientDisconnect):
            await self._app(scope, bounded(receive), sent)

    def _refused(self, scope: Scope) -> Response | None:
        if said := scope.get(AMBIGUOUS):
            return refusal(400, "BAD_PROXY_HEADERS", said)
        headers = Headers(scope=scope)
        names = self._names if scope.get(OUTSIDE) else NAMES
        if not is_for_us(headers.getlist("host"), names):
            known = "the names in serve.names" if scope.get(OUTSIDE) else "127.0.0.1, localhost and [::1]"
            return refusal(403, "FORBIDDEN", f"This server answers only to {known}")
        if is_of_another_page(scope, headers):
            return refusal(403, "FORBIDDEN", _why_another_page(scope, headers))
        if self._https_only and scope.get(OUTSIDE) and scope["scheme"] != "https":
            return refusal(
                403, "HTTPS_ONLY", "This server is for https, and this request came by http" + _proxy_hint(scope)
            )
        if scope["method"] in _BODIES:
            if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
                return refusal(415, "NOT_JSON", "What is sent here is application/json")
            if (length := headers.get("content-length", "0")).isdecimal() and int(length) > MOST_BYTES:
                return refusal(413, "TOO_LARGE", f"A request has at most {MOST_BYTES} bytes")
        return None


def is_of_another_page(scope: Scope, headers: Headers) -> bool:
    """Whether a page of another origin makes this request. Following a link to here is the reader's own wish."""
    follows = (
        scope["method"] == "GET"
        and headers.get("sec-fetch-mode") == "navigate"
        and headers.get("sec-fetch-dest") == "document"
    )
    if headers.get("sec-fetch-site", "none") not in {"none", "same-origin"} and not follows:
        return True
    own = _own(scope, headers)
    return any(each.lower() != own for each in headers.getlist("origin"))


def _why_another_page(scope: Scope, headers: Headers) -> str:
    """Names what is missing to a reader behind a proxy; a page of others learns nothing from it."""
    name, _, _ = headers.get("host", "").lower().partition(":")
    origin = headers.get("origin", "").lower()
    if scope.get(OUTSIDE) and name and origin.removeprefix("https://").partition(":")[0] == name:
        return f"The page is {origin}, and this server was called as {_own(scope, headers)}{_proxy_hint(scope)}"
    return "This server does not answer to pages of others"


def _proxy_hint(scope: Scope) -> str:
    if scope.get(PROXIED):
        return ": the proxy has to send X-Forwarded-Proto, and the Host that the browser sent"
    return ": where a proxy in front has the certificate, serve.trusted_proxies names its address"


def _own(scope: Scope, headers: Headers) -> str:
    return f"{scope['scheme']}://{headers.get('host', '')}".lower()


def bounded(receive: Receive, most: int = MOST_BYTES, seconds: float | None = None) -> Callable[[], Awaitable[Message]]:
    """A body that is neither too large nor too slow. What comes after it, such as the client's going away, has its time."""
    taken, whole = 0, False
    patience = BODY_SECONDS if seconds is None else seconds
    deadline = asyncio.get_running_loop().time() + patience

    async def received() -> Message:
        nonlocal taken, whole
        if whole:
            return await receive()
        try:
            async with asyncio.timeout_at(deadline):
                message = await receive()
        except TimeoutError:
            raise HTTPException(
                408, f"A request is here within {patience:g} seconds", {"Connection": "close"}
            ) from None
        taken += len(message.get("body", b""))
        whole = not message.get("more_body", False)
        if taken > most:
            raise HTTPException(413, f"A request has at most {most} bytes")
        return message

    return received


def error_body(code: str, message: str) -> dict[str, Any]:
    return {"error": {"code": code, "message": message, "retryable": False, "fields": {}}}


def refusal(status: int, code: str, message: str, headers: dict[str, str] | None = None) -> Response:
    return JSONResponse(error_body(code, message), status, headers)
