"""The life every server has: start, ready, stop; used in a `with`.

with server:                  # started and ready
    ...
                              # stopped, whatever happened
"""

import abc
import time
from types import TracebackType
from typing import Self


class Deadline:
    """A point in time that several waits share. It never moves, and a changed system clock does not affect it."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._start = time.monotonic()

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self._start

    @property
    def left(self) -> float:
        """Seconds remaining; 0 when it has passed."""
        return max(0.0, self.seconds - self.elapsed)

    @property
    def passed(self) -> bool:
        return self.left == 0.0


class ManagedServer(abc.ABC):
    """One server, or several that live together: Kafka, Connect, ZooKeeper, Druid and Spark have the same lifecycle."""

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """What users, logs and the state file call it, such as `broker-1`."""

    @property
    @abc.abstractmethod
    def start_timeout_seconds(self) -> float:
        """How long it may take to be ready."""

    @abc.abstractmethod
    def start(self) -> None:
        """Launch it and return at once. Problems that can be seen beforehand are raised here."""

    @abc.abstractmethod
    def ready(self, deadline: Deadline) -> None:
        """Return when it answers its own protocol.

        Raises ServerDiedError, or an error that names the cause, as soon as it has ended, and ServerNotReadyError when it
        still lives at the deadline.
        """

    @abc.abstractmethod
    def stop(self) -> None:
        """Ask it to stop, wait, then kill it. May be called at any time, and twice."""

    def __enter__(self) -> Self:
        try:
            deadline = Deadline(self.start_timeout_seconds)
            self.start()
            self.ready(deadline)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
