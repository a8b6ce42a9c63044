"""Convert the client library's descriptions of a cluster to riverrun's own types."""

from typing import Any

from confluent_kafka import ConsumerGroupState
from confluent_kafka.admin import ConfigEntry, ConfigSource

from riverrun.model.cluster_state import ConfigValue, GroupMember, GroupState, TopicPartition


def config_value(entry: ConfigEntry) -> ConfigValue:
    """A topic's setting."""
    source = ConfigSource(entry.source)
    if source is ConfigSource.DYNAMIC_TOPIC_CONFIG:
        return ConfigValue(entry.value or "", "topic")
    return ConfigValue(entry.value or "", "default" if source is ConfigSource.DEFAULT_CONFIG else "broker")


_STATE_WORDS = {
    ConsumerGroupState.PREPARING_REBALANCING: "rebalancing",
    ConsumerGroupState.COMPLETING_REBALANCING: "rebalancing",
}


def group_state(described: Any) -> GroupState:
    """A consumer group with its members."""
    state = _STATE_WORDS.get(described.state, described.state.name.lower())
    if state == "unknown" and described.members:
        # The client has no name for the states of KIP-848 in which members wait for each other.
        state = "rebalancing"
    return GroupState(
        name=described.group_id,
        state=state,
        kind=described.type.name.lower() if getattr(described, "type", None) else "classic",
        members=tuple(
            GroupMember(
                member_id=member.member_id,
                client_id=member.client_id,
                host=member.host.lstrip("/"),
                assignment=frozenset(
                    TopicPartition(partition.topic, partition.partition)
                    for partition in (member.assignment.topic_partitions or ())
                ),
            )
            for member in described.members
        ),
    )
