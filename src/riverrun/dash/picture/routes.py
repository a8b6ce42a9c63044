"""The pipeline picture over HTTP: the picture, live; details of its nodes; and sending dead letters back.

Only the last changes anything. It is taken as application/json from pages of this server only, so that no other page can
send it on a user's behalf.
"""

import json
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from riverrun.dash.answers import JSON, json_answer
from riverrun.dash.picture.details import Choice
from riverrun.dash.picture.live import Picture
from riverrun.errors import UsageError

DEFAULT_RECORDS = 20
MOST_REASON = 300
MOST_BYTES = 10_000
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
        refused = _refused(request)
        if refused is not None:
            return refused
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


def _refused(request: Request) -> Response | None:
    """Why this request may not change anything."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != JSON:
        return _error(415, "NOT_JSON", "A re-drive is asked for as application/json")
    origin = request.headers.get("origin")
    site = request.headers.get("sec-fetch-site", "same-origin")
    if site not in ("same-origin", "none") or (origin and urlsplit(origin).netloc != request.headers.get("host")):
        return _error(403, "FORBIDDEN", "Only pages of this server may send dead letters back")
    return None


def _error(status: int, code: str, message: str) -> Response:
    return json_answer({"error": {"code": code, "message": message}}, status)


def _asked(body: bytes) -> tuple[Choice, bool]:
    expected = '{"reason": "…", "dry_run": true}, or "partition" and "offset" of one letter'
    if len(body) > MOST_BYTES:
        raise UsageError("The request is too long", expected=f"at most {MOST_BYTES} bytes")
    try:
        asked = json.loads(body)
    except (ValueError, RecursionError):
        raise UsageError("The request is not JSON", expected=expected) from None
    if not isinstance(asked, dict):
        raise UsageError("The request is no object", expected=expected)
    for name, value in asked.items():
        if name not in _FIELDS:
            raise UsageError(f"There can be no {name[:40]!r} in a request", expected=", ".join(_FIELDS))
        # A boolean is a number to Python.
        if type(value) is not _FIELDS[name] or (isinstance(value, int) and value < 0):
            raise UsageError(f"{name} cannot be {json.dumps(value)[:80]}", expected=_FIELDS[name].__name__)
    if "dry_run" not in asked:
        raise UsageError("The request does not say whether to send", expected='"dry_run": true or false')
    if ("partition" in asked) != ("offset" in asked):
        raise UsageError("A letter is named by its partition and its offset", expected=expected)
    dry_run: bool = asked.pop("dry_run")
    return Choice(**asked), dry_run
