"""Make the topics of a cluster what the code declares: create what is missing, change what is safe, refuse the rest.

Safe is what removes no record and weakens no promise: a longer retention, another compression. What deletes records (a
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
from riverrun.kafka.registry import deploy
from riverrun.model.event import Event
from riverrun.model.quantity import duration_text, size_text
from riverrun.model.state import TopicState
from riverrun.model.topic import Topic

# Settings for which a smaller number removes records or weakens a promise; -1 stands for no limit.
_LOWER_LOSES = {
    "retention.ms": "deletes records that are older",
    "retention.bytes": "deletes the oldest records",
    "delete.retention.ms": "forgets deletions that slow readers have not seen",
    "min.insync.replicas": "acknowledges records that fewer copies have",
}
_POLICY = "cleanup.policy"
_POLICY_LOSES = {
    "compact": "deletes all but the newest record of each key",
    "delete": "deletes records by age and size",
}


@dataclass(frozen=True)
class Difference:
    """One thing that is declared and is otherwise on the cluster. `refused` says why it is not made equal."""

    what: str
    real: str
    declared: str
    refused: str = ""
    command: str = ""


@dataclass(frozen=True)
class Changes:
    """What is to be done about one topic. `kept` are settings the topic has and the declaration does not mention."""

    topic: str
    action: Literal["create", "alter", "nothing", "refuse"]
    differences: tuple[Difference, ...] = ()
    config: Mapping[str, str] = field(default_factory=dict)
    partitions: int = 0
    kept: Mapping[str, str] = field(default_factory=dict)

    def rows(self) -> list[dict[str, Any]]:
        """One row per difference, for people and programs."""
        if not self.differences:
            return [{"topic": self.topic, "action": self.action, "setting": "", "real": "", "declared": ""}]
        return [
            {
                "topic": self.topic,
                "action": "refuse" if each.refused else self.action,
                "setting": each.what,
                "real": each.real,
                "declared": each.declared,
            }
            for each in self.differences
        ]


def plan(
    declared: Topic[Event], real: TopicState | None, *, brokers: int, allow_more_partitions: bool = False
) -> Changes:
    """What would make `real` what is `declared`. Pure: looks at nothing else."""
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
        return Changes(declared.name, "create", config=declared.full_config(), partitions=declared.partitions)
    differences = [
        *_partition_difference(declared, real, allow_more_partitions),
        *_replica_difference(declared, real),
        *_config_differences(declared, real),
    ]
    wanted = _wanted(declared, real)
    action: Literal["alter", "nothing", "refuse"] = "alter" if differences else "nothing"
    if any(each.refused for each in differences):
        action = "refuse"
    return Changes(
        declared.name,
        action,
        tuple(differences),
        config={each.what: wanted[each.what] for each in differences if each.what in wanted},
        partitions=declared.partitions if declared.partitions > len(real.partitions) else 0,
        kept={name: each.value for name, each in real.config.items() if each.origin == "topic" and name not in wanted},
    )


def _partition_difference(declared: Topic[Event], real: TopicState, allow_more: bool) -> list[Difference]:
    now, wanted = len(real.partitions), declared.partitions
    if now == wanted:
        return []
    if now > wanted:
        return [
            Difference(
                "partitions", str(now), str(wanted),
                refused="Kafka cannot take partitions away",
                command=f"declare partitions={now}, or delete the topic and create it again",
            )
        ]  # fmt: skip
    refused = "" if allow_more else "more partitions move keys to others, so the order within a key breaks once"
    command = f"riverrun topics alter {declared.name} --partitions {wanted}"
    return [Difference("partitions", str(now), str(wanted), refused, command if refused else "")]


def _replica_difference(declared: Topic[Event], real: TopicState) -> list[Difference]:
    if declared.replicas in (0, real.replicas):
        return []
    return [
        Difference(
            "replicas", str(real.replicas), str(declared.replicas),
            refused="replicas are moved between brokers by hand",
            command=f"declare replicas={real.replicas}, or use Kafka's kafka-reassign-partitions",
        )
    ]  # fmt: skip


def _wanted(declared: Topic[Event], real: TopicState) -> dict[str, str]:
    wanted = declared.full_config()
    policy = real.config.get(_POLICY)
    if _POLICY not in wanted and policy is not None and policy.origin == "topic" and "compact" in policy.value:
        # compact=False is a statement too: whoever reads this topic as a log would miss what compaction removed.
        return wanted | {_POLICY: "delete"}
    return wanted


def _config_differences(declared: Topic[Event], real: TopicState) -> list[Difference]:
    differences = []
    for name, value in sorted(_wanted(declared, real).items()):
        now = real.config[name].value if name in real.config else ""
        if _same(name, now, value):
            continue
        loss = loss_of(name, now, value)
        command = f"riverrun topics alter {declared.name} --config {shlex.quote(f'{name}={value}')}" if loss else ""
        differences.append(Difference(name, shown(name, now), shown(name, value), loss, command))
    return differences


def _same(name: str, one: str, other: str) -> bool:
    if name == _POLICY:
        return _words(one) == _words(other)
    return one == other or (_number(one) is not None and _number(one) == _number(other))


def loss_of(name: str, before: str, after: str) -> str:
    """What is lost when a topic setting changes from one value to another; empty when nothing is."""
    if name == _POLICY:
        new = sorted(_words(after) - _words(before))
        return " and ".join(_POLICY_LOSES.get(word, f"starts to {word}") for word in new)
    if name == "unclean.leader.election.enable":
        return "may lose acknowledged records when brokers fail" if after == "true" != before else ""
    old, new_number = _number(before), _number(after)
    if name not in _LOWER_LOSES or old is None or new_number is None:
        return ""
    limits = name.startswith("retention")
    lower = (old < 0 <= new_number or 0 <= new_number < old) if limits else new_number < old
    return _LOWER_LOSES[name] if lower else ""


def plan_alter(
    real: TopicState, *, config: Mapping[str, str | None], partitions: int | None = None
) -> list[Difference]:
    """What changing these settings does; `refused` says what would be lost. None gives a setting back to the default."""
    differences = []
    if partitions is not None and partitions != len(real.partitions):
        if partitions < len(real.partitions):
            raise TopicDiffersError(
                f"{real.name} has {len(real.partitions)} partitions, and Kafka cannot take any away",
                hint="Create another topic with fewer, or delete this one",
                topic=real.name,
            )
        differences.append(
            Difference(
                "partitions", str(len(real.partitions)), str(partitions),
                refused="moves keys to other partitions: the order within a key breaks once",
            )
        )  # fmt: skip
    for name, value in sorted(config.items()):
        now = real.config.get(name)
        before = now.value if now else ""
        if value is None:
            if now is not None and now.origin == "topic":
                loss = f"may: it {_LOWER_LOSES[name]} if the default is lower" if name in _LOWER_LOSES else ""
                differences.append(Difference(name, shown(name, before), "the cluster's default", loss))
        elif not _same(name, before, value):
            differences.append(Difference(name, shown(name, before), shown(name, value), loss_of(name, before, value)))
    return differences


def _words(policy: str) -> set[str]:
    return {word.strip() for word in policy.split(",") if word.strip()}


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def shown(name: str, value: str) -> str:
    """A topic setting's value for people: `604800000 (7 days)`."""
    try:
        number = int(value)
    except ValueError:
        return value
    if name.endswith(".ms") and abs(number) < 2**62:
        return f"{value} ({duration_text(number)})"
    if name.endswith("bytes") and number != 0:
        return f"{value} ({size_text(number)})"
    return value


