"""What a consumer refuses before it talks to anybody, and the properties its options mean."""

import re
from datetime import UTC, datetime
from typing import Any, get_type_hints

import pytest

from riverrun.config import KafkaSettings
from riverrun.errors import ConfigError, DeclarationError, UsageError
from riverrun.kafka.connection import Connection
from riverrun.kafka.consumer.consumer import Consumer
from riverrun.kafka.consumer.offset_gap import OffsetGap, offset_gap_error
from riverrun.kafka.consumer.options import ConsumerKeywords, ConsumerOptions
from riverrun.kafka.consumer.run_options import RunKeywords, RunOptions
from riverrun.kafka.consumer.topic_lookup import TopicSelection, select_topics
from riverrun.model.cluster_state import TopicPartition

NOWHERE = Connection(KafkaSettings(bootstrap_servers="127.0.0.1:1"))


def test_the_keywords_are_the_options() -> None:
    assert get_type_hints(ConsumerKeywords) == get_type_hints(ConsumerOptions)
    assert get_type_hints(RunKeywords) == get_type_hints(RunOptions)


@pytest.mark.parametrize(
    ("keywords", "option"),
    [
        ({"commit": "sometimes"}, "commit"),
        ({"commit_interval_seconds": 0}, "commit_interval_seconds"),
        ({"delivery": "exactly-once"}, "delivery"),
        ({"delivery": "at-most-once", "commit": "manual"}, "commit"),
        ({"start": "first"}, "start"),
        ({"start": datetime(2026, 1, 1)}, "start"),  # noqa: DTZ001  -- the point
        ({"on_gone": "ignore"}, "on_gone"),
        ({"isolation": "dirty"}, "isolation"),
        ({"protocol": "eager"}, "protocol"),
        ({"prefetch_mb": 0}, "prefetch_mb"),
    ],
)
def test_nonsense_is_refused_by_name(keywords: dict[str, Any], option: str) -> None:
    with pytest.raises(UsageError) as caught:
        ConsumerOptions(**keywords)
    assert caught.value.fields["option"] == option


@pytest.mark.parametrize(
    ("keywords", "option"),
    [
        ({"order": "time"}, "order"),
        ({"on_error": "ignore"}, "on_error"),
        ({"on_unreadable": "raise"}, "on_unreadable"),
        ({"max_in_flight": 0}, "max_in_flight"),
        ({"max_in_flight_mb": 0}, "max_in_flight_mb"),
    ],
)
def test_nonsense_in_run_is_refused_by_name(keywords: dict[str, Any], option: str) -> None:
    with pytest.raises(UsageError) as caught:
        RunOptions(**keywords)
    assert caught.value.fields["option"] == option


def test_properties_that_would_break_a_promise_are_refused_with_what_to_use() -> None:
    with pytest.raises(UsageError, match="Use start and on_gone"):
        ConsumerOptions(properties={"auto.offset.reset": "latest"})


def test_other_properties_win_over_ours() -> None:
    options = ConsumerOptions(properties={"fetch.wait.max.ms": 7})
    assert options.client_properties(NOWHERE, "g")["fetch.wait.max.ms"] == 7


def test_the_group_protocols_have_their_own_properties() -> None:
    classic = ConsumerOptions(session_timeout_seconds=6, instance="one").client_properties(NOWHERE, "g")
    assert classic["partition.assignment.strategy"] == "cooperative-sticky"
    assert (classic["session.timeout.ms"], classic["heartbeat.interval.ms"]) == (6000, 1000)
    assert classic["group.instance.id"] == "one"
    new = ConsumerOptions(protocol="consumer").client_properties(NOWHERE, "g")
    assert new["group.protocol"] == "consumer"
    assert "session.timeout.ms" not in new


def test_a_property_the_client_does_not_know_is_a_configuration_problem() -> None:
    with pytest.raises(ConfigError, match=r"no\.such\.property"):
        Consumer("t", group="g", connection=NOWHERE, properties={"no.such.property": "1"})


def test_waiting_for_commits_is_the_default_where_each_counts() -> None:
    assert [ConsumerOptions(commit=each).waits_for_commit for each in ("interval", "batch", "record")] == [
        False,
        True,
        True,
    ]
    assert ConsumerOptions(commit="interval", commit_wait=True).waits_for_commit
    assert not ConsumerOptions(commit="record", commit_wait=False).waits_for_commit


def test_a_start_that_a_rebalance_would_move_is_pinned() -> None:
    assert not ConsumerOptions().commits_start_position
    assert ConsumerOptions(start="latest").commits_start_position
    assert ConsumerOptions(start=datetime(2026, 1, 1, tzinfo=UTC)).commits_start_position
    assert not ConsumerOptions(start="latest", commit="manual").commits_start_position


def test_topics_are_names_patterns_or_declarations() -> None:
    choice, schemas = select_topics(["b", re.compile("m-.*"), "a"], "g", None)
    assert (choice.names, set(schemas), choice.group_managed) == (("b", "a"), {"a", "b"}, True)
    assert choice.matching_topics(["m-1", "xm-2", "m-1.dead", "__m-3", "c"]) == ["a", "b", "m-1"]
    assert str(choice) == "b, a, /m-.*/"


def test_what_cannot_be_a_topic_is_refused() -> None:
    with pytest.raises(DeclarationError):
        select_topics("no spaces", "g", None)
    with pytest.raises(UsageError):
        select_topics([], "g", None)
    with pytest.raises(UsageError, match="of which topic"):
        select_topics(["a", "b"], "", [0])
    assert not select_topics(["a", "b"], "g", [TopicPartition("a", 0)])[0].group_managed
    assert not TopicSelection(("a",)).group_managed


def test_a_closed_consumer_says_so() -> None:
    consumer = Consumer("t", group="g", connection=NOWHERE)
    consumer.close()
    consumer.close()
    for act in (consumer.__enter__, consumer.__next__, consumer.commit, lambda: next(consumer.batches())):
        with pytest.raises(UsageError, match="closed"):
            act()


def test_without_a_group_there_is_nothing_to_commit_to() -> None:
    with Consumer("t", connection=NOWHERE) as consumer, pytest.raises(UsageError, match="without a group"):
        consumer.commit()


def test_a_batch_has_records() -> None:
    with Consumer("t", connection=NOWHERE) as consumer, pytest.raises(UsageError) as caught:
        next(consumer.batches(0))
    assert caught.value.fields["option"] == "max_records"


def test_gone_says_how_many_from_where_to_where() -> None:
    error = offset_gap_error([OffsetGap(TopicPartition("t", 0), 50, 60, 100)], "g")
    assert str(error).startswith(
        "10 records of t are gone: retention removed them before they were read. Found t[0] from 50 to 59."
    )
    assert error.fields["count"] == 10
    assert (error.fields["topic"], error.fields["partition"]) == ("t", 0)


def test_gone_from_several_partitions_is_one_error() -> None:
    error = offset_gap_error(
        [OffsetGap(TopicPartition("t", 0), 50, 60, 100), OffsetGap(TopicPartition("t", 1), 5, 6, 6)], "g"
    )
    assert error.fields["count"] == 11
    assert "t[0] from 50 to 59; t[1] from 5 to 5" in error.found


def test_a_position_behind_the_end_means_another_log() -> None:
    error = offset_gap_error([OffsetGap(TopicPartition("t", 0), 50, 0, 3)], "g")
    assert "made anew" in error.what
    assert error.fields["count"] == 0
