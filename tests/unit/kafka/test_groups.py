"""Lag of a group, from the lags of its partitions."""

import pytest

from riverrun.errors import GroupNotEmptyError
from riverrun.kafka.admin.groups import GroupLag, PartitionLag, require_idle
from riverrun.model.cluster_state import GroupMember, GroupState, TopicPartition

MEMBER = GroupMember("m-1", "billing-1", "10.0.0.7", frozenset({TopicPartition("orders", 0)}))


def group(*members: GroupMember, state: str = "empty") -> GroupState:
    return GroupState("billing", state, "classic", members)


def part(number: int, committed: int | None, end: int, seconds: float | None) -> PartitionLag:
    return PartitionLag(TopicPartition("orders", number), committed, 0, end, seconds, None)


def lag(*parts: PartitionLag) -> GroupLag:
    return GroupLag(group(), parts)


def test_lag_adds_up_and_seconds_are_the_worst() -> None:
    both = lag(part(0, 5, 10, 3.0), part(1, 0, 7, 9.5), part(2, 4, 4, 0.0))
    assert (both.lag, both.lag_seconds) == (12, 9.5)


def test_a_group_at_the_end_is_zero_seconds_behind() -> None:
    assert lag(part(0, 10, 10, 0.0)).lag_seconds == 0.0


def test_a_partition_without_a_commit_is_behind_by_all_it_has() -> None:
    assert lag(part(0, 8, 10, 1.0), part(1, None, 10, 7.0)).lag == 2 + 10
    assert lag(part(0, 8, 10, 1.0), part(1, None, 10, 7.0)).lag_seconds == 7.0
    assert lag().lag is None


def test_seconds_are_unknown_when_one_partition_behind_is() -> None:
    assert lag(part(0, 5, 10, 3.0), part(1, 5, 10, None)).lag_seconds is None


def test_a_commit_beyond_the_end_is_no_negative_lag() -> None:
    """It happens when a topic is deleted and made again under the same name."""
    assert part(0, 50, 10, None).lag == 0


def test_an_idle_group_may_be_changed() -> None:
    require_idle(group())


def test_a_live_group_is_refused_with_its_members() -> None:
    with pytest.raises(GroupNotEmptyError) as caught:
        require_idle(group(*[MEMBER] * 7, state="stable"))
    assert caught.value.fields == {"group": "billing", "members": 7}
    assert caught.value.found.startswith("billing-1 on 10.0.0.7, ")
    assert caught.value.found.endswith("and 2 more")


def test_a_group_between_members_is_live() -> None:
    with pytest.raises(GroupNotEmptyError):
        require_idle(group(state="rebalancing"))
