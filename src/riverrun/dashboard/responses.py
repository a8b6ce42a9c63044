"""Responses of all routes: JSON, and the files of the pages."""

import gzip
import hashlib
import mimetypes
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

JSON = "application/json"


def json_response(content: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(content), status, {"cache-control": "no-store"}, JSON)


class Asset:
    """A file of the page: plain, gzipped, and its ETag."""

    def __init__(self, name: str, body: bytes) -> None:
        guessed_type = mimetypes.guess_type(name)[0] or "application/octet-stream"
        self.media_type = (
            f"{guessed_type}; charset=utf-8"
            if guessed_type.startswith(("text/", "application/javascript"))
            else guessed_type
        )
        self.body = body
        self.gzipped = gzip.compress(body, 9, mtime=0)
        self.etag = f'"{hashlib.sha256(body).hexdigest()[:20]}"'


@cache
def assets() -> Mapping[str, Asset]:
    """The files of the page, by name. Read once: they come with the package."""
    folder = files("riverrun.dashboard") / "assets"
    loaded = {}
    for file in folder.iterdir():
        if file.is_file():
            loaded[file.name] = Asset(file.name, file.read_bytes())
    return loaded


def asset_response(request: Request, asset: Asset) -> Response:
    # The browser revalidates its copy each time: after an update no page mixes old and new files.
    headers = {"cache-control": "no-cache", "etag": asset.etag, "vary": "accept-encoding"}
    if request.headers.get("if-none-match") == asset.etag:
        return Response(status_code=304, headers=headers)
    if "gzip" in request.headers.get("accept-encoding", ""):
        return Response(asset.gzipped, headers=headers | {"content-encoding": "gzip"}, media_type=asset.media_type)
    return Response(asset.body, headers=headers, media_type=asset.media_type)
