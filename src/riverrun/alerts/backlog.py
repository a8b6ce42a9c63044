"""The backlog of alerts: rows to evaluate and messages to send."""

from riverrun.alerts.kafka_log import read_alert_state
from riverrun.alerts.state_topic import AlertState
from riverrun.kafka.admin.admin import Admin
from riverrun.kafka.connection import Connection
from riverrun.model.cluster_state import TopicPartition

NOT_STARTED = "they have not started"


def describe_backlog(connection: Connection, app: str) -> str:
    """Describe rows that are not evaluated and messages that are not sent; empty when all is done."""
    state = read_alert_state(connection, app)
    if not state.positions or state.lease is None:
        return NOT_STARTED
    partitions = [TopicPartition(*partition) for partition in state.positions]
    ends = Admin(connection).offsets(partitions, "latest", committed_only=True)
    lag = sum(
        max(0, end - state.positions[partition.topic, partition.partition].offset) for partition, end in ends.items()
    )
    if lag:
        return f"{lag} rows are not judged"
    waiting = len(unsent_ids(state))
    return f"{waiting} messages are not sent" if waiting else ""


def unsent_ids(state: AlertState) -> list[str]:
    """The ids of released messages that no channel has accepted yet."""
    deliveries = state.deliveries
    return [
        id_
        for id_, notification in state.notifications.items()
        if notification.stage == "out"
        and (id_ not in deliveries or deliveries[id_].delivery.state in ("due", "trying"))
    ]
