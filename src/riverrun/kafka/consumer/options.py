"""The options of a consumer, the client properties that follow from them, and its counts."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, TypedDict, get_args

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END

from riverrun.errors import OffsetOutOfRangeError, UsageError
from riverrun.kafka.connection import Connection
from riverrun.model.cluster_state import TopicPartition

CommitMode = Literal["interval", "batch", "record", "manual"]
DeliveryGuarantee = Literal["at-least-once", "at-most-once"]
IsolationLevel = Literal["committed", "uncommitted"]
GroupProtocol = Literal["classic", "consumer"]
PartitionsCallback = Callable[[list[TopicPartition]], Any]

# Properties a consumer sets itself: with other values it could lose records or not notice that they are gone.
_RESERVED_PROPERTIES = {
    "group.id": "use group",
    "group.instance.id": "use instance",
    "group.protocol": "use protocol",
    "partition.assignment.strategy": "classic groups are cooperative-sticky; protocol='consumer' leaves it to the brokers",
    "session.timeout.ms": "use session_timeout_seconds",
    "heartbeat.interval.ms": "use session_timeout_seconds",
    "max.poll.interval.ms": "use max_poll_seconds",
    "isolation.level": "use isolation",
    "auto.offset.reset": "use start and on_gone",
    "enable.auto.commit": "use commit",
    "auto.commit.enable": "use commit",
    "auto.commit.interval.ms": "use commit_interval_seconds",
    "enable.auto.offset.store": "use commit",
    "enable.partition.eof": "use follow",
    "queued.max.messages.kbytes": "use prefetch_mb",
    "on_commit": "failures are logged, counted, and raised by the next commit()",
    "error_cb": "errors are raised, and logged as riverrun.kafka.client",
    "stats_cb": "use on_metrics",
    "statistics.interval.ms": "use metrics_seconds",
    "logger": "configure the logger riverrun.kafka.client",
}


@dataclass(frozen=True, slots=True)
class ConsumerMetrics:
    """A consumer's counts since it was created, and its current state.

    `handled` records are done: returned and not given back, or their handler returned. `failed` counts attempts of handlers
    that raised, `retried` those that were tried again; of the records given up, `dead` went to a dead-letter topic and
    `skipped` were left out. `gone` records were removed by retention before they were read. `in_flight` records (and bytes)
    are in `run`: waiting, being handled, or done behind one that is not. `lag` is how many offsets the partitions of this
    consumer continue behind what it has done; None if that is not known yet.
    """

    handled: int
    failed: int
    retried: int
    dead: int
    skipped: int
    gone: int
    in_flight: int
    in_flight_bytes: int
    commits: int
    commits_failed: int
    rebalances: int
    lag: int | None


@dataclass(slots=True)
class ConsumerCounts:
    """What a consumer counts while it works."""

    handled: int = 0
    failed: int = 0
    retried: int = 0
    dead: int = 0
    skipped: int = 0
    gone: int = 0
    rebalances: int = 0


class ConsumerKeywords(TypedDict, total=False):
    """The keywords of `Consumer` and `AsyncConsumer`; `ConsumerOptions` explains them."""

    start: Literal["earliest", "latest"] | datetime
    partitions: Collection[int | TopicPartition] | None
    follow: bool
    commit: CommitMode
    commit_wait: bool | None
    commit_interval_seconds: float
    delivery: DeliveryGuarantee
    on_gone: Literal["continue", "stop"] | Callable[[OffsetOutOfRangeError], Any]
    isolation: IsolationLevel
    protocol: GroupProtocol
    instance: str
    session_timeout_seconds: float
    max_poll_seconds: float
    prefetch_mb: int
    close_seconds: float
    on_assigned: PartitionsCallback | None
    on_revoked: PartitionsCallback | None
    on_lost: PartitionsCallback | None
    on_metrics: Callable[[ConsumerMetrics], Any] | None
    metrics_seconds: float
    properties: Mapping[str, Any]


@dataclass(frozen=True)
class ConsumerOptions:
    """How a consumer behaves.

    - `start`: where to start in a partition for which the group has no offset, or always when there is no group.
    - `partitions`: read exactly these, instead of those the group assigns; with several topics, `TopicPartition`s.
    - `follow`: False ends at the end of the partitions instead of waiting for more. During a rebalance of the group, it
      waits a few seconds for partitions that may still be assigned.
    - `commit`: what was handled is committed every `commit_interval_seconds`, after each fetched or requested batch, after
      each record, or only by `commit()`. `commit_wait`: whether to wait for the cluster's answer; by default for "batch" and
      "record". In all modes, leaving and losing partitions to another member commits and waits ("manual" waits when it
      leaves, for what commit(wait=False) asked for).
    - `delivery`: "at-most-once" commits before records are returned, and waits for it.
    - `on_gone`: records were removed by retention before they were read. "continue" logs a warning, counts them and
      continues at the oldest there is; a function does the same and is called with the error; "stop" raises it.
    - `isolation`: "committed" hides records of transactions that are open or were aborted.
    - `protocol`: of the group; "consumer" is Kafka 4's own (KIP-848). `instance` makes the member static: it may leave and
      come back within `session_timeout_seconds` without moving partitions. That is also how long a member that died keeps
      its partitions (with "consumer" the brokers decide).
    - `max_poll_seconds`: how long a plain loop may take for one record or batch before its partitions go to others. `run`
      has no such limit.
    - `prefetch_mb`: how much the client fetches ahead, in MiB; besides, each waiting record costs about 1 KiB, and about
      10,000 of each partition wait.
    - `close_seconds`: how long leaving may take.
    - `on_assigned`, `on_revoked`, `on_lost` are called with the partitions that were assigned, are about to be revoked, and
      are lost already. A `seek` in `on_assigned` sets where to start.
    - `on_metrics` is called with the counts every `metrics_seconds`. `properties` are any other properties of librdkafka.
    """

    start: Literal["earliest", "latest"] | datetime = "earliest"
    partitions: Collection[int | TopicPartition] | None = None
    follow: bool = True
    commit: CommitMode = "interval"
    commit_wait: bool | None = None
    commit_interval_seconds: float = 1.0
    delivery: DeliveryGuarantee = "at-least-once"
    on_gone: Literal["continue", "stop"] | Callable[[OffsetOutOfRangeError], Any] = "continue"
    isolation: IsolationLevel = "committed"
    protocol: GroupProtocol = "classic"
    instance: str = ""
    session_timeout_seconds: float = 15.0
    max_poll_seconds: float = 300.0
    prefetch_mb: int = 16
    close_seconds: float = 10.0
    on_assigned: PartitionsCallback | None = None
    on_revoked: PartitionsCallback | None = None
    on_lost: PartitionsCallback | None = None
    on_metrics: Callable[[ConsumerMetrics], Any] | None = None
    metrics_seconds: float = 5.0
    properties: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, least in (
            ("commit_interval_seconds", 0.01), ("session_timeout_seconds", 1), ("max_poll_seconds", 1),
            ("prefetch_mb", 1), ("close_seconds", 0.1), ("metrics_seconds", 0.1),
        ):  # fmt: skip
            if (value := getattr(self, name)) < least:
                raise _invalid_option(name, value, f"at least {least}")
        for name, kind in (
            ("commit", CommitMode),
            ("delivery", DeliveryGuarantee),
            ("isolation", IsolationLevel),
            ("protocol", GroupProtocol),
        ):
            if (value := getattr(self, name)) not in get_args(kind):
                raise _invalid_option(name, value, ", ".join(get_args(kind)))
        if not callable(self.on_gone) and self.on_gone not in ("continue", "stop"):
            raise _invalid_option("on_gone", self.on_gone, "continue, stop or a function")
        if isinstance(self.start, datetime):
            if self.start.tzinfo is None:
                raise _invalid_option("start", self.start, "a datetime with a time zone")
        elif self.start not in ("earliest", "latest"):
            raise _invalid_option("start", self.start, "earliest, latest or a datetime")
        if self.delivery == "at-most-once" and self.commit == "manual":
            raise UsageError(
                "A consumer cannot deliver at most once and commit manually",
                hint="At most once commits by itself, before it hands out: leave `commit` out",
                option="commit",
            )
        for name in self.properties:
            if name in _RESERVED_PROPERTIES:
                raise UsageError(
                    f"A consumer sets {name} itself",
                    hint=_RESERVED_PROPERTIES[name][0].upper() + _RESERVED_PROPERTIES[name][1:],
                    property=name,
                )

    @property
    def waits_for_commit(self) -> bool:
        return self.commit in ("batch", "record") if self.commit_wait is None else self.commit_wait

    @property
    def start_position(self) -> datetime | int:
        """Where a group without a committed offset starts, as `TopicLookup.offsets_at` takes it."""
        if isinstance(self.start, datetime):
            return self.start
        return OFFSET_BEGINNING if self.start == "earliest" else OFFSET_END

    @property
    def commits_start_position(self) -> bool:
        """Whether the start position of a new group is committed before its first record: a rebalance must not move it."""
        return self.start != "earliest" and self.commit != "manual"

    def client_properties(self, connection: Connection, group: str) -> dict[str, Any]:
        """librdkafka's properties for these options. They override those of the connection ([kafka.client])."""
        ours: dict[str, Any] = {
            "group.id": group,
            "auto.offset.reset": "error",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            "isolation.level": f"read_{self.isolation}",
            "allow.auto.create.topics": False,
            "max.poll.interval.ms": round(self.max_poll_seconds * 1000),
            "queued.max.messages.kbytes": self.prefetch_mb * 1024,
            # Of each partition. A waiting record costs about 1 KiB besides its bytes: with the default of 100,000, a slow
            # reader of small records held 160 MB instead of 60 to 110, and a fast one was no faster.
            "queued.min.messages": 10_000,
            "fetch.max.bytes": max(self.prefetch_mb, 16) * 1024 * 1024,
            # With the default of 1 s the client is idle after its queue was full: 196,000 records/s instead of 590,000.
            "fetch.queue.backoff.ms": 5,
            # Requests to a broker queue behind a fetch that waits for records; a new record ends the wait at once.
            "fetch.wait.max.ms": 100,
            # How long a missing topic may be due to metadata that has not arrived. We check before we subscribe.
            "topic.metadata.propagation.max.ms": 5000,
            "group.protocol": self.protocol,
        }
        if self.protocol == "classic":
            session = round(self.session_timeout_seconds * 1000)
            ours["partition.assignment.strategy"] = "cooperative-sticky"
            ours["session.timeout.ms"] = session
            # Members learn of a rebalance with a heartbeat, and cooperation takes two rounds: 2 s instead of 6 s.
            ours["heartbeat.interval.ms"] = min(1000, session // 3)
            # librdkafka requires the poll interval to be at least the session's.
            ours["max.poll.interval.ms"] = max(ours["max.poll.interval.ms"], session)
        if self.instance:
            ours["group.instance.id"] = self.instance
        return connection.properties({**ours, **self.properties})


def _invalid_option(name: str, value: object, expected: str) -> UsageError:
    return UsageError(f"A consumer cannot have {name}={value!r}", expected=expected, option=name)
