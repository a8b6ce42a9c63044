"""What is read from librdkafka's statistics."""

import json

import pytest

from riverrun.kafka.producer.metrics import read_latencies


def test_latencies_are_averaged_over_brokers_by_count() -> None:
    def window(average: int, count: int) -> dict[str, int]:
        return {"avg": average, "cnt": count, "min": 0}

    statistics = {
        "name": "x",
        "brokers": {
            "a": {"int_latency": window(1000, 30), "rtt": window(500, 3), "state": "UP"},
            "b": {"int_latency": window(3000, 10), "rtt": window(900, 1)},
            "bootstrap": {},
        },
    }
    queue, broker = read_latencies(json.dumps(statistics))
    assert queue == pytest.approx(1.5)
    assert broker == pytest.approx(0.6)


def test_nothing_was_sent() -> None:
    assert read_latencies(b"{}") == (None, None)
    assert read_latencies('{"brokers": {"a": {"int_latency": {"avg": 0, "cnt": 0}}}}') == (None, None)
