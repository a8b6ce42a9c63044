"""Forwarded headers: what a proxy says about a request is used if the settings trust the proxy's address.

A proxy that terminates TLS calls us by http, from its own address, and sometimes by another name. It sends what the browser
used in `X-Forwarded-Proto`, `X-Forwarded-Host` and `X-Forwarded-For`. Anybody can send these headers, so those of an
untrusted address are ignored.
"""

import ipaddress
from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.types import Scope

from riverrun.config.networks import Network

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address
# Set in the scope of a request that a trusted proxy forwarded.
PROXIED = "riverrun.proxied"


class ForwardedError(ValueError):
    """A trusted proxy's headers are ambiguous."""


def apply_forwarded(scope: Scope, trusted: Sequence[Network]) -> None:
    """Replace scheme, host and client by a trusted proxy's headers. ForwardedError when they are ambiguous."""
    client = scope.get("client")
    peer = _parse_address(client[0]) if client else None
    if peer is None or not _is_in_networks(peer, trusted):
        return
    headers = Headers(scope=scope)
    scope[PROXIED] = True
    if (scheme := _single_value(headers, "x-forwarded-proto")) is not None:
        if scheme.lower() not in {"http", "https"}:
            raise ForwardedError(f"X-Forwarded-Proto is neither http nor https but {scheme[:40]!r}")
        scope["scheme"] = scheme.lower()
    if (host := _single_value(headers, "x-forwarded-host")) is not None:
        others = [(name, value) for name, value in scope["headers"] if name != b"host"]
        scope["headers"] = [*others, (b"host", host.encode("latin-1"))]
    client_address = _client_address(headers.getlist("x-forwarded-for"), peer, trusted)
    scope["client"] = (str(client_address), 0)


def _single_value(headers: Headers, name: str) -> str | None:
    """The value of a header that may occur only once: of two, one may be the client's own."""
    values = [part.strip() for value in headers.getlist(name) for part in value.split(",")]
    if len(values) > 1:
        raise ForwardedError(f"{name.title()} has {len(values)} values; the proxy has to set it, not add to it")
    return values[0] if values else None


def _client_address(forwarded: Sequence[str], peer: _Address, trusted: Sequence[Network]) -> _Address:
    """The client of the outermost trusted proxy: each proxy appends its caller, so it is the last address that is not
    trusted. Anything before it was sent by the client itself."""
    client = peer
    for text in reversed([part for value in forwarded for part in value.split(",")]):
        address = _parse_address(text)
        if address is None:
            break
        client = address
        if not _is_in_networks(address, trusted):
            break
    return client


def _parse_address(text: str) -> _Address | None:
    name = text.strip()
    if name.startswith("["):
        name = name[1:].partition("]")[0]
    elif name.count(":") == 1:
        name = name.partition(":")[0]
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def _is_in_networks(address: _Address, networks: Sequence[Network]) -> bool:
    return any(address in network for network in networks)
