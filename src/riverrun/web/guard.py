"""Guards every request: checks its host name and origin, limits the size and duration of its body, and sets the headers
of every response.

No page of another origin gets through: not by a name of its own that points here (DNS rebinding; the Host header shows it),
and not by a form or a plain-text request on a user's behalf (the Origin and Sec-Fetch-Site headers show it, and a request
that changes something is JSON, which another page may not send without a CORS preflight; we answer none).
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

from riverrun.cluster.loopback import LOOPBACK_NAMES, is_allowed_host
from riverrun.web.forwarded_headers import PROXIED
from riverrun.web.server import FORWARDED_ERROR, PUBLIC_REQUEST

MAX_BODY_BYTES = 256 * 1024
# How long the body of a request may take to arrive.
BODY_SECONDS = 15.0
# Set in the scope of a request whose Host header was checked.
HOST_CHECKED = "riverrun.host"
SECURITY_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
# A response that is not a page may load and run nothing. Pages have a policy of their own.
API_CONTENT_POLICY = "default-src 'none'; frame-ancestors 'none'"
_BODY_METHODS = frozenset({"POST", "PUT", "PATCH"})


class RequestGuard:
    """The middleware. Public requests may use the Host names in `names`, and with `https_only` must come by https."""

    def __init__(self, app: ASGIApp, names: Collection[str] = (), *, https_only: bool = False) -> None:
        self._app = app
        self._names = names
        self._https_only = https_only

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                # The files of a page set their own caching.
                headers.setdefault("Cache-Control", "no-store")
                headers.setdefault("Content-Security-Policy", API_CONTENT_POLICY)
                headers["Server"] = "riverrun"
                for name, value in SECURITY_HEADERS.items():
                    headers[name] = value
            await send(message)

        rejection = self._check_request(scope)
        if rejection is not None:
            await rejection(scope, receive, send_with_headers)
            return
        scope[HOST_CHECKED] = True
        # A client that disconnects during a request gets no response, and it is not an error of ours.
        with contextlib.suppress(ClientDisconnect):
            await self._app(scope, limit_body(receive), send_with_headers)

    def _check_request(self, scope: Scope) -> Response | None:
        if forwarded_error := scope.get(FORWARDED_ERROR):
            return error_response(400, "BAD_PROXY_HEADERS", forwarded_error)
        headers = Headers(scope=scope)
        names = self._names if scope.get(PUBLIC_REQUEST) else LOOPBACK_NAMES
        if not is_allowed_host(headers.getlist("host"), names):
            allowed_names = (
                "the names in serve.names" if scope.get(PUBLIC_REQUEST) else "127.0.0.1, localhost and [::1]"
            )
            return error_response(403, "FORBIDDEN", f"This server answers only to {allowed_names}")
        if is_cross_origin(scope, headers):
            return error_response(403, "FORBIDDEN", _cross_origin_reason(scope, headers))
        if self._https_only and scope.get(PUBLIC_REQUEST) and scope["scheme"] != "https":
            return error_response(
                403, "HTTPS_ONLY", "This server is for https, and this request came by http" + _proxy_hint(scope)
            )
        if scope["method"] in _BODY_METHODS:
            if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
                return error_response(415, "NOT_JSON", "What is sent here is application/json")
            if (length := headers.get("content-length", "0")).isdecimal() and int(length) > MAX_BODY_BYTES:
                return error_response(413, "TOO_LARGE", f"A request has at most {MAX_BODY_BYTES} bytes")
        return None


def is_cross_origin(scope: Scope, headers: Headers) -> bool:
    """Whether a page of another origin makes this request. Following a link to here is allowed."""
    is_navigation = (
        scope["method"] == "GET"
        and headers.get("sec-fetch-mode") == "navigate"
        and headers.get("sec-fetch-dest") == "document"
    )
    if headers.get("sec-fetch-site", "none") not in {"none", "same-origin"} and not is_navigation:
        return True
    own_origin = _own_origin(scope, headers)
    return any(origin.lower() != own_origin for origin in headers.getlist("origin"))


def _cross_origin_reason(scope: Scope, headers: Headers) -> str:
    """The reason of the rejection. It helps a user behind a proxy; a page of another origin learns nothing from it."""
    name, _, _ = headers.get("host", "").lower().partition(":")
    origin = headers.get("origin", "").lower()
    if scope.get(PUBLIC_REQUEST) and name and origin.removeprefix("https://").partition(":")[0] == name:
        return f"The page is {origin}, and this server was called as {_own_origin(scope, headers)}{_proxy_hint(scope)}"
    return "This server does not answer to pages of others"


def _proxy_hint(scope: Scope) -> str:
    if scope.get(PROXIED):
        return ": the proxy has to send X-Forwarded-Proto, and the Host that the browser sent"
    return ": where a proxy in front has the certificate, serve.trusted_proxies names its address"


def _own_origin(scope: Scope, headers: Headers) -> str:
    return f"{scope['scheme']}://{headers.get('host', '')}".lower()


def limit_body(
    receive: Receive, max_bytes: int = MAX_BODY_BYTES, seconds: float | None = None
) -> Callable[[], Awaitable[Message]]:
    """Limit the body's size and duration. Messages after it, such as the client's disconnect, have no time limit."""
    received_bytes, complete = 0, False
    timeout = BODY_SECONDS if seconds is None else seconds
    deadline = asyncio.get_running_loop().time() + timeout

    async def receive_limited() -> Message:
        nonlocal received_bytes, complete
        if complete:
            return await receive()
        try:
            async with asyncio.timeout_at(deadline):
                message = await receive()
        except TimeoutError:
            raise HTTPException(408, f"A request is here within {timeout:g} seconds", {"Connection": "close"}) from None
        received_bytes += len(message.get("body", b""))
        complete = not message.get("more_body", False)
        if received_bytes > max_bytes:
            raise HTTPException(413, f"A request has at most {max_bytes} bytes")
        return message

    return receive_limited


def error_body(code: str, message: str) -> dict[str, Any]:
    return {"error": {"code": code, "message": message, "retryable": False, "fields": {}}}


def error_response(status: int, code: str, message: str, headers: dict[str, str] | None = None) -> Response:
    return JSONResponse(error_body(code, message), status, headers)
