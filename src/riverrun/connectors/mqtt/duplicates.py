"""Remembers messages that reached Kafka lately, to mark one that comes again without MQTT's duplicate flag.

A broker that crashed goes back to its last saved state. What it had sent since then is new to it: it sends that again, and
not as a duplicate. So after a connection was lost, messages are compared with those that had reached Kafka before, until
the broker has caught up. This marks, it drops nothing: two equal messages may be two.
"""

import time
from collections import Counter, deque
from collections.abc import Callable
from hashlib import blake2b
from threading import Lock

# Some 10 MB at most. A broker under load that saves every few seconds forgets less than this.
MAX_DIGESTS = 50_000
# However busy the broker: by then, equal messages are more likely two than one.
MAX_CATCH_UP_SECONDS = 300.0


class DuplicateDetector:
    """Messages that are in Kafka, by a digest of topic and payload. Safe to share between threads."""

    def __init__(self, max_digests: int = MAX_DIGESTS, clock: Callable[[], float] = time.monotonic) -> None:
        self._max_digests = max_digests
        self._clock = clock
        self._lock = Lock()
        self._order: deque[int] = deque()
        self._counts: Counter[int] = Counter()
        self._until = 0.0

    def __len__(self) -> int:
        return len(self._order)

    def add(self, digest: int) -> None:
        """A message has reached Kafka."""
        with self._lock:
            self._order.append(digest)
            self._counts[digest] += 1
            if len(self._order) > self._max_digests:
                self._forget(self._order.popleft())

    def on_reconnected(self) -> None:
        """From now on, messages may be repeated."""
        with self._lock:
            self._until = self._clock() + MAX_CATCH_UP_SECONDS

    def on_caught_up(self) -> None:
        """The broker has nothing left to send again: what comes now is new."""
        self._until = 0.0

    def is_duplicate(self, digest: int) -> bool:
        """Whether this message probably came before the connection was lost. Each earlier one matches once."""
        if not self._until:
            return False
        with self._lock:
            if self._clock() >= self._until:
                self._until = 0.0
                return False
            if not self._counts.get(digest):
                return False
            self._forget(digest)
            return True

    def _forget(self, digest: int) -> None:
        # A matched digest is still in the order, and may be forgotten early when its turn comes: one mark less.
        left = self._counts.get(digest, 0) - 1
        if left > 0:
            self._counts[digest] = left
        else:
            self._counts.pop(digest, None)


def message_digest(topic: str, payload: bytes) -> int:
    """A digest of eight bytes for a message."""
    digest = blake2b(topic.encode(), digest_size=8)
    digest.update(b"\0")
    digest.update(payload)
    return int.from_bytes(digest.digest(), "big")
