"""A reader for what is pushed to us: a bounded queue, and confirmations that go out after the commit."""

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from riverrun.errors import UsageError
from riverrun.model.connector import Item, Items, Position, Reader

MAX_ITEMS = 10_000
MAX_BYTES = 16 << 20
# The most items that one `read` returns.
MAX_READ_ITEMS = 2000


class Inbox(Reader):
    """Threads of a client library `put` items, the runtime reads them, and `confirm` is called with their tokens once they
    are in Kafka. It provides back pressure: while it is full, `put` waits, and so does the sender.

    What was put and not confirmed is lost when the process dies: the sender must send it again, and does if it waits for the
    confirmation. Positions are only valid in this inbox; its source has `resumable = False`.
    """

    def __init__(
        self,
        confirm: Callable[[list[Any]], None] = lambda _tokens: None,
        *,
        max_items: int = MAX_ITEMS,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        if max_items < 1 or max_bytes < 1:
            raise UsageError("An inbox needs room", expected="at least 1 item and 1 byte")
        self._confirm = confirm
        self._max_items = max_items
        self._max_bytes = max_bytes
        self._changed = threading.Condition()
        self._waiting: deque[tuple[Item, Any, int]] = deque()
        self._bytes = 0
        # Returned, and not confirmed yet: the number of each, and its token.
        self._unacknowledged: deque[tuple[int, Any]] = deque()
        self._read_count = 0
        self._closed = False
        self._problem: Exception | None = None

    def put(self, item: Item, token: Any = None, *, size: int = 0, timeout: float | None = None) -> bool:
        """Add an item, as soon as there is room. False: it was not added, because the inbox was closed, or stayed full for
        `timeout` seconds. `token` is passed to `confirm`; `size` is its bytes, if the value does not say."""
        size = size or (len(item.value) if isinstance(item.value, bytes | str) else 200)
        end = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            while not self._closed and self._full(size):
                left = None if end is None else end - time.monotonic()
                if left is not None and left <= 0:
                    return False
                self._changed.wait(left)
            if self._closed:
                return False
            self._waiting.append((item, token, size))
            self._bytes += size
            self._changed.notify_all()
        return True

    def _full(self, size: int) -> bool:
        count = len(self._waiting)
        return count >= self._max_items or (count > 0 and self._bytes + size > self._max_bytes)

    def fail(self, problem: Exception) -> None:
        """Let the next `read` raise this: the part is then opened again."""
        with self._changed:
            self._problem = problem
            self._changed.notify_all()

    def read(self) -> Items | None:
        with self._changed:
            if self._problem is not None:
                problem, self._problem = self._problem, None
                raise problem
            if not self._waiting:
                return None
            items: list[Item] = []
            while self._waiting and len(items) < MAX_READ_ITEMS:
                item, token, size = self._waiting.popleft()
                self._bytes -= size
                self._read_count += 1
                self._unacknowledged.append((self._read_count, token))
                items.append(item)
            self._changed.notify_all()
            return Items(items, self._read_count)

    def wait(self, seconds: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: bool(self._waiting) or self._closed or self._problem is not None, seconds)

    def acknowledged(self, position: Position) -> None:
        tokens: list[Any] = []
        with self._changed:
            while self._unacknowledged and self._unacknowledged[0][0] <= position:
                tokens.append(self._unacknowledged.popleft()[1])
        if tokens:
            self._confirm(tokens)

    def lag(self) -> int | None:
        return len(self._waiting)

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._waiting.clear()
            self._unacknowledged.clear()
            self._bytes = 0
            self._changed.notify_all()
