"""The plan: declared against real, without a cluster."""

from typing import Any

import pytest

from riverrun.errors import DeclarationError
from riverrun.kafka.admin.topics import TopicChanges, data_loss_of, format_setting, plan_topic_changes
from riverrun.model.cluster_state import ConfigValue, PartitionState, TopicState
from riverrun.model.event import Event
from riverrun.model.topic import Topic

DAY = 86_400_000


def declared(**options: Any) -> Topic[Event]:
    return Topic("readings", **options)


def real(partitions: int = 1, replicas: int = 1, **config: str) -> TopicState:
    """A topic on the cluster; keywords are settings of its own, with _ for the dots."""
    values = {
        "retention.ms": ConfigValue(str(7 * DAY), "default"),
        "retention.bytes": ConfigValue("-1", "default"),
        "cleanup.policy": ConfigValue("delete", "default"),
        "compression.type": ConfigValue("producer", "default"),
        "min.insync.replicas": ConfigValue("2", "broker"),
    }
    values |= {name.replace("_", "."): ConfigValue(value, "topic") for name, value in config.items()}
    copies = tuple(range(1, replicas + 1))
    return TopicState("readings", False, tuple(PartitionState(n, 1, copies, copies) for n in range(partitions)), values)


def refusals(changes: TopicChanges) -> dict[str, tuple[str, str]]:
    return {
        difference.setting: (difference.real, difference.declared)
        for difference in changes.differences
        if difference.refused
    }


def test_a_missing_topic_is_created_as_declared() -> None:
    changes = plan_topic_changes(declared(partitions=4, retention="7 days"), None, brokers=1)
    assert (changes.action, changes.partitions) == ("create", 4)
    assert changes.config == {"retention.ms": str(7 * DAY)}


def test_an_equal_topic_needs_nothing() -> None:
    changes = plan_topic_changes(declared(partitions=4, retention="7 days"), real(4), brokers=1)
    assert changes.action == "nothing"
    assert changes.rows()[0]["action"] == "nothing"


def test_more_replicas_than_brokers_is_said_before_the_cluster_does() -> None:
    with pytest.raises(DeclarationError) as caught:
        plan_topic_changes(declared(replicas=3), None, brokers=1)
    assert caught.value.fields == {"topic": "readings", "replicas": 3, "brokers": 1}


def test_a_longer_retention_is_altered() -> None:
    changes = plan_topic_changes(declared(retention="30 days"), real(), brokers=1)
    assert changes.action == "alter"
    assert changes.config == {"retention.ms": str(30 * DAY)}
    assert changes.rows() == [
        {
            "topic": "readings",
            "action": "alter",
            "setting": "retention.ms",
            "real": "604800000 (7 days)",
            "declared": "2592000000 (30 days)",
        }
    ]


def test_a_shorter_retention_deletes_and_is_refused_with_its_command() -> None:
    changes = plan_topic_changes(declared(retention="1 hour"), real(), brokers=1)
    assert changes.action == "refuse"
    assert refusals(changes) == {"retention.ms": ("604800000 (7 days)", "3600000 (1 hour)")}
    assert changes.differences[0].command == "riverrun topics alter readings --config retention.ms=3600000"


def test_one_refused_difference_refuses_the_topic_and_still_shows_the_others() -> None:
    changes = plan_topic_changes(declared(retention="30 days", retention_size="1 GiB"), real(), brokers=1)
    assert changes.action == "refuse"
    assert [row["action"] for row in changes.rows()] == ["refuse", "refuse"]
    assert set(refusals(changes)) == {"retention.bytes"}


def test_more_partitions_only_when_asked() -> None:
    refused = plan_topic_changes(declared(partitions=6), real(4), brokers=1)
    assert refused.action == "refuse"
    assert refusals(refused) == {"partitions": ("4", "6")}
    assert "order" in refused.differences[0].refused
    allowed = plan_topic_changes(declared(partitions=6), real(4), brokers=1, allow_more_partitions=True)
    assert (allowed.action, allowed.partitions, allowed.config) == ("alter", 6, {})


def test_fewer_partitions_are_refused_even_when_more_are_allowed() -> None:
    changes = plan_topic_changes(declared(partitions=2), real(4), brokers=1, allow_more_partitions=True)
    assert refusals(changes) == {"partitions": ("4", "2")}
    assert changes.partitions == 0


def test_other_replicas_are_refused_and_no_opinion_is_none() -> None:
    assert refusals(plan_topic_changes(declared(replicas=3), real(replicas=1), brokers=3)) == {"replicas": ("1", "3")}
    assert plan_topic_changes(declared(), real(replicas=3), brokers=3).action == "nothing"


def test_new_compaction_is_refused() -> None:
    changes = plan_topic_changes(declared(compact=True), real(), brokers=1)
    assert refusals(changes) == {"cleanup.policy": ("delete", "compact")}


def test_a_topic_that_is_compacted_and_not_declared_so_differs() -> None:
    assert refusals(plan_topic_changes(declared(), real(cleanup_policy="compact"), brokers=1)) == {
        "cleanup.policy": ("compact", "delete")
    }
    lighter = plan_topic_changes(declared(), real(cleanup_policy="compact,delete"), brokers=1)
    assert (lighter.action, lighter.config) == ("alter", {"cleanup.policy": "delete"})


def test_the_order_of_a_policy_does_not_matter() -> None:
    changes = plan_topic_changes(
        declared(compact=True, retention="7 days"), real(cleanup_policy="delete,compact"), brokers=1
    )
    assert changes.action == "nothing"


def test_settings_of_the_topic_that_are_not_declared_are_kept_and_named() -> None:
    changes = plan_topic_changes(declared(), real(retention_ms="1000"), brokers=1)
    assert (changes.action, changes.undeclared) == ("nothing", {"retention.ms": "1000"})


@pytest.mark.parametrize(
    ("name", "before", "after", "loses"),
    [
        ("retention.ms", "1000", "2000", False),
        ("retention.ms", "1000", "-1", False),
        ("retention.ms", "-1", "1000", True),
        ("retention.ms", "2000", "1000", True),
        ("retention.bytes", "-1", "5", True),
        ("min.insync.replicas", "2", "1", True),
        ("min.insync.replicas", "1", "2", False),
        ("cleanup.policy", "delete", "compact,delete", True),
        ("cleanup.policy", "compact,delete", "compact", False),
        ("unclean.leader.election.enable", "false", "true", True),
        ("unclean.leader.election.enable", "true", "false", False),
        ("compression.type", "producer", "zstd", False),
        ("segment.ms", "2000", "1000", False),
        ("retention.ms", "", "1000", False),
    ],
)
def test_what_a_change_loses(name: str, before: str, after: str, loses: bool) -> None:
    assert bool(data_loss_of(name, before, after)) is loses


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("retention.ms", "604800000", "604800000 (7 days)"),
        ("retention.ms", "-1", "-1 (forever)"),
        ("max.message.bytes", "1048588", "1048588 (1.0 MiB)"),
        ("retention.bytes", "-1", "-1 (unlimited)"),
        ("flush.ms", "9223372036854775807", "9223372036854775807"),
        ("cleanup.policy", "compact", "compact"),
    ],
)
def test_values_are_shown_for_people(name: str, value: str, text: str) -> None:
    assert format_setting(name, value) == text
