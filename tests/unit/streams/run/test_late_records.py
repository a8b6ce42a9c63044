"""One record with a time far ahead makes all others late, and that is said."""

from typing import Any

import pytest

from riverrun.streams.run.late_records import describe_all_late

AHEAD = {"max": "2026-11-18T06:40:00.000Z", "watermark": "2035-12-31T23:59:00.000Z"}


def _report(times: dict[str, str], dropped: int) -> dict[str, Any]:
    return {"numInputRows": 5, "eventTime": times, "stateOperators": [{"numRowsDroppedByWatermark": dropped}]}


def test_a_batch_behind_its_watermark_is_said_with_both_times() -> None:
    said = describe_all_late(_report(AHEAD, 5))
    assert "2026-11-18T06:40:00.000Z" in said
    assert "the watermark is 2035-12-31T23:59:00.000Z" in said


@pytest.mark.parametrize(
    "report",
    [
        {},
        {"numInputRows": 5, "eventTime": {}, "stateOperators": []},
        _report(AHEAD, 0),
        # Some were late, as some are.
        _report({"max": "2026-11-18T06:40:00.000Z", "watermark": "2026-11-18T06:38:00.000Z"}, 2),
    ],
)
def test_any_other_batch_is_not(report: dict[str, Any]) -> None:
    assert describe_all_late(report) == ""
