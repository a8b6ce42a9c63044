"""The login gate: public requests need a login.

It runs inside `web/guard.py`, which has checked the host and the origin of a request, and around everything else. Open
without a login are the login page, the files of the pages (they come with the package), delivery reports, and `/api/login`,
which says how to log in. Commands of the user who serves come by 127.0.0.1 with the token of serve.json.
"""

import asyncio
import hmac
import math
import secrets
from collections.abc import Awaitable, Callable
from urllib.parse import quote, urlencode

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from riverrun.alerts.delivery_reports import REPORT_PATH as DELIVERED
from riverrun.dashboard.json_requests import LOCAL_USER, PASSWORD_USER, USER_SCOPE_KEY
from riverrun.dashboard.responses import asset_response, assets, json_response
from riverrun.dashboard.routes import SecurityMiddleware
from riverrun.web.auth.oidc import LoginRefusedError, OidcLogin, OidcProvider, PendingOidcLogins
from riverrun.web.auth.password import Password
from riverrun.web.auth.rate_limit import RequestLimiter, RequestRate, address_key
from riverrun.web.auth.sessions import MAX_REQUESTS_PER_SESSION, LoginSession, LoginSessions
from riverrun.web.guard import error_response
from riverrun.web.server import PUBLIC_REQUEST

MAX_PASSWORD_LENGTH = 1000
# What a viewer may do besides reading: query, acknowledge and silence alerts.
VIEWER_WRITE_PATHS = ("/api/query/", "/api/alerts/ack/", "/api/alerts/silence/")
# Login attempts: five at once and then one in twelve seconds per address, ten times that for all of them.
LOGIN_RATE, TOTAL_LOGIN_RATE = RequestRate(5, 1 / 12), RequestRate(50, 10 / 12)
# Requests of one session: SQL queries, and anything else.
QUERY_RATE, REQUEST_RATE = RequestRate(30, 5), RequestRate(600, 100)
OIDC_COOKIE = "riverrun-visit"


