"""A Kafka cluster on this machine, as one server: for tests, for user code, and for `riverrun up` around it.

with LocalKafka(Path("/tmp/cluster"), KafkaSettings(brokers=3)) as kafka:
    kafka.bootstrap_servers          # "127.0.0.1:9092,127.0.0.1:9093,127.0.0.1:9094"
    kafka.brokers[1].kill()          # as a crash would
    kafka.brokers[1].restart()
"""

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path

from riverrun.cluster.class_archive import ClassArchive
from riverrun.cluster.home import make_folder
from riverrun.cluster.jvm import FAST_START_FLAGS, JavaRuntime
from riverrun.cluster.kafka.node import KafkaNode, kafka_folder
from riverrun.cluster.kafka.plan import KafkaManifest, KafkaPlan, NodePlan
from riverrun.cluster.local_servers import LocalServers
from riverrun.cluster.node import POLL_SECONDS, PROBE_SECONDS
from riverrun.cluster.ports import HOST
from riverrun.cluster.server import Deadline
from riverrun.config import KafkaSettings, Settings
from riverrun.errors import NotRunningError, RiverrunError, ServerNotReadyError

FIRST_PORT = 9092
# Controllers listen this far above the brokers, away from the ports that users type.
CONTROLLER_PORTS_ABOVE = 1000
# How long a broker may take to close its logs when the controllers are gone.
WITHOUT_QUORUM_SECONDS = 10.0


