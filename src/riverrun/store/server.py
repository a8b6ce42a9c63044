"""The store's HTTP API: tables, where they stand, and questions about them.

Who may call it, and how, is in `store/manners.py`; where it listens, in `store/listening.py`. An error is
`{"error": {"code", "message", …}}` with the status that fits.
"""

import asyncio
import contextlib
import json
import logging
import shutil
import socket
import tempfile
import uuid
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Self

from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import BaseRoute, Route

from riverrun.cluster.loopback import listen, listening
from riverrun.cluster.ports import HOST, Claims
from riverrun.errors import (
    ConfigError,
    QueryCancelledError,
    QueryError,
    QueryRefusedError,
    QueryTimeoutError,
    RiverrunError,
    StoreError,
    StoreTableError,
    StoreUnavailableError,
    UsageError,
)
from riverrun.model.near import nearest
from riverrun.store.contract import Answer, Limits, Store
from riverrun.store.formats import MEDIA, document, encoded
from riverrun.store.listening import FIRST_OUTSIDE_PORT, FromOutside, Listener, Listeners, Outside, most_connections
from riverrun.store.manners import Manners, error_body
from riverrun.store.scheduling import QueryScheduler
from riverrun.store.sql import describe, vocabulary

FIRST_PORT = 8480
MOST_ROWS = 1_000_000
_FIELDS: dict[str, Any] = {"sql": str, "limit": int, "seconds": (int, float), "format": str, "name": str}
_STATUS: tuple[tuple[type[RiverrunError], int], ...] = (
    (QueryRefusedError, 403),
    (QueryError, 400),
    (QueryTimeoutError, 504),
    (QueryCancelledError, 409),
    (StoreUnavailableError, 503),
    (StoreTableError, 409),
    (UsageError, 400),
)
_LOG = logging.getLogger(__name__)


