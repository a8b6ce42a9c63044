"""Reports that nothing moves, and why, while a command waits for Kafka: a broker that dies is silence to its clients."""

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Self

from riverrun.cli.output import plural, say

if TYPE_CHECKING:
    from riverrun.config import LoadedSettings

POLL_SECONDS = 0.5
# No acknowledgement for this long is reported, and again after twice the time.
FIRST_NOTICE_SECONDS = 5.0


class StallWatch:
    """Watches from a thread of its own, in a `with`. `counts` returns how many records were accepted and how many of
    them are acknowledged or failed; `why` returns what is known of the servers."""

    def __init__(
        self, counts: Callable[[], tuple[int, int]], why: Callable[[], str], tell: Callable[[str], None] = say
    ) -> None:
        self._counts = counts
        self._why = why
        self._tell = tell
        self._done = threading.Event()
        self._settled = -1
        self._since = time.monotonic()
        self._due = FIRST_NOTICE_SECONDS
        self._thread = threading.Thread(target=self._watch, name="stall-watch", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def poll(self, now: float) -> None:
        accepted, settled = self._counts()
        if settled != self._settled or settled >= accepted:
            if self._due > FIRST_NOTICE_SECONDS:
                self._tell("Records are acknowledged again.")
            self._settled, self._since, self._due = settled, now, FIRST_NOTICE_SECONDS
        elif now - self._since >= self._due:
            why = self._why()
            self._tell(
                f"Kafka has acknowledged nothing for {now - self._since:.0f} s; {plural(accepted - settled, 'record')} on "
                f"the way{f'. {why}' if why else ''}."
            )
            self._due *= 2

    def _watch(self) -> None:
        while not self._done.wait(POLL_SECONDS):
            self.poll(time.monotonic())


def server_problem(settings: "LoadedSettings") -> str:
    """The runner's report of servers that are down; empty for an attached cluster, or when all is well."""
    from riverrun.config.run_state import running_state

    if settings.attached:
        return ""
    state = running_state(settings.project)
    if state is None:
        return "This project's Kafka does not run any more: `riverrun up` starts it"
    return "; ".join(
        f"{server.name} is {server.state}: {server.detail}" for server in state.servers if server.state != "ready"
    )