class LocalKafka(LocalServers[KafkaNode]):
    """A cluster of one or more nodes with its data, logs and run state under `root`.

    `runtime` is the Java and the jars to use; by default they are found, and fetched when missing. Existing data is
    used again: the same cluster comes back, on the same ports when they are free. `notice` gets sentences that a user
    may want to know. `archive` False does without the class-data archive.
    """

    label = "the cluster"

    def __init__(
        self,
        root: Path,
        settings: KafkaSettings | None = None,
        *,
        runtime: JavaRuntime | None = None,
        first_port: int = FIRST_PORT,
        notice: Callable[[str], None] = lambda _: None,
        archive: bool = True,
    ) -> None:
        self.settings = settings or KafkaSettings()
        self.plan = KafkaPlan.of(self.settings)
        super().__init__(root, first_port, notice, fixed_port=bool(self.plan.port))
        self._runtime = runtime
        self._use_archive = archive
        self._manifest: KafkaManifest | None = None

    @property
    def name(self) -> str:
        return "kafka"

    @property
    def start_timeout_seconds(self) -> float:
        return self.plan.start_timeout_seconds

    @property
    def brokers(self) -> list[KafkaNode]:
        return [node for node in self.nodes if node.node.is_broker]

    @property
    def controllers(self) -> list[KafkaNode]:
        """Dedicated controllers; a combined node is among the brokers."""
        return [node for node in self.nodes if not node.node.is_broker]

    @property
    def bootstrap_servers(self) -> str:
        if not self.nodes:
            raise NotRunningError("This cluster has not been started")
        return ",".join(broker.address for broker in self.brokers)

    # --- lifecycle ---

    def start(self) -> None:
        if any(node.alive for node in self.nodes):
            return
        self.home.make()
        make_folder(kafka_folder(self.home))
        runtime = self._runtime = self._runtime or JavaRuntime.prepare(Settings(kafka=self.settings))
        if self._use_archive:
            name, log = f"kafka-{runtime.kafka_version}", self.home.logs / "class-archive.out"
            self._archive = ClassArchive(runtime, log, name, (*FAST_START_FLAGS, "-Xmx256m"))
        manifest = self._manifest = self._load_manifest(runtime.kafka_version)
        nodes = self.plan.nodes(manifest.controller_ids)
        self._wait_for_previous([node.name for node in nodes])
        self._choose_ports(manifest, nodes)
        manifest.write(self._manifest_path)
        self.nodes = [
            KafkaNode(
                node,
                self.plan,
                manifest,
                home=self.home,
                runtime=runtime,
                archive=self._archive,
                notice=self._notice,
            )
            for node in nodes
        ]
        for kafka_node in self.nodes:
            kafka_node.start()

    def _wait_until_ready(self, deadline: Deadline) -> None:
        """All nodes answer, and all brokers have joined the cluster."""
        self._wait_for_nodes(deadline)
        self._wait_for_brokers(deadline)
        self._set_min_insync(deadline)

    def stop(self) -> None:
        """Stop brokers first and all at once, then controllers: ask, wait, then kill."""
        deadline = Deadline(self.plan.stop_timeout_seconds)
        quorum = [node for node in self.nodes if node.node.is_controller]
        stop_nodes([node for node in self.nodes if not node.node.is_controller], deadline)
        stop_nodes([node for node in quorum if node.node.is_broker], deadline, quorum)
        stop_nodes(self.controllers, deadline, quorum)
        self._close()

    # --- internals ---

    @property
    def _manifest_path(self) -> Path:
        return kafka_folder(self.home) / "cluster.json"

    def _load_manifest(self, kafka_version: str) -> KafkaManifest:
        manifest = KafkaManifest.read(self._manifest_path)
        if manifest is None:
            return KafkaManifest.new(self.plan, kafka_version)
        manifest.check(self.plan, kafka_version, self._manifest_path.parent)
        if new := sorted(set(self.plan.broker_ids) - set(manifest.broker_ids)):
            self._notice(
                f"adding broker{'s' if len(new) > 1 else ''} {', '.join(map(str, new))}; topics that are there keep the "
                "copies they have"
            )
            manifest.broker_ids = self.plan.broker_ids
        manifest.kafka_version = kafka_version
        return manifest

    def _choose_ports(self, manifest: KafkaManifest, nodes: list[NodePlan]) -> None:
        self._claims.close()
        before, manifest.ports = manifest.ports, {}
        if self.plan.port:
            first = next(node for node in nodes if node.is_broker)
            manifest.ports[first.name] = self._claims.claim_exactly(self.plan.port, first.name)
        for node in nodes:
            if node.is_broker and node.name not in manifest.ports:
                start = self.plan.port + 1 if self.plan.port else self._first_port
                manifest.ports[node.name] = self._claims.reclaim(node.name, before, start, self._notice)
        for node in nodes:
            if node.is_controller:
                name = f"{node.name}.controller"
                manifest.ports[name] = self._claims.reclaim(
                    name, before, self._first_port + CONTROLLER_PORTS_ABOVE, self._notice
                )

    def _wait_for_nodes(self, deadline: Deadline) -> None:
        waiting = list(self.nodes)
        while waiting:
            for node in self.nodes:
                node.check()
            waiting = [node for node in waiting if not node.is_responding(PROBE_SECONDS)]
            if waiting:
                if deadline.passed:
                    raise waiting[0].not_ready_error(deadline)
                waiting[0].pause()

    def _wait_for_brokers(self, deadline: Deadline) -> None:
        from riverrun.kafka.probe import ClusterProbe

        probe = ClusterProbe({"bootstrap.servers": self.bootstrap_servers})
        expected = {node.node.id for node in self.brokers}
        while True:
            joined: set[int] = set()
            # Only the deadline and the nodes' deaths end this, not one request without a response.
            with contextlib.suppress(RiverrunError):
                joined = {broker.id for broker in probe.fetch_metadata(min(1.0, max(deadline.left, 0.1))).brokers}
            if expected <= joined:
                return
            for node in self.nodes:
                node.check()
            if deadline.passed:
                missing = ", ".join(node.name for node in self.brokers if node.node.id not in joined)
                raise ServerNotReadyError(
                    f"{missing} did not join the cluster in {deadline.seconds:.0f} s",
                    hint=f"See the logs in {self.home.logs}, or give it more time with kafka.start_timeout_seconds",
                    servers=missing,
                )
            self.nodes[0].wait(POLL_SECONDS)

    def _set_min_insync(self, deadline: Deadline) -> None:
        from riverrun.kafka.probe import set_cluster_default

        manifest = self._manifest
        if manifest is None or manifest.min_insync == self.plan.min_insync:
            return
        value, timeout = str(self.plan.min_insync), max(deadline.left, 1.0)
        set_cluster_default(HOST, self.brokers[0].port, "min.insync.replicas", value, timeout)
        manifest.min_insync = self.plan.min_insync
        manifest.write(self._manifest_path)


def stop_nodes(nodes: list[KafkaNode], deadline: Deadline, quorum: Sequence[KafkaNode] = ()) -> None:
    """Ask all, wait for all, kill those that are left at the deadline.

    When most of the quorum has ended, nobody is left to take over from the others or to approve their requests: the
    last leader would wait 5 s for a successor, a broker minutes for its controlled shutdown. Those are killed as soon
    as their logs are closed, or a while later: nothing is lost, and an open log is checked at the next start.
    """
    for node in nodes:
        node.ask_to_stop()
    lost: Deadline | None = None
    while living := [node for node in nodes if node.alive]:
        if lost is None and quorum and sum(node.alive for node in quorum) <= len(quorum) // 2:
            lost = Deadline(WITHOUT_QUORUM_SECONDS)
        for node in living:
            if deadline.passed or (lost is not None and (node.is_cleanly_shut_down or lost.passed)):
                node.kill()
        living[0].pause()
