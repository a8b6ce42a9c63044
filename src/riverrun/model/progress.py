"""Where the streams of a running pipeline stand: what `riverrun run` shows, writes and serves.

The account of a stream closes: records in = taken + dead + gone, and taken = out + filtered + late where every row that
leaves is one row that came (`exact`). Where an operator makes many rows of one or one of many, `note` says so.
"""

from dataclasses import dataclass, field
from typing import Literal

# starting, running; waiting to be started again; ended by itself (batch), by the user, or for good with `error`.
Phase = Literal["starting", "running", "restarting", "finished", "stopped", "failed"]


@dataclass
class Account:
    """What became of the records a stream has read since the pipeline's first start."""

    read: int = 0
    # Did not parse or broke a constraint; in the dead-letter topic.
    dead: int = 0
    # Older than the watermark when they came. From an aggregate Spark tells groups of rows, so this is at least so many.
    late: int = 0
    filtered: int = 0
    out: int = 0
    # Deleted by the topic's retention before they were read; never in `read`.
    gone: int = 0
    # Whether read = out + filtered + dead + late holds to the record.
    exact: bool = False
    note: str = ""

    @property
    def closes(self) -> bool:
        return self.read == self.out + self.filtered + self.dead + self.late


@dataclass
class StreamProgress:
    """One stream, as of its last batch."""

    name: str
    topic: str = ""
    group: str = ""
    phase: Phase = "starting"
    speed: str = ""
    batch: int = -1
    batch_ms: int = 0
    rows_in_per_second: float = 0.0
    rows_out_per_second: float = 0.0
    # Records in the inputs that it has not read; -1 when not known.
    lag: int = -1
    # When the last record was read, and the stream's event-time clock (RFC 3339); empty when there is none.
    last_record_at: str = ""
    watermark: str = ""
    state_rows: int = 0
    state_bytes: int = 0
    restarts: int = 0
    error: str = ""
    account: Account = field(default_factory=Account)


@dataclass
class PipelineProgress:
    """All streams of a running pipeline."""

    app: str
    file: str
    pid: int
    started_at: str
    # The address of /metrics and /api/streams.
    address: str = ""
    updated_at: str = ""
    streams: list[StreamProgress] = field(default_factory=list)
