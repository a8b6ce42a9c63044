"""What is worth another try, and when."""

import random
import time

from riverrun.errors import ConfigError, ConnectorRefusedError, DeclarationError, PipelineError, UsageError

FIRST_SECONDS = 0.5
MOST_SECONDS = 30.0
# How often people hear of a failure that stays the same.
REMIND_SECONDS = 600.0


def is_final(error: BaseException) -> bool:
    """Whether the same thing would fail in the same way again."""
    return isinstance(error, ConnectorRefusedError | ConfigError | DeclarationError | PipelineError | UsageError)


class Reminder:
    """Which failures people hear of: each that is another than the one before, and one that stays only now and then."""

    def __init__(self, seconds: float = REMIND_SECONDS) -> None:
        self._seconds = seconds
        self._words = ""
        self._at = 0.0

    def due(self, words: str) -> bool:
        now = time.monotonic()
        if words == self._words and now - self._at < self._seconds:
            return False
        self._words, self._at = words, now
        return True

    def reset(self) -> None:
        self._words = ""


class Pauses:
    """Pauses that grow, each shortened by a random part, so that many that failed together do not come back together."""

    def __init__(self, first: float = FIRST_SECONDS, most: float = MOST_SECONDS) -> None:
        self._first = first
        self._most = most
        self._next = first

    def next(self) -> float:
        pause = self._next * random.uniform(0.75, 1.0)  # noqa: S311  -- no secret, only spread
        self._next = min(2 * self._next, self._most)
        return round(pause, 2)

    def reset(self) -> None:
        self._next = self._first
