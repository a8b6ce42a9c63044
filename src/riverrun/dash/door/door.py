"""The door: where others are served, nobody gets past it who has not logged in.

It stands inside `store/manners.py`, which has looked at the names and the origin of a request, and around everything else.
What is open without a login is the login page, the files of the pages (they come with the package) and `/api/door`, which
says what is asked for. Commands of the user who serves come by 127.0.0.1 with the token of serve.json.
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

from riverrun.alerts.delivered import PATH as DELIVERED
from riverrun.dash.answers import assets, file_answer, json_answer
from riverrun.dash.asking import LOCAL, PASSWORD, WHO
from riverrun.dash.door.limits import Limit, Rate, address_name
from riverrun.dash.door.oidc import Provider, Refused, Visit, Visits
from riverrun.dash.door.password import Password
from riverrun.dash.door.sessions import MOST_RUNNING, Session, Sessions
from riverrun.dash.routes import Guard
from riverrun.store.listening import OUTSIDE
from riverrun.store.manners import refusal

MOST_PASSWORD = 1000
# What a viewer may do besides looking: ask, and look after alerts.
VIEWERS_MAY = ("/api/query/", "/api/alerts/ack/", "/api/alerts/silence/")
# Tries to log in: five at once and then one in twelve seconds for an address, ten times that for all of them.
TRIES, ALL_TRIES = Rate(5, 1 / 12), Rate(50, 10 / 12)
# What one login may ask: questions in SQL, and anything else.
QUESTIONS, REQUESTS = Rate(30, 5), Rate(600, 100)
VISIT = "riverrun-visit"


class Door:
    """What is asked for at the door, and who is in. `around` is the middleware, `routes` are its pages."""

    def __init__(
        self,
        *,
        password: Password | None = None,
        provider: Provider | None = None,
        sessions: Sessions,
        token: str = "",
    ) -> None:
        self.token = token or secrets.token_urlsafe(32)
        self.sessions = sessions
        self._password, self._provider = password, provider
        self._visits = Visits()
        self._tries = Limit(TRIES, ALL_TRIES)
        self._questions, self._requests = Limit(QUESTIONS), Limit(REQUESTS)
        self._one_at_a_time: asyncio.Lock | None = None

    def around(self, app: ASGIApp) -> "_Doorkeeper":
        return _Doorkeeper(app, self)

    def routes(self) -> list[Route]:
        guard = [Middleware(Guard)]
        found = [
            Route("/login", self._page, methods=["GET"], middleware=guard),
            Route("/login", self._log_in, methods=["POST"], middleware=guard),
            Route("/logout", self._log_out, methods=["POST"], middleware=guard),
            Route("/api/door", self._say, methods=["GET"], middleware=guard),
        ]
        if self._provider is not None:
            found += [
                Route("/login/oidc", self._go_there, methods=["GET"], middleware=guard),
                Route("/login/back", self._come_back, methods=["GET"], middleware=guard),
            ]
        return found

    # --- who it is ---

    def session(self, scope: Scope) -> Session | None:
        return self.sessions.find(cookie(scope, session_cookie(scope)))

    def is_local(self, scope: Scope) -> bool:
        """Whether it is a command of the user who serves: by 127.0.0.1, and with the token."""
        given = Headers(scope=scope).get("authorization", "")
        return not scope.get(OUTSIDE) and hmac.compare_digest(given.encode(), f"Bearer {self.token}".encode())

    def too_often(self, scope: Scope, session: Session) -> float:
        """How many seconds to wait before asking again."""
        limit = self._questions if scope["path"].startswith("/api/query") else self._requests
        return limit.take(session.key.hex())

    # --- the pages ---

    async def _page(self, request: Request) -> Response:
        return file_answer(request, assets()["login.html"])

    async def _say(self, request: Request) -> Response:
        session = self.session(request.scope)
        kind = "password" if self._provider is None else "provider"
        return json_answer(
            {"login": kind, "in": session is not None, "who": session.who if session is not None else ""}
        )

    async def _log_in(self, request: Request) -> Response:
        name = _address(request.scope)
        if wait := self._tries.take(name):
            return too_many(wait, "Too many tries to log in")
        try:
            content = msgspec.json.decode(await request.body())
            text = content["password"]
            if not isinstance(text, str) or len(text) > MOST_PASSWORD:
                raise TypeError
        except (msgspec.DecodeError, KeyError, TypeError):
            return refusal(400, "USAGE", 'A login is {"password": "…"}')
        if self._password is None:
            return refusal(403, "LOGIN_WRONG", "Here one logs in at the provider")
        if self._one_at_a_time is None:
            self._one_at_a_time = asyncio.Lock()
        async with self._one_at_a_time:
            right = await run_in_threadpool(self._password.matches, text)
        if not right:
            return refusal(401, "LOGIN_WRONG", "That is not the password")
        self._tries.give_back(name)
        answer = json_answer({"in": True})
        self._begin(request.scope, answer, PASSWORD)
        return answer

    async def _log_out(self, request: Request) -> Response:
        self.sessions.end(cookie(request.scope, session_cookie(request.scope)))
        answer = json_answer({"in": False})
        set_cookie(request.scope, answer, session_cookie(request.scope), "", most_age=0)
        return answer

    def _begin(self, scope: Scope, answer: Response, who: str) -> None:
        """A session under a new number, whatever number the browser came with."""
        name = session_cookie(scope)
        self.sessions.end(cookie(scope, name))
        set_cookie(scope, answer, name, self.sessions.begin(who))

    # --- the provider ---

    async def _go_there(self, request: Request) -> Response:
        assert self._provider is not None  # noqa: S101  -- its route is there only then
        if wait := self._tries.take(_address(request.scope)):
            return too_many(wait, "Too many tries to log in")
        visit = Visit(_back(request), own_path(request.query_params.get("next", "")))
        try:
            address = await self._provider.address(visit)
        except Refused as error:
            return _failed(error)
        answer = _see(address)
        # Lax: it has to come along when the provider sends the browser back.
        set_cookie(request.scope, answer, _visit_cookie(request.scope), self._visits.begin(visit), same_site="lax",
                   most_age=round(Visits.MOST_SECONDS))  # fmt: skip
        return answer

    async def _come_back(self, request: Request) -> Response:
        assert self._provider is not None  # noqa: S101
        name = _address(request.scope)
        visit = self._visits.end(cookie(request.scope, _visit_cookie(request.scope)))
        try:
            if visit is None or visit.back != _back(request):
                raise Refused("state")
            who = await self._provider.who(visit, request.query_params)
        except Refused as error:
            answer = _failed(error)
        else:
            self._tries.give_back(name)
            # To the login page, which goes on by itself: this answer is to a request that another site has led to,
            # and browsers keep a strict cookie from where such a request leads to next.
            answer = _see(f"/login?{urlencode({'next': visit.then})}")
            self._begin(request.scope, answer, who)
        set_cookie(request.scope, answer, _visit_cookie(request.scope), "", same_site="lax", most_age=0)
        return answer


class _Doorkeeper:
    """Lets a request through, or answers it."""

    def __init__(self, app: ASGIApp, door: Door) -> None:
        self._app = app
        self._door = door

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or is_open(scope["path"]):
            await self._app(scope, receive, send)
        elif self._door.is_local(scope):
            scope[WHO] = LOCAL
            await self._app(scope, receive, send)
        elif (session := self._door.session(scope)) is None:
            await not_in(scope)(scope, receive, send)
        elif (refused := self._refused(scope, session)) is not None:
            await refused(scope, receive, send)
        else:
            scope[WHO] = session.who
            await self._let_in(session, scope, receive, send)

    def _refused(self, scope: Scope, session: Session) -> Response | None:
        if scope["method"] not in {"GET", "HEAD"} and not f"{scope['path']}/".startswith(VIEWERS_MAY):
            # Removing a table, sending dead letters back: for the user who serves.
            return refusal(403, "FORBIDDEN", "Viewers look and ask; what changes something is done where it is served")
        if wait := self._door.too_often(scope, session):
            return too_many(wait, "Too many requests")
        if session.running >= MOST_RUNNING:
            return too_many(1, f"{MOST_RUNNING} requests of this login run already")
        return None

    async def _let_in(self, session: Session, scope: Scope, receive: Receive, send: Send) -> None:
        unfinished = False

        async def sent(message: Message) -> None:
            nonlocal unfinished
            await send(message)
            unfinished = message["type"] == "http.response.start" or message.get("more_body", False)

        session.running += 1
        try:
            await self._app(scope, self._until_it_ends(session, receive), sent)
            if unfinished and session.ended.is_set():
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            self._door.sessions.leave(session)

    def _until_it_ends(self, session: Session, receive: Receive) -> Callable[[], Awaitable[Message]]:
        """A client whose session is over has gone away, as far as a stream to it is concerned."""

        async def received() -> Message:
            getting = asyncio.ensure_future(receive())
            ending = asyncio.ensure_future(session.ended.wait())
            try:
                while not getting.done() and not ending.done():
                    left = self._door.sessions.left(session)
                    if left <= 0:
                        self._door.sessions.close(session)
                        break
                    await asyncio.wait({getting, ending}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
                return await getting if getting.done() else {"type": "http.disconnect"}
            finally:
                getting.cancel()
                ending.cancel()

        return received


# --- small parts ---


def is_open(path: str) -> bool:
    """What one sees without a login."""
    # A report of delivery brings its own proof.
    known = {"/login", "/logout", "/login/oidc", "/login/back", "/api/door", DELIVERED}
    return path in known or path.startswith("/assets/")


def not_in(scope: Scope) -> Response:
    """A reader is led to the login page, a program hears what is missing."""
    headers = Headers(scope=scope)
    if scope["method"] == "GET" and "text/html" in headers.get("accept", ""):
        asked = scope["raw_path"] + (b"?" + scope["query_string"] if scope["query_string"] else b"")
        return _see(f"/login?{urlencode({'next': own_path(asked.decode('latin-1'))})}")
    return refusal(401, "LOGIN_REQUIRED", "Log in first")


def own_path(text: str) -> str:
    """A path of ours to go on to; the first page for anything that could lead elsewhere."""
    is_ours = text.startswith("/") and not text.startswith(("//", "/\\")) and text.isprintable()
    return quote(text, safe="/?&=~.%+-_:,*'()!") if is_ours else "/"


def too_many(seconds: float, what: str) -> Response:
    wait = max(1, math.ceil(seconds))
    message = f"{what}: wait {wait} second{'s' if wait > 1 else ''}"
    return refusal(429, "TOO_MANY", message, {"Retry-After": str(wait)})


def session_cookie(scope: Scope) -> str:
    # A name that begins so is taken by browsers only from this very host, and only over TLS.
    return "__Host-riverrun" if scope["scheme"] == "https" else "riverrun"


def _visit_cookie(scope: Scope) -> str:
    return f"__Host-{VISIT}" if scope["scheme"] == "https" else VISIT


def cookie(scope: Scope, name: str) -> str:
    """The value of a cookie that stands in the request once; nothing for one that stands there twice."""
    found = []
    for header in Headers(scope=scope).getlist("cookie"):
        for part in header.split(";"):
            key, _, value = part.strip().partition("=")
            if key == name:
                found.append(value)
    return found[0] if len(found) == 1 else ""


def set_cookie(
    scope: Scope, answer: Response, name: str, value: str, *, same_site: str = "strict", most_age: int | None = None
) -> None:
    secure = scope["scheme"] == "https"
    answer.set_cookie(name, value, max_age=most_age, path="/", secure=secure, httponly=True, samesite=same_site)  # type: ignore[arg-type]


def _see(address: str) -> Response:
    return Response(status_code=303, headers={"location": address, "cache-control": "no-store"})


def _failed(error: Refused) -> Response:
    return _see(f"/login?{urlencode({'failed': error.why})}")


def _address(scope: Scope) -> str:
    client = scope.get("client")
    return address_name(client[0]) if client else ""


def _back(request: Request) -> str:
    return f"{request.scope['scheme']}://{request.headers['host']}/login/back"
