"""The dashboards over HTTP: the page, its files, the declarations, live data, and past data.

It answers only requests with a Host of this machine (DNS rebinding), sends no CORS headers, and its pages may load and run
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

from riverrun.cluster.loopback import is_allowed_host
from riverrun.dashboard.alerts.live import AlertsBroadcast
from riverrun.dashboard.alerts.routes import alert_handlers
from riverrun.dashboard.live.hub import DashboardHub
from riverrun.dashboard.live.tile_feed import error_for_page
from riverrun.dashboard.responses import asset_response, assets, json_response
from riverrun.dashboard.topology.live import TopologyBroadcast
from riverrun.dashboard.topology.routes import topology_handlers
from riverrun.errors import RiverrunError, StoreUnavailableError, UsageError
from riverrun.model.dashboard import Dashboard, Tile
from riverrun.web.guard import HOST_CHECKED

FILTER_PREFIX = "f."
MAX_FILTERS = 8
MAX_FILTER_LENGTH = 500
# A filter for rows that have no value; a text that begins with the escape character has it twice.
ESCAPE = "~"
NO_VALUE = "~null"
CONTENT_SECURITY_POLICY = "; ".join([
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
SECURITY_HEADERS: tuple[tuple[bytes, bytes], ...] = (
    (b"content-security-policy", CONTENT_SECURITY_POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)


def dashboard_app(
    hub: DashboardHub, topology: TopologyBroadcast | None = None, alerts: AlertsBroadcast | None = None
) -> Starlette:
    """The dashboards as an application of their own. Close the hub before the server, which waits for viewers."""
    return Starlette(routes=dashboard_routes(hub, topology, alerts), middleware=[Middleware(SecurityMiddleware)])


def dashboard_routes(
    hub: DashboardHub, topology: TopologyBroadcast | None = None, alerts: AlertsBroadcast | None = None
) -> list[Route]:
    """The same as routes for another application, such as the store's; each brings its own guard."""
    guard = [Middleware(SecurityMiddleware)]
    page_routes = [
        Route(path, _with_error_responses(handler), methods=[method], middleware=guard)
        for method, path, handler in [
            *(topology_handlers(topology) if topology is not None else ()),
            *alert_handlers(alerts),
        ]
    ]

    async def dashboards(_: Request) -> Response:
        await hub.wait_until_polled()
        boards = [_board(hub, board) for board in hub.dashboards.values()]
        return json_response({"app": hub.app, "revision": hub.revision, "dashboards": boards, **hub.notes})

    async def live(request: Request) -> Response:
        viewer = await hub.add_viewer(request.path_params["dashboard"], _filters(request))
        # X-Accel-Buffering: a proxy that buffers the response would delay live data.
        headers = {"cache-control": "no-store", "x-accel-buffering": "no", "vary": "accept-encoding"}
        gzipped = "gzip" in request.headers.get("accept-encoding", "")
        if gzipped:
            headers["content-encoding"] = "gzip"
        return StreamingResponse(viewer.messages(gzipped=gzipped), media_type="text/event-stream", headers=headers)

    async def tile(request: Request) -> Response:
        params = request.path_params
        state = await hub.tile_state_at(params["dashboard"], params["tile"], _filters(request), _moment(request))
        return json_response(state)

    async def login_state(_: Request) -> Response:
        # Where there is a login gate (dashboard/login.py), its route comes before this one.
        return json_response({"login": "", "in": True, "who": ""})

    return [
        Route("/api/login", login_state, methods=["GET"], middleware=guard),
        Route("/", _page("index.html"), methods=["GET"], middleware=guard),
        Route("/sql", _page("sql.html"), methods=["GET"], middleware=guard),
        Route("/assets/{name:path}", _asset, methods=["GET"], middleware=guard),
        Route("/api/dashboards", _with_error_responses(dashboards), methods=["GET"], middleware=guard),
        Route("/api/live/{dashboard}", _with_error_responses(live), methods=["GET"], middleware=guard),
        Route("/api/tiles/{dashboard}/{tile}", _with_error_responses(tile), methods=["GET"], middleware=guard),
        Route("/pipeline", _page("pipeline.html"), methods=["GET"], middleware=guard),
        Route("/alerts", _page("alerts.html"), methods=["GET"], middleware=guard),
        *page_routes,
    ]


def _with_error_responses(
    handler: Callable[[Request], Awaitable[Response]],
) -> Callable[[Request], Awaitable[Response]]:
    """Turn a RiverrunError into a JSON response."""

    async def call(request: Request) -> Response:
        try:
            return await handler(request)
        except RiverrunError as error:
            missing = isinstance(error, UsageError) and error.what.startswith("There is no")
            busy = isinstance(error, StoreUnavailableError)
            return json_response({"error": error_for_page(error)}, status=404 if missing else 503 if busy else 400)

    return call


# --- declarations ---


def _board(hub: DashboardHub, board: Dashboard) -> dict[str, Any]:
    return {
        "name": board.name,
        "title": board.title,
        "tiles": [_tile(hub, board, tile) for tile in board.tiles],
    }


def _tile(hub: DashboardHub, board: Dashboard, tile: Tile) -> dict[str, Any]:
    """A tile's declaration for a page, without its SQL."""
    return {
        "name": tile.name,
        "kind": tile.kind,
        "title": tile.title,
        "text": tile.text,
        "unit": tile.unit,
        "by": hub.by_column(tile),
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


# --- request parameters ---


def _filters(request: Request) -> dict[str, str | None]:
    filters: dict[str, str | None] = {}
    for name, value in request.query_params.multi_items():
        if not name.startswith(FILTER_PREFIX):
            continue
        if len(filters) >= MAX_FILTERS or len(value) > MAX_FILTER_LENGTH:
            raise UsageError("A filter is too much", expected=f"at most {MAX_FILTERS} of {MAX_FILTER_LENGTH} letters")
        filters[name.removeprefix(FILTER_PREFIX)] = filter_value(value)
    return filters


def filter_value(text: str) -> str | None:
    """Decode a filter's value from the URL."""
    if text == NO_VALUE:
        return None
    return text.removeprefix(ESCAPE) if text.startswith(ESCAPE) else text


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
        return asset_response(request, assets()[name])

    return page


async def _asset(request: Request) -> Response:
    asset = assets().get(request.path_params["name"])
    if asset is None:
        return json_response({"error": {"code": "USAGE", "message": "There is no such file."}}, 404)
    return asset_response(request, asset)


class SecurityMiddleware:
    """Rejects requests with a foreign Host, and sets the security headers of responses."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = list(message.get("headers", []))
                known = {name.lower() for name, _ in headers}
                message["headers"] = headers + [(name, value) for name, value in SECURITY_HEADERS if name not in known]
            await send(message)

        if HOST_CHECKED not in scope and not is_allowed_host(Headers(scope=scope).getlist("host")):
            message = "This server answers only to 127.0.0.1, localhost and [::1]"
            rejection = json_response({"error": {"code": "USAGE", "message": message}}, 403)
            await rejection(scope, receive, send_guarded)
            return
        await self._app(scope, receive, send_guarded)
