"""What Prometheus reads, parsed back by its own parser."""

import math
from pathlib import Path

import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse

from riverrun.model.progress import PHASES, PipelineProgress, RecordCounts, StreamProgress
from riverrun.streams.run.metrics import METRICS, metrics_text, reference_page

DOCS = Path(__file__).parents[4] / "docs" / "reference"
NOW = 1_000_000.0


def pipeline() -> PipelineProgress:
    loads = StreamProgress(
        "loads", phase="running", batch=4, batch_ms=1250, lag=12, last_record_at="1970-01-12T13:46:30Z",
        watermark="1970-01-12T13:45:00Z", state_rows=7, state_bytes=4096, restarts=2,
        record_counts=RecordCounts(read=100, dead_letters=3, late=4, filtered=13, out=80, expired=5, exact=True),
    )  # fmt: skip
    return PipelineProgress("meters", "meters.py", 1, "", streams=[loads, StreamProgress("streets")])


def families(progress: PipelineProgress) -> dict[str, Metric]:
    body, _ = metrics_text(progress, now=NOW)
    return {family.name: family for family in parse(body.decode())}


def values(progress: PipelineProgress, stream: str) -> dict[str, float]:
    samples = [sample for family in families(progress).values() for sample in family.samples]
    return {
        sample.name.removeprefix("riverrun_stream_"): sample.value
        for sample in samples
        if sample.labels["stream"] == stream and "phase" not in sample.labels
    }


def test_every_value_arrives() -> None:
    assert values(pipeline(), "loads") == {
        "records_read_total": 100,
        "records_out_total": 80,
        "records_filtered_total": 13,
        "records_dead_total": 3,
        "records_late_total": 4,
        "records_gone_total": 5,
        "counts_exact": 1,
        "lag_offsets": 12,
        "last_record_age_seconds": 10,
        "watermark_seconds": 999_900,
        "batch_seconds": 1.25,
        "state_rows": 7,
        "state_bytes": 4096,
        "restarts_total": 2,
    }


def test_what_is_not_known_has_no_sample() -> None:
    told = values(pipeline(), "streets")
    assert not {"lag_offsets", "last_record_age_seconds", "watermark_seconds", "batch_seconds"} & set(told)
    assert told["records_read_total"] == 0


def test_exactly_one_phase_is_on() -> None:
    samples = families(pipeline())["riverrun_stream_phase"].samples
    assert all(sample.labels["app"] == "meters" for sample in samples)
    on = {(sample.labels["stream"], sample.labels["phase"]) for sample in samples if sample.value == 1}
    assert on == {("loads", "running"), ("streets", "starting")}
    assert {sample.labels["phase"] for sample in samples} == set(PHASES)


def test_openmetrics_carries_the_units() -> None:
    body, kind = metrics_text(pipeline(), "application/openmetrics-text; version=1.0.0,text/plain;q=0.5", NOW)
    assert kind.startswith("application/openmetrics-text")
    assert body.endswith(b"# EOF\n")
    found = parse_openmetrics(body.decode())  # type: ignore[no-untyped-call]
    units = {family.name: family.unit for family in found if family.unit}
    assert units == {f"riverrun_stream_{spec.name}": spec.unit for spec in METRICS if spec.unit}


@pytest.mark.parametrize("spec", METRICS, ids=lambda spec: spec.name)
def test_a_name_ends_with_its_unit_and_help_is_a_sentence(spec: object) -> None:
    told = next(each for each in METRICS if each is spec)
    assert not told.unit or told.name.endswith(f"_{told.unit}")
    assert told.meaning.endswith(".")


def test_a_pipeline_without_streams_is_no_error() -> None:
    found = families(PipelineProgress("meters", "meters.py", 1, ""))
    assert len(found) == len(METRICS) + 1
    assert not any(family.samples for family in found.values())


def test_names_with_quotes_come_through() -> None:
    odd = PipelineProgress('a"b\\c\nd', "f", 1, "", streams=[StreamProgress("s")])
    assert {s.labels["app"] for family in families(odd).values() for s in family.samples} == {'a"b\\c\nd'}


def test_ages_do_not_become_strange() -> None:
    future = PipelineProgress("a", "f", 1, "", streams=[StreamProgress("s", last_record_at="2999-01-01T00:00:00Z")])
    assert values(future, "s")["last_record_age_seconds"] == 0
    assert not any(math.isnan(value) for value in values(future, "s").values())


def test_the_page_is_up_to_date() -> None:
    assert (DOCS / "metrics.md").read_text(encoding="utf-8") == reference_page(), "run script/docs"


def test_the_page_names_every_metric_that_is_served() -> None:
    page = reference_page()
    for family in families(pipeline()).values():
        name = family.name + ("_total" if family.type == "counter" else "")
        assert f"| `{name}` | {family.type} |" in page
