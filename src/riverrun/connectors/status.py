"""The status of each connector: what `riverrun connectors` shows, written to the state topic by the process."""

import time
from typing import Literal

import msgspec

ConnectorRunState = Literal["starting", "running", "waiting", "retrying", "failed", "finished", "stopped"]
ConnectorKind = Literal["source", "sink"]


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class ConnectorStatus(msgspec.Struct):
    """A part of a source, or a sink. One thread fills it in; others read it.

    `waiting` has read everything there is; `retrying` failed and is tried again; `failed` is over until the process starts
    anew. `records` are committed ones of all lives, `dead_letters` those of them that went to dead letters.
    """

    kind: ConnectorKind
    name: str
    part: str
    topic: str
    state: ConnectorRunState = "starting"
    records: int = 0
    dead_letters: int = 0
    lag: int | None = None
    lag_unit: str = ""
    # Records per second, over the last interval.
    rate: float = 0.0
    position: str = ""
    error: str = ""
    # When the last commit was, and when the state last changed.
    committed_ms: int = 0
    state_since_ms: int = 0

    def set_state(self, state: ConnectorRunState, error: str = "") -> None:
        """Set the state and its reason, which is empty for a good state."""
        if state != self.state:
            self.state_since_ms = now_ms()
        self.state = state
        self.error = error

    @property
    def key(self) -> tuple[str, str, str]:
        """Its unique key."""
        return self.kind, self.name, self.part

    def continue_from(self, previous: "ConnectorStatus | None") -> None:
        """Continue the counts of an earlier process."""
        if previous is not None:
            self.records, self.dead_letters, self.committed_ms = (
                previous.records,
                previous.dead_letters,
                previous.committed_ms,
            )

    @property
    def label(self) -> str:
        """The connector, and the part if it has several."""
        return self.name if self.part in ("", "all") else f"{self.name}/{self.part}"

    @property
    def is_idle(self) -> bool:
        """Whether nothing is expected of it for the moment."""
        return self.state in ("waiting", "failed", "finished", "stopped")
