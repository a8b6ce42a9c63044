"""Limits how many things are done per second."""

import time
from collections.abc import Callable

# A sender that fell behind may catch up on as much as it would have done in this time, and no more.
_CATCH_UP_SECONDS = 0.1


class ThroughputThrottler:
    """Call `wait` before each item: it sleeps so that there are at most `rate` a second, evenly spread."""

    def __init__(
        self,
        rate: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._step = 1 / rate
        self._clock = clock
        self._sleep = sleep
        self._next = clock()

    def wait(self) -> None:
        now = self._clock()
        self._next = max(self._next, now - _CATCH_UP_SECONDS)
        if self._next > now:
            self._sleep(self._next - now)
        self._next += self._step
