"""The alerts page over HTTP: all of it, live; one case whole; and what people say: acknowledge, silence, end a silence.

The last three change something. They are taken as a re-drive is: as JSON, from pages of this server only. Others who have
logged in may do them too (dash/door/door.py): somebody has to at night.
"""

from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from riverrun.dash.alerts.live import Alerts
from riverrun.dash.answers import json_answer
from riverrun.dash.asking import fields_of, refused, who
from riverrun.errors import UsageError

MOST_MINUTES = 30 * 24 * 60
MOST_KEY = 200
MOST_WHY = 200
_ACK: dict[str, type] = {"rule": str, "key": str, "number": int}
_SILENCE: dict[str, type] = {"rule": str, "key": str, "minutes": int, "why": str}

Answer = Callable[[Request], Awaitable[Response]]


def alerts_answers(alerts: Alerts | None) -> list[tuple[str, str, Answer]]:
    """Method, path and what answers; errors of riverrun's are for the caller to tell. Without alerts, only that."""

    async def nothing(_: Request) -> Response:
        return json_answer({"there": False, "count": 0, "worst": ""})

    if alerts is None:
        return [("GET", "/api/alerts/count", nothing)]
    return [*_telling(alerts), *_changing(alerts)]


def _telling(alerts: Alerts) -> list[tuple[str, str, Answer]]:
    async def whole(_: Request) -> Response:
        return json_answer(await alerts.state())

    async def count(_: Request) -> Response:
        return json_answer(await alerts.count())

    async def live(_: Request) -> Response:
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        return StreamingResponse(alerts.look_on().messages(), media_type="text/event-stream", headers=headers)

    async def case(request: Request) -> Response:
        text = request.path_params["number"]
        if not text.isascii() or not text.isdigit() or len(text) > 15:
            raise UsageError("The number of an alert cannot be understood", expected="a number", found=repr(text[:40]))
        return json_answer(
            await alerts.case(request.path_params["rule"], request.query_params.get("key", ""), int(text))
        )

    return [
        ("GET", "/api/alerts", whole),
        ("GET", "/api/alerts/count", count),
        ("GET", "/api/alerts/live", live),
        ("GET", "/api/alerts/case/{rule}/{number}", case),
    ]


def _changing(alerts: Alerts) -> list[tuple[str, str, Answer]]:
    async def acknowledge(request: Request) -> Response:
        if (refusal := refused(request, "acknowledge alerts")) is not None:
            return refusal
        asked = fields_of(await request.body(), _ACK, '{"rule": "…", "key": "…", "number": 1}')
        if missing := [name for name in _ACK if name not in asked]:
            raise UsageError(f"The request has no {missing[0]}", expected=", ".join(_ACK))
        return json_answer(await alerts.acknowledge(asked["rule"], asked["key"], asked["number"], who(request)))

    async def silence(request: Request) -> Response:
        if (refusal := refused(request, "silence alerts")) is not None:
            return refusal
        rule, key, minutes, why = _silence_of(await request.body())
        return json_answer(await alerts.silence(rule, key, minutes, why, who(request)))

    async def end(request: Request) -> Response:
        if (refusal := refused(request, "end silences", body=False)) is not None:
            return refusal
        return json_answer(await alerts.end_silence(request.path_params["id"]))

    return [
        ("POST", "/api/alerts/ack", acknowledge),
        ("POST", "/api/alerts/silence", silence),
        ("DELETE", "/api/alerts/silence/{id}", end),
    ]


def _silence_of(body: bytes) -> tuple[str, str, int, str]:
    asked = fields_of(body, _SILENCE, '{"rule": "…", "key": "…", "minutes": 60, "why": "…"}')
    minutes: int = asked.get("minutes", 0)
    if not 1 <= minutes <= MOST_MINUTES:
        raise UsageError("A silence has an end", expected="minutes from 1 to 43200 (30 days)", found=str(minutes))
    key, why = asked.get("key", ""), asked.get("why", "").strip()
    if len(key) > MOST_KEY or len(why) > MOST_WHY:
        raise UsageError("The request is too long", expected=f"a key and a reason of {MOST_KEY} letters at most")
    return asked.get("rule", ""), key, minutes, why
