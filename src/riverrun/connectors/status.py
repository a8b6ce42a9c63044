"""How each connector stands: what people see in `riverrun connectors`, kept in the ledger topic by the process."""

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
    # Records a second, over the last look.
    rate: float = 0.0
    position: str = ""
    error: str = ""
    # When the last commit was, and when the state was last another one.
    committed_ms: int = 0
    state_since_ms: int = 0

    def set_state(self, state: ConnectorRunState, error: str = "") -> None:
        """Go into a state. Its reason is kept until it is left for a good one."""
        if state != self.state:
            self.state_since_ms = now_ms()
        self.state = state
        self.error = error

    @property
    def key(self) -> tuple[str, str, str]:
        """What tells it from the others."""
        return self.kind, self.name, self.part

    def continue_from(self, previous: "ConnectorStatus | None") -> None:
        """Count on from where an earlier process was."""
        if previous is not None:
            self.records, self.dead_letters, self.committed_ms = (
                previous.records,
                previous.dead_letters,
                previous.committed_ms,
            )

    @property
    def label(self) -> str:
        """The connector, and the part where it has several."""
        return self.name if self.part in ("", "all") else f"{self.name}/{self.part}"

    @property
    def is_idle(self) -> bool:
        """Whether nothing is to be expected of it for the moment."""
        return self.state in ("waiting", "failed", "finished", "stopped")
