"""The store's HTTP API: tables, their status, and queries.

Who may call it, and how, is in `web/guard.py`; where it listens, in `web/server.py`. An error is `{"error": {"code",
"message", …}}` with the status that fits.
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

from riverrun.cluster.loopback import listen_on_free_port, listening_socket
from riverrun.cluster.ports import HOST, PortClaims
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
from riverrun.model.suggest import nearest
from riverrun.store.contract import QueryLimits, QueryResult, Store
from riverrun.store.formats import MEDIA_TYPES, encode_result, encode_rows
from riverrun.store.scheduler import QueryScheduler
from riverrun.store.sql import describe_tables, sql_vocabulary
from riverrun.web.guard import RequestGuard, error_body
from riverrun.web.server import (
    FIRST_PUBLIC_PORT,
    HttpEndpoint,
    HttpServer,
    PublicListener,
    PublicRequestMiddleware,
    max_connections,
)

FIRST_PORT = 8480
MAX_ROWS = 1_000_000
_QUERY_FIELDS: dict[str, Any] = {"sql": str, "limit": int, "seconds": (int, float), "format": str, "name": str}
_HTTP_STATUS: tuple[tuple[type[RiverrunError], int], ...] = (
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
    `public` serves others too."""

    def __init__(
        self,
        store: Store,
        port: int = 0,
        *,
        limits: QueryLimits = QueryLimits(),  # noqa: B008  -- frozen
        routes: Sequence[BaseRoute] = (),
        public: PublicListener | None = None,
    ) -> None:
        self._api = _StoreApi(store, limits)
        self._port = port
        self._routes = routes
        self._public = public
        self._claims = PortClaims()
        self._http: HttpServer | None = None
        self.address = ""
        # The address for other machines; empty where they are not served.
        self.public_address = ""
        self.public_port = 0

    def start(self) -> str:
        """Listen; returns the address on this machine, such as `http://127.0.0.1:8480`."""
        if self._http is not None:
            return self.address
        with contextlib.ExitStack() as undo:
            undo.callback(self._claims.close)
            local_socket = listen_on_free_port(
                listening_socket,
                self._claims,
                self._port,
                first=FIRST_PORT,
                what="the store's HTTP API",
                setting="store.port",
            )
            undo.callback(local_socket.close)
            app = self._api.application(self._routes, self._public)
            endpoints = [HttpEndpoint(app, local_socket)]
            address, public_address = f"http://{HOST}:{local_socket.getsockname()[1]}", ""
            if self._public is not None:
                tls = self._public.tls()
                public_socket = self._listen_public(self._public)
                undo.callback(public_socket.close)
                public_app = PublicRequestMiddleware(app, self._public.proxies)
                endpoints.append(HttpEndpoint(public_app, public_socket, tls, max_connections()))
                self.public_port = public_socket.getsockname()[1]
                public_address = self._public.address(self.public_port)
            http = HttpServer(endpoints)
            http.start()
            undo.pop_all()
        self._http, self.address, self.public_address = http, address, public_address
        return address

    def _listen_public(self, public: PublicListener) -> socket.socket:
        try:
            return listen_on_free_port(
                partial(listening_socket, host=public.host),
                self._claims,
                public.port,
                first=FIRST_PUBLIC_PORT,
                what="dashboards for others",
                setting="serve.port",
            )
        except OSError as error:
            raise ConfigError(
                [f"serve.host {public.host} is no address of this machine: {error.strerror or error}"]
            ) from error

    def close(self) -> None:
        """Cancel the running queries, stop listening and release the ports."""
        self._api.cancel_all()
        http, self._http = self._http, None
        if http is not None:
            http.close()
        self._claims.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _StoreApi:
    def __init__(self, store: Store, limits: QueryLimits) -> None:
        self._store = store
        self._limits = limits
        self._scheduler = QueryScheduler(store)
        self._snapshot_lock = asyncio.Lock()

    def application(self, routes: Sequence[BaseRoute], public: PublicListener | None) -> Starlette:
        own = [
            Route("/healthz", self.health),
            Route("/api/tables", self.tables),
            Route("/api/tables/{name}", self.table),
            Route("/api/tables/{name}", self.remove, methods=["DELETE"]),
            Route("/api/sql", self.sql_reference),
            Route("/api/query", self.query, methods=["POST"]),
            Route("/api/query/{name}", self.cancel, methods=["DELETE"]),
            Route("/api/snapshot", self.snapshot, methods=["POST"]),
        ]
        middleware = [Middleware(RequestGuard)]
        if public is not None:
            middleware = [
                Middleware(RequestGuard, public.names, https_only=public.https_only),
                Middleware(public.guard),
            ]
        return Starlette(
            routes=[*own, *routes],
            middleware=middleware,
            exception_handlers={RiverrunError: _riverrun_error, HTTPException: _http_error, Exception: _other_error},
        )

    def cancel_all(self) -> None:
        self._scheduler.cancel_all()

    async def health(self, request: Request) -> Response:  # noqa: ARG002
        statuses = await run_in_threadpool(self._store.table_statuses)
        failing = [status.table for status in statuses if status.state == "failing"]
        return JSONResponse({"healthy": not failing, "failing": failing}, 503 if failing else 200)

    async def tables(self, request: Request) -> Response:  # noqa: ARG002
        return JSONResponse({"tables": await run_in_threadpool(self._describe_tables)})

    async def table(self, request: Request) -> Response:
        name = request.path_params["name"]
        described = await run_in_threadpool(self._describe_tables)
        table = next((entry for entry in described if entry["name"].lower() == name.lower()), None)
        if table is None:
            return self._table_not_found(name)
        return JSONResponse(table)

    async def remove(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in self._store.tables:
            return self._table_not_found(name)
        await run_in_threadpool(self._store.remove, name)
        return JSONResponse({"removed": name})

    def _table_not_found(self, name: str) -> Response:
        known = sorted(self._store.tables)
        near = nearest(name, known)
        error = QueryError(
            f"There is no table {name}",
            expected=", ".join(known),
            hint=f"Did you mean {near}?" if near else "",
            table=name,
        )
        return _error_response(error, 404)

    def _describe_tables(self) -> list[dict[str, Any]]:
        """Every table with its columns and status."""
        statuses = {entry.table: asdict(entry) for entry in self._store.table_statuses()}
        tables = []
        for entry in describe_tables(self._store.tables):
            status = statuses.get(entry["name"], {})
            status.pop("table", None)
            tables.append({**entry, **status})
        return tables

    async def sql_reference(self, request: Request) -> Response:  # noqa: ARG002
        """The SQL vocabulary and limits, for an editor."""
        limits = {"rows": self._limits.rows, "seconds": self._limits.seconds, "most_rows": MAX_ROWS}
        return JSONResponse({**sql_vocabulary(), "limits": limits})

    async def query(self, request: Request) -> Response:
        request_body = await _read_query_request(request)
        format_name = request_body.get("format", "json")
        if format_name not in MEDIA_TYPES:
            raise UsageError(f"There is no format {format_name!r}", expected=", ".join(MEDIA_TYPES))
        limits = self._query_limits(request_body)
        name = request_body.get("name") or f"http-{uuid.uuid4().hex}"
        if name in self._scheduler:
            return _error_response(
                QueryError(f"A question called {name} runs already", hint="Give it another name"), 409
            )
        result = await self._run_query(request, request_body["sql"], limits, name)
        body = await run_in_threadpool(
            lambda: encode_result(result) if format_name == "json" else encode_rows(result, format_name)
        )
        headers = {
            "X-Riverrun-More": "true" if result.more else "false",
            "X-Riverrun-Seconds": f"{result.seconds:.6f}",
            "X-Riverrun-Query": name,
        }
        return Response(body, headers=headers, media_type=MEDIA_TYPES[format_name])

    def _query_limits(self, body: dict[str, Any]) -> QueryLimits:
        rows = body.get("limit", self._limits.rows)
        seconds = float(body.get("seconds", self._limits.seconds))
        if not 1 <= rows <= MAX_ROWS:
            raise UsageError(f"limit is {rows}", expected=f"1 to {MAX_ROWS} rows")
        if not 0 < seconds <= self._limits.seconds:
            raise UsageError(
                f"seconds is {seconds:g}", expected=f"up to {self._limits.seconds:g}, which store.query_seconds says"
            )
        return QueryLimits(rows, seconds)

    async def _run_query(self, request: Request, sql: str, limits: QueryLimits, name: str) -> QueryResult:
        """The result; if the client disconnects meanwhile, the query is cancelled."""
        query = asyncio.ensure_future(self._scheduler.query(sql, limits, name))
        disconnect = asyncio.ensure_future(_wait_for_disconnect(request))
        try:
            await asyncio.wait({query, disconnect}, return_when=asyncio.FIRST_COMPLETED)
            if not query.done():
                self._scheduler.cancel(name)
            return await query
        finally:
            disconnect.cancel()

    async def snapshot(self, request: Request) -> Response:  # noqa: ARG002
        """A copy of all tables as a DuckDB file, made beside the store's own and deleted once it is sent."""
        if self._snapshot_lock.locked():
            return _error_response(StoreUnavailableError("A snapshot is being made", hint="Ask again when it is done"))
        async with self._snapshot_lock:
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
            return _error_response(QueryError(f"No question called {name} runs", name=name), 404)
        return JSONResponse({"cancelled": name})


async def _wait_for_disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _read_query_request(request: Request) -> dict[str, Any]:
    try:
        body = json.loads(await request.body())
    except (ValueError, RecursionError):
        raise UsageError("The request is not JSON", expected='{"sql": "select …"}') from None
    if not isinstance(body, dict) or not isinstance(body.get("sql"), str):
        raise UsageError("The request has no question", expected='{"sql": "select …"}')
    if unknown := sorted(set(body) - set(_QUERY_FIELDS)):
        raise UsageError(f"There is no {unknown[0]!r} in a request", expected=", ".join(_QUERY_FIELDS))
    for name, value in body.items():
        if not isinstance(value, _QUERY_FIELDS[name]) or isinstance(value, bool):
            raise UsageError(
                f"{name} cannot be {json.dumps(value)[:80]}",
                expected="text" if _QUERY_FIELDS[name] is str else "a number",
            )
    return body


def _error_response(error: RiverrunError, status: int | None = None) -> Response:
    status_code = status or next((code for kind, code in _HTTP_STATUS if isinstance(error, kind)), 500)
    parts = {name: getattr(error, name) for name in ("what", "expected", "found", "hint", "lines")}
    return JSONResponse({"error": {**error.as_dict(), "parts": parts}}, status_code)


async def _riverrun_error(request: Request, error: Exception) -> Response:  # noqa: ARG001
    return _error_response(error if isinstance(error, RiverrunError) else StoreError(str(error)))


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101
    codes = {404: "NOT_FOUND", 405: "METHOD_NOT_ALLOWED", 408: "TOO_SLOW", 413: "TOO_LARGE"}
    message = f"There is no {request.url.path}" if error.status_code == 404 else str(error.detail)
    return JSONResponse(error_body(codes.get(error.status_code, "HTTP"), message), error.status_code, error.headers)


async def _other_error(request: Request, error: Exception) -> Response:
    _LOG.debug("%s failed", request.url.path, exc_info=True)
    return JSONResponse(error_body("INTERNAL", f"{type(error).__name__}: {error}"), 500)
