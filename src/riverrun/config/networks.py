"""Addresses and networks as settings name them: `127.0.0.1, 10.0.0.0/8`."""

import ipaddress

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def parse_networks(text: str) -> tuple[Network, ...]:
    """The networks of a comma-separated list. ValueError names the entry that is none."""
    networks: list[Network] = []
    for name in (part.strip() for part in text.split(",")):
        if not name:
            continue
        try:
            networks.append(ipaddress.ip_network(name))
        except ValueError as error:
            raise ValueError(f"{name!r} is not an address or a network: {error}") from error
    return tuple(networks)
