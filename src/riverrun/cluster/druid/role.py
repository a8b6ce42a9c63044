"""ZooKeeper and one role of Druid: a JVM each."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar

from riverrun.cluster.class_archive import ClassArchive
from riverrun.cluster.diagnosis import DRUID, Product
from riverrun.cluster.druid.plan import ZOOKEEPER, ZOOKEEPER_HEAP_MB, DruidManifest, DruidPlan, RolePlan
from riverrun.cluster.druid.probe import is_healthy, is_leader, is_zookeeper_ready
from riverrun.cluster.druid.properties import DERBY, role_properties, zookeeper_properties
from riverrun.cluster.home import ClusterHome, check_space, make_folder
from riverrun.cluster.jvm import JavaRuntime, small_heap_options
from riverrun.cluster.node import DEPENDENT_DELAY_SECONDS, OptionalNode, write_logging
from riverrun.cluster.properties import format_properties
from riverrun.config.private_files import write_private

LOGGING = "log4j2-druid.properties"
LOG_LEVELS = {
    # A line for each of its web resources, at each start.
    "com.sun.jersey": "warn",
    "com.google.inject": "warn",
}
# What Druid accesses in Java's internals; as in its own start scripts.
ADD_OPENS = (
    "--add-exports=java.base/jdk.internal.misc=ALL-UNNAMED",
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-opens=java.base/java.io=ALL-UNNAMED",
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
    "--add-opens=jdk.management/com.sun.management.internal=ALL-UNNAMED",
)
DRUID_JAVA = (
    "-Xss512k",
    "-Duser.timezone=UTC",
    # Jersey and Derby log by Java's own logger.
    "-Djava.util.logging.manager=org.apache.logging.log4j.jul.LogManager",
    "-Djava.io.tmpdir=tmp",
    # Derby's own log; the coordinator's has what matters.
    "-Dderby.stream.error.file=/dev/null",
)


class DruidNode(OptionalNode):
    """What ZooKeeper and the roles share: they run in Druid's folder."""

    product: ClassVar[Product] = DRUID

    def __init__(
        self,
        name: str,
        kind: str,
        plan: DruidPlan,
        manifest: DruidManifest,
        *,
        home: ClusterHome,
        runtime: JavaRuntime,
        archive: ClassArchive | None = None,
        notice: Callable[[str], None] = lambda _: None,
    ) -> None:
        super().__init__(name, kind, plan, home=home, runtime=runtime, archive=archive, notice=notice)
        self.plan = plan
        self.manifest = manifest

    @property
    def port(self) -> int:
        return self.manifest.ports[self.name]

    @property
    def folder(self) -> Path:
        return druid_folder(self.home)

    @property
    def work_folder(self) -> Path:
        return druid_folder(self.home)

    def prepare(self) -> None:
        make_folder(self.folder / "tmp")
        check_space(self.folder)
        write_private(self._configuration, format_properties(self.properties()))
        write_logging(self.home.run / LOGGING, LOG_LEVELS)

    def properties(self) -> dict[str, str]:
        """The content of its configuration file."""
        raise NotImplementedError

    @property
    def _configuration(self) -> Path:
        return self.home.run / f"{self.name}.properties"


class ZooKeeper(DruidNode):
    """One ZooKeeper: the roles find each other and elect a leader through it. Its jars come with Druid's."""

    # The roles deregister from it when they stop.
    orphan_delay_seconds = DEPENDENT_DELAY_SECONDS

    @property
    def heap_mb(self) -> int:
        return ZOOKEEPER_HEAP_MB

    @property
    def folder(self) -> Path:
        return druid_folder(self.home) / ZOOKEEPER

    def properties(self) -> dict[str, str]:
        return zookeeper_properties(self.port)

    def command(self, options: Sequence[str]) -> list[str]:
        return self.runtime.command(
            "org.apache.zookeeper.server.quorum.QuorumPeerMain",
            # The dot tells ZooKeeper that a relative path is meant.
            [f"./../../run/{self._configuration.name}"],
            options=[
                *small_heap_options(self.heap_mb),
                *options,
                "-Dzookeeper.jmx.log4j.disable=true",
                # It preallocates this much for its log: 64 MiB by default, of which it needs a thousandth.
                "-Dzookeeper.preAllocSize=1024",
                f"-Dlog4j2.configurationFile=../../run/{LOGGING}",
            ],
        )

    def is_responding(self, seconds: float) -> bool:
        return is_zookeeper_ready(self.port, seconds)


class DruidRole(DruidNode):
    """One of Druid's five JVMs."""

    def __init__(
        self,
        role: RolePlan,
        plan: DruidPlan,
        manifest: DruidManifest,
        *,
        extensions: Path,
        home: ClusterHome,
        runtime: JavaRuntime,
        archive: ClassArchive | None = None,
        notice: Callable[[str], None] = lambda _: None,
    ) -> None:
        super().__init__(role.name, "druid", plan, manifest, home=home, runtime=runtime, archive=archive, notice=notice)
        self.role = role
        self.extensions = extensions

    @property
    def heap_mb(self) -> int:
        return self.role.heap_mb

    @property
    def own_ports(self) -> tuple[int, ...]:
        return (self.port, self.manifest.ports[DERBY]) if self.role.role == "coordinator" else (self.port,)

    def properties(self) -> dict[str, str]:
        return role_properties(self.role, self.plan, self.manifest.ports, str(self.extensions))

    def command(self, options: Sequence[str]) -> list[str]:
        return self.runtime.command(
            "org.apache.druid.cli.Main",
            ["server", self.role.role],
            options=[
                *small_heap_options(self.role.heap_mb),
                f"-XX:MaxDirectMemorySize={self.role.direct_mb}m",
                *DRUID_JAVA,
                *ADD_OPENS,
                *options,
                f"-Ddruid.properties.file=../../run/{self._configuration.name}",
                f"-Dlog4j2.configurationFile=../../run/{LOGGING}",
            ],
        )

    def is_responding(self, seconds: float) -> bool:
        if not is_healthy(self.port, seconds):
            return False
        return self.role.role != "coordinator" or is_leader(self.port, seconds)


def druid_folder(home: ClusterHome) -> Path:
    return home.data / "druid"
