"""A Kafka Connect on this machine: for tests, for user code, and for `riverrun up --connect` around it.

with LocalConnect(Path("/tmp/cluster"), kafka.bootstrap_servers) as connect:
    connect.url                      # "http://127.0.0.1:8083"
    connect.attached                 # settings for a client: address and login
    connect.worker.kill()            # as a crash would
    connect.worker.restart()
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from riverrun.cluster.class_archive import ClassArchive
from riverrun.cluster.connect.jars import ConnectRuntime
from riverrun.cluster.connect.plan import NAME, ConnectPlan, connect_folder
from riverrun.cluster.connect.worker import ConnectWorker
from riverrun.cluster.home import make_folder
from riverrun.cluster.jvm import FAST_START_FLAGS
from riverrun.cluster.single_server import USER, SingleServer
from riverrun.config import ConnectSettings, Secret, Settings

FIRST_PORT = 8083


class LocalConnect(SingleServer[ConnectWorker]):
    """One worker in distributed mode beside a running Kafka, with its password, logs and run state under `root`.

    Its state (connectors and their offsets) is in the Kafka. `copies` is the replication factor of its topics.
    `runtime` is the Java and the jars to use; by default they are found, and fetched when missing. It takes the port it
    had before when that is free.
    """

    label = "Connect"
    server_name: ClassVar[str] = NAME

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
        super().__init__(root, first_port, notice, port=self.plan.port)
        self._runtime = runtime
        self._use_archive = archive

    @property
    def start_timeout_seconds(self) -> float:
        return self.plan.start_timeout_seconds

    @property
    def url(self) -> str:
        return f"http://{self.node.address}"

    @property
    def attached(self) -> ConnectSettings:
        """The settings for a client: its address and its login."""
        return replace(self.settings, url=self.url, username=USER, password=Secret(self._password()))

    def start(self) -> None:
        if self.nodes and self.node.alive:
            return
        self.home.make()
        folder = connect_folder(self.home)
        make_folder(folder)
        connect = self._runtime = self._runtime or ConnectRuntime.prepare(Settings(connect=self.settings))
        if self._use_archive:
            name, log = f"connect-{connect.version}", self.home.logs / "class-archive.out"
            self._archive = ClassArchive(connect.runtime, log, name, (*FAST_START_FLAGS, "-Xmx256m"))
        manifest = self._load_manifest(folder / "connect.json")
        worker = ConnectWorker(
            self.plan,
            manifest,
            Secret(self._password()),
            plugins=self.settings.plugins,
            home=self.home,
            connect=connect,
            archive=self._archive,
            notice=self._notice,
        )
        self.nodes = [worker]
        worker.start()
