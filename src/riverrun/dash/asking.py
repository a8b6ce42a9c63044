"""Requests that change something: taken as application/json from pages of this server only, so that no other page can send
one on a user's behalf; and what they say, field by field."""

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response

from riverrun.dash.answers import JSON, json_answer
from riverrun.errors import UsageError

MOST_BYTES = 10_000
# Who it is, in the scope of every request that got past the door (dash/door/door.py).
WHO = "riverrun.who"
LOCAL = "this machine"
# All who log in by the password are one to us.
PASSWORD = "password"  # noqa: S105


def who(request: Request) -> str:
    """Who asks, in words for others."""
    name: str = request.scope.get(WHO, LOCAL)
    return "a viewer" if name == PASSWORD else name


def refused(request: Request, what: str, *, body: bool = True) -> Response | None:
    """Why this request may not change anything; `what` pages of others would do with it. Without a body it is no JSON."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if body and kind != JSON:
        return error_answer(415, "NOT_JSON", "What changes something is asked for as application/json")
    origin = request.headers.get("origin")
    site = request.headers.get("sec-fetch-site", "same-origin")
    if site not in ("same-origin", "none") or (origin and urlsplit(origin).netloc != request.headers.get("host")):
        return error_answer(403, "FORBIDDEN", f"Only pages of this server may {what}")
    return None


def error_answer(status: int, code: str, message: str) -> Response:
    return json_answer({"error": {"code": code, "message": message}}, status)


def fields_of(body: bytes, kinds: Mapping[str, type], expected: str) -> dict[str, Any]:
    """What a request says: an object of fields of these kinds, and no others. Numbers are not negative."""
    if len(body) > MOST_BYTES:
        raise UsageError("The request is too long", expected=f"at most {MOST_BYTES} bytes")
    try:
        asked = json.loads(body)
    except (ValueError, RecursionError):
        raise UsageError("The request is not JSON", expected=expected) from None
    if not isinstance(asked, dict):
        raise UsageError("The request is no object", expected=expected)
    for name, value in asked.items():
        if name not in kinds:
            raise UsageError(f"There can be no {name[:40]!r} in a request", expected=", ".join(kinds))
        # A boolean is a number to Python.
        if type(value) is not kinds[name] or (isinstance(value, int) and value < 0):
            raise UsageError(f"{name} cannot be {json.dumps(value)[:80]}", expected=kinds[name].__name__)
    return asked
