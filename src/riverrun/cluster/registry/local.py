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

from riverrun.cluster.archive import ClassArchive
from riverrun.cluster.beside import USER, BesideRecord, LocalBeside, folder_of
from riverrun.cluster.home import make_folder
from riverrun.cluster.jvm import QUICK_START
from riverrun.cluster.registry.jars import RegistryRuntime
from riverrun.cluster.registry.properties import PATH
from riverrun.cluster.registry.server import NAME, RegistryServer
from riverrun.cluster.server import Deadline
from riverrun.config import RegistrySettings, Secret, Settings
from riverrun.errors import ServerNotReadyError

FIRST_PORT = 8081
# What holds where nobody says otherwise, as in Confluent's own: who reads with the new type can read what is there.
LEVEL = "BACKWARD"


class LocalRegistry(LocalBeside[RegistryServer]):
    """One registry beside a Kafka that runs, with its password and logs under `root`; its schemas are in the Kafka.

    `runtime` is the Java and the program to use; by default they are found, and fetched when missing. It takes the port it
    had before when that is free.
    """

    called = "the registry"
    server: ClassVar[str] = NAME

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
        self._record = BesideRecord()

    @property
    def start_timeout_seconds(self) -> float:
        return self.settings.start_timeout_seconds

    @property
    def url(self) -> str:
        return f"http://{self.worker.address}{PATH}"

    @property
    def attached(self) -> RegistrySettings:
        """The settings of somebody who uses it: its address and its login."""
        return replace(self.settings, url=self.url, username=USER, password=Secret(self._password()))

    @property
    def _record_file(self) -> Path:
        return folder_of(self.home, NAME) / "registry.json"

    def start(self) -> None:
        if self.nodes and self.worker.alive:
            return
        self.home.make()
        make_folder(folder_of(self.home, NAME))
        found = self._runtime = self._runtime or RegistryRuntime.prepare(Settings(registry=self.settings))
        if self._use_archive:
            name, log = f"registry-{found.version}", self.home.logs / "class-archive.out"
            self._archive = ClassArchive(found.runtime, log, name, (*QUICK_START, "-Xmx256m"))
        self._record = self._recorded(self._record_file)
        server = RegistryServer(
            self.settings,
            self._bootstrap_servers,
            self._record,
            Secret(self._password()),
            home=self.home,
            runtime=found.runtime,
            archive=self._archive,
            notice=self._notice,
        )
        self.nodes = [server]
        server.start()

    def _gather(self, deadline: Deadline) -> None:
        super()._gather(deadline)
        if not self._record.told:
            self._tell_level(deadline)
            self._record.told = True
            self._record.write(self._record_file)

    def _tell_level(self, deadline: Deadline) -> None:
        """Its own default compares nothing. Told once: whoever changes it later has changed it."""
        login = base64.b64encode(f"{USER}:{self._password()}".encode()).decode()
        headers = {"Authorization": f"Basic {login}", "Content-Type": "application/json"}
        connection = http.client.HTTPConnection(self.worker.address, timeout=max(5.0, deadline.left))
        try:
            connection.request("PUT", f"{PATH}/config", json.dumps({"compatibility": LEVEL}), headers)
            answer = connection.getresponse()
            said = answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise self.worker.not_ready(deadline) from error
        finally:
            connection.close()
        if answer.status != http.client.OK:
            raise ServerNotReadyError(
                f"The registry did not take its compatibility level {LEVEL}",
                found=f"HTTP {answer.status}: {said[:200].decode(errors='replace')}",
                hint=f"See {self.worker.log}",
                server=NAME,
            )
