"""Druid's HTTP API, as far as riverrun needs it: supervisors, tasks, rules, segments, SQL.

All of it is asked of one address, a router, which passes it on to overlord, coordinator or broker. Whatever goes wrong
becomes one of riverrun's errors, with Druid's own words.
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
# Druid ends a question at its own time limit; the answer that says so needs a moment more.
_GRACE_SECONDS = 5.0
# What changes when coordinator and overlord say who did it.
_AUTHOR = {"X-Druid-Author": "riverrun"}


@dataclass(frozen=True)
class Result:
    """What Druid's SQL answered: names, SQL types, and rows as JSON has them."""

    names: list[str]
    types: list[str]
    rows: list[list[Any]]


class DruidClient:
    """One Druid. Cheap to make; it connects at the first call, and may be used by many threads."""

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
            # An overlord that does not lead sends us to the one that does.
            follow_redirects=True,
            # No proxy stands between this machine and itself.
            trust_env=not _is_here(self.url),
        )

    def close(self) -> None:
        self._http.close()

    # --- the cluster --------------------------------------------------------------------------------------------------

    def version(self) -> str:
        """Druid's version, such as 33.0.0."""
        found = self._get("/status")
        return str(found.get("version") or "") if isinstance(found, dict) else ""

    # --- supervisors and tasks ----------------------------------------------------------------------------------------

    def supervisors(self) -> dict[str, dict[str, Any]]:
        """All supervisors that are not terminated: id → id, state, detailedState, healthy, suspended, spec."""
        found = self._get(f"{_OVERLORD}/supervisor", full="true")
        return {str(each["id"]): each for each in found}

    def submit(self, spec: Mapping[str, Any]) -> None:
        """Create or change a supervisor. A running one hands over: new tasks begin where those before them end."""
        self._do("POST", f"{_OVERLORD}/supervisor", body=spec)

    def supervisor_status(self, name: str) -> dict[str, Any] | None:
        """The payload of a supervisor's status; None when there is none of that name."""
        found = self._maybe(f"{_OVERLORD}/supervisor/{_path(name)}/status")
        return None if found is None else dict(found.get("payload") or {})

    def supervisor_stats(self, name: str) -> dict[str, dict[str, int]]:
        """The rows each running task has counted: task → processed, unparseable, thrownAway, processedWithError."""
        found = self._maybe(f"{_OVERLORD}/supervisor/{_path(name)}/stats") or {}
        return {
            task: dict((stats.get("totals") or {}).get("buildSegments") or {})
            for group in found.values()
            for task, stats in group.items()
        }

    def parse_errors(self, name: str) -> list[dict[str, Any]]:
        """The last records that running tasks could not read: {input, details, timeOfExceptionMillis, …}."""
        return _listed(self._maybe(f"{_OVERLORD}/supervisor/{_path(name)}/parseErrors"))

    def terminate(self, name: str) -> bool:
        """End a supervisor and its tasks; what they have read and not published is dropped. False when there is none."""
        return self._maybe(f"{_OVERLORD}/supervisor/{_path(name)}/terminate", "POST") is not None

    def reset(self, name: str) -> bool:
        """Forget a supervisor's offsets. False when there is none."""
        return self._maybe(f"{_OVERLORD}/supervisor/{_path(name)}/reset", "POST") is not None

    def history(self, name: str) -> list[dict[str, Any]]:
        """All specs a supervisor ever had, newest first; none when there never was one of that name."""
        found: Any = self._maybe(f"{_OVERLORD}/supervisor/{_path(name)}/history")
        return list(found or [])

    def stop_tasks(self, datasource: str) -> None:
        """End all tasks of a table at once; what they have not published is dropped."""
        # One by one: Druid 33's own call for all of them answers 404, its path being that of another resource.
        for state in ("waiting", "pending", "running"):
            for each in self.tasks(datasource, state=state):
                self._maybe(f"{_OVERLORD}/task/{_path(str(each['id']))}/shutdown", "POST")

    def tasks(self, datasource: str, *, state: str, most: int = 50) -> list[dict[str, Any]]:
        """The tasks of a table in one state (pending, waiting, running, complete)."""
        options = {"datasource": datasource, "state": state} | ({"max": str(most)} if state == "complete" else {})
        return list(self._get(f"{_OVERLORD}/tasks", **options))

    def task_report(self, task: str) -> dict[str, Any] | None:
        """What a task said at its end; None where its report is not kept."""
        return self._maybe(f"{_OVERLORD}/task/{_path(task)}/reports")

    def submit_task(self, task: Mapping[str, Any]) -> str:
        found = self._do("POST", f"{_OVERLORD}/task", body=task)
        return str(found.get("task", "")) if isinstance(found, dict) else ""

    # --- tables -------------------------------------------------------------------------------------------------------

    def datasource(self, name: str) -> dict[str, Any] | None:
        """What historicals serve of a table: segments' count, size, first and last time; None when nothing."""
        return self._maybe(f"{_COORDINATOR}/datasources/{_path(name)}", simple="")

    def drop(self, name: str) -> None:
        """Mark all segments of a table unused: questions see them no more."""
        self._maybe(f"{_COORDINATOR}/datasources/{_path(name)}", "DELETE")

    def kill(self, name: str, interval: str) -> None:
        """Delete the unused segments of an interval (`begin/end`) for good, by a task of Druid's."""
        place = _path(interval.replace("/", "_"))
        self._do("DELETE", f"{_COORDINATOR}/datasources/{_path(name)}/intervals/{place}")

    def rules(self, name: str) -> list[dict[str, Any]]:
        return list(self._get(f"{_COORDINATOR}/rules/{_path(name)}"))

    def set_rules(self, name: str, rules: list[dict[str, Any]]) -> None:
        self._do("POST", f"{_COORDINATOR}/rules/{_path(name)}", body=rules)

    def compaction(self, name: str) -> dict[str, Any] | None:
        """The automatic compaction of a table; None when it has none."""
        return self._maybe(f"{_COORDINATOR}/config/compaction/{_path(name)}")

    def set_compaction(self, config: Mapping[str, Any]) -> None:
        self._do("POST", f"{_COORDINATOR}/config/compaction", body=config)

    def drop_compaction(self, name: str) -> None:
        self._maybe(f"{_COORDINATOR}/config/compaction/{_path(name)}", "DELETE")

    # --- questions ----------------------------------------------------------------------------------------------------

    def sql(self, query: str, *, seconds: float, name: str = "", context: Mapping[str, Any] | None = None) -> Result:
        """Ask. `name` is what `cancel` knows it by."""
        settings: dict[str, Any] = {"timeout": max(1, round(seconds * 1000)), **(context or {})}
        if name:
            settings["sqlQueryId"] = name
        body = {"query": query, "resultFormat": "array", "header": True, "sqlTypesHeader": True, "context": settings}
        try:
            response = self._http.post("/druid/v2/sql", json=body, timeout=seconds + _GRACE_SECONDS)
        except httpx.ReadTimeout as error:
            raise _too_long(seconds) from error
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error
        if response.status_code != httpx.codes.OK:
            raise self._query_failed(response, seconds)
        try:
            names, types, *rows = response.json()
        except (ValueError, TypeError) as error:
            raise StoreUnavailableError(
                f"The answer of Druid at {self.url} was cut off", found=response.text[-200:], url=self.url
            ) from error
        return Result(names, types, rows)

    def cancel(self, name: str) -> bool:
        """End a question. False when none of that name runs."""
        return self._maybe(f"/druid/v2/sql/{_path(name)}", "DELETE") is not None

    # --- requests -----------------------------------------------------------------------------------------------------

    def _get(self, path: str, **options: str) -> Any:
        return self._do("GET", path, options=options)

    def _maybe(self, path: str, method: str = "GET", **options: str) -> dict[str, Any] | None:
        """The answer; None when Druid has no such thing."""
        found: dict[str, Any] | None = self._do(method, path, options=options, missing=True)
        return found

    def _do(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        options: Mapping[str, str] | None = None,
        missing: bool = False,
    ) -> Any:
        content = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"} if content is not None else {}
        try:
            response = self._http.request(
                method, path, params=dict(options or {}), content=content, headers=headers | _AUTHOR
            )
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error
        if missing and response.status_code == httpx.codes.NOT_FOUND:
            return None
        if response.is_error:
            raise self._failed(response, f"{method} {path}")
        try:
            return response.json() if response.content else {}
        except ValueError:
            return {}

    def _unreachable(self, error: httpx.HTTPError) -> StoreError:
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

    def _failed(self, response: httpx.Response, doing: str) -> StoreError:
        said = explained(response)
        if response.status_code in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
            return self._login(response, doing)
        if response.status_code in (
            httpx.codes.BAD_GATEWAY,
            httpx.codes.SERVICE_UNAVAILABLE,
            httpx.codes.GATEWAY_TIMEOUT,
        ):
            return StoreUnavailableError(
                f"Druid at {self.url} is not ready ({doing})",
                found=said,
                hint="One of its servers is starting or down",
                url=self.url,
                status=response.status_code,
            )
        return StoreError(f"Druid at {self.url} refused {doing}", found=said, url=self.url, status=response.status_code)

    def _login(self, response: httpx.Response, doing: str) -> StoreError:
        known = response.status_code == httpx.codes.FORBIDDEN
        return StoreError(
            f"Druid at {self.url} does not let us do this ({doing})"
            if known
            else f"Druid at {self.url} does not know the user or the password",
            found=explained(response),
            hint="The user needs rights on its tables, their supervisors and rules" if known
            else "Set druid.username and druid.password",
            url=self.url,
            status=response.status_code,
        )  # fmt: skip

    def _query_failed(self, response: httpx.Response, seconds: float) -> RiverrunError:
        said = explained(response)
        try:
            content = response.json()
        except ValueError:
            content = {}
        content = content if isinstance(content, dict) else {}
        kind = " ".join(str(content.get(each) or "") for each in ("error", "errorCode", "category")).lower()
        if "timeout" in kind or response.status_code == httpx.codes.GATEWAY_TIMEOUT:
            return _too_long(seconds)
        if "cancel" in kind:
            return QueryCancelledError("The question was cancelled")
        if response.status_code == httpx.codes.FORBIDDEN or "unauthorized" in kind:
            return QueryRefusedError("Druid does not let this user ask that", found=said)
        if response.status_code == httpx.codes.UNAUTHORIZED:
            return self._login(response, "a question")
        if "capacity" in kind or response.status_code == httpx.codes.TOO_MANY_REQUESTS:
            return StoreUnavailableError(
                "Druid has too many questions to answer now", found=said, hint="Ask again in a moment", url=self.url
            )
        if "resource limit" in kind or "capacity_exceeded" in kind:
            return QueryError(
                "The question needs more memory than Druid gives one",
                found=said,
                hint="Ask for less: a shorter time, fewer groups or columns",
            )
        if response.is_server_error and "unsupported" not in kind and "invalid" not in kind:
            return StoreUnavailableError(
                f"Druid at {self.url} failed to answer",
                found=said,
                hint="One of its servers may be starting or down; ask again in a moment",
                url=self.url,
            )
        return QueryError("Druid does not understand the question", found=said)


def explained(response: httpx.Response) -> str:
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


def _too_long(seconds: float) -> QueryTimeoutError:
    return QueryTimeoutError(
        f"The question took longer than {seconds:g} s",
        hint="Ask for less, or allow it more time (store.query_seconds)",
        seconds=seconds,
    )


def _listed(errors: Any) -> list[dict[str, Any]]:
    """All errors of a list, or of lists by task and phase."""
    if isinstance(errors, list):
        return [each for each in errors if isinstance(each, dict)]
    return [each for listed in (errors or {}).values() for each in _listed(listed)] if isinstance(errors, dict) else []


def _path(name: str) -> str:
    return quote(name, safe="")


def _is_here(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
