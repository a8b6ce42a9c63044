"""A schema registry on this machine: for tests, for user code, and for `riverrun up --registry` around it.

with LocalRegistry(Path("/tmp/cluster"), kafka.bootstrap_servers) as registry:
    registry.url                     # "http://127.0.0.1:8081/apis/ccompat/v7"
    registry.attached                # settings for a client: address and login
    registry.worker.kill()           # as a crash would
    registry.worker.restart()
"""

import base64
import http.client
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from riverrun.cluster.class_archive import ClassArchive
from riverrun.cluster.home import make_folder
from riverrun.cluster.jvm import FAST_START_FLAGS
from riverrun.cluster.registry.jars import RegistryRuntime
from riverrun.cluster.registry.properties import PATH
from riverrun.cluster.registry.server import NAME, RegistryServer
from riverrun.cluster.server import Deadline
from riverrun.cluster.single_server import USER, SingleServer, SingleServerManifest, server_folder
from riverrun.config import RegistrySettings, Secret, Settings
from riverrun.errors import ServerNotReadyError

FIRST_PORT = 8081
# The default compatibility, as in Confluent's own: readers with the new type can read existing records.
COMPATIBILITY_LEVEL = "BACKWARD"


class LocalRegistry(SingleServer[RegistryServer]):
    """One registry beside a running Kafka, with its password and logs under `root`; its schemas are in the Kafka.

    `runtime` is the Java and the program to use; by default they are found, and fetched when missing. It takes the port
    it had before when that is free.
    """

    label = "the registry"
    server_name: ClassVar[str] = NAME

    def __init__(
        self,
        root: Path,
        bootstrap_servers: str,
        settings: RegistrySettings | None = None,
        *,
        runtime: RegistryRuntime | None = None,
        first_port: int = FIRST_PORT,
        notice: Callable[[str], None] = lambda _: None,
        archive: bool = True,
    ) -> None:
        self.settings = settings or RegistrySettings()
        super().__init__(root, first_port, notice, port=self.settings.port)
        self._bootstrap_servers = bootstrap_servers
        self._runtime = runtime
        self._use_archive = archive
        self._manifest = SingleServerManifest()

    @property
    def start_timeout_seconds(self) -> float:
        return self.settings.start_timeout_seconds

    @property
    def url(self) -> str:
        return f"http://{self.node.address}{PATH}"

    @property
    def attached(self) -> RegistrySettings:
        """The settings for a client: its address and its login."""
        return replace(self.settings, url=self.url, username=USER, password=Secret(self._password()))

    @property
    def _manifest_file(self) -> Path:
        return server_folder(self.home, NAME) / "registry.json"

    def start(self) -> None:
        if self.nodes and self.node.alive:
            return
        self.home.make()
        make_folder(server_folder(self.home, NAME))
        registry_runtime = self._runtime = self._runtime or RegistryRuntime.prepare(Settings(registry=self.settings))
        if self._use_archive:
            name, log = f"registry-{registry_runtime.version}", self.home.logs / "class-archive.out"
            self._archive = ClassArchive(registry_runtime.runtime, log, name, (*FAST_START_FLAGS, "-Xmx256m"))
        self._manifest = self._load_manifest(self._manifest_file)
        server = RegistryServer(
            self.settings,
            self._bootstrap_servers,
            self._manifest,
            Secret(self._password()),
            home=self.home,
            runtime=registry_runtime.runtime,
            archive=self._archive,
            notice=self._notice,
        )
        self.nodes = [server]
        server.start()

    def _wait_until_ready(self, deadline: Deadline) -> None:
        super()._wait_until_ready(deadline)
        if not self._manifest.configured:
            self._set_compatibility(deadline)
            self._manifest.configured = True
            self._manifest.write(self._manifest_file)

    def _set_compatibility(self, deadline: Deadline) -> None:
        """Its own default compares nothing. Set only once: a later change by the user stays."""
        login = base64.b64encode(f"{USER}:{self._password()}".encode()).decode()
        headers = {"Authorization": f"Basic {login}", "Content-Type": "application/json"}
        connection = http.client.HTTPConnection(self.node.address, timeout=max(5.0, deadline.left))
        try:
            connection.request("PUT", f"{PATH}/config", json.dumps({"compatibility": COMPATIBILITY_LEVEL}), headers)
            response = connection.getresponse()
            body = response.read()
        except (OSError, http.client.HTTPException) as error:
            raise self.node.not_ready_error(deadline) from error
        finally:
            connection.close()
        if response.status != http.client.OK:
            raise ServerNotReadyError(
                f"The registry did not take its compatibility level {COMPATIBILITY_LEVEL}",
                found=f"HTTP {response.status}: {body[:200].decode(errors='replace')}",
                hint=f"See {self.node.log}",
                server=NAME,
            )
