"""Several processes on this machine that are one server: what Kafka and Druid have in common."""

import os
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

from riverrun.cluster.home import ClusterHome
from riverrun.cluster.node import ServerNode, node_lock
from riverrun.cluster.ports import PortClaims
from riverrun.cluster.server import Deadline, ManagedServer
from riverrun.errors import PortTakenError

if TYPE_CHECKING:
    from riverrun.cluster.class_archive import ClassArchive

# Two runners of two users may choose the same free port at the same moment.
PORT_TRIES = 3
N = TypeVar("N", bound=ServerNode)


class LocalServers(ManagedServer, Generic[N]):
    """Nodes with their data, logs and run state under `root`."""

    # Its name in the notice about a port.
    label: ClassVar[str]

    def __init__(self, root: Path, first_port: int, notice: Callable[[str], None], *, fixed_port: bool) -> None:
        self.home = ClusterHome(root.resolve())
        self.nodes: list[N] = []
        self._first_port = first_port
        self._notice = notice
        # A port that the user requested is the user's to change.
        self._fixed_port = fixed_port
        self._archive: ClassArchive | None = None
        self._claims = PortClaims()
        self._tries_left = PORT_TRIES

    def ready(self, deadline: Deadline) -> None:
        try:
            self._wait_until_ready(deadline)
        except PortTakenError:
            # We chose the ports and lost one to another process since: choose others.
            self._tries_left -= 1
            if self._fixed_port or not self._tries_left or deadline.passed:
                raise
            self._notice(f"a port was taken while {self.label} started; choosing others")
            self.stop()
            self.start()
            self.ready(deadline)
            return
        if self._archive is not None:
            self._archive.start_build()

    def kill(self) -> None:
        """Kill all nodes with -9."""
        for node in self.nodes:
            node.kill()
        self._close()

    def _wait_until_ready(self, deadline: Deadline) -> None:
        """Return when all nodes answer and work together."""
        raise NotImplementedError

    def _wait_for_previous(self, names: Collection[str]) -> None:
        """A node's port is free again only when an earlier process of it has ended."""
        for name in names:
            os.close(node_lock(self.home, name, self._notice))

    def _close(self) -> None:
        self._claims.close()
        if self._archive is not None:
            self._archive.close()
