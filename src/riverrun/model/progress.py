"""The progress of the streams of a running pipeline: what `riverrun run` shows, writes and serves.

The record counts of a stream add up: records in its inputs = read + expired, and read = out + filtered + dead letters +
late where every row that leaves is one row that came (`exact`). Where an operator makes many rows of one or one of
many, `note` says so.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from typing import Any, Literal, get_args

# starting; running; waiting for a restart; ended by itself (batch), by the user, or for good with `error`.
Phase = Literal["starting", "running", "restarting", "finished", "stopped", "failed"]
PHASES: tuple[str, ...] = get_args(Phase)


@dataclass
class RecordCounts:
    """The counts of the records a stream has read since the pipeline's first start."""

    read: int = 0
    # Did not parse or broke a constraint; in the dead-letter topic.
    dead_letters: int = 0
    # Older than the watermark when they came. For an aggregate Spark counts groups of rows, so this is a lower bound.
    late: int = 0
    filtered: int = 0
    out: int = 0
    # Deleted by the topic's retention before they were read; never in `read`.
    expired: int = 0
    # Whether read = out + filtered + dead_letters + late holds exactly.
    exact: bool = False
    note: str = ""

    @property
    def balanced(self) -> bool:
        return self.read == self.out + self.filtered + self.dead_letters + self.late


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
    # Over the wall time between the reports of the last half minute, not the speed of one batch.
    rows_in_per_second: float = 0.0
    rows_out_per_second: float = 0.0
    # The lag: offsets in the inputs that it has not read; -1 when unknown.
    lag: int = -1
    # Records of the first batch since the start while it is computed; 0 when it has ended, or there is nothing to read.
    first_batch_records: int = 0
    # When the last record was read, and the stream's event-time clock (RFC 3339); empty when there is none.
    last_record_at: str = ""
    watermark: str = ""
    state_rows: int = 0
    state_bytes: int = 0
    restarts: int = 0
    error: str = ""
    record_counts: RecordCounts = field(default_factory=RecordCounts)
    # Whether it recomputes rows that were sent before: no notification may be sent again for them.
    replaying: bool = False

    def age_seconds(self, now: float) -> float | None:
        """How long ago the last record was read; None when none was. `now` is a Unix time."""
        at = unix_seconds(self.last_record_at)
        return None if at is None else max(0.0, now - at)

    def as_dict(self) -> dict[str, Any]:
        """For programs: these names are what /api/streams and `riverrun status --json` promise."""
        content: dict[str, Any] = asdict(self)
        # JSON has no NaN, and Spark reports one as the speed of a batch that took no time.
        return {name: 0.0 if isinstance(value, float) and not math.isfinite(value) else value
                for name, value in content.items()}  # fmt: skip


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
    # When the pipeline ended in order, empty while it runs; it stays empty when its process was killed.
    ended_at: str = ""
    streams: list[StreamProgress] = field(default_factory=list)
    # The topology (model/topology.py), for readers without the pipeline file.
    topology: dict[str, Any] = field(default_factory=dict)

    @property
    def failed(self) -> list[str]:
        """The names of the streams that failed for good."""
        return [stream.name for stream in self.streams if stream.phase == "failed"]

    def as_dict(self) -> dict[str, Any]:
        return {**_plain(self), "streams": [stream.as_dict() for stream in self.streams]}


def progress_from_dict(content: Mapping[str, Any]) -> PipelineProgress:
    """The progress that `as_dict` returned. Names it does not know are ignored: a newer riverrun may have written them.

    Raises ValueError, TypeError or KeyError for anything else.
    """
    if not isinstance(content, Mapping):
        raise TypeError("a pipeline's progress is an object")
    streams = []
    for stream in content["streams"]:
        record_counts = RecordCounts(**_known(RecordCounts, stream["record_counts"]))
        streams.append(StreamProgress(**{**_known(StreamProgress, stream), "record_counts": record_counts}))
    return PipelineProgress(**{**_known(PipelineProgress, content), "streams": streams})


def unix_seconds(text: str) -> float | None:
    """An RFC 3339 time as a Unix time; one without a zone is UTC. None when it is empty or not a time."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return None
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()


def _plain(progress: PipelineProgress) -> dict[str, Any]:
    return {member.name: getattr(progress, member.name) for member in fields(progress)}


def _known(kind: type, content: Mapping[str, Any]) -> dict[str, Any]:
    names = {member.name for member in fields(kind)}
    return {name: value for name, value in content.items() if name in names}