class StoreServer:
    """Serves a store that is open. `port` 0 takes a free one; `routes` are what else it carries, such as the dashboard;
    `outside` serves others too."""

    def __init__(
        self,
        store: Store,
        port: int = 0,
        *,
        limits: Limits = Limits(),  # noqa: B008  -- frozen
        routes: Sequence[BaseRoute] = (),
        outside: Outside | None = None,
    ) -> None:
        self._api = _Api(store, limits)
        self._port = port
        self._routes = routes
        self._outside = outside
        self._claims = Claims()
        self._listeners: Listeners | None = None
        self.address = ""
        # For others; empty where they are not served.
        self.outside_address = ""
        self.outside_port = 0

    def start(self) -> str:
        """Listen; gives the address on this machine, such as `http://127.0.0.1:8480`."""
        if self._listeners is not None:
            return self.address
        with contextlib.ExitStack() as undo:
            undo.callback(self._claims.close)
            inside = listen(
                listening, self._claims, self._port, first=FIRST_PORT, what="the store's HTTP API", setting="store.port"
            )
            undo.callback(inside.close)
            app = self._api.application(self._routes, self._outside)
            listeners = [Listener(app, inside)]
            address, outside_address = f"http://{HOST}:{inside.getsockname()[1]}", ""
            if self._outside is not None:
                tls = self._outside.tls()
                found = self._listen_outside(self._outside)
                undo.callback(found.close)
                outside_app = FromOutside(app, self._outside.proxies)
                listeners.append(Listener(outside_app, found, tls, most_connections()))
                self.outside_port = found.getsockname()[1]
                outside_address = self._outside.address(self.outside_port)
            serving = Listeners(listeners)
            serving.start()
            undo.pop_all()
        self._listeners, self.address, self.outside_address = serving, address, outside_address
        return address

    def _listen_outside(self, outside: Outside) -> socket.socket:
        try:
            return listen(
                partial(listening, host=outside.host),
                self._claims,
                outside.port,
                first=FIRST_OUTSIDE_PORT,
                what="dashboards for others",
                setting="serve.port",
            )
        except OSError as error:
            raise ConfigError(
                [f"serve.host {outside.host} is no address of this machine: {error.strerror or error}"]
            ) from error

    def close(self) -> None:
        """End the questions that run, stop listening and give the ports back."""
        self._api.cancel_all()
        listeners, self._listeners = self._listeners, None
        if listeners is not None:
            listeners.close()
        self._claims.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Api:
    def __init__(self, store: Store, limits: Limits) -> None:
        self._store = store
        self._limits = limits
        self._scheduler = QueryScheduler(store)
        self._copying = asyncio.Lock()

    def application(self, routes: Sequence[BaseRoute], outside: Outside | None) -> Starlette:
        own = [
            Route("/healthz", self.health),
            Route("/api/tables", self.tables),
            Route("/api/tables/{name}", self.table),
            Route("/api/tables/{name}", self.remove, methods=["DELETE"]),
            Route("/api/sql", self.language),
            Route("/api/query", self.query, methods=["POST"]),
            Route("/api/query/{name}", self.cancel, methods=["DELETE"]),
            Route("/api/snapshot", self.snapshot, methods=["POST"]),
        ]
        around = [Middleware(Manners)]
        if outside is not None:
            around = [Middleware(Manners, outside.names, https_only=outside.https_only), Middleware(outside.guard)]
        return Starlette(
            routes=[*own, *routes],
            middleware=around,
            exception_handlers={RiverrunError: _riverrun_error, HTTPException: _http_error, Exception: _other_error},
        )

    def cancel_all(self) -> None:
        self._scheduler.cancel_all()

    async def health(self, request: Request) -> Response:  # noqa: ARG002
        standing = await run_in_threadpool(self._store.standing)
        failing = [each.table for each in standing if each.state == "failing"]
        return JSONResponse({"healthy": not failing, "failing": failing}, 503 if failing else 200)

    async def tables(self, request: Request) -> Response:  # noqa: ARG002
        return JSONResponse({"tables": await run_in_threadpool(self._described)})

    async def table(self, request: Request) -> Response:
        name = request.path_params["name"]
        described = await run_in_threadpool(self._described)
        found = next((each for each in described if each["name"].lower() == name.lower()), None)
        if found is None:
            return self._no_table(name)
        return JSONResponse(found)

    async def remove(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in self._store.tables:
            return self._no_table(name)
        await run_in_threadpool(self._store.remove, name)
        return JSONResponse({"removed": name})

    def _no_table(self, name: str) -> Response:
        known = sorted(self._store.tables)
        near = nearest(name, known)
        error = QueryError(
            f"There is no table {name}",
            expected=", ".join(known),
            hint=f"Did you mean {near}?" if near else "",
            table=name,
        )
        return _failed(error, 404)

    def _described(self) -> list[dict[str, Any]]:
        """Every table with its columns and where it stands."""
        standing = {each.table: asdict(each) for each in self._store.standing()}
        found = []
        for each in describe(self._store.tables):
            where = standing.get(each["name"], {})
            where.pop("table", None)
            found.append({**each, **where})
        return found

    async def language(self, request: Request) -> Response:  # noqa: ARG002
        """What a question may say and take, for an editor."""
        limits = {"rows": self._limits.rows, "seconds": self._limits.seconds, "most_rows": MOST_ROWS}
        return JSONResponse({**vocabulary(), "limits": limits})

    async def query(self, request: Request) -> Response:
        asked = await _question(request)
        kind = asked.get("format", "json")
        if kind not in MEDIA:
            raise UsageError(f"There is no format {kind!r}", expected=", ".join(MEDIA))
        limits = self._limits_of(asked)
        name = asked.get("name") or f"http-{uuid.uuid4().hex}"
        if name in self._scheduler:
            return _failed(QueryError(f"A question called {name} runs already", hint="Give it another name"), 409)
        answer = await self._answer(request, asked["sql"], limits, name)
        body = await run_in_threadpool(lambda: document(answer) if kind == "json" else encoded(answer, kind))
        headers = {
            "X-Riverrun-More": "true" if answer.more else "false",
            "X-Riverrun-Seconds": f"{answer.seconds:.6f}",
            "X-Riverrun-Query": name,
        }
        return Response(body, headers=headers, media_type=MEDIA[kind])

    def _limits_of(self, asked: dict[str, Any]) -> Limits:
        rows = asked.get("limit", self._limits.rows)
        seconds = float(asked.get("seconds", self._limits.seconds))
        if not 1 <= rows <= MOST_ROWS:
            raise UsageError(f"limit is {rows}", expected=f"1 to {MOST_ROWS} rows")
        if not 0 < seconds <= self._limits.seconds:
            raise UsageError(
                f"seconds is {seconds:g}", expected=f"up to {self._limits.seconds:g}, which store.query_seconds says"
            )
        return Limits(rows, seconds)

    async def _answer(self, request: Request, sql: str, limits: Limits, name: str) -> Answer:
        """The answer; where the client goes away meanwhile, the question is ended."""
        asking = asyncio.ensure_future(self._scheduler.ask(sql, limits, name))
        leaving = asyncio.ensure_future(_left(request))
        try:
            await asyncio.wait({asking, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not asking.done():
                self._scheduler.cancel(name)
            return await asking
        finally:
            leaving.cancel()

    async def snapshot(self, request: Request) -> Response:  # noqa: ARG002
        """A copy of all tables as a DuckDB file, made beside the store's own and gone when it is sent."""
        if self._copying.locked():
            return _failed(StoreUnavailableError("A snapshot is being made", hint="Ask again when it is done"))
        async with self._copying:
            folder = Path(tempfile.mkdtemp(prefix="snapshot-", dir=self._store.folder))
            path = folder / "tables.duckdb"
            try:
                await run_in_threadpool(self._store.snapshot, path)
            except BaseException:
                shutil.rmtree(folder, ignore_errors=True)
                raise
        return FileResponse(
            path, media_type="application/octet-stream", background=BackgroundTask(shutil.rmtree, folder, True)
        )

    async def cancel(self, request: Request) -> Response:
        name = request.path_params["name"]
        if not self._scheduler.cancel(name):
            return _failed(QueryError(f"No question called {name} runs", name=name), 404)
        return JSONResponse({"cancelled": name})


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _question(request: Request) -> dict[str, Any]:
    try:
        asked = json.loads(await request.body())
    except (ValueError, RecursionError):
        raise UsageError("The request is not JSON", expected='{"sql": "select …"}') from None
    if not isinstance(asked, dict) or not isinstance(asked.get("sql"), str):
        raise UsageError("The request has no question", expected='{"sql": "select …"}')
    if unknown := sorted(set(asked) - set(_FIELDS)):
        raise UsageError(f"There is no {unknown[0]!r} in a request", expected=", ".join(_FIELDS))
    for name, value in asked.items():
        if not isinstance(value, _FIELDS[name]) or isinstance(value, bool):
            raise UsageError(
                f"{name} cannot be {json.dumps(value)[:80]}", expected="text" if _FIELDS[name] is str else "a number"
            )
    return asked


def _failed(error: RiverrunError, status: int | None = None) -> Response:
    found = status or next((each for kind, each in _STATUS if isinstance(error, kind)), 500)
    parts = {name: getattr(error, name) for name in ("what", "expected", "found", "hint", "lines")}
    return JSONResponse({"error": {**error.as_dict(), "parts": parts}}, found)


async def _riverrun_error(request: Request, error: Exception) -> Response:  # noqa: ARG001
    return _failed(error if isinstance(error, RiverrunError) else StoreError(str(error)))


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101
    codes = {404: "NOT_FOUND", 405: "METHOD_NOT_ALLOWED", 408: "TOO_SLOW", 413: "TOO_LARGE"}
    message = f"There is no {request.url.path}" if error.status_code == 404 else str(error.detail)
    return JSONResponse(error_body(codes.get(error.status_code, "HTTP"), message), error.status_code, error.headers)


async def _other_error(request: Request, error: Exception) -> Response:
    _LOG.debug("%s failed", request.url.path, exc_info=True)
    return JSONResponse(error_body("INTERNAL", f"{type(error).__name__}: {error}"), 500)
