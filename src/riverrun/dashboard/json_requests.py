"""Requests that change something: accepted as application/json from pages of this server only, so that no other page can
send one on a user's behalf. Also parses their fields."""

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response

from riverrun.dashboard.responses import JSON, json_response
from riverrun.errors import UsageError

MAX_BODY_BYTES = 10_000
# The user, in the scope of every request that passed the login gate (dashboard/login.py).
USER_SCOPE_KEY = "riverrun.who"
LOCAL_USER = "this machine"
# All who log in with the password are one user.
PASSWORD_USER = "password"  # noqa: S105


def current_user(request: Request) -> str:
    """The user of a request, as shown to others."""
    name: str = request.scope.get(USER_SCOPE_KEY, LOCAL_USER)
    return "a viewer" if name == PASSWORD_USER else name


def reject_cross_site(request: Request, action: str, *, body: bool = True) -> Response | None:
    """The response that rejects a cross-site request, None when it is allowed. `action` is what the request does. Without
    a body it needs no JSON content type."""
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if body and content_type != JSON:
        return error_response(415, "NOT_JSON", "What changes something is asked for as application/json")
    origin = request.headers.get("origin")
    site = request.headers.get("sec-fetch-site", "same-origin")
    if site not in ("same-origin", "none") or (origin and urlsplit(origin).netloc != request.headers.get("host")):
        return error_response(403, "FORBIDDEN", f"Only pages of this server may {action}")
    return None


def error_response(status: int, code: str, message: str) -> Response:
    return json_response({"error": {"code": code, "message": message}}, status)


def parse_fields(body: bytes, types: Mapping[str, type], expected: str) -> dict[str, Any]:
    """Parse a request: an object with fields of these types, and no others. Numbers are not negative."""
    if len(body) > MAX_BODY_BYTES:
        raise UsageError("The request is too long", expected=f"at most {MAX_BODY_BYTES} bytes")
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        raise UsageError("The request is not JSON", expected=expected) from None
    if not isinstance(content, dict):
        raise UsageError("The request is no object", expected=expected)
    for name, value in content.items():
        if name not in types:
            raise UsageError(f"There can be no {name[:40]!r} in a request", expected=", ".join(types))
        # In Python a boolean is an int.
        if type(value) is not types[name] or (isinstance(value, int) and value < 0):
            raise UsageError(f"{name} cannot be {json.dumps(value)[:80]}", expected=types[name].__name__)
    return content
