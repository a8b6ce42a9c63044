"""The pipeline topology over HTTP: the topology, live; details of its nodes; and re-driving dead letters.

Only the last changes anything. It is accepted as application/json from pages of this server only, so that no other page can
send it on a user's behalf.
"""

from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from riverrun.dashboard.json_requests import parse_fields, reject_cross_site
from riverrun.dashboard.responses import json_response
from riverrun.dashboard.topology.details import DeadLetterFilter
from riverrun.dashboard.topology.live import TopologyBroadcast
from riverrun.errors import UsageError

DEFAULT_RECORDS = 20
MAX_REASON = 300
_FIELDS: dict[str, type] = {"reason": str, "partition": int, "offset": int, "dry_run": bool}

RouteHandler = Callable[[Request], Awaitable[Response]]


def topology_handlers(topology: TopologyBroadcast) -> list[tuple[str, str, RouteHandler]]:
    """Method, path and handler; the caller handles RiverrunError."""

    async def whole(_: Request) -> Response:
        return json_response(await topology.refresh())

    async def live(_: Request) -> Response:
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        return StreamingResponse(topology.add_viewer().messages(), media_type="text/event-stream", headers=headers)

    async def details(request: Request) -> Response:
        return json_response(await topology.details_of(request.path_params["kind"], request.path_params["name"]))

    async def records(request: Request) -> Response:
        text = request.query_params.get("count", str(DEFAULT_RECORDS))
        if not text.isascii() or not text.isdigit() or len(text) > 6:
            raise UsageError("count cannot be understood", expected="a number", found=repr(text[:40]))
        return json_response(await topology.records(request.path_params["name"], int(text)))

    async def dead(request: Request) -> Response:
        reason = request.query_params.get("reason", "")[:MAX_REASON]
        return json_response(await topology.dead_letters(request.path_params["name"], reason))

    async def redrive(request: Request) -> Response:
        rejection = reject_cross_site(request, "send dead letters back")
        if rejection is not None:
            return rejection
        letter_filter, dry_run = _parse_redrive(await request.body())
        return json_response(await topology.redrive(request.path_params["name"], letter_filter, dry_run=dry_run))

    return [
        ("GET", "/api/pipeline", whole),
        ("GET", "/api/pipeline/live", live),
        ("GET", "/api/pipeline/{kind}/{name}", details),
        ("GET", "/api/pipeline/topic/{name}/records", records),
        ("GET", "/api/pipeline/topic/{name}/dead", dead),
        ("POST", "/api/pipeline/topic/{name}/redrive", redrive),
    ]


def _parse_redrive(body: bytes) -> tuple[DeadLetterFilter, bool]:
    expected = '{"reason": "…", "dry_run": true}, or "partition" and "offset" of one letter'
    fields = parse_fields(body, _FIELDS, expected)
    if "dry_run" not in fields:
        raise UsageError("The request does not say whether to send", expected='"dry_run": true or false')
    if ("partition" in fields) != ("offset" in fields):
        raise UsageError("A letter is named by its partition and its offset", expected=expected)
    dry_run: bool = fields.pop("dry_run")
    return DeadLetterFilter(**fields), dry_run
