"""Detects batches in which every record was too late: one record with a time far ahead does this to all that follow."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any


def describe_all_late(report: Mapping[str, Any]) -> str:
    """The message for a batch (Spark's progress) whose newest record was behind the watermark; empty for all others."""
    times = report.get("eventTime") or {}
    dropped = sum(operator.get("numRowsDroppedByWatermark", 0) for operator in report.get("stateOperators") or [])
    newest, watermark = times.get("max", ""), times.get("watermark", "")
    if not dropped or not newest or not watermark:
        return ""
    if datetime.fromisoformat(newest) >= datetime.fromisoformat(watermark):
        return ""
    return (
        f"all records of its last batch were too late: the newest has the time {newest}, and the watermark is {watermark}. "
        "A record whose time is far ahead moves the watermark there, for all (docs/streams.md, Watermarks)"
    )
