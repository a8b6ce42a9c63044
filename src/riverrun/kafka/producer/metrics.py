"""The counts and latencies of a producer."""

from dataclasses import dataclass

import msgspec


@dataclass(frozen=True, slots=True)
class ProducerMetrics:
    """A producer's counts since it was created, and the client's current statistics.

    `sent` = `acknowledged` + `failed` + `queued`. `bytes` are those of the values, before compression. Latencies are
    averages over the last interval of the client's statistics, of all records: from being sent until acknowledged
    (`latency_ms`), of that in our own queue (`queue_ms`) and between request and answer (`broker_ms`). None when
    `on_metrics` is not used, because then they are not collected, and when nothing was sent in the interval.
    """

    sent: int
    acknowledged: int
    failed: int
    queued: int
    bytes: int
    latency_ms: float | None = None
    queue_ms: float | None = None
    broker_ms: float | None = None


class _Window(msgspec.Struct):
    avg: int = 0
    cnt: int = 0


class _Broker(msgspec.Struct):
    int_latency: _Window = msgspec.field(default_factory=_Window)
    outbuf_latency: _Window = msgspec.field(default_factory=_Window)
    rtt: _Window = msgspec.field(default_factory=_Window)


class _Statistics(msgspec.Struct):
    brokers: dict[str, _Broker] = {}


_decode = msgspec.json.Decoder(_Statistics).decode


def read_latencies(statistics: str | bytes) -> tuple[float | None, float | None]:
    """(in our queue, at the broker) in milliseconds, averaged over the brokers by count, from librdkafka's statistics."""
    brokers = _decode(statistics).brokers.values()
    return _mean([broker.int_latency for broker in brokers]), _mean([broker.rtt for broker in brokers])


def _mean(windows: list[_Window]) -> float | None:
    count = sum(window.cnt for window in windows)
    return sum(window.avg * window.cnt for window in windows) / count / 1000 if count else None
