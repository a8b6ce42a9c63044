"""Druid's HTTP API, as far as riverrun needs it: supervisors, tasks, rules, segments, SQL.

All requests go to one address, a router, which passes them on to overlord, coordinator or broker. Every failure becomes
one of riverrun's errors, with Druid's own words.
"""

import ipaddress
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit

import httpx

from riverrun.artifacts.tls import tls_context
from riverrun.config.spec import DruidSettings
from riverrun.errors import (
    QueryCancelledError,
    QueryError,
    QueryRefusedError,
    QueryTimeoutError,
    RiverrunError,
    StoreError,
    StoreUnavailableError,
)

_CONNECT_SECONDS = 5.0
_OVERLORD = "/druid/indexer/v1"
_COORDINATOR = "/druid/coordinator/v1"
# Druid ends a query at its own time limit; the response that says so needs a moment more.
_GRACE_SECONDS = 5.0
# The audit headers: coordinator and overlord log who made a change.
_AUTHOR = {"X-Druid-Author": "riverrun"}


@dataclass(frozen=True)
class DruidSqlResult:
    """The result of Druid's SQL: names, SQL types, and rows as in the JSON."""

    names: list[str]
    types: list[str]
    rows: list[list[Any]]


class DruidClient:
    """One Druid. Cheap to create; it connects at the first call, and is thread-safe."""

    def __init__(self, url: str, settings: DruidSettings, *, seconds: float = 30.0) -> None:
        self.url = url.rstrip("/")
        self._seconds = seconds
        login = (settings.username, settings.password.reveal()) if settings.username else None
        secure = self.url.startswith("https:")
        self._http = httpx.Client(
            base_url=self.url,
            auth=login,
            timeout=httpx.Timeout(seconds, connect=_CONNECT_SECONDS),
            verify=tls_context(os.environ) if secure else True,
            limits=httpx.Limits(max_connections=64, max_keepalive_connections=16, keepalive_expiry=30),
            # An overlord that is not the leader redirects to the one that is.
            follow_redirects=True,
            # No proxy for requests from this machine to itself.
            trust_env=not _is_loopback(self.url),
        )

    def close(self) -> None:
        self._http.close()

    # --- the cluster --------------------------------------------------------------------------------------------------

    def version(self) -> str:
        """Druid's version, such as 33.0.0."""
        status = self._get("/status")
        return str(status.get("version") or "") if isinstance(status, dict) else ""

    # --- supervisors and tasks ----------------------------------------------------------------------------------------

    def supervisors(self) -> dict[str, dict[str, Any]]:
        """All supervisors that are not terminated: id → id, state, detailedState, healthy, suspended, spec."""
        supervisors = self._get(f"{_OVERLORD}/supervisor", full="true")
        return {str(supervisor["id"]): supervisor for supervisor in supervisors}

    def submit(self, spec: Mapping[str, Any]) -> None:
        """Create or change a supervisor. A running one hands over: new tasks start where the previous ones end."""
        self._request("POST", f"{_OVERLORD}/supervisor", body=spec)

    def supervisor_status(self, name: str) -> dict[str, Any] | None:
        """The payload of a supervisor's status; None when there is none of that name."""
        status = self._request_or_none(f"{_OVERLORD}/supervisor/{_url_part(name)}/status")
        return None if status is None else dict(status.get("payload") or {})

    def supervisor_stats(self, name: str) -> dict[str, dict[str, int]]:
        """The row counts of each running task: task → processed, unparseable, thrownAway, processedWithError."""
        groups = self._request_or_none(f"{_OVERLORD}/supervisor/{_url_part(name)}/stats") or {}
        return {
            task: dict((stats.get("totals") or {}).get("buildSegments") or {})
            for group in groups.values()
            for task, stats in group.items()
        }

    def parse_errors(self, name: str) -> list[dict[str, Any]]:
        """The last records that running tasks could not read: {input, details, timeOfExceptionMillis, …}."""
        return _flatten_errors(self._request_or_none(f"{_OVERLORD}/supervisor/{_url_part(name)}/parseErrors"))

    def terminate(self, name: str) -> bool:
        """End a supervisor and its tasks; rows they have read and not published are dropped. False when there is none."""
        return self._request_or_none(f"{_OVERLORD}/supervisor/{_url_part(name)}/terminate", "POST") is not None

    def reset(self, name: str) -> bool:
        """Forget a supervisor's offsets. False when there is none."""
        return self._request_or_none(f"{_OVERLORD}/supervisor/{_url_part(name)}/reset", "POST") is not None

    def history(self, name: str) -> list[dict[str, Any]]:
        """All specs a supervisor ever had, newest first; empty when there never was one of that name."""
        versions: Any = self._request_or_none(f"{_OVERLORD}/supervisor/{_url_part(name)}/history")
        return list(versions or [])

    def stop_tasks(self, datasource: str) -> None:
        """End all tasks of a table at once; rows they have not published are dropped."""
        # One by one: Druid 33's own call for all of them answers 404, because its path is that of another resource.
        for state in ("waiting", "pending", "running"):
            for task in self.tasks(datasource, state=state):
                self._request_or_none(f"{_OVERLORD}/task/{_url_part(str(task['id']))}/shutdown", "POST")

    def tasks(self, datasource: str, *, state: str, limit: int = 50) -> list[dict[str, Any]]:
        """The tasks of a table in one state (pending, waiting, running, complete)."""
        options = {"datasource": datasource, "state": state} | ({"max": str(limit)} if state == "complete" else {})
        return list(self._get(f"{_OVERLORD}/tasks", **options))

    def task_report(self, task: str) -> dict[str, Any] | None:
        """A task's final report; None where it is not kept."""
        return self._request_or_none(f"{_OVERLORD}/task/{_url_part(task)}/reports")

    def submit_task(self, task: Mapping[str, Any]) -> str:
        response = self._request("POST", f"{_OVERLORD}/task", body=task)
        return str(response.get("task", "")) if isinstance(response, dict) else ""

    # --- tables -------------------------------------------------------------------------------------------------------

    def datasource(self, name: str) -> dict[str, Any] | None:
        """What historicals serve of a table: number of segments, size, first and last time; None when nothing."""
        return self._request_or_none(f"{_COORDINATOR}/datasources/{_url_part(name)}", simple="")

    def drop(self, name: str) -> None:
        """Mark all segments of a table unused: queries no longer see them."""
        self._request_or_none(f"{_COORDINATOR}/datasources/{_url_part(name)}", "DELETE")

    def kill(self, name: str, interval: str) -> None:
        """Delete the unused segments of an interval (`begin/end`) for good, with a Druid task."""
        interval_part = _url_part(interval.replace("/", "_"))
        self._request("DELETE", f"{_COORDINATOR}/datasources/{_url_part(name)}/intervals/{interval_part}")

    def rules(self, name: str) -> list[dict[str, Any]]:
        return list(self._get(f"{_COORDINATOR}/rules/{_url_part(name)}"))

    def set_rules(self, name: str, rules: list[dict[str, Any]]) -> None:
        self._request("POST", f"{_COORDINATOR}/rules/{_url_part(name)}", body=rules)

    def compaction(self, name: str) -> dict[str, Any] | None:
        """The automatic compaction of a table; None when it has none."""
        return self._request_or_none(f"{_COORDINATOR}/config/compaction/{_url_part(name)}")

    def set_compaction(self, config: Mapping[str, Any]) -> None:
        self._request("POST", f"{_COORDINATOR}/config/compaction", body=config)

    def drop_compaction(self, name: str) -> None:
        self._request_or_none(f"{_COORDINATOR}/config/compaction/{_url_part(name)}", "DELETE")

    # --- queries ------------------------------------------------------------------------------------------------------

    def sql(
        self, query: str, *, seconds: float, name: str = "", context: Mapping[str, Any] | None = None
    ) -> DruidSqlResult:
        """Run a query. `name` is the handle for `cancel`."""
        settings: dict[str, Any] = {"timeout": max(1, round(seconds * 1000)), **(context or {})}
        if name:
            settings["sqlQueryId"] = name
        body = {"query": query, "resultFormat": "array", "header": True, "sqlTypesHeader": True, "context": settings}
        try:
            response = self._http.post("/druid/v2/sql", json=body, timeout=seconds + _GRACE_SECONDS)
        except httpx.ReadTimeout as error:
            raise _timeout_error(seconds) from error
        except httpx.HTTPError as error:
            raise self._connection_error(error) from error
        if response.status_code != httpx.codes.OK:
            raise self._query_error(response, seconds)
        try:
            names, types, *rows = response.json()
        except (ValueError, TypeError) as error:
            raise StoreUnavailableError(
                f"The answer of Druid at {self.url} was cut off", found=response.text[-200:], url=self.url
            ) from error
        return DruidSqlResult(names, types, rows)

    def cancel(self, name: str) -> bool:
        """Cancel a query. False when none of that name runs."""
        return self._request_or_none(f"/druid/v2/sql/{_url_part(name)}", "DELETE") is not None

    # --- requests -----------------------------------------------------------------------------------------------------

    def _get(self, path: str, **options: str) -> Any:
        return self._request("GET", path, options=options)

    def _request_or_none(self, path: str, method: str = "GET", **options: str) -> dict[str, Any] | None:
        """The response; None when Druid has no such thing."""
        content: dict[str, Any] | None = self._request(method, path, options=options, none_if_missing=True)
        return content

    def _request(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        options: Mapping[str, str] | None = None,
        none_if_missing: bool = False,
    ) -> Any:
        content = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"} if content is not None else {}
        try:
            response = self._http.request(
                method, path, params=dict(options or {}), content=content, headers=headers | _AUTHOR
            )
        except httpx.HTTPError as error:
            raise self._connection_error(error) from error
        if none_if_missing and response.status_code == httpx.codes.NOT_FOUND:
            return None
        if response.is_error:
            raise self._response_error(response, f"{method} {path}")
        try:
            return response.json() if response.content else {}
        except ValueError:
            return {}

    def _connection_error(self, error: httpx.HTTPError) -> StoreError:
        if isinstance(error, httpx.ConnectError) and "CERTIFICATE" in str(error).upper():
            return StoreError(
                f"The certificate of Druid at {self.url} is not trusted",
                found=str(error),
                hint="Name its authority in SSL_CERT_FILE",
                url=self.url,
            )
        return StoreUnavailableError(
            f"Druid at {self.url} does not answer",
            found=str(error) or type(error).__name__,
            hint="Is it running (`riverrun status`)? Is druid.url its router?",
            url=self.url,
        )

    def _response_error(self, response: httpx.Response, action: str) -> StoreError:
        message = error_text(response)
        if response.status_code in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
            return self._auth_error(response, action)
        if response.status_code in (
            httpx.codes.BAD_GATEWAY,
            httpx.codes.SERVICE_UNAVAILABLE,
            httpx.codes.GATEWAY_TIMEOUT,
        ):
            return StoreUnavailableError(
                f"Druid at {self.url} is not ready ({action})",
                found=message,
                hint="One of its servers is starting or down",
                url=self.url,
                status=response.status_code,
            )
        return StoreError(
            f"Druid at {self.url} refused {action}", found=message, url=self.url, status=response.status_code
        )

    def _auth_error(self, response: httpx.Response, action: str) -> StoreError:
        is_forbidden = response.status_code == httpx.codes.FORBIDDEN
        return StoreError(
            f"Druid at {self.url} does not let us do this ({action})"
            if is_forbidden
            else f"Druid at {self.url} does not know the user or the password",
            found=error_text(response),
            hint="The user needs rights on its tables, their supervisors and rules" if is_forbidden
            else "Set druid.username and druid.password",
            url=self.url,
            status=response.status_code,
        )  # fmt: skip

    def _query_error(self, response: httpx.Response, seconds: float) -> RiverrunError:
        message = error_text(response)
        try:
            content = response.json()
        except ValueError:
            content = {}
        content = content if isinstance(content, dict) else {}
        kind = " ".join(str(content.get(field) or "") for field in ("error", "errorCode", "category")).lower()
        if "timeout" in kind or response.status_code == httpx.codes.GATEWAY_TIMEOUT:
            return _timeout_error(seconds)
        if "cancel" in kind:
            return QueryCancelledError("The question was cancelled")
        if response.status_code == httpx.codes.FORBIDDEN or "unauthorized" in kind:
            return QueryRefusedError("Druid does not let this user ask that", found=message)
        if response.status_code == httpx.codes.UNAUTHORIZED:
            return self._auth_error(response, "a question")
        if "capacity" in kind or response.status_code == httpx.codes.TOO_MANY_REQUESTS:
            return StoreUnavailableError(
                "Druid has too many questions to answer now", found=message, hint="Ask again in a moment", url=self.url
            )
        if "resource limit" in kind or "capacity_exceeded" in kind:
            return QueryError(
                "The question needs more memory than Druid gives one",
                found=message,
                hint="Ask for less: a shorter time, fewer groups or columns",
            )
        if response.is_server_error and "unsupported" not in kind and "invalid" not in kind:
            return StoreUnavailableError(
                f"Druid at {self.url} failed to answer",
                found=message,
                hint="One of its servers may be starting or down; ask again in a moment",
                url=self.url,
            )
        return QueryError("Druid does not understand the question", found=message)


def error_text(response: httpx.Response) -> str:
    """Druid's own words for what went wrong, in one line."""
    try:
        content = response.json()
    except ValueError:
        content = response.text
    if isinstance(content, dict):
        for name in ("errorMessage", "error", "message"):
            if content.get(name):
                return " ".join(str(content[name]).split())
    text = " ".join(str(content).split())
    return f"HTTP {response.status_code}: {text[:500]}" if text else f"HTTP {response.status_code}"


def _timeout_error(seconds: float) -> QueryTimeoutError:
    return QueryTimeoutError(
        f"The question took longer than {seconds:g} s",
        hint="Ask for less, or allow it more time (store.query_seconds)",
        seconds=seconds,
    )


def _flatten_errors(errors: Any) -> list[dict[str, Any]]:
    """All errors of a list, or of lists by task and phase."""
    if isinstance(errors, list):
        return [error for error in errors if isinstance(error, dict)]
    return (
        [error for nested in (errors or {}).values() for error in _flatten_errors(nested)]
        if isinstance(errors, dict)
        else []
    )


def _url_part(name: str) -> str:
    return quote(name, safe="")


def _is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
