"""Rate limits: a token bucket for each address or login."""

import ipaddress
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

# How many buckets are kept; the least recently used is evicted first.
MAX_BUCKETS = 10_000


class RequestRate(NamedTuple):
    """`burst` requests at once, then `per_second`."""

    burst: float
    per_second: float


class TokenBucket:
    def __init__(self, rate: RequestRate, now: float) -> None:
        self._rate = rate
        self._left, self._then = rate.burst, now

    def take(self, now: float) -> float:
        """Take a token; returns the seconds to wait when there is none, else 0."""
        self._left = min(self._rate.burst, self._left + (now - self._then) * self._rate.per_second)
        self._then = now
        if self._left < 1:
            return (1 - self._left) / self._rate.per_second
        self._left -= 1
        return 0.0

    def refund(self) -> None:
        self._left = min(self._rate.burst, self._left + 1)


class RequestLimiter:
    """A bucket for each name, and optionally one for all of them together."""

    def __init__(
        self, per_name: RequestRate, total: RequestRate | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._rate, self._clock = per_name, clock
        self._total = TokenBucket(total, clock()) if total is not None else None
        self._buckets: OrderedDict[str, TokenBucket] = OrderedDict()

    def take(self, name: str) -> float:
        """Take a token; returns the seconds to wait when there is none, else 0."""
        now = self._clock()
        bucket = self._buckets.setdefault(name, TokenBucket(self._rate, now))
        self._buckets.move_to_end(name)
        if len(self._buckets) > MAX_BUCKETS:
            self._buckets.popitem(last=False)
        wait = bucket.take(now)
        if wait or self._total is None:
            return wait
        return self._total.take(now)

    def refund(self, name: str) -> None:
        """Return a token: the request does not count."""
        if (bucket := self._buckets.get(name)) is not None:
            bucket.refund()
        if self._total is not None:
            self._total.refund()


def address_key(address: str) -> str:
    """The key of an address: for IPv6 its /64 network, since every machine has very many addresses there."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed.ipv4_mapped is not None:
            return str(parsed.ipv4_mapped)
        return str(ipaddress.ip_network((parsed, 64), strict=False))
    return str(parsed)
