"""The dashboards over HTTP: the page, its files, what is declared, live figures, and figures of the past.

It answers only who calls it by a name of this machine (DNS rebinding), sends no CORS headers, and its pages may load and run
nothing but the files here. A tile's SQL is the pipeline file's: a request chooses tiles, filter values and a time, no more.
"""

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from riverrun.cluster.loopback import is_for_us
from riverrun.dash.alerts.live import Alerts
from riverrun.dash.alerts.routes import alerts_answers
from riverrun.dash.answers import assets, file_answer, json_answer
from riverrun.dash.feed import error_for_page
from riverrun.dash.live import Hub
from riverrun.dash.picture.live import Picture
from riverrun.dash.picture.routes import picture_answers
from riverrun.errors import RiverrunError, StoreUnavailableError, UsageError
from riverrun.model.dashboard import Dashboard, Tile
from riverrun.store.manners import HOST_IS_GOOD

FILTER = "f."
MOST_FILTERS = 8
MOST_TEXT = 500
# A filter for rows that have no value; a text that begins with the mark has it twice.
MARK = "~"
NO_VALUE = "~null"
POLICY = "; ".join([
    "default-src 'none'",
    "script-src 'self'",
    "style-src 'self'",
    "img-src 'self' data:",
    "connect-src 'self'",
    "base-uri 'none'",
    "form-action 'none'",
    "frame-ancestors 'none'",
    "require-trusted-types-for 'script'",
    "trusted-types 'none'",
])  # fmt: skip
HEADERS: tuple[tuple[bytes, bytes], ...] = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)


def dash_app(hub: Hub, picture: Picture | None = None, alerts: Alerts | None = None) -> Starlette:
    """The dashboards as an application of their own. End the hub before the server, else it waits for its viewers."""
    return Starlette(routes=dash_routes(hub, picture, alerts), middleware=[Middleware(Guard)])


def dash_routes(hub: Hub, picture: Picture | None = None, alerts: Alerts | None = None) -> list[Route]:
    """The same as routes for another application, such as the store's; each brings its own guard."""
    guard = [Middleware(Guard)]
    more = [
        Route(path, _told(answer), methods=[method], middleware=guard)
        for method, path, answer in [
            *(picture_answers(picture) if picture is not None else ()),
            *alerts_answers(alerts),
        ]
    ]

    async def dashboards(_: Request) -> Response:
        await hub.ready()
        boards = [_board(hub, each) for each in hub.dashboards.values()]
        return json_answer({"app": hub.app, "revision": hub.revision, "dashboards": boards, **hub.notes})

    async def live(request: Request) -> Response:
        viewer = await hub.look_on(request.path_params["dashboard"], _filters(request))
        # X-Accel-Buffering: a proxy that gathers bytes before it sends them would make live figures late ones.
        headers = {"cache-control": "no-store", "x-accel-buffering": "no", "vary": "accept-encoding"}
        pressed = "gzip" in request.headers.get("accept-encoding", "")
        if pressed:
            headers["content-encoding"] = "gzip"
        return StreamingResponse(viewer.messages(pressed=pressed), media_type="text/event-stream", headers=headers)

    async def tile(request: Request) -> Response:
        params = request.path_params
        state = await hub.look_back(params["dashboard"], params["tile"], _filters(request), _moment(request))
        return json_answer(state)

    async def door(_: Request) -> Response:
        # Where there is a door (dash/door/door.py), its own answer comes before this one.
        return json_answer({"login": "", "in": True, "who": ""})

    return [
        Route("/api/door", door, methods=["GET"], middleware=guard),
        Route("/", _page("index.html"), methods=["GET"], middleware=guard),
        Route("/sql", _page("sql.html"), methods=["GET"], middleware=guard),
        Route("/assets/{name:path}", _asset, methods=["GET"], middleware=guard),
        Route("/api/dashboards", _told(dashboards), methods=["GET"], middleware=guard),
        Route("/api/live/{dashboard}", _told(live), methods=["GET"], middleware=guard),
        Route("/api/tiles/{dashboard}/{tile}", _told(tile), methods=["GET"], middleware=guard),
        Route("/pipeline", _page("pipeline.html"), methods=["GET"], middleware=guard),
        Route("/alerts", _page("alerts.html"), methods=["GET"], middleware=guard),
        *more,
    ]


def _told(answer: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
    """An error of riverrun's is an answer too."""

    async def call(request: Request) -> Response:
        try:
            return await answer(request)
        except RiverrunError as error:
            missing = isinstance(error, UsageError) and error.what.startswith("There is no")
            busy = isinstance(error, StoreUnavailableError)
            return json_answer({"error": error_for_page(error)}, status=404 if missing else 503 if busy else 400)

    return call


# --- what is declared ---


def _board(hub: Hub, board: Dashboard) -> dict[str, Any]:
    return {
        "name": board.name,
        "title": board.title,
        "tiles": [_tile(hub, board, each) for each in board.tiles],
    }


def _tile(hub: Hub, board: Dashboard, tile: Tile) -> dict[str, Any]:
    """What a page has to know of a tile; not its SQL."""
    return {
        "name": tile.name,
        "kind": tile.kind,
        "title": tile.title,
        "text": tile.text,
        "unit": tile.unit,
        "by": hub.by_of(tile),
        "when": tile.when,
        "width": tile.width,
        "height": tile.height,
        "limit": tile.limit,
        "decimals": tile.decimals,
        "fill": tile.fill,
        "thresholds": tile.thresholds,
        "compare": tile.compare_ms,
        "stale": tile.stale_ms if tile.stale_ms >= 0 else board.stale_ms,
        "tables": hub.tables_of(tile),
    }


# --- what a request says ---


def _filters(request: Request) -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for name, value in request.query_params.multi_items():
        if not name.startswith(FILTER):
            continue
        if len(found) >= MOST_FILTERS or len(value) > MOST_TEXT:
            raise UsageError("A filter is too much", expected=f"at most {MOST_FILTERS} of {MOST_TEXT} letters")
        found[name.removeprefix(FILTER)] = filter_value(value)
    return found


def filter_value(text: str) -> str | None:
    """A filter's value as an address has it."""
    if text == NO_VALUE:
        return None
    return text.removeprefix(MARK) if text.startswith(MARK) else text


def _moment(request: Request) -> datetime:
    text = request.query_params.get("at", "")
    try:
        return datetime.fromtimestamp(int(text) / 1000, UTC)
    except (ValueError, OverflowError, OSError) as error:
        raise UsageError(
            "at cannot be understood", expected="milliseconds since 1970", found=repr(text[:40])
        ) from error


# --- the page and its files ---


def _page(name: str) -> Callable[[Request], Awaitable[Response]]:
    async def page(request: Request) -> Response:
        return file_answer(request, assets()[name])

    return page


async def _asset(request: Request) -> Response:
    found = assets().get(request.path_params["name"])
    if found is None:
        return json_answer({"error": {"code": "USAGE", "message": "There is no such file."}}, 404)
    return file_answer(request, found)


class Guard:
    """Refuses who calls this server by a foreign name, and tells browsers what its pages may do."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                given = list(message.get("headers", []))
                known = {name.lower() for name, _ in given}
                message["headers"] = given + [(name, value) for name, value in HEADERS if name not in known]
            await send(message)

        if HOST_IS_GOOD not in scope and not is_for_us(Headers(scope=scope).getlist("host")):
            message = "This server answers only to 127.0.0.1, localhost and [::1]"
            refused = json_answer({"error": {"code": "USAGE", "message": message}}, 403)
            await refused(scope, receive, send_guarded)
            return
        await self._app(scope, receive, send_guarded)
