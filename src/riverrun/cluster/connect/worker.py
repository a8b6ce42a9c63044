"""The worker: Connect's JVM."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar

from riverrun.cluster.class_archive import ClassArchive
from riverrun.cluster.connect.jars import ConnectRuntime, link_plugins, own_plugins
from riverrun.cluster.connect.plan import NAME, ConnectPlan, connect_folder, secrets_folder
from riverrun.cluster.connect.probe import is_ready
from riverrun.cluster.connect.properties import worker_properties
from riverrun.cluster.diagnosis import CONNECT, Product
from riverrun.cluster.home import ClusterHome, check_space, make_folder
from riverrun.cluster.jvm import small_heap_options
from riverrun.cluster.node import OptionalNode, write_logging
from riverrun.cluster.properties import format_properties
from riverrun.cluster.single_server import USER, SingleServerManifest
from riverrun.config import Secret
from riverrun.config.private_files import write_private
from riverrun.errors import ConfigError

LOGGING = "log4j2-connect.properties"
PLUGINS = "connect-plugins"
LOG_LEVELS = {
    # It logs all values of all configurations at each start, resolved secrets among them.
    "org.apache.kafka.common.config.AbstractConfig": "warn",
    "org.apache.kafka.common.config.ConfigDef": "warn",
    # It logs its command line, in which a word about memory would be taken for the cause of its death.
    "org.apache.kafka.connect.runtime.WorkerInfo": "warn",
    # A line for each class it finds, and for each request.
    "org.apache.kafka.connect.runtime.isolation": "warn",
    "org.apache.kafka.connect.runtime.rest.RestServer": "warn",
    "org.glassfish.jersey": "error",
    "org.eclipse.jetty": "warn",
}
# Characters that a path in Connect's own configuration file cannot have.
FORBIDDEN_CHARACTERS = frozenset(',:"}')


class ConnectWorker(OptionalNode):
    """One worker. Without it Kafka and all else still work."""

    product: ClassVar[Product] = CONNECT

    def __init__(
        self,
        plan: ConnectPlan,
        manifest: SingleServerManifest,
        password: Secret,
        *,
        plugins: str,
        home: ClusterHome,
        connect: ConnectRuntime,
        archive: ClassArchive | None = None,
        notice: Callable[[str], None] = lambda _: None,
    ) -> None:
        super().__init__(NAME, NAME, plan, home=home, runtime=connect.runtime, archive=archive, notice=notice)
        self.plan = plan
        self.manifest = manifest
        self._password = password
        self._plugins = plugins
        self._connect = connect

    @property
    def heap_mb(self) -> int:
        return self.plan.heap_mb

    @property
    def port(self) -> int:
        return self.manifest.ports[self.name]

    @property
    def folder(self) -> Path:
        return connect_folder(self.home)

    @property
    def work_folder(self) -> Path:
        return self.folder

    def prepare(self) -> None:
        secrets = secrets_folder(self.home.data)
        if FORBIDDEN_CHARACTERS & set(str(secrets)):
            raise ConfigError(
                [
                    f"Connect cannot be run in {self.home.root}: it cannot write {' '.join(sorted(FORBIDDEN_CHARACTERS))} "
                    "in the name of a folder; use a project folder without them"
                ]
            )
        make_folder(self.folder)
        check_space(self.folder)
        secrets.mkdir(mode=0o700, exist_ok=True)
        own = own_plugins(self._plugins)
        link_plugins(self.home.run / PLUGINS, {**self._connect.plugins, **own})
        properties = worker_properties(
            self.plan, self.port, plugins=f"../../run/{PLUGINS}", secrets=secrets, scan=bool(own)
        )
        write_private(self._file("properties"), format_properties(properties))
        write_private(self._file("users"), format_properties({USER: self._password.reveal()}))
        write_private(self._file("jaas"), JAAS.format(file=self._relative("users")))
        write_logging(self.home.run / LOGGING, LOG_LEVELS)

    def command(self, options: Sequence[str]) -> list[str]:
        return self.runtime.command(
            "org.apache.kafka.connect.cli.ConnectDistributed",
            [self._relative("properties")],
            options=[
                *small_heap_options(self.plan.heap_mb),
                *options,
                f"-Djava.security.auth.login.config={self._relative('jaas')}",
                f"-Dlog4j2.configurationFile=../../run/{LOGGING}",
            ],
        )

    def is_responding(self, seconds: float) -> bool:
        return is_ready(f"http://{self.address}", USER, self._password.reveal(), seconds)

    def _file(self, suffix: str) -> Path:
        return self.home.run / f"{self.name}.{suffix}"

    def _relative(self, suffix: str) -> str:
        return os.path.relpath(self._file(suffix), self.work_folder)


JAAS = """\
KafkaConnect {{
  org.apache.kafka.connect.rest.basic.auth.extension.PropertyFileLoginModule required file="{file}";
}};
"""
