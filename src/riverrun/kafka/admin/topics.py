"""Make the topics of a cluster what the code declares: create what is missing, change what is safe, refuse the rest.

Safe is what removes no record and weakens no guarantee: a longer retention, another compression. What deletes records (a
shorter retention, a new compaction), moves keys (more partitions) or cannot be done at all (fewer partitions, other
replicas) is refused with declared and real value side by side, before anything is changed.
"""

import shlex
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from riverrun.errors import DeclarationError, TopicDiffersError, TopicExistsError, UsageError
from riverrun.kafka.admin.admin import Admin
from riverrun.kafka.admin.groups import group_lags
from riverrun.kafka.registry import compatibility
from riverrun.model.cluster_state import TopicState
from riverrun.model.event import Event
from riverrun.model.topic import Topic
from riverrun.model.units import format_duration, format_size

# Settings for which a smaller number removes records or weakens a guarantee; -1 means no limit.
_LOSSY_WHEN_LOWERED = {
    "retention.ms": "deletes records that are older",
    "retention.bytes": "deletes the oldest records",
    "delete.retention.ms": "forgets deletions that slow readers have not seen",
    "min.insync.replicas": "acknowledges records that fewer copies have",
}
_POLICY = "cleanup.policy"
_POLICY_LOSS = {
    "compact": "deletes all but the newest record of each key",
    "delete": "deletes records by age and size",
}


@dataclass(frozen=True)
class TopicDifference:
    """One setting that differs from its declaration. `refused` says why it is not changed."""

    setting: str
    real: str
    declared: str
    refused: str = ""
    command: str = ""


@dataclass(frozen=True)
class TopicChanges:
    """What is to be done about one topic. `undeclared` are settings the topic has and the declaration does not mention."""

    topic: str
    action: Literal["create", "alter", "nothing", "refuse"]
    differences: tuple[TopicDifference, ...] = ()
    config: Mapping[str, str] = field(default_factory=dict)
    partitions: int = 0
    undeclared: Mapping[str, str] = field(default_factory=dict)

    def rows(self) -> list[dict[str, Any]]:
        """One row per difference, for people and programs."""
        if not self.differences:
            return [{"topic": self.topic, "action": self.action, "setting": "", "real": "", "declared": ""}]
        return [
            {
                "topic": self.topic,
                "action": "refuse" if difference.refused else self.action,
                "setting": difference.setting,
                "real": difference.real,
                "declared": difference.declared,
            }
            for difference in self.differences
        ]


def plan_topic_changes(
    declared: Topic[Event], real: TopicState | None, *, brokers: int, allow_more_partitions: bool = False
) -> TopicChanges:
    """The changes that would make `real` what is `declared`. A pure function."""
    if real is None:
        if declared.replicas > brokers:
            raise DeclarationError(
                f"The topic {declared.name} wants {declared.replicas} replicas",
                expected=f"at most {brokers}, one for each broker that is up",
                hint="Run more brokers (kafka.brokers) or declare fewer replicas",
                topic=declared.name,
                replicas=declared.replicas,
                brokers=brokers,
            )
        return TopicChanges(declared.name, "create", config=declared.full_config(), partitions=declared.partitions)
    differences = [
        *_partition_difference(declared, real, allow_more_partitions),
        *_replica_difference(declared, real),
        *_config_differences(declared, real),
    ]
    declared_config = _declared_config(declared, real)
    action: Literal["alter", "nothing", "refuse"] = "alter" if differences else "nothing"
    if any(difference.refused for difference in differences):
        action = "refuse"
    return TopicChanges(
        declared.name,
        action,
        tuple(differences),
        config={
            difference.setting: declared_config[difference.setting]
            for difference in differences
            if difference.setting in declared_config
        },
        partitions=declared.partitions if declared.partitions > len(real.partitions) else 0,
        undeclared={
            name: difference.value
            for name, difference in real.config.items()
            if difference.origin == "topic" and name not in declared_config
        },
    )


def _partition_difference(declared: Topic[Event], real: TopicState, allow_more: bool) -> list[TopicDifference]:
    current, requested = len(real.partitions), declared.partitions
    if current == requested:
        return []
    if current > requested:
        return [
            TopicDifference(
                "partitions", str(current), str(requested),
                refused="Kafka cannot take partitions away",
                command=f"declare partitions={current}, or delete the topic and create it again",
            )
        ]  # fmt: skip
    refused = "" if allow_more else "more partitions move keys to others, so the order within a key breaks once"
    command = f"riverrun topics alter {declared.name} --partitions {requested}"
    return [TopicDifference("partitions", str(current), str(requested), refused, command if refused else "")]