class LoginGate:
    """The login by password or provider, and the sessions. `middleware` wraps the application, `routes` are its pages."""

    def __init__(
        self,
        *,
        password: Password | None = None,
        provider: OidcProvider | None = None,
        sessions: LoginSessions,
        token: str = "",
    ) -> None:
        self.token = token or secrets.token_urlsafe(32)
        self.sessions = sessions
        self._password, self._provider = password, provider
        self._oidc_logins = PendingOidcLogins()
        self._login_limit = RequestLimiter(LOGIN_RATE, TOTAL_LOGIN_RATE)
        self._query_limit, self._request_limit = RequestLimiter(QUERY_RATE), RequestLimiter(REQUEST_RATE)
        self._hash_lock: asyncio.Lock | None = None

    def middleware(self, app: ASGIApp) -> "_LoginMiddleware":
        return _LoginMiddleware(app, self)

    def routes(self) -> list[Route]:
        guard = [Middleware(SecurityMiddleware)]
        routes = [
            Route("/login", self._login_page, methods=["GET"], middleware=guard),
            Route("/login", self._log_in, methods=["POST"], middleware=guard),
            Route("/logout", self._log_out, methods=["POST"], middleware=guard),
            Route("/api/login", self._login_state, methods=["GET"], middleware=guard),
        ]
        if self._provider is not None:
            routes += [
                Route("/login/oidc", self._redirect_to_provider, methods=["GET"], middleware=guard),
                Route("/login/back", self._oidc_callback, methods=["GET"], middleware=guard),
            ]
        return routes

    # --- the user of a request ---

    def session(self, scope: Scope) -> LoginSession | None:
        return self.sessions.find(cookie(scope, session_cookie(scope)))

    def is_local(self, scope: Scope) -> bool:
        """Whether it is a command of the user who serves: from 127.0.0.1, and with the token."""
        authorization = Headers(scope=scope).get("authorization", "")
        return not scope.get(PUBLIC_REQUEST) and hmac.compare_digest(
            authorization.encode(), f"Bearer {self.token}".encode()
        )

    def retry_after(self, scope: Scope, session: LoginSession) -> float:
        """Seconds to wait before the next request; 0 when it is within the limit."""
        limit = self._query_limit if scope["path"].startswith("/api/query") else self._request_limit
        return limit.take(session.key.hex())

    # --- the pages ---

    async def _login_page(self, request: Request) -> Response:
        return asset_response(request, assets()["login.html"])

    async def _login_state(self, request: Request) -> Response:
        session = self.session(request.scope)
        kind = "password" if self._provider is None else "provider"
        return json_response(
            {"login": kind, "in": session is not None, "who": session.user if session is not None else ""}
        )

    async def _log_in(self, request: Request) -> Response:
        name = _client_address(request.scope)
        if wait := self._login_limit.take(name):
            return too_many_requests(wait, "Too many tries to log in")
        try:
            content = msgspec.json.decode(await request.body())
            text = content["password"]
            if not isinstance(text, str) or len(text) > MAX_PASSWORD_LENGTH:
                raise TypeError
        except (msgspec.DecodeError, KeyError, TypeError):
            return error_response(400, "USAGE", 'A login is {"password": "…"}')
        if self._password is None:
            return error_response(403, "LOGIN_WRONG", "Here one logs in at the provider")
        if self._hash_lock is None:
            self._hash_lock = asyncio.Lock()
        async with self._hash_lock:
            matches = await run_in_threadpool(self._password.matches, text)
        if not matches:
            return error_response(401, "LOGIN_WRONG", "That is not the password")
        self._login_limit.refund(name)
        response = json_response({"in": True})
        self._start_session(request.scope, response, PASSWORD_USER)
        return response

    async def _log_out(self, request: Request) -> Response:
        self.sessions.end_by_token(cookie(request.scope, session_cookie(request.scope)))
        response = json_response({"in": False})
        set_cookie(request.scope, response, session_cookie(request.scope), "", max_age=0)
        return response

    def _start_session(self, scope: Scope, response: Response, who: str) -> None:
        """Start a session with a new token, whatever token the browser sent."""
        name = session_cookie(scope)
        self.sessions.end_by_token(cookie(scope, name))
        set_cookie(scope, response, name, self.sessions.create(who))

    # --- the provider ---

    async def _redirect_to_provider(self, request: Request) -> Response:
        assert self._provider is not None  # noqa: S101  -- the route exists only with a provider
        if wait := self._login_limit.take(_client_address(request.scope)):
            return too_many_requests(wait, "Too many tries to log in")
        login = OidcLogin(_callback_url(request), safe_redirect_path(request.query_params.get("next", "")))
        try:
            address = await self._provider.authorization_url(login)
        except LoginRefusedError as error:
            return _login_failed(error)
        response = _redirect(address)
        # Lax: the browser has to send it when the provider redirects back.
        set_cookie(request.scope, response, _oidc_cookie(request.scope), self._oidc_logins.begin(login), same_site="lax",
                   max_age=round(PendingOidcLogins.MAX_SECONDS))  # fmt: skip
        return response

    async def _oidc_callback(self, request: Request) -> Response:
        assert self._provider is not None  # noqa: S101
        name = _client_address(request.scope)
        login = self._oidc_logins.end(cookie(request.scope, _oidc_cookie(request.scope)))
        try:
            if login is None or login.redirect_uri != _callback_url(request):
                raise LoginRefusedError("state")
            who = await self._provider.user_of(login, request.query_params)
        except LoginRefusedError as error:
            response = _login_failed(error)
        else:
            self._login_limit.refund(name)
            # To the login page, which continues by itself: another site led to this request, and browsers do not send
            # a strict cookie to where such a request is redirected.
            response = _redirect(f"/login?{urlencode({'next': login.next_path})}")
            self._start_session(request.scope, response, who)
        set_cookie(request.scope, response, _oidc_cookie(request.scope), "", same_site="lax", max_age=0)
        return response


