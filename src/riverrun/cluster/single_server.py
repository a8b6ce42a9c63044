"""One server beside Kafka with a login of its own, such as Connect or the schema registry: its port, password and
manifest."""

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Generic, TypeVar

from riverrun.cluster.home import ClusterHome
from riverrun.cluster.local_servers import LocalServers
from riverrun.cluster.manifest import ServerManifest
from riverrun.cluster.node import ServerNode
from riverrun.cluster.server import Deadline
from riverrun.config.private_files import write_private
from riverrun.errors import NotRunningError

N = TypeVar("N", bound=ServerNode)
# The user name at servers that riverrun runs.
USER = "riverrun"


@dataclass
class SingleServerManifest(ServerManifest):
    """What is to be the same at the next start, in the server's folder. All else is in topics. `configured` is whether it
    was told what holds from its first start on."""

    ports: dict[str, int] = field(default_factory=dict)
    configured: bool = False


class SingleServer(LocalServers[N], Generic[N]):
    """One process beside a running Kafka, with its password and manifest in `data/NAME`."""

    server_name: ClassVar[str]

    def __init__(self, root: Path, first_port: int, notice: Callable[[str], None], *, port: int) -> None:
        super().__init__(root, first_port, notice, fixed_port=bool(port))
        self._port = port

    @property
    def name(self) -> str:
        return self.server_name

    @property
    def node(self) -> N:
        if not self.nodes:
            raise NotRunningError(f"This {self.label} has not been started")
        return self.nodes[0]

    def stop(self) -> None:
        for node in self.nodes:
            node.stop()
        self._close()

    def _wait_until_ready(self, deadline: Deadline) -> None:
        self.node.ready(deadline)

    def _load_manifest(self, file: Path) -> SingleServerManifest:
        """The manifest with the port it takes now: the previous one, when that is free."""
        record = SingleServerManifest.read(file) or SingleServerManifest()
        self._wait_for_previous([self.server_name])
        self._claims.close()
        before, record.ports = record.ports, {}
        if self._port:
            record.ports[self.server_name] = self._claims.claim_exactly(
                self._port, self.server_name, f"{self.server_name}.port"
            )
        else:
            record.ports[self.server_name] = self._claims.reclaim(
                self.server_name, before, self._first_port, self._notice
            )
        record.write(file)
        return record

    def _password(self) -> str:
        """Created once, and kept: who can read this project's files may use its server, and nobody else on this
        machine."""
        file = password_file(self.home.data, self.server_name)
        if not file.is_file():
            write_private(file, secrets.token_urlsafe(24))
        return file.read_text(encoding="ascii").strip()


def server_folder(home: ClusterHome, server: str) -> Path:
    return home.data / server


def password_file(data: Path, server: str) -> Path:
    """The server's password, created at the first start. `data` is the project's."""
    return data / server / "password"
