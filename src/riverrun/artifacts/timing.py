"""Timeouts and attempts of a download."""

from dataclasses import dataclass


@dataclass(frozen=True)
class DownloadTiming:
    """How long each step may take, in seconds, and how often it is attempted."""

    connect: float = 15.0
    read: float = 30.0
    # A connection that brings less than `stall_bytes` in `stall` seconds is closed and opened again.
    stall: float = 60.0
    stall_bytes: int = 64 * 1024
    max_attempts: int = 6
    # A host that cannot be reached at all rarely comes back within seconds; fail sooner.
    max_unreachable_attempts: int = 3
    backoff: float = 0.5
    max_backoff: float = 15.0
