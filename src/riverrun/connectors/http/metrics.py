"""Counts of posted records by topic: for `GET /metrics`, and for the status of connectors."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass


@dataclass
class IngestCounts:
    """`records` are acknowledged ones; `refused` did not match the topic's type; `failed` ones Kafka did not take in time.
    `repeated` are requests answered as before, by their Idempotency-Key."""

    requests: int = 0
    records: int = 0
    refused: int = 0
    failed: int = 0
    repeated: int = 0
    bytes: int = 0


_HELP = {
    "requests": "Requests for the topic, whatever came of them.",
    "records": "Records acknowledged by Kafka.",
    "refused": "Values that were no records of the topic.",
    "failed": "Records that Kafka did not acknowledge in time.",
    "repeated": "Requests answered as before, by their Idempotency-Key.",
    "bytes": "Bytes of the requests that were read, unpacked.",
}


def prometheus_text(counts: Mapping[str, IngestCounts], gauges: Mapping[str, tuple[str, float]]) -> str:
    """Prometheus's text format. Topic names need no escapes."""
    return "\n".join([*_lines(counts, gauges), ""])


def _lines(counts: Mapping[str, IngestCounts], gauges: Mapping[str, tuple[str, float]]) -> Iterable[str]:
    for name, help_text in _HELP.items():
        metric = f"riverrun_ingest_{name}_total"
        yield f"# HELP {metric} {help_text}"
        yield f"# TYPE {metric} counter"
        for topic, topic_counts in sorted(counts.items()):
            yield f'{metric}{{topic="{topic}"}} {asdict(topic_counts)[name]}'
    for name, (help_text, value) in gauges.items():
        metric = f"riverrun_ingest_{name}"
        yield f"# HELP {metric} {help_text}"
        yield f"# TYPE {metric} gauge"
        yield f"{metric} {value:g}"