def create_topic(admin: Admin, topic: Topic[Event]) -> None:
    """Create a topic as declared. TopicExistsError when there is one of that name, whatever it is like."""
    registry = admin.connection.registry
    deploy.check(registry, [topic])
    change = plan(topic, None, brokers=len(admin.brokers()))
    replicas = topic.replicas or admin.connection.settings.replication
    admin.create_topic(topic.name, partitions=change.partitions, replicas=replicas, config=change.config)
    deploy.register(registry, [topic])


def alter_topic(
    admin: Admin, topic: TopicState, *, config: Mapping[str, str | None], partitions: int | None = None
) -> None:
    """Change a topic without asking what is lost: `plan_alter` says that first."""
    if config:
        admin.alter_config(topic.name, config)
    if partitions is not None and partitions > len(topic.partitions):
        admin.add_partitions(topic.name, partitions)


def deletion(admin: Admin, names: Collection[str]) -> list[dict[str, Any]]:
    """What deleting these topics loses: their records, and who reads them. TopicNotFoundError if one is not there."""
    states = [admin.topic(name) for name in names]
    own = [state.name for state in states if state.internal]
    if own:
        raise UsageError(f"{', '.join(own)} belongs to Kafka itself and is not for deleting")
    readers = group_lags(admin, seconds=False)
    rows = []
    for state in states:
        earliest, latest = admin.offsets(state.places, "earliest"), admin.offsets(state.places, "latest")
        rows.append({
            "topic": state.name,
            "partitions": len(state.partitions),
            "offsets": sum(latest[place] - earliest[place] for place in state.places),
            "groups": [each.group.name for each in readers if state.name in each.topics],
        })  # fmt: skip
    return rows


def apply_topics(
    admin: Admin,
    topics: Collection[Topic[Event]],
    *,
    allow_more_partitions: bool = False,
    dry_run: bool = False,
) -> list[Changes]:
    """Make the cluster's topics what these declare. All are compared first, schemas too: when one is refused, none is
    changed."""
    deploy.check(admin.connection.registry, topics)
    brokers = len(admin.brokers())
    real = admin.topics([topic.name for topic in topics])
    changes = [
        plan(topic, real.get(topic.name), brokers=brokers, allow_more_partitions=allow_more_partitions)
        for topic in topics
    ]
    if dry_run:
        return changes
    refused = [each for each in changes if each.action == "refuse"]
    if refused:
        raise refusal(refused)
    deploy.register(admin.connection.registry, topics)
    return [_apply(admin, topic, change, allow_more_partitions) for topic, change in zip(topics, changes, strict=True)]


def _apply(admin: Admin, topic: Topic[Event], change: Changes, allow_more_partitions: bool) -> Changes:
    if change.action == "create":
        try:
            create_topic(admin, topic)
        except TopicExistsError:
            # Somebody else made it since we looked: compare with theirs.
            return apply_topics(admin, [topic], allow_more_partitions=allow_more_partitions)[0]
    elif change.action == "alter":
        if change.config:
            admin.alter_config(topic.name, change.config)
        if change.partitions:
            admin.add_partitions(topic.name, change.partitions)
    return change


def refusal(refused: Collection[Changes]) -> TopicDiffersError:
    """Why these are not made equal, and what to do about each."""
    lines = []
    for change in refused:
        for each in change.differences:
            if each.refused:
                lines.append(
                    f"\n  {change.topic}: {each.what} is {each.real}, declared {each.declared}: {each.refused}"
                )
                lines.append(f"\n    → {each.command}")
    names = ", ".join(change.topic for change in refused)
    return TopicDiffersError(
        f"{names} on the cluster differ{'s' if len(refused) == 1 else ''} from the declaration:{''.join(lines)}\n"
        "Nothing was changed",
        topic=names,
        differences=[row for change in refused for row in change.rows()],
    )
