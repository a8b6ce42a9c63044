"""Which failures are retried, and when."""

import random
import time

from riverrun.errors import ConfigError, ConnectorRefusedError, DeclarationError, PipelineError, UsageError

INITIAL_BACKOFF_SECONDS = 0.5
MAX_BACKOFF_SECONDS = 30.0
# How often the same failure is reported again.
REPEAT_NOTICE_SECONDS = 600.0


def is_permanent(error: BaseException) -> bool:
    """Whether a retry would fail in the same way."""
    return isinstance(error, ConnectorRefusedError | ConfigError | DeclarationError | PipelineError | UsageError)


class NoticeThrottle:
    """Which failures are reported: each that differs from the one before, and the same one only now and then."""

    def __init__(self, seconds: float = REPEAT_NOTICE_SECONDS) -> None:
        self._seconds = seconds
        self._last_reason = ""
        self._notified_at = 0.0

    def should_notify(self, reason: str) -> bool:
        now = time.monotonic()
        if reason == self._last_reason and now - self._notified_at < self._seconds:
            return False
        self._last_reason, self._notified_at = reason, now
        return True

    def reset(self) -> None:
        self._last_reason = ""


class Backoff:
    """Growing delays, each shortened by a random part, so that many that failed together do not retry together."""

    def __init__(self, initial: float = INITIAL_BACKOFF_SECONDS, maximum: float = MAX_BACKOFF_SECONDS) -> None:
        self._initial = initial
        self._maximum = maximum
        self._next = initial

    def next_delay(self) -> float:
        delay = self._next * random.uniform(0.75, 1.0)  # noqa: S311  -- no secret, only spread
        self._next = min(2 * self._next, self._maximum)
        return round(delay, 2)

    def reset(self) -> None:
        self._next = self._initial
