"""The streams' metrics for Prometheus. Each metric is declared once; /metrics and docs/reference/metrics.md come from here.

A value that is not known (the lag before the first batch, the watermark of a stream without event time) has no sample, so
that no alert mistakes a placeholder for a value. The page: `python -m riverrun.streams.run.metrics`.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST as OPENMETRICS
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.registry import Collector

from riverrun.model.progress import PHASES, PipelineProgress, StreamProgress, unix_seconds

PROMETHEUS_TEXT = "text/plain; version=0.0.4; charset=utf-8"
_PREFIX = "riverrun_stream_"


@dataclass(frozen=True)
class MetricSpec:
    """One metric of a stream. `value` gets the stream and the current time, and returns None if the value is not known.

    A name ends with its unit where it has one; `_total` is added to counters.
    """

    name: str
    kind: Literal["counter", "gauge"]
    meaning: str
    value: Callable[[StreamProgress, float], float | None]
    unit: str = ""

    @property
    def full_name(self) -> str:
        return f"{_PREFIX}{self.name}{'_total' if self.kind == 'counter' else ''}"


def _known(number: float) -> float | None:
    return number if number >= 0 else None


METRICS: tuple[MetricSpec, ...] = (
    MetricSpec("records_read", "counter", "Records read from the stream's inputs.", lambda s, _: s.record_counts.read),
    MetricSpec("records_out", "counter", "Rows sent to the stream's topic.", lambda s, _: s.record_counts.out),
    MetricSpec(
        "records_filtered", "counter", "Records the stream's own code left out.",
        lambda s, _: s.record_counts.filtered,
    ),
    MetricSpec(
        "records_dead", "counter", "Records that could not be read or used; in the dead-letter topic.",
        lambda s, _: s.record_counts.dead_letters,
    ),
    MetricSpec(
        "records_late", "counter", "Records older than the watermark when they came; of aggregates, at least so many.",
        lambda s, _: s.record_counts.late,
    ),
    MetricSpec(
        "records_gone", "counter", "Records that retention deleted before they were read; not among those read.",
        lambda s, _: s.record_counts.expired,
    ),
    MetricSpec(
        "counts_exact", "gauge", "1 when read = out + filtered + dead + late holds to the record, 0 when it need not.",
        lambda s, _: float(s.record_counts.exact),
    ),
    MetricSpec(
        "lag_offsets", "gauge", "Offsets in the inputs that the stream has not read: records, and markers of transactions.",
        lambda s, _: _known(s.lag), "offsets",
    ),
    MetricSpec(
        "last_record_age_seconds", "gauge", "Time since the stream last read a record.",
        lambda s, now: s.age_seconds(now), "seconds",
    ),
    MetricSpec(
        "watermark_seconds", "gauge", "The stream's event-time clock, as a Unix time.",
        lambda s, _: unix_seconds(s.watermark), "seconds",
    ),
    MetricSpec(
        "batch_seconds", "gauge", "How long the last batch took.",
        lambda s, _: s.batch_ms / 1000 if s.batch >= 0 else None, "seconds",
    ),
    MetricSpec("state_rows", "gauge", "Rows the stream keeps as state.", lambda s, _: s.state_rows, "rows"),
    MetricSpec("state_bytes", "gauge", "Memory the stream's state uses.", lambda s, _: s.state_bytes, "bytes"),
    MetricSpec("restarts", "counter", "How often the stream was started again after a failure.", lambda s, _: s.restarts),
)  # fmt: skip
PHASE = "phase"
PHASE_MEANING = f"1 for the phase the stream is in, 0 for the others: {', '.join(PHASES)}."


class StreamCollector(Collector):
    """One snapshot as Prometheus's metric families."""

    def __init__(self, progress: PipelineProgress, now: float) -> None:
        self._progress = progress
        self._now = now

    def collect(self) -> Iterator[Metric]:
        for spec in METRICS:
            yield self._family(spec)
        phases = GaugeMetricFamily(f"{_PREFIX}{PHASE}", PHASE_MEANING, labels=["app", "stream", "phase"])
        for stream in self._progress.streams:
            for phase in PHASES:
                phases.add_metric([self._progress.app, stream.name, phase], float(stream.phase == phase))
        yield phases

    def _family(self, spec: MetricSpec) -> Metric:
        kind = CounterMetricFamily if spec.kind == "counter" else GaugeMetricFamily
        family = kind(f"{_PREFIX}{spec.name}", spec.meaning, labels=["app", "stream"], unit=spec.unit)
        for stream in self._progress.streams:
            value = spec.value(stream, self._now)
            if value is not None:
                family.add_metric([self._progress.app, stream.name], value)
        return family


def metrics_text(progress: PipelineProgress, accept: str = "", now: float | None = None) -> tuple[bytes, str]:
    """The body and content type of /metrics: OpenMetrics if `accept` asks for it, else Prometheus's text."""
    registry = CollectorRegistry()
    registry.register(StreamCollector(progress, time.time() if now is None else now))
    if "application/openmetrics-text" in accept:
        body: bytes = generate_openmetrics(registry)  # type: ignore[no-untyped-call]
        return body, OPENMETRICS
    return generate_latest(registry), PROMETHEUS_TEXT


def reference_page() -> str:
    """docs/reference/metrics.md."""
    rows = [(spec.full_name, spec.kind, spec.unit, spec.meaning) for spec in METRICS]
    rows.append((f"{_PREFIX}{PHASE}", "gauge", "", PHASE_MEANING))
    lines = [
        "# Metrics",
        "",
        "Made from `riverrun.streams.run.metrics` by `script/docs`. `riverrun run` serves them on 127.0.0.1 at `/metrics`,",
        "on the port of `streams.port`; `riverrun status` says which. Every metric has the labels `app` and `stream`;",
        f"`{_PREFIX}{PHASE}` has `phase` besides. Counters go on from where the pipeline's last run ended. A value that",
        "is not known has no sample.",
        "",
        "| name | type | unit | meaning |",
        "| --- | --- | --- | --- |",
        *(f"| `{name}` | {kind} | {unit} | {meaning} |" for name, kind, unit, meaning in rows),
        "",
        "The same port serves `/api/streams` (all streams as JSON), `/api/streams/NAME` (one) and `/healthz` (200, or 503",
        "with the names of the streams that failed). It answers only GET, and only requests made to `127.0.0.1`,",
        "`localhost` or `[::1]`, so that no web page can read it through a name of its own.",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    import sys

    sys.stdout.write(reference_page())
