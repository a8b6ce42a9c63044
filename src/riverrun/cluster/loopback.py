"""What riverrun's HTTP servers have in common: they listen on 127.0.0.1, and answer only requests whose Host names it.

A web page may make a browser call any address, also 127.0.0.1 under a name of the page's own (DNS rebinding). It cannot
choose the Host header then, and that gives it away.
"""

import errno
import logging
import socket
from collections.abc import Callable, Collection, Sequence
from typing import TypeVar

from riverrun.cluster.ports import HOST, PortClaims
from riverrun.errors import PortTakenError

LOOPBACK_NAMES = frozenset({"127.0.0.1", "localhost", "[::1]"})
_PORT_TAKEN_ERRORS = frozenset({errno.EADDRINUSE, errno.EACCES, errno.EPERM})
_LOG = logging.getLogger(__name__)
S = TypeVar("S")


def is_allowed_host(hosts: Sequence[str], names: Collection[str] = LOOPBACK_NAMES) -> bool:
    """Whether the Host headers of a request name this machine; there must be exactly one."""
    if len(hosts) != 1:
        return False
    name, colon, port = hosts[0].strip().rpartition(":")
    # `[::1]` alone has colons too.
    if not colon or not port.isdigit():
        name = hosts[0].strip()
    return name.lower() in names


def listen_on_free_port(
    make: Callable[[int], S], claims: PortClaims, port: int, *, first: int, what: str, setting: str
) -> S:
    """What `make` returns for a port: for this one, or for the first free one from `first` up where `port` is 0. Other
    failures, such as a wrong address, are raised as the OSError they are."""
    if port:
        claims.claim_exactly(port, what, setting)
        try:
            return make(port)
        except OSError as error:
            if error.errno not in _PORT_TAKEN_ERRORS:
                raise
            raise PortTakenError(
                f"Port {port} for {what} cannot be used: {error.strerror}",
                hint=f"Choose another {setting}; 0 takes a free one",
                port=port,
            ) from error
    while True:
        free_port = claims.claim_first(first)
        try:
            return make(free_port)
        except OSError as error:
            if error.errno not in _PORT_TAKEN_ERRORS:
                raise
            # A process without claims was faster: try the next one.
            _LOG.debug("port %d: %s", free_port, error)
            first = free_port + 1


def listening_socket(port: int, host: str = HOST) -> socket.socket:
    """A socket that listens on 127.0.0.1, or on another given address."""
    # TCP by name: asyncio turns Nagle's algorithm off for such sockets only, and without that every answer of two parts
    # (head and body, as uvicorn sends them) waits 40 ms for the other side's delayed acknowledgement.
    server_socket = socket.socket(
        socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP
    )
    try:
        server_socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server_socket.bind((host, port))
        server_socket.listen(128)
    except BaseException:
        server_socket.close()
        raise
    return server_socket
