"""A Kafka Connect on this machine: for tests, for user code, and for `riverrun up --connect` around it.

with LocalConnect(Path("/tmp/cluster"), kafka.bootstrap_servers) as connect:
    connect.url                      # "http://127.0.0.1:8083"
    connect.attached                 # settings for a client: address and login
    connect.worker.kill()            # as a crash would
    connect.worker.restart()
"""

import secrets
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from riverrun.cluster.archive import ClassArchive
from riverrun.cluster.connect.jars import ConnectRuntime
from riverrun.cluster.connect.plan import NAME, ConnectPlan, ConnectRecord, connect_folder, password_file
from riverrun.cluster.connect.probe import USER
from riverrun.cluster.connect.worker import ConnectWorker
from riverrun.cluster.home import make_folder, write_private
from riverrun.cluster.jvm import QUICK_START
from riverrun.cluster.local import LocalServers
from riverrun.cluster.server import Deadline
from riverrun.config import ConnectSettings, Secret, Settings
from riverrun.errors import NotRunningError

FIRST_PORT = 8083


class LocalConnect(LocalServers[ConnectWorker]):
    """One worker in distributed mode beside a Kafka that runs, with its password, logs and run state under `root`.

    What it was told (connectors, how far they are) is in the Kafka. `copies` is how many of each of its topics there are
    to be. `runtime` is the Java and the jars to use; by default they are found, and fetched when missing. It takes the
    port it had before when that is free.
    """

    called = "Connect"

    def __init__(
        self,
        root: Path,
        bootstrap_servers: str,
        settings: ConnectSettings | None = None,
        *,
        copies: int = 1,
        runtime: ConnectRuntime | None = None,
        first_port: int = FIRST_PORT,
        notice: Callable[[str], None] = lambda _: None,
        archive: bool = True,
    ) -> None:
        self.settings = settings or ConnectSettings()
        self.plan = ConnectPlan.of(self.settings, bootstrap_servers, copies)
        super().__init__(root, first_port, notice, fixed_port=bool(self.plan.port))
        self._runtime = runtime
        self._use_archive = archive

    @property
    def name(self) -> str:
        return NAME

    @property
    def start_timeout_seconds(self) -> float:
        return self.plan.start_timeout_seconds

    @property
    def worker(self) -> ConnectWorker:
        if not self.nodes:
            raise NotRunningError("This Connect has not been started")
        return self.nodes[0]

    @property
    def url(self) -> str:
        return f"http://{self.worker.address}"

    @property
    def attached(self) -> ConnectSettings:
        """The settings of somebody who uses it: its address and its login."""
        return replace(self.settings, url=self.url, username=USER, password=Secret(self._password()))

    def start(self) -> None:
        if self.nodes and self.worker.alive:
            return
        self.home.make()
        folder = connect_folder(self.home)
        make_folder(folder)
        connect = self._runtime = self._runtime or ConnectRuntime.prepare(Settings(connect=self.settings))
        if self._use_archive:
            name, log = f"connect-{connect.version}", self.home.logs / "class-archive.out"
            self._archive = ClassArchive(connect.runtime, log, name, (*QUICK_START, "-Xmx256m"))
        record = ConnectRecord.read(folder / "connect.json") or ConnectRecord()
        self._wait_for_earlier([NAME])
        self._choose_port(record)
        record.write(folder / "connect.json")
        worker = ConnectWorker(
            self.plan,
            record,
            Secret(self._password()),
            plugins=self.settings.plugins,
            home=self.home,
            connect=connect,
            archive=self._archive,
            notice=self._notice,
        )
        self.nodes = [worker]
        worker.start()

    def _gather(self, deadline: Deadline) -> None:
        self.worker.ready(deadline)

    def stop(self) -> None:
        for node in self.nodes:
            node.stop()
        self._close()

    def _choose_port(self, record: ConnectRecord) -> None:
        self._claims.close()
        before, record.ports = record.ports, {}
        if self.plan.port:
            record.ports[NAME] = self._claims.claim_exactly(self.plan.port, NAME, "connect.port")
        else:
            record.ports[NAME] = self._claims.claim_again(NAME, before, self._first_port, self._notice)

    def _password(self) -> str:
        """Made once, and kept: who reads this project's files may use its Connect, and nobody else on this machine."""
        file = password_file(self.home.data)
        if not file.is_file():
            write_private(file, secrets.token_urlsafe(24))
        return file.read_text(encoding="ascii").strip()