def _replica_difference(declared: Topic[Event], real: TopicState) -> list[TopicDifference]:
    if declared.replicas in (0, real.replicas):
        return []
    return [
        TopicDifference(
            "replicas", str(real.replicas), str(declared.replicas),
            refused="replicas are moved between brokers by hand",
            command=f"declare replicas={real.replicas}, or use Kafka's kafka-reassign-partitions",
        )
    ]  # fmt: skip


def _declared_config(declared: Topic[Event], real: TopicState) -> dict[str, str]:
    config = declared.full_config()
    policy = real.config.get(_POLICY)
    if _POLICY not in config and policy is not None and policy.origin == "topic" and "compact" in policy.value:
        # compact=False is a statement too: a reader of this topic as a log would miss what compaction removed.
        return config | {_POLICY: "delete"}
    return config


def _config_differences(declared: Topic[Event], real: TopicState) -> list[TopicDifference]:
    differences = []
    for name, value in sorted(_declared_config(declared, real).items()):
        current = real.config[name].value if name in real.config else ""
        if _same_value(name, current, value):
            continue
        loss = data_loss_of(name, current, value)
        command = f"riverrun topics alter {declared.name} --config {shlex.quote(f'{name}={value}')}" if loss else ""
        differences.append(
            TopicDifference(name, format_setting(name, current), format_setting(name, value), loss, command)
        )
    return differences


def _same_value(name: str, before: str, after: str) -> bool:
    if name == _POLICY:
        return _policies(before) == _policies(after)
    return before == after or (_number(before) is not None and _number(before) == _number(after))


def data_loss_of(name: str, before: str, after: str) -> str:
    """What is lost when a topic setting changes from one value to another; empty when nothing is."""
    if name == _POLICY:
        new = sorted(_policies(after) - _policies(before))
        return " and ".join(_POLICY_LOSS.get(policy, f"starts to {policy}") for policy in new)
    if name == "unclean.leader.election.enable":
        return "may lose acknowledged records when brokers fail" if after == "true" != before else ""
    old, new_number = _number(before), _number(after)
    if name not in _LOSSY_WHEN_LOWERED or old is None or new_number is None:
        return ""
    is_retention = name.startswith("retention")
    lower = (old < 0 <= new_number or 0 <= new_number < old) if is_retention else new_number < old
    return _LOSSY_WHEN_LOWERED[name] if lower else ""


def plan_alter(
    real: TopicState, *, config: Mapping[str, str | None], partitions: int | None = None
) -> list[TopicDifference]:
    """What changing these settings does; `refused` says what would be lost. None resets a setting to its default."""
    differences = []
    if partitions is not None and partitions != len(real.partitions):
        if partitions < len(real.partitions):
            raise TopicDiffersError(
                f"{real.name} has {len(real.partitions)} partitions, and Kafka cannot take any away",
                hint="Create another topic with fewer, or delete this one",
                topic=real.name,
            )
        differences.append(
            TopicDifference(
                "partitions", str(len(real.partitions)), str(partitions),
                refused="moves keys to other partitions: the order within a key breaks once",
            )
        )  # fmt: skip
    for name, value in sorted(config.items()):
        current = real.config.get(name)
        before = current.value if current else ""
        if value is None:
            if current is not None and current.origin == "topic":
                loss = (
                    f"may: it {_LOSSY_WHEN_LOWERED[name]} if the default is lower"
                    if name in _LOSSY_WHEN_LOWERED
                    else ""
                )
                differences.append(TopicDifference(name, format_setting(name, before), "the cluster's default", loss))
        elif not _same_value(name, before, value):
            differences.append(
                TopicDifference(
                    name, format_setting(name, before), format_setting(name, value), data_loss_of(name, before, value)
                )
            )
    return differences


def _policies(policy: str) -> set[str]:
    return {name.strip() for name in policy.split(",") if name.strip()}


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def format_setting(name: str, value: str) -> str:
    """A topic setting's value for people: `604800000 (7 days)`."""
    try:
        number = int(value)
    except ValueError:
        return value
    if name.endswith(".ms") and abs(number) < 2**62:
        return f"{value} ({format_duration(number)})"
    if name.endswith("bytes") and number != 0:
        return f"{value} ({format_size(number)})"
    return value


