"""Trouble on request, by chance that can be repeated: what a provider and a network do on a bad day."""

import random
import threading
from collections.abc import Iterable, Mapping
from typing import Literal, get_args

from riverrun.errors import UsageError

Fault = Literal["", "busy", "error before", "error after", "silent before", "silent after", "wrong number", "no credit"]


class Faults:
    """`shares` says how often each happens (0.1: one request of ten); `script` comes before chance, one per request.

    before, after: the message is taken or not, and the answer is an error (500) or none at all. busy: 429.
    """

    def __init__(self, shares: Mapping[str, float] | None = None, seed: int = 0, script: Iterable[Fault] = ()) -> None:
        self._shares = dict(shares or {})
        unknown = set(self._shares) - set(get_args(Fault))
        if unknown or sum(self._shares.values()) > 1 or min(self._shares.values(), default=0) < 0:
            raise UsageError(
                "These faults cannot be",
                expected=f"shares of at most 1 in all, of {', '.join(each for each in get_args(Fault) if each)}",
                found=repr(self._shares),
            )
        self._random = random.Random(seed)  # noqa: S311  -- to be repeated, not to be secret
        self._script = list(script)
        self._lock = threading.Lock()

    def next(self) -> Fault:
        with self._lock:
            if self._script:
                return self._script.pop(0)
            drawn = self._random.random() if self._shares else 1.0
        for name, share in self._shares.items():
            if drawn < share:
                return name  # type: ignore[return-value]  # checked above
            drawn -= share
        return ""

    def then(self, *script: Fault) -> None:
        """What the next requests meet."""
        with self._lock:
            self._script.extend(script)
