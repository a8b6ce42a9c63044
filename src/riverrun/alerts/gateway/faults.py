"""Fault injection with a repeatable random seed: what a provider and a network do on a bad day."""

import random
import threading
from collections.abc import Iterable, Mapping
from typing import Literal, get_args

from riverrun.errors import UsageError

Fault = Literal["", "busy", "error before", "error after", "silent before", "silent after", "wrong number", "no credit"]


class FaultInjector:
    """Chooses a fault per request. `probabilities`: how often each happens (0.1: one of ten); `script` is used up first.

    after, before: the message is accepted or not, and the answer is an error (500) or none at all. busy: 429.
    """

    def __init__(
        self, probabilities: Mapping[str, float] | None = None, seed: int = 0, script: Iterable[Fault] = ()
    ) -> None:
        self._probabilities = dict(probabilities or {})
        unknown = set(self._probabilities) - set(get_args(Fault))
        if unknown or sum(self._probabilities.values()) > 1 or min(self._probabilities.values(), default=0) < 0:
            raise UsageError(
                "These faults cannot be",
                expected=f"shares of at most 1 in all, of {', '.join(get_arg for get_arg in get_args(Fault) if get_arg)}",
                found=repr(self._probabilities),
            )
        self._random = random.Random(seed)  # noqa: S311  -- repeatable, not secret
        self._script = list(script)
        self._lock = threading.Lock()

    def next_fault(self) -> Fault:
        with self._lock:
            if self._script:
                return self._script.pop(0)
            drawn = self._random.random() if self._probabilities else 1.0
        for name, share in self._probabilities.items():
            if drawn < share:
                return name  # type: ignore[return-value]  # checked above
            drawn -= share
        return ""

    def enqueue(self, *script: Fault) -> None:
        """Set the faults of the next requests."""
        with self._lock:
            self._script.extend(script)
