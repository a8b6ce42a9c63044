"""A proxy that ends TLS, as nginx and its kind do: browsers speak https to it, and it speaks http to the server behind."""

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

READY_SECONDS = 30.0
# What a proxy adds to a request. Gives the headers it sends instead of those it got.
Forwarding = Callable[[Request], Sequence[tuple[str, str]]]
# These are of one hop.
_HOP = frozenset({"connection", "keep-alive", "transfer-encoding", "content-length", "host"})
_HOP_BYTES = frozenset(each.encode() for each in _HOP - {"content-length"})


def usual(request: Request) -> list[tuple[str, str]]:
    """What the documented nginx settings send: the name that was called, how, and by whom."""
    before = request.headers.get("x-forwarded-for")
    client = request.client.host if request.client else ""
    return [
        ("host", request.headers["host"]),
        ("x-forwarded-proto", request.url.scheme),
        ("x-forwarded-for", f"{before}, {client}" if before else client),
    ]


class TlsProxy:
    """Serves https at `address`, while it is entered, and passes everything on to `to`.

    `local_address` is the address it calls from, as another machine would have one of its own.
    """

    def __init__(
        self, to: str, certificate: Path, key: Path, *, forwarding: Forwarding = usual, local_address: str = "127.0.0.1"
    ) -> None:
        self._to = to
        self.forwarding = forwarding
        self._local_address = local_address
        self._socket = socket.socket()
        self._socket.bind(("127.0.0.1", 0))
        self.address = f"https://127.0.0.1:{self._socket.getsockname()[1]}"
        app = Starlette(routes=[Route("/{path:path}", self._pass_on, methods=["GET", "POST", "PUT", "DELETE"])])
        self._server = uvicorn.Server(
            uvicorn.Config(
                app,
                log_config=None,
                lifespan="off",
                proxy_headers=False,
                ssl_certfile=certificate,
                ssl_keyfile=key,
                timeout_graceful_shutdown=1,
            )
        )
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._socket]}, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        deadline = time.monotonic() + READY_SECONDS
        while not self._server.started:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join(READY_SECONDS)
        self._socket.close()

    async def _pass_on(self, request: Request) -> Response:
        added = self.forwarding(request)
        known = _HOP | {name for name, _ in added}
        headers = [(name, value) for name, value in request.headers.items() if name not in known] + list(added)
        transport = httpx.AsyncHTTPTransport(local_address=self._local_address)
        async with contextlib.AsyncExitStack() as opened:
            client = await opened.enter_async_context(httpx.AsyncClient(transport=transport, timeout=30))
            asked = client.build_request(
                request.method,
                f"{self._to}{request.url.path}",
                params=request.query_params,
                headers=headers,
                content=await request.body(),
            )
            answer = await client.send(asked, stream=True)
            found = StreamingResponse(answer.aiter_raw(), answer.status_code)
            found.raw_headers = [
                (name.lower(), value) for name, value in answer.headers.raw if name.lower() not in _HOP_BYTES
            ]
            found.background = BackgroundTask(opened.pop_all().aclose)
        return found
