"""The registry's JVM."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar

from riverrun.cluster.class_archive import ClassArchive
from riverrun.cluster.connect.probe import is_ready
from riverrun.cluster.diagnosis import REGISTRY, Product
from riverrun.cluster.home import ClusterHome, check_space, make_folder
from riverrun.cluster.jvm import JavaRuntime, small_heap_options
from riverrun.cluster.node import OptionalNode
from riverrun.cluster.properties import format_properties
from riverrun.cluster.registry.properties import registry_properties
from riverrun.cluster.single_server import USER, SingleServerManifest, server_folder
from riverrun.config import RegistrySettings, Secret
from riverrun.config.private_files import write_private

NAME = "registry"
MAIN = "io.quarkus.runner.GeneratedMain"


class RegistryServer(OptionalNode):
    """One registry. Topics of plain JSON work without it."""

    product: ClassVar[Product] = REGISTRY

    def __init__(
        self,
        settings: RegistrySettings,
        bootstrap_servers: str,
        manifest: SingleServerManifest,
        password: Secret,
        *,
        home: ClusterHome,
        runtime: JavaRuntime,
        archive: ClassArchive | None = None,
        notice: Callable[[str], None] = lambda _: None,
    ) -> None:
        super().__init__(NAME, NAME, settings, home=home, runtime=runtime, archive=archive, notice=notice)
        self._settings = settings
        self._bootstrap_servers = bootstrap_servers
        self._manifest = manifest
        self._password = password

    @property
    def heap_mb(self) -> int:
        return self._settings.heap_mb

    @property
    def port(self) -> int:
        return self._manifest.ports[self.name]

    @property
    def folder(self) -> Path:
        return server_folder(self.home, NAME)

    @property
    def work_folder(self) -> Path:
        return self.folder

    @property
    def _file(self) -> Path:
        return self.home.run / f"{self.name}.properties"

    def prepare(self) -> None:
        make_folder(self.folder)
        check_space(self.folder)
        properties = registry_properties(
            self._bootstrap_servers,
            self.port,
            password=self._password.reveal(),
            log=os.path.relpath(self.log, self.work_folder),
            folder=".",
        )
        write_private(self._file, format_properties(properties))

    def environment(self) -> dict[str, str]:
        # Variables for another registry, or for another Quarkus, are not for this one.
        others = ("APICURIO_", "QUARKUS_", "REGISTRY_")
        return {name: value for name, value in super().environment().items() if not name.startswith(others)}

    def command(self, options: Sequence[str]) -> list[str]:
        return self.runtime.command(
            MAIN,
            options=[
                *small_heap_options(self.heap_mb),
                *options,
                f"-Dquarkus.config.locations={os.path.relpath(self._file, self.work_folder)}",
                "-Djava.util.logging.manager=org.jboss.logmanager.LogManager",
            ],
        )

    def is_responding(self, seconds: float) -> bool:
        # It scans its storage to answer, which takes longer than a port probe.
        return is_ready(
            f"http://{self.address}", USER, self._password.reveal(), max(seconds, 2.0), path="/health/ready"
        )
