"""The alerts page over HTTP: the whole state, live; one incident; and user actions: acknowledge, silence, end a silence.

The last three change something. They are accepted as a re-drive is: as JSON, from pages of this server only. Users who have
logged in may do them too (dashboard/login.py): somebody has to at night.
"""

from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from riverrun.dashboard.alerts.live import AlertsBroadcast
from riverrun.dashboard.json_requests import current_user, parse_fields, reject_cross_site
from riverrun.dashboard.responses import json_response
from riverrun.errors import UsageError

MAX_MINUTES = 30 * 24 * 60
MAX_KEY = 200
MAX_REASON = 200
_ACK: dict[str, type] = {"rule": str, "key": str, "number": int}
_SILENCE: dict[str, type] = {"rule": str, "key": str, "minutes": int, "why": str}

RouteHandler = Callable[[Request], Awaitable[Response]]


def alert_handlers(alerts: AlertsBroadcast | None) -> list[tuple[str, str, RouteHandler]]:
    """Method, path and handler; the caller handles RiverrunError. Without alerts, only an empty count."""

    async def nothing(_: Request) -> Response:
        return json_response({"there": False, "count": 0, "worst": ""})

    if alerts is None:
        return [("GET", "/api/alerts/count", nothing)]
    return [*_read_handlers(alerts), *_write_handlers(alerts)]


def _read_handlers(alerts: AlertsBroadcast) -> list[tuple[str, str, RouteHandler]]:
    async def whole(_: Request) -> Response:
        return json_response(await alerts.state())

    async def count(_: Request) -> Response:
        return json_response(await alerts.count())

    async def live(_: Request) -> Response:
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        return StreamingResponse(alerts.add_viewer().messages(), media_type="text/event-stream", headers=headers)

    async def incident(request: Request) -> Response:
        text = request.path_params["number"]
        if not text.isascii() or not text.isdigit() or len(text) > 15:
            raise UsageError("The number of an alert cannot be understood", expected="a number", found=repr(text[:40]))
        return json_response(
            await alerts.incident(request.path_params["rule"], request.query_params.get("key", ""), int(text))
        )

    return [
        ("GET", "/api/alerts", whole),
        ("GET", "/api/alerts/count", count),
        ("GET", "/api/alerts/live", live),
        ("GET", "/api/alerts/case/{rule}/{number}", incident),
    ]


def _write_handlers(alerts: AlertsBroadcast) -> list[tuple[str, str, RouteHandler]]:
    async def acknowledge(request: Request) -> Response:
        if (rejection := reject_cross_site(request, "acknowledge alerts")) is not None:
            return rejection
        fields = parse_fields(await request.body(), _ACK, '{"rule": "…", "key": "…", "number": 1}')
        if missing := [name for name in _ACK if name not in fields]:
            raise UsageError(f"The request has no {missing[0]}", expected=", ".join(_ACK))
        return json_response(
            await alerts.acknowledge(fields["rule"], fields["key"], fields["number"], current_user(request))
        )

    async def silence(request: Request) -> Response:
        if (rejection := reject_cross_site(request, "silence alerts")) is not None:
            return rejection
        rule, key, minutes, why = _parse_silence(await request.body())
        return json_response(await alerts.silence(rule, key, minutes, why, current_user(request)))

    async def end(request: Request) -> Response:
        if (rejection := reject_cross_site(request, "end silences", body=False)) is not None:
            return rejection
        return json_response(await alerts.end_silence(request.path_params["id"]))

    return [
        ("POST", "/api/alerts/ack", acknowledge),
        ("POST", "/api/alerts/silence", silence),
        ("DELETE", "/api/alerts/silence/{id}", end),
    ]


def _parse_silence(body: bytes) -> tuple[str, str, int, str]:
    fields = parse_fields(body, _SILENCE, '{"rule": "…", "key": "…", "minutes": 60, "why": "…"}')
    minutes: int = fields.get("minutes", 0)
    if not 1 <= minutes <= MAX_MINUTES:
        raise UsageError("A silence has an end", expected="minutes from 1 to 43200 (30 days)", found=str(minutes))
    key, why = fields.get("key", ""), fields.get("why", "").strip()
    if len(key) > MAX_KEY or len(why) > MAX_REASON:
        raise UsageError("The request is too long", expected=f"a key and a reason of {MAX_KEY} letters at most")
    return fields.get("rule", ""), key, minutes, why
