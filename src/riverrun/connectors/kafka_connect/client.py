"""Connect's REST API: plugins, connectors, their states, configurations and offsets.

Every failure becomes one of riverrun's errors, with Connect's own message. A worker in a rebalance answers 409, "try again":
that is done here, within the timeout of one request.
"""

import ipaddress
import os
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote, urlsplit

import httpx

from riverrun.artifacts.tls import tls_context
from riverrun.config.project import Project
from riverrun.config.spec import ConnectSettings
from riverrun.connectors.kafka_connect.state import ConnectorState, Plugin, parse_state
from riverrun.errors import (
    ConnectError,
    ConnectorNotFoundError,
    ConnectRefusedError,
    ConnectUnavailableError,
    UsageError,
)

_CONNECT_SECONDS = 5.0
_RETRY_SECONDS = 0.2


class ConnectClient:
    """One Connect cluster. Cheap to create; it connects at the first call, and may be used by many threads."""

    def __init__(
        self,
        settings: ConnectSettings,
        *,
        transport: httpx.BaseTransport | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.url = settings.url.rstrip("/")
        self._seconds = float(settings.request_timeout_seconds)
        self._sleep = sleep
        self._http = httpx.Client(
            base_url=self.url,
            auth=(settings.username, settings.password.reveal()) if settings.username else None,
            timeout=httpx.Timeout(self._seconds, connect=_CONNECT_SECONDS),
            verify=tls_context(os.environ) if self.url.startswith("https:") else True,
            transport=transport,
            # Requests to this machine itself go through no proxy.
            trust_env=not _is_loopback_url(self.url),
        )

    @classmethod
    def of(cls, settings: ConnectSettings, project: Project) -> Self:
        """The Connect of a project; an error that says how to get one when it has none."""
        if not settings.url:
            raise ConnectUnavailableError(
                f"No Kafka Connect runs for the project {project.root}",
                hint="Start one with `riverrun up --connect`, or name one that runs elsewhere with connect.url",
            )
        return cls(settings)

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- reading ---

    def version(self) -> str:
        return str(self._request("GET", "/").get("version", ""))

    def plugins(self) -> list[Plugin]:
        """The connector plugins it has, by class name."""
        plugins = self._request("GET", "/connector-plugins", params={"connectorsOnly": "true"})
        return sorted(
            (
                Plugin(str(plugin["class"]), str(plugin.get("type", "")), str(plugin.get("version") or ""))
                for plugin in plugins
            ),
            key=lambda plugin: plugin.name,
        )

    def names(self) -> list[str]:
        return sorted(str(name) for name in self._request("GET", "/connectors"))

    def states(self) -> dict[str, ConnectorState]:
        """All connectors, by name."""
        connectors = self._request("GET", "/connectors", params={"expand": "status"})
        return {
            name: parse_state(connectors[name]["status"]) for name in sorted(connectors) if "status" in connectors[name]
        }

    def configs(self) -> dict[str, dict[str, str]]:
        """The configurations of all connectors, by name; secrets are the references they were given as."""
        connectors = self._request("GET", "/connectors", params={"expand": "info"})
        return {
            name: dict(connectors[name]["info"]["config"]) for name in sorted(connectors) if "info" in connectors[name]
        }

    def state(self, name: str) -> ConnectorState:
        try:
            return parse_state(self._connector_request(name, "GET", "/status"))
        except ConnectorNotFoundError:
            # A connector created a moment ago is not assigned to a worker yet, and has no status.
            if name not in self.names():
                raise
            return ConnectorState(name, "", "unassigned")

    def trace(self, name: str) -> str:
        """The stack traces of its failed tasks, as Connect has them."""
        tasks = self._connector_request(name, "GET", "/status").get("tasks") or ()
        return "\n".join(str(task.get("trace") or "") for task in tasks)

    def config(self, name: str) -> dict[str, str]:
        return dict(self._connector_request(name, "GET", "/config"))

    # --- changing ---

    def validation_problems(self, config: Mapping[str, str]) -> list[str]:
        """Everything that Connect and the connector find wrong with a configuration, as `property: reason`; changes nothing.

        A connector may connect to its database for this.
        """
        kind = config.get("connector.class", "")
        if not kind:
            return ["connector.class: it is missing; `riverrun connect plugins` lists what there is"]
        try:
            path = f"/connector-plugins/{_path(kind)}/config/validate"
            validation = self._request("PUT", path, body=dict(config))
        except ConnectorNotFoundError:
            return [_no_plugin(kind, self.plugins())]
        except ConnectError as error:
            if error.fields.get("status") not in (httpx.codes.BAD_REQUEST, httpx.codes.INTERNAL_SERVER_ERROR):
                raise
            known = self.plugins()
            if kind not in {item.name for item in known} | {item.name.rpartition(".")[2] for item in known}:
                return [_no_plugin(kind, known)]
            return [f"connector.class: {error.found}"]
        values = [item.get("value") or {} for item in validation.get("configs") or ()]
        return [
            f"{value.get('name', '')}: {' '.join(str(reason).split())}"
            for value in values
            for reason in dict.fromkeys(value.get("errors") or ())
        ]

    def put(self, name: str, config: Mapping[str, str], *, checked: bool = False) -> None:
        """Make a connector, or give it another configuration: then its tasks start again. ConnectRefusedError says all
        that is wrong with it; `checked` is for one whose `validation_problems` were asked for a moment ago."""
        if not checked and (problems := self.validation_problems({**config, "name": name})):
            raise ConnectRefusedError([f"{name}: {problem}" for problem in problems], connector=name)
        self._connector_request(name, "PUT", "/config", body={**config, "name": name})

    def pause(self, name: str) -> None:
        """Its tasks stop reading and keep their resources. Takes effect soon after."""
        self._connector_request(name, "PUT", "/pause")

    def resume(self, name: str) -> None:
        """End a pause or a stop."""
        self._connector_request(name, "PUT", "/resume")

    def stop(self, name: str) -> None:
        """End its tasks; the connector stays, and its offsets may be changed. Takes effect soon after."""
        self._connector_request(name, "PUT", "/stop")

    def restart(self, name: str, *, only_failed: bool = True) -> None:
        """Restart it with its tasks: those that failed, or all."""
        options = {"includeTasks": "true", "onlyFailed": "true" if only_failed else "false"}
        self._connector_request(name, "POST", "/restart", params=options)

    def delete(self, name: str) -> bool:
        """Remove a connector; its offsets stay in Connect's topic. False when there is none."""
        try:
            self._connector_request(name, "DELETE", "")
        except ConnectorNotFoundError:
            return False
        return True

    # --- offsets ---

    def offsets(self, name: str) -> list[dict[str, Any]]:
        """Its offsets: `{"partition": …, "offset": …}` each, in the connector's own format."""
        return list(self._connector_request(name, "GET", "/offsets").get("offsets") or ())

    def set_offsets(self, name: str, offsets: Sequence[Mapping[str, Any]]) -> None:
        """Set the offsets to continue from; it must be stopped."""
        self._connector_request(name, "PATCH", "/offsets", body={"offsets": [dict(offset) for offset in offsets]})

    def reset_offsets(self, name: str) -> None:
        """Let it start from the beginning; it must be stopped."""
        self._connector_request(name, "DELETE", "/offsets")

    # --- requests ---

    def _connector_request(self, name: str, method: str, rest: str, **options: Any) -> Any:
        if not name or name != name.strip() or "\x00" in name:
            raise UsageError(f"{name!r} is no name of a connector")
        try:
            return self._request(method, f"/connectors/{_path(name)}{rest}", **options)
        except ConnectorNotFoundError as error:
            known = ", ".join(self.names()) or "none"
            raise ConnectorNotFoundError(
                f"There is no connector {name!r}",
                found=f"connectors: {known}",
                hint="`riverrun connect list` shows them",
                connector=name,
            ) from error

    def _request(self, method: str, path: str, *, body: Any = None, params: Mapping[str, str] | None = None) -> Any:
        deadline = time.monotonic() + self._seconds
        while True:
            try:
                response = self._http.request(method, path, json=body, params=params)
            except httpx.HTTPError as error:
                raise self._unreachable(error) from error
            if response.status_code != httpx.codes.CONFLICT or time.monotonic() > deadline:
                break
            self._sleep(_RETRY_SECONDS)
        if response.is_error:
            raise self._failed(response, f"{method} {path}")
        try:
            return response.json() if response.content else {}
        except ValueError:
            return {}

    def _unreachable(self, error: httpx.HTTPError) -> ConnectError:
        if isinstance(error, httpx.ConnectError) and "CERTIFICATE" in str(error).upper():
            return ConnectError(
                f"The certificate of Kafka Connect at {self.url} is not trusted",
                found=str(error),
                hint="Name its authority in SSL_CERT_FILE",
                url=self.url,
            )
        return ConnectUnavailableError(
            f"Kafka Connect at {self.url} does not answer",
            found=str(error) or type(error).__name__,
            hint="Is it running (`riverrun status`)? Is connect.url its REST API?",
            url=self.url,
        )

    def _failed(self, response: httpx.Response, doing: str) -> ConnectError:
        message, status = _error_message(response), response.status_code
        if status == httpx.codes.NOT_FOUND:
            return ConnectorNotFoundError(f"Kafka Connect at {self.url} knows no {doing}", found=message, url=self.url)
        if status in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
            return ConnectError(
                f"Kafka Connect at {self.url} does not know the user or the password",
                found=message,
                hint="Set connect.username and connect.password",
                url=self.url,
                status=status,
            )
        if status in (httpx.codes.CONFLICT, httpx.codes.SERVICE_UNAVAILABLE, httpx.codes.BAD_GATEWAY):
            return ConnectUnavailableError(
                f"Kafka Connect at {self.url} is not ready for {doing}",
                found=message,
                hint="It is starting or sharing out its work; try again in a moment",
                url=self.url,
                status=status,
            )
        return ConnectError(f"Kafka Connect at {self.url} refused {doing}", found=message, url=self.url, status=status)


def _no_plugin(kind: str, known: Sequence[Plugin]) -> str:
    names = ", ".join(plugin.name for plugin in known) or "none"
    # `riverrun run` starts Connect with the plugins that its own app needs.
    ours = "; this Connect was started without it: `riverrun down`, and start it again" if "debezium" in kind else ""
    return f"connector.class: there is no plugin {kind!r}; there are: {names}{ours}"


def _error_message(response: httpx.Response) -> str:
    """Connect's own error message, in one line."""
    try:
        content = response.json()
    except ValueError:
        content = response.text
    text = content.get("message") if isinstance(content, dict) else content
    text = " ".join(str(text or "").split())
    return text[:1000] or f"HTTP {response.status_code}"


def _path(name: str) -> str:
    return quote(name, safe="")


def _is_loopback_url(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
