"""Progress as programs read it: names that stay, and nothing that JSON cannot say."""

import json
import math

import pytest

from riverrun.model.progress import PipelineProgress, RecordCounts, StreamProgress, progress_from_dict, unix_seconds


def pipeline() -> PipelineProgress:
    stream = StreamProgress(
        "loads",
        "loads",
        "meters-loads",
        "running",
        "batch",
        3,
        120,
        10.0,
        5.0,
        7,
        record_counts=RecordCounts(10, 1, note="windows"),
    )
    return PipelineProgress("meters", "meters.py", 12, "2026-01-02T03:04:05Z", streams=[stream])


def test_what_was_written_is_what_is_read() -> None:
    assert progress_from_dict(json.loads(json.dumps(pipeline().as_dict()))) == pipeline()


def test_names_of_a_newer_version_are_left_out() -> None:
    content = pipeline().as_dict()
    content["news"] = content["streams"][0]["news"] = content["streams"][0]["record_counts"]["news"] = 1
    assert progress_from_dict(content) == pipeline()


@pytest.mark.parametrize("content", [[], {}, {"streams": [{}]}, {"streams": [], "app": "a"}])
def test_something_else_is_refused(content: object) -> None:
    with pytest.raises((ValueError, TypeError, KeyError)):
        progress_from_dict(content)  # type: ignore[arg-type]


@pytest.mark.parametrize("speed", [math.nan, math.inf])
def test_a_speed_that_is_no_number_is_zero(speed: float) -> None:
    assert StreamProgress("a", rows_in_per_second=speed).as_dict()["rows_in_per_second"] == 0.0


def test_times_are_utc_unless_they_say_otherwise() -> None:
    assert unix_seconds("1970-01-01T00:01:00") == 60
    assert unix_seconds("1970-01-01T00:01:00.500Z") == 60.5
    assert unix_seconds("1970-01-01T01:01:00+01:00") == 60
    assert unix_seconds("") is None
    assert unix_seconds("yesterday") is None


def test_age_is_never_negative() -> None:
    stream = StreamProgress("a", last_record_at="1970-01-01T00:01:00Z")
    assert stream.age_seconds(61.5) == 1.5
    assert stream.age_seconds(59) == 0
    assert StreamProgress("a").age_seconds(1) is None
