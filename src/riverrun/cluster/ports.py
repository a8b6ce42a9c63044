"""Ports on 127.0.0.1: which are free, who has the others, and a claim that keeps two runners off the same one.

Between choosing a port and the server's bind lie seconds. A claim is a lock on a small file per port in the machine's
temporary folder: other riverrun runners of the user pass over it, and it goes away with its holder however that ends.
"""

import contextlib
import errno
import fcntl
import os
import socket
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from riverrun.errors import ClusterError, PortTakenError

HOST = "127.0.0.1"
# From here on the kernel assigns ports to outgoing connections, so that one can be taken at any moment.
FIRST_EPHEMERAL = 32768
# Below this, only root may listen.
FIRST_UNPRIVILEGED = 1024
LAST = 65535


@dataclass(frozen=True)
class PortHolder:
    """The process that has a port."""

    pid: int
    name: str

    def __str__(self) -> str:
        return f"{self.name} (pid {self.pid})"


def is_free(port: int) -> bool:
    """Whether a server could listen on this port now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As Java does: connections of an earlier server that are still closing are no obstacle.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
            # Two sockets may be bound with SO_REUSEADDR; only one may listen.
            probe.listen(1)
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                return False
            raise
    return True


def holder_of(port: int) -> PortHolder | None:
    """Who listens on a port; None when nobody does, or somebody whom this user may not see."""
    import psutil

    with contextlib.suppress(psutil.Error, OSError):
        for connection in psutil.net_connections(kind="tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port and connection.pid:
                return PortHolder(connection.pid, psutil.Process(connection.pid).name())
    return None


class PortClaims:
    """The ports one runner has chosen. `close` releases them; so does the end of the process."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder or Path(tempfile.gettempdir()) / f"riverrun-ports-{os.geteuid()}"
        self._descriptors: dict[int, int] = {}

    @property
    def ports(self) -> tuple[int, ...]:
        return tuple(self._descriptors)

    def claim(self, port: int) -> bool:
        """Take this port if it is free and nobody else has claimed it."""
        if port in self._descriptors:
            return False
        descriptor = self._open(port)
        try:
            if descriptor >= 0:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if is_free(port):
                if descriptor >= 0:
                    os.ftruncate(descriptor, 0)
                    os.pwrite(descriptor, b"%d" % os.getpid(), 0)
                self._descriptors[port] = descriptor
                return True
        except BlockingIOError:
            pass
        finally:
            if descriptor >= 0 and port not in self._descriptors:
                os.close(descriptor)
        return False

    def _open(self, port: int) -> int:
        """The port's claim file; -1 where none can be created: claims are advisory, the port itself decides."""
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            return os.open(self._folder / str(port), flags, 0o600)
        except OSError:
            return -1

    def claim_first(self, start: int) -> int:
        """Take the first free port from `start` up; from a start below the ephemeral ports, one below them."""
        end = FIRST_EPHEMERAL if start < FIRST_EPHEMERAL else LAST + 1
        for port in range(start, end):
            if self.claim(port):
                return port
        raise ClusterError(f"No free port from {start} to {end - 1} on {HOST}", hint="Stop some servers", first=start)

    def reclaim(self, name: str, before: Mapping[str, int], start: int, notice: Callable[[str], None]) -> int:
        """Take the port that `name` had before, else the first free one from `start` up; `notice` reports a change."""
        old = before.get(name, 0)
        if old and self.claim(old):
            return old
        new = self.claim_first(start)
        if old:
            notice(f"port {old} of {name} is taken now; it uses {new}")
        return new

    def claim_exactly(self, port: int, wanted_for: str, setting: str = "kafka.port") -> int:
        """Take this port, or say who has it."""
        if self.claim(port):
            return port
        holder = self.holder(port)
        if holder is None and port < FIRST_UNPRIVILEGED and os.geteuid() != 0:
            raise PortTakenError(
                f"Port {port} for {wanted_for} needs rights that this user does not have",
                expected=f"a port from {FIRST_UNPRIVILEGED} up",
                hint=f"Choose another {setting}; 0 takes a free one",
                port=port,
            )
        raise PortTakenError(
            f"Port {port} for {wanted_for} is taken by {holder or 'a process that we may not see'}",
            hint=f"Stop that process or choose another {setting}; 0 takes a free one",
            port=port,
            pid=holder.pid if holder else 0,
            process=holder.name if holder else "",
        )

    def holder(self, port: int) -> PortHolder | None:
        """Who listens on a port or has claimed it; None when that cannot be known."""
        return holder_of(port) or self._claimer(port)

    def _claimer(self, port: int) -> PortHolder | None:
        import psutil

        try:
            pid = int((self._folder / str(port)).read_text())
            return PortHolder(pid, psutil.Process(pid).name())
        except (OSError, ValueError, psutil.Error):
            return None

    def close(self) -> None:
        for descriptor in self._descriptors.values():
            if descriptor >= 0:
                os.close(descriptor)
        self._descriptors.clear()
