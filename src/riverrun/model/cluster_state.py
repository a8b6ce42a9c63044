"""Plain values that describe a cluster: `kafka.admin` fills them in; plans and printed tables read them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

_LIVE_STATES = frozenset({"stable", "rebalancing"})


class TopicPartition(NamedTuple):
    """One partition of one topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}]"


@dataclass(frozen=True)
class PartitionState:
    """A partition as the cluster knows it. `leader` is None while it has none."""

    partition: int
    leader: int | None
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]


@dataclass(frozen=True)
class ConfigValue:
    """An effective topic setting, and whether the topic, the brokers or Kafka itself sets it."""

    value: str
    origin: Literal["topic", "broker", "default"]


@dataclass(frozen=True)
class TopicState:
    """A topic as it is on the cluster. `config` is empty where it was not requested. A topic that was deleted and
    created again has another `topic_id`."""

    name: str
    internal: bool
    partitions: tuple[PartitionState, ...]
    config: Mapping[str, ConfigValue]
    topic_id: str = ""

    @property
    def replicas(self) -> int:
        """The replication factor: the smallest number any partition has."""
        return min((len(partition.replicas) for partition in self.partitions), default=0)

    @property
    def problem(self) -> str:
        """What is wrong with its partitions, in words; empty when nothing is."""
        leaderless = sum(partition.leader is None for partition in self.partitions)
        behind = sum(len(partition.in_sync) < len(partition.replicas) for partition in self.partitions)
        if leaderless:
            return f"{leaderless} without leader"
        return f"{behind} under-replicated" if behind else ""

    @property
    def topic_partitions(self) -> list[TopicPartition]:
        return [TopicPartition(self.name, partition.partition) for partition in self.partitions]


@dataclass(frozen=True)
class GroupMember:
    """A living member of a group, and what it reads."""

    member_id: str
    client_id: str
    host: str
    assignment: frozenset[TopicPartition]


@dataclass(frozen=True)
class GroupState:
    """A group as its coordinator knows it. `kind` is classic or consumer (KIP-848)."""

    name: str
    state: str
    kind: str
    members: tuple[GroupMember, ...]

    @property
    def live(self) -> bool:
        return bool(self.members) or self.state in _LIVE_STATES
