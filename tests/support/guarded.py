"""The store's server with a door, for tests: the socket for others is on 127.0.0.1 too, under names of its own."""

import contextlib
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import httpx

import riverrun as rr
from riverrun.config.networks import parse_networks
from riverrun.dashboard.alerts.live import AlertsBroadcast
from riverrun.dashboard.live.hub import DashboardHub
from riverrun.dashboard.login import LoginGate
from riverrun.dashboard.routes import dashboard_routes
from riverrun.dashboard.topology.live import TopologyBroadcast
from riverrun.store.contract import Store
from riverrun.store.server import StoreServer
from riverrun.web.auth.oidc import OidcProvider
from riverrun.web.auth.password import Password
from riverrun.web.auth.sessions import LoginSessions
from riverrun.web.server import PublicListener

PASSWORD = "abcdef-ghijkm-npqrst-uvwxyz"
NAMES = ("127.0.0.1", "localhost", "dash.test")


class Guarded:
    """Serves `app` from `store`, while it is entered, at `inside` and, behind the door, at `outside`."""

    def __init__(
        self,
        app: rr.App,
        store: Store,
        *,
        picture: TopologyBroadcast | None = None,
        alerts: AlertsBroadcast | None = None,
        provider: OidcProvider | None = None,
        sessions: LoginSessions | None = None,
        certificate: Path | None = None,
        key: Path | None = None,
        trusted_proxies: str = "",
        https_only: bool = False,
    ) -> None:
        self.hub = DashboardHub(store, app.dashboards, app.name)
        self._picture = picture
        self._alerts = alerts
        self.sessions = sessions or LoginSessions(3600, 12 * 3600)
        password = Password.of(PASSWORD) if provider is None else None
        self.door = LoginGate(password=password, provider=provider, sessions=self.sessions)
        outside = PublicListener(
            "127.0.0.1",
            0,
            NAMES,
            self.door.middleware,
            certificate,
            key,
            proxies=parse_networks(trusted_proxies),
            https_only=https_only,
        )
        self._server = StoreServer(
            store, routes=[*self.door.routes(), *dashboard_routes(self.hub, picture, alerts)], public=outside
        )

    def __enter__(self) -> Self:
        self.inside = self._server.start()
        self.outside = self._server.public_address
        self.port = self._server.public_port
        return self

    def __exit__(self, *_: object) -> None:
        self.hub.request_close()
        if self._picture is not None:
            self._picture.request_close()
        if self._alerts is not None:
            self._alerts.request_close()
        self._server.close()

    def client(self, *, inside: bool = False, address: str = "127.0.0.1", **options: Any) -> httpx.Client:
        """A client without a login, at an address of its own where tries are counted."""
        transport = httpx.HTTPTransport(local_address=address, verify=options.pop("verify", False))
        base = self.inside if inside else self.outside
        return httpx.Client(base_url=base, trust_env=False, timeout=30, transport=transport, **options)

    def logged_in(self, **options: Any) -> httpx.Client:
        """A client that has a session, without the time a password takes."""
        client = self.client(**options)
        name = "__Host-riverrun" if self.outside.startswith("https") and not options.get("inside") else "riverrun"
        # As text: of a jar, httpx would keep a secure cookie from an address without a certificate.
        client.headers["cookie"] = f"{name}={self.sessions.create('test')}"
        return client

    def raw(self, data: bytes, *, inside: bool = False, seconds: float = 10.0) -> bytes:
        """What comes back, until the end, for bytes as they are."""
        address = self.inside if inside else self.outside
        with socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2])), timeout=seconds) as connection:
            connection.sendall(data)
            found = b""
            # Who closes while bytes are on their way resets the connection.
            with contextlib.suppress(ConnectionResetError):
                while chunk := connection.recv(65536):
                    found += chunk
            return found


def cookie_parts(answer: httpx.Response, name: str = "riverrun") -> Mapping[str, str]:
    """The cookie an answer sets, by its parts in lower case."""
    header = next(each for each in answer.headers.get_list("set-cookie") if each.startswith(f"{name}="))
    parts = [part.strip().partition("=") for part in header.split(";")]
    return {"value": parts[0][2]} | {key.lower(): value.lower() for key, _, value in parts[1:]}
