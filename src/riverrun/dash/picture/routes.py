"""The pipeline picture over HTTP: the picture, live; details of its nodes; and sending dead letters back.

Only the last changes anything. It is taken as application/json from pages of this server only, so that no other page can
send it on a user's behalf.
"""

from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from riverrun.dash.answers import json_answer
from riverrun.dash.asking import fields_of, refused
from riverrun.dash.picture.details import Choice
from riverrun.dash.picture.live import Picture
from riverrun.errors import UsageError

DEFAULT_RECORDS = 20
MOST_REASON = 300
_FIELDS: dict[str, type] = {"reason": str, "partition": int, "offset": int, "dry_run": bool}

Answer = Callable[[Request], Awaitable[Response]]


def picture_answers(picture: Picture) -> list[tuple[str, str, Answer]]:
    """Method, path and what answers; errors of riverrun's are for the caller to tell."""

    async def whole(_: Request) -> Response:
        return json_answer(await picture.refresh())

    async def live(_: Request) -> Response:
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        return StreamingResponse(picture.look_on().messages(), media_type="text/event-stream", headers=headers)

    async def details(request: Request) -> Response:
        return json_answer(await picture.of(request.path_params["kind"], request.path_params["name"]))

    async def records(request: Request) -> Response:
        text = request.query_params.get("count", str(DEFAULT_RECORDS))
        if not text.isascii() or not text.isdigit() or len(text) > 6:
            raise UsageError("count cannot be understood", expected="a number", found=repr(text[:40]))
        return json_answer(await picture.records(request.path_params["name"], int(text)))

    async def dead(request: Request) -> Response:
        reason = request.query_params.get("reason", "")[:MOST_REASON]
        return json_answer(await picture.dead(request.path_params["name"], reason))

    async def redrive(request: Request) -> Response:
        refusal = refused(request, "send dead letters back")
        if refusal is not None:
            return refusal
        choice, dry_run = _asked(await request.body())
        return json_answer(await picture.redrive(request.path_params["name"], choice, dry_run=dry_run))

    return [
        ("GET", "/api/pipeline", whole),
        ("GET", "/api/pipeline/live", live),
        ("GET", "/api/pipeline/{kind}/{name}", details),
        ("GET", "/api/pipeline/topic/{name}/records", records),
        ("GET", "/api/pipeline/topic/{name}/dead", dead),
        ("POST", "/api/pipeline/topic/{name}/redrive", redrive),
    ]


def _asked(body: bytes) -> tuple[Choice, bool]:
    expected = '{"reason": "…", "dry_run": true}, or "partition" and "offset" of one letter'
    asked = fields_of(body, _FIELDS, expected)
    if "dry_run" not in asked:
        raise UsageError("The request does not say whether to send", expected='"dry_run": true or false')
    if ("partition" in asked) != ("offset" in asked):
        raise UsageError("A letter is named by its partition and its offset", expected=expected)
    dry_run: bool = asked.pop("dry_run")
    return Choice(**asked), dry_run
