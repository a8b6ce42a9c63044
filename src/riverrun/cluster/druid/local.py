"""A Druid on this machine, as one server: for tests, for user code, and for `riverrun up --druid` around it.

with LocalDruid(Path("/tmp/cluster"), DruidSettings()) as druid:
    druid.url                        # "http://127.0.0.1:8888", the router
    druid.indexer.kill()             # as a crash would
    druid.indexer.restart()
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from riverrun.cluster.class_archive import ClassArchive
from riverrun.cluster.druid.jars import DruidRuntime
from riverrun.cluster.druid.plan import ZOOKEEPER, DruidManifest, DruidPlan
from riverrun.cluster.druid.probe import answers_sql, is_leader
from riverrun.cluster.druid.properties import DERBY
from riverrun.cluster.druid.role import DruidNode, DruidRole, ZooKeeper, druid_folder
from riverrun.cluster.home import make_folder
from riverrun.cluster.jvm import FAST_START_FLAGS
from riverrun.cluster.local_servers import LocalServers
from riverrun.cluster.node import PROBE_SECONDS
from riverrun.cluster.server import Deadline
from riverrun.config import DruidSettings, Settings
from riverrun.errors import NotRunningError, ServerNotReadyError

FIRST_PORT = 8888
# All but the router listen this far above it, away from the ports that users type.
INNER_PORTS_ABOVE = 1000
# A query through several servers, the first of which may still be loading its classes.
QUERY_SECONDS = 5.0
# Without ZooKeeper no role can deregister, and each tries for minutes.
WITHOUT_ZOOKEEPER_SECONDS = 3.0


class LocalDruid(LocalServers[DruidNode]):
    """ZooKeeper and the five roles with their data, logs and run state under `root`.

    `runtime` is the Java and the jars to use; by default they are found, and fetched when missing. Existing data is
    used again, on the same ports when they are free. `notice` gets sentences that a user may want to know; `progressed`
    is called when a server has begun to answer.
    """

    label = "Druid"

    def __init__(
        self,
        root: Path,
        settings: DruidSettings | None = None,
        *,
        runtime: DruidRuntime | None = None,
        first_port: int = FIRST_PORT,
        notice: Callable[[str], None] = lambda _: None,
        progressed: Callable[[], None] = lambda: None,
    ) -> None:
        self.settings = settings or DruidSettings()
        self.plan = DruidPlan.of(self.settings)
        super().__init__(root, first_port, notice, fixed_port=bool(self.plan.port))
        self.responding: set[str] = set()
        self._runtime = runtime
        self._progressed = progressed

    # --- what it is ---

    @property
    def name(self) -> str:
        return "druid"

    @property
    def start_timeout_seconds(self) -> float:
        return self.plan.start_timeout_seconds

    @property
    def url(self) -> str:
        """The router's address: SQL, and everything a client of Druid needs."""
        return f"http://{self.router.address}"

    @property
    def zookeeper(self) -> DruidNode:
        return self._node(ZOOKEEPER)

    @property
    def coordinator(self) -> DruidNode:
        """Coordinator and overlord, and the metadata in it."""
        return self._node("druid-coordinator")

    @property
    def broker(self) -> DruidNode:
        return self._node("druid-broker")

    @property
    def historical(self) -> DruidNode:
        return self._node("druid-historical")

    @property
    def indexer(self) -> DruidNode:
        return self._node("druid-indexer")

    @property
    def router(self) -> DruidNode:
        return self._node("druid-router")

    def _node(self, name: str) -> DruidNode:
        for node in self.nodes:
            if node.name == name:
                return node
        raise NotRunningError("This Druid has not been started")

    # --- lifecycle ---

    def start(self) -> None:
        """All at once: they wait for each other."""
        if any(node.alive for node in self.nodes):
            return
        self.home.make()
        folder = druid_folder(self.home)
        make_folder(folder)
        druid = self._runtime = self._runtime or DruidRuntime.prepare(Settings(druid=self.settings))
        if self.settings.quick_start:
            name, log = f"druid-{druid.version}", self.home.logs / "class-archive.out"
            flags = (*FAST_START_FLAGS, "-Xmx256m")
            self._archive = ClassArchive(druid.runtime, log, name, flags, recordings=len(self.plan.roles))
        manifest = self._load_manifest(druid.version, folder)
        self._wait_for_previous(self.plan.names)
        self._choose_ports(manifest)
        manifest.write(self._manifest_path)
        self.responding = set()
        self.nodes = self._create_nodes(druid, manifest)
        for node in self.nodes:
            node.start()

    def _wait_until_ready(self, deadline: Deadline) -> None:
        """All servers answer, the coordinator leads, and SQL through the router returns."""
        self._wait_for_nodes(deadline)
        self._wait_for_leader(deadline)

    def stop(self) -> None:
        """Stop first those that need the others most: ask, wait, then kill. ZooKeeper last."""
        if self.nodes:
            deadline = Deadline(self.plan.stop_timeout_seconds)
            for group in ([self.indexer], [self.historical, self.broker, self.router], [self.coordinator]):
                # One that hangs must not use up the time of all the others.
                left = deadline.left / 2 if self.zookeeper.alive else min(deadline.left, WITHOUT_ZOOKEEPER_SECONDS)
                stop_together(group, Deadline(left))
            stop_together([self.zookeeper], deadline)
        self._close()

    def is_working(self) -> bool:
        """Whether it answers SQL now, and the coordinator leads."""
        port = self.router.port
        return is_leader(port, QUERY_SECONDS) and answers_sql(port, QUERY_SECONDS)

    # --- internals ---

    def _create_nodes(self, druid: DruidRuntime, manifest: DruidManifest) -> list[DruidNode]:
        zookeeper = ZooKeeper(
            ZOOKEEPER,
            ZOOKEEPER,
            self.plan,
            manifest,
            # Without the class archive: it starts quickly by itself, and would hold all of Druid's classes in memory.
            home=self.home,
            runtime=druid.runtime,
            notice=self._notice,
        )
        roles = [
            DruidRole(
                role,
                self.plan,
                manifest,
                extensions=druid.extensions,
                home=self.home,
                runtime=druid.runtime,
                archive=self._archive,
                notice=self._notice,
            )
            for role in self.plan.roles
        ]
        return [zookeeper, *roles]

    def _wait_for_nodes(self, deadline: Deadline) -> None:
        while waiting := [node for node in self.nodes if node.name not in self.responding]:
            for node in self.nodes:
                node.check()
            for node in waiting:
                if node.is_responding(PROBE_SECONDS):
                    self.responding.add(node.name)
                    self._progressed()
            if deadline.passed and len(self.responding) < len(self.nodes):
                raise next(node for node in self.nodes if node.name not in self.responding).not_ready_error(deadline)
            waiting[0].pause()

    def _wait_for_leader(self, deadline: Deadline) -> None:
        while not self.is_working():
            for node in self.nodes:
                node.check()
            if deadline.passed:
                raise ServerNotReadyError(
                    f"All of Druid's servers run, and {self.url} did not answer SQL in {deadline.seconds:.0f} s",
                    hint=f"See the logs in {self.home.logs}, or give it more time with druid.start_timeout_seconds",
                    server=self.router.name,
                )
            self.router.pause()

    @property
    def _manifest_path(self) -> Path:
        return druid_folder(self.home) / "druid.json"

    def _load_manifest(self, version: str, folder: Path) -> DruidManifest:
        manifest = DruidManifest.read(self._manifest_path)
        if manifest is None:
            return DruidManifest(version, str(folder))
        manifest.check(version, folder)
        return manifest

    def _choose_ports(self, manifest: DruidManifest) -> None:
        self._claims.close()
        before, manifest.ports = manifest.ports, {}
        router, *others = [*reversed(self.plan.names), DERBY]
        if self.plan.port:
            manifest.ports[router] = self._claims.claim_exactly(self.plan.port, router, "druid.port")
        else:
            manifest.ports[router] = self._claims.reclaim(router, before, self._first_port, self._notice)
        for name in others:
            manifest.ports[name] = self._claims.reclaim(
                name, before, self._first_port + INNER_PORTS_ABOVE, self._notice
            )


def stop_together(nodes: Sequence[DruidNode], deadline: Deadline) -> None:
    """Ask all, wait for all, kill those that are left at the deadline."""
    for node in nodes:
        node.ask_to_stop()
    while living := [node for node in nodes if node.alive]:
        if deadline.passed:
            for node in living:
                node.kill()
        living[0].pause()
