"""How patient a download is."""

from dataclasses import dataclass


@dataclass(frozen=True)
class DownloadTiming:
    """How long each step may take, in seconds, and how often it is tried."""

    connect: float = 15.0
    read: float = 30.0
    # A connection that brings less than `stall_bytes` in `stall` seconds is given up and made again.
    stall: float = 60.0
    stall_bytes: int = 64 * 1024
    max_attempts: int = 6
    # A host that cannot be reached at all rarely comes back within seconds; say so sooner.
    max_unreachable_attempts: int = 3
    backoff: float = 0.5
    max_backoff: float = 15.0
