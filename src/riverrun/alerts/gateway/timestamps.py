"""Timestamps in the provider's format."""

from datetime import UTC, datetime


def format_timestamp(ms: int) -> str:
    """2026-11-16T17:00:00.000+0000."""
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S.") + f"{ms % 1000:03d}+0000"