class _LoginMiddleware:
    """Forwards a request of a logged-in user, or rejects it."""

    def __init__(self, app: ASGIApp, gate: LoginGate) -> None:
        self._app = app
        self._gate = gate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or is_public(scope["path"]):
            await self._app(scope, receive, send)
        elif self._gate.is_local(scope):
            scope[USER_SCOPE_KEY] = LOCAL_USER
            await self._app(scope, receive, send)
        elif (session := self._gate.session(scope)) is None:
            await login_required(scope)(scope, receive, send)
        elif (rejection := self._rejection(scope, session)) is not None:
            await rejection(scope, receive, send)
        else:
            scope[USER_SCOPE_KEY] = session.user
            await self._forward(session, scope, receive, send)

    def _rejection(self, scope: Scope, session: LoginSession) -> Response | None:
        if scope["method"] not in {"GET", "HEAD"} and not f"{scope['path']}/".startswith(VIEWER_WRITE_PATHS):
            # Removing a table or re-driving dead letters is only for the user who serves.
            return error_response(
                403, "FORBIDDEN", "Viewers look and ask; what changes something is done where it is served"
            )
        if wait := self._gate.retry_after(scope, session):
            return too_many_requests(wait, "Too many requests")
        if session.open_requests >= MAX_REQUESTS_PER_SESSION:
            return too_many_requests(1, f"{MAX_REQUESTS_PER_SESSION} requests of this login run already")
        return None

    async def _forward(self, session: LoginSession, scope: Scope, receive: Receive, send: Send) -> None:
        unfinished = False

        async def send_tracked(message: Message) -> None:
            nonlocal unfinished
            await send(message)
            unfinished = message["type"] == "http.response.start" or message.get("more_body", False)

        session.open_requests += 1
        try:
            await self._app(scope, self._receive_until_session_end(session, receive), send_tracked)
            if unfinished and session.ended.is_set():
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            self._gate.sessions.release(session)

    def _receive_until_session_end(self, session: LoginSession, receive: Receive) -> Callable[[], Awaitable[Message]]:
        """`receive` that reports a disconnect when the session ends, so that streams to it end too."""

        async def receive_or_disconnect() -> Message:
            getting = asyncio.ensure_future(receive())
            ending = asyncio.ensure_future(session.ended.wait())
            try:
                while not getting.done() and not ending.done():
                    left = self._gate.sessions.seconds_left(session)
                    if left <= 0:
                        self._gate.sessions.close(session)
                        break
                    await asyncio.wait({getting, ending}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
                return await getting if getting.done() else {"type": "http.disconnect"}
            finally:
                getting.cancel()
                ending.cancel()

        return receive_or_disconnect


# --- helpers ---


def is_public(path: str) -> bool:
    """Whether a path is open without a login."""
    # A delivery report has its own signature.
    public_paths = {"/login", "/logout", "/login/oidc", "/login/back", "/api/login", DELIVERED}
    return path in public_paths or path.startswith("/assets/")


def login_required(scope: Scope) -> Response:
    """Redirect a browser to the login page; answer a program with 401."""
    headers = Headers(scope=scope)
    if scope["method"] == "GET" and "text/html" in headers.get("accept", ""):
        requested = scope["raw_path"] + (b"?" + scope["query_string"] if scope["query_string"] else b"")
        return _redirect(f"/login?{urlencode({'next': safe_redirect_path(requested.decode('latin-1'))})}")
    return error_response(401, "LOGIN_REQUIRED", "Log in first")


def safe_redirect_path(text: str) -> str:
    """A path on this server to redirect to; `/` for anything that could lead elsewhere."""
    is_ours = text.startswith("/") and not text.startswith(("//", "/\\")) and text.isprintable()
    return quote(text, safe="/?&=~.%+-_:,*'()!") if is_ours else "/"


def too_many_requests(seconds: float, what: str) -> Response:
    wait = max(1, math.ceil(seconds))
    message = f"{what}: wait {wait} second{'s' if wait > 1 else ''}"
    return error_response(429, "TOO_MANY", message, {"Retry-After": str(wait)})


def session_cookie(scope: Scope) -> str:
    # Browsers accept a name with this prefix only from this very host, and only over TLS.
    return "__Host-riverrun" if scope["scheme"] == "https" else "riverrun"


def _oidc_cookie(scope: Scope) -> str:
    return f"__Host-{OIDC_COOKIE}" if scope["scheme"] == "https" else OIDC_COOKIE


def cookie(scope: Scope, name: str) -> str:
    """The value of a cookie that occurs once in the request; empty when it occurs twice."""
    values = []
    for header in Headers(scope=scope).getlist("cookie"):
        for part in header.split(";"):
            key, _, value = part.strip().partition("=")
            if key == name:
                values.append(value)
    return values[0] if len(values) == 1 else ""


def set_cookie(
    scope: Scope, response: Response, name: str, value: str, *, same_site: str = "strict", max_age: int | None = None
) -> None:
    secure = scope["scheme"] == "https"
    response.set_cookie(name, value, max_age=max_age, path="/", secure=secure, httponly=True, samesite=same_site)  # type: ignore[arg-type]


def _redirect(address: str) -> Response:
    return Response(status_code=303, headers={"location": address, "cache-control": "no-store"})


def _login_failed(error: LoginRefusedError) -> Response:
    return _redirect(f"/login?{urlencode({'failed': error.reason})}")


def _client_address(scope: Scope) -> str:
    client = scope.get("client")
    return address_key(client[0]) if client else ""


def _callback_url(request: Request) -> str:
    return f"{request.scope['scheme']}://{request.headers['host']}/login/back"
