"""How often somebody may do something: a bucket that fills again with time, one for each address or login."""

import ipaddress
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

# Addresses that are remembered; the one that was quiet longest is forgotten first.
MOST_KEPT = 10_000


class Rate(NamedTuple):
    """So many at once, then so many a second."""

    burst: float
    a_second: float


class Bucket:
    def __init__(self, rate: Rate, now: float) -> None:
        self._rate = rate
        self._left, self._then = rate.burst, now

    def take(self, now: float) -> float:
        """Take one; gives how many seconds to wait when there is none."""
        self._left = min(self._rate.burst, self._left + (now - self._then) * self._rate.a_second)
        self._then = now
        if self._left < 1:
            return (1 - self._left) / self._rate.a_second
        self._left -= 1
        return 0.0

    def give_back(self) -> None:
        self._left = min(self._rate.burst, self._left + 1)


class Limit:
    """A bucket for each name, and maybe one for all of them together."""

    def __init__(self, each: Rate, together: Rate | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate, self._clock = each, clock
        self._all = Bucket(together, clock()) if together is not None else None
        self._each: OrderedDict[str, Bucket] = OrderedDict()

    def take(self, name: str) -> float:
        """Take one; gives how many seconds to wait when there is none."""
        now = self._clock()
        mine = self._each.setdefault(name, Bucket(self._rate, now))
        self._each.move_to_end(name)
        if len(self._each) > MOST_KEPT:
            self._each.popitem(last=False)
        wait = mine.take(now)
        if wait or self._all is None:
            return wait
        return self._all.take(now)

    def give_back(self, name: str) -> None:
        """It did not count after all."""
        if (mine := self._each.get(name)) is not None:
            mine.give_back()
        if self._all is not None:
            self._all.give_back()


def address_name(address: str) -> str:
    """What counts as one address: of IPv6 the network, since every machine has very many there."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped is not None:
            return str(found.ipv4_mapped)
        return str(ipaddress.ip_network((found, 64), strict=False))
    return str(found)
