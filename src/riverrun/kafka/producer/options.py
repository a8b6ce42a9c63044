"""The options of a producer, and the client properties that follow from them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypedDict, get_args

from riverrun.errors import UsageError
from riverrun.kafka.connection import Connection
from riverrun.kafka.producer.metrics import ProducerMetrics

Compression = Literal["none", "gzip", "lz4", "snappy", "zstd"]

# Properties a producer sets itself: with other values it could not keep its guarantees, or not see failures.
_RESERVED_PROPERTIES = {
    "delivery.report.only.error": "deliveries are reported by send, send_soon and send_all",
    "on_delivery": "give on_delivery to send_soon",
    "error_cb": "errors are raised, and logged as riverrun.kafka.client",
    "stats_cb": "use on_metrics",
    "statistics.interval.ms": "use metrics_seconds",
    "logger": "configure the logger riverrun.kafka.client",
    "transactional.id": "use transactional_id",
    "transaction.timeout.ms": "use transaction_timeout_seconds",
    "queue.buffering.max.messages": "use queue_records",
    "queue.buffering.max.kbytes": "use queue_mb",
    "message.timeout.ms": "use delivery_timeout_seconds",
    "delivery.timeout.ms": "use delivery_timeout_seconds",
    "compression.type": "use compression",
    "compression.codec": "use compression",
    "linger.ms": "use linger_ms",
    "queue.buffering.max.ms": "use linger_ms",
}


class ProducerKeywords(TypedDict, total=False):
    """The keywords of `Producer` and `AsyncProducer`; `ProducerOptions` explains them."""

    transactional_id: str
    transaction_timeout_seconds: float
    queue_records: int
    queue_mb: int
    queue_timeout_seconds: float
    delivery_timeout_seconds: float
    linger_ms: float
    compression: Compression
    properties: Mapping[str, Any]
    on_metrics: Callable[[ProducerMetrics], Any] | None
    metrics_seconds: float


@dataclass(frozen=True)
class ProducerOptions:
    """How a producer behaves.

    At most `queue_records` records and `queue_mb` MiB of keys and values wait for acknowledgement; then sending blocks, up
    to `queue_timeout_seconds` (QueueFullError). A waiting record costs 0.4 KiB besides its bytes, so the defaults keep a
    producer's memory below 64 + 41 MiB and what is on the wire (5 MB per broker); `send_all` outside a transaction has a
    queue of its own of the same size. A record that the cluster has not acknowledged after `delivery_timeout_seconds`
    (waiting included) has failed. A record waits `linger_ms` for others of its batch, unless somebody waits for it.
    `properties` are any other properties of librdkafka. The cluster aborts a transaction that is open for
    `transaction_timeout_seconds`; after a crash, readers of committed records wait that long for those behind it, or until a
    new producer takes over.
    """

    transactional_id: str = ""
    transaction_timeout_seconds: float = 60
    queue_records: int = 100_000
    queue_mb: int = 64
    queue_timeout_seconds: float = 60
    delivery_timeout_seconds: float = 120
    linger_ms: float = 5
    compression: Compression = "zstd"
    properties: Mapping[str, Any] = field(default_factory=dict)
    on_metrics: Callable[[ProducerMetrics], Any] | None = None
    metrics_seconds: float = 5

    def __post_init__(self) -> None:
        for name, least in (
            ("queue_records", 1), ("queue_mb", 1), ("queue_timeout_seconds", 0), ("delivery_timeout_seconds", 0.1),
            ("linger_ms", 0), ("metrics_seconds", 0.1), ("transaction_timeout_seconds", 1),
        ):  # fmt: skip
            if (value := getattr(self, name)) < least:
                raise UsageError(f"A producer cannot have {name}={value}", expected=f"at least {least}", option=name)
        if self.compression not in get_args(Compression):
            raise UsageError(
                f"A producer cannot have compression={self.compression!r}",
                expected=", ".join(get_args(Compression)),
                option="compression",
            )
        for name in self.properties:
            if name in _RESERVED_PROPERTIES:
                raise UsageError(
                    f"A producer sets {name} itself",
                    hint=_RESERVED_PROPERTIES[name][0].upper() + _RESERVED_PROPERTIES[name][1:],
                    property=name,
                )

    def client_properties(self, connection: Connection) -> dict[str, Any]:
        """librdkafka's properties for these options. They override those of the connection ([kafka.client])."""
        ours: dict[str, Any] = {
            "acks": "all",
            "enable.idempotence": True,
            "compression.type": self.compression,
            "linger.ms": self.linger_ms,
            # Keys go to the partition the Java clients would choose; records without a key to any.
            "partitioner": "murmur2_random",
            "queue.buffering.max.messages": self.queue_records,
            "queue.buffering.max.kbytes": self.queue_mb * 1024,
            "message.timeout.ms": round(self.delivery_timeout_seconds * 1000),
        }
        if self.transactional_id:
            limit = round(self.transaction_timeout_seconds * 1000)
            ours["transactional.id"] = self.transactional_id
            ours["transaction.timeout.ms"] = limit
            # A record cannot outlive its transaction, and librdkafka refuses other values.
            ours["message.timeout.ms"] = min(ours["message.timeout.ms"], limit)
        return connection.properties({**ours, **self.properties})