def create_topic(admin: Admin, topic: Topic[Event]) -> None:
    """Create a topic as declared. TopicExistsError when one of that name exists, whatever its settings."""
    registry = admin.connection.registry
    compatibility.check_schemas(registry, [topic])
    change = plan_topic_changes(topic, None, brokers=len(admin.brokers()))
    replicas = topic.replicas or admin.connection.settings.replication
    admin.create_topic(topic.name, partitions=change.partitions, replicas=replicas, config=change.config)
    compatibility.register_schemas(registry, [topic])


def alter_topic(
    admin: Admin, topic: TopicState, *, config: Mapping[str, str | None], partitions: int | None = None
) -> None:
    """Change a topic without checking what is lost: `plan_alter` says that first."""
    if config:
        admin.alter_config(topic.name, config)
    if partitions is not None and partitions > len(topic.partitions):
        admin.add_partitions(topic.name, partitions)


def describe_deletion(admin: Admin, names: Collection[str]) -> list[dict[str, Any]]:
    """What deleting these topics loses: their records, and the groups that read them. Or TopicNotFoundError."""
    states = [admin.topic(name) for name in names]
    internal = [state.name for state in states if state.internal]
    if internal:
        raise UsageError(f"{', '.join(internal)} belongs to Kafka itself and is not for deleting")
    lags = group_lags(admin, seconds=False)
    rows = []
    for state in states:
        earliest, latest = (
            admin.offsets(state.topic_partitions, "earliest"),
            admin.offsets(state.topic_partitions, "latest"),
        )
        rows.append({
            "topic": state.name,
            "partitions": len(state.partitions),
            "offsets": sum(latest[partition] - earliest[partition] for partition in state.topic_partitions),
            "groups": [lag.group.name for lag in lags if state.name in lag.topics],
        })  # fmt: skip
    return rows


def apply_topics(
    admin: Admin,
    topics: Collection[Topic[Event]],
    *,
    allow_more_partitions: bool = False,
    dry_run: bool = False,
) -> list[TopicChanges]:
    """Make the cluster's topics what these declare. All are compared first, schemas too: when one is refused, none is
    changed."""
    compatibility.check_schemas(admin.connection.registry, topics)
    brokers = len(admin.brokers())
    real = admin.topics([topic.name for topic in topics])
    changes = [
        plan_topic_changes(topic, real.get(topic.name), brokers=brokers, allow_more_partitions=allow_more_partitions)
        for topic in topics
    ]
    if dry_run:
        return changes
    refused = [planned for planned in changes if planned.action == "refuse"]
    if refused:
        raise topic_differs_error(refused)
    compatibility.register_schemas(admin.connection.registry, topics)
    return [_apply(admin, topic, change, allow_more_partitions) for topic, change in zip(topics, changes, strict=True)]


def _apply(admin: Admin, topic: Topic[Event], change: TopicChanges, allow_more_partitions: bool) -> TopicChanges:
    if change.action == "create":
        try:
            create_topic(admin, topic)
        except TopicExistsError:
            # Somebody else created it meanwhile: compare with theirs.
            return apply_topics(admin, [topic], allow_more_partitions=allow_more_partitions)[0]
    elif change.action == "alter":
        if change.config:
            admin.alter_config(topic.name, change.config)
        if change.partitions:
            admin.add_partitions(topic.name, change.partitions)
    return change


def topic_differs_error(refused: Collection[TopicChanges]) -> TopicDiffersError:
    """Why these are not changed, and what to do about each."""
    lines = []
    for change in refused:
        for difference in change.differences:
            if difference.refused:
                lines.append(
                    f"\n  {change.topic}: {difference.setting} is {difference.real}, "
                    f"declared {difference.declared}: {difference.refused}"
                )
                lines.append(f"\n    → {difference.command}")
    names = ", ".join(change.topic for change in refused)
    return TopicDiffersError(
        f"{names} on the cluster differ{'s' if len(refused) == 1 else ''} from the declaration:{''.join(lines)}\n"
        "Nothing was changed",
        topic=names,
        differences=[row for change in refused for row in change.rows()],
    )
