"""A gate with a login and TLS before a server that has neither, as people put one before a Druid or a Connect."""

import base64
import ssl
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from riverrun.cluster.loopback import listening_socket
from riverrun.web.server import HttpEndpoint, HttpServer
from support.maven import CERTIFICATE, TLS

# What belongs to one connection, and what httpx has undone.
LEFT_OUT = frozenset({"connection", "content-encoding", "content-length", "host", "keep-alive", "transfer-encoding"})


@contextmanager
def gate(behind: str, user: str, password: str) -> Iterator[str]:
    """The address at which `behind` is reached by this user only."""
    login = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request = Request(scope, receive)
        if request.headers.get("authorization") != login:
            answer = Response("who are you?", 401, {"WWW-Authenticate": 'Basic realm="gate"'})
            await answer(scope, receive, send)
            return
        passed = {name: value for name, value in request.headers.items() if name not in LEFT_OUT | {"authorization"}}
        async with httpx.AsyncClient(base_url=behind, timeout=120, trust_env=False) as client:
            path = httpx.URL(path=request.url.path, query=request.url.query.encode())
            found = await client.request(request.method, path, headers=passed, content=await request.body())
        headers = {name: value for name, value in found.headers.items() if name not in LEFT_OUT}
        await Response(found.content, found.status_code, headers)(scope, receive, send)

    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(CERTIFICATE, TLS / "key.pem")
    socket = listening_socket(0)
    listeners = HttpServer([HttpEndpoint(app, socket, tls)], name="gate")
    listeners.start()
    try:
        yield f"https://127.0.0.1:{socket.getsockname()[1]}"
    finally:
        listeners.close()
