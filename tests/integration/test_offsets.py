"""Offsets of groups on a real cluster: shown, planned, moved, refused."""

import secrets
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import pytest

from riverrun.errors import GroupNotEmptyError, GroupNotFoundError, UsageError
from riverrun.kafka.admin.admin import Admin
from riverrun.kafka.admin.offsets import OffsetMove, OffsetMovePlan, OffsetTarget, apply_offset_moves, plan_offset_moves
from riverrun.kafka.producer.producer import Producer
from riverrun.model.cluster_state import TopicPartition
from riverrun.testing.pytest_plugin import KafkaUnderTest
from support.members import member
from support.shell import Shell

pytestmark = pytest.mark.kafka

BEGAN = datetime(2026, 7, 1, 10, tzinfo=UTC)


@pytest.fixture
def admin(kafka: KafkaUnderTest) -> Admin:
    return Admin(kafka.connection)


@pytest.fixture
def shell(kafka: KafkaUnderTest, tmp_path: Path) -> Shell:
    return Shell(tmp_path, kafka.bootstrap_servers)


@pytest.fixture
def group() -> str:
    return f"group-{secrets.token_hex(4)}"


@pytest.fixture
def topic(admin: Admin, kafka_topic: Callable[..., str]) -> str:
    """Two partitions: 100 records a second apart in the first, of which 10 are gone; none in the second."""
    name = kafka_topic(partitions=2, config={"retention.ms": "-1"})
    with Producer(admin.connection) as producer:
        for number in range(100):
            at = round(BEGAN.timestamp() * 1000) + number * 1000
            producer.send_soon(name, b"%d" % number, partition=0, timestamp=at)
    admin.delete_records({TopicPartition(name, 0): 10})
    return name


@pytest.mark.parametrize(
    ("flags", "after"),
    [
        (["--to-earliest"], 10),
        (["--to-latest", "--yes"], 100),
        (["--to-offset", "60", "--yes"], 60),
        (["--to-offset", "3"], 10),
        (["--shift", "-20"], 30),
        (["--shift", "500", "--yes"], 100),
        (["--to-time", "2026-07-01T10:00:33.500Z"], 34),
        (["--to-time", "2026-07-01T12:01:10+02:00", "--yes"], 70),
        (["--to-time", "now", "--yes"], 100),
        (["--to-time", "1999-01-01"], 10),
    ],
)
def test_every_way_to_say_where(
    flags: list[str], after: int, admin: Admin, shell: Shell, group: str, topic: str
) -> None:
    admin.alter_group_offsets(group, {TopicPartition(topic, 0): 50})
    dry = shell.fine("offsets", "move", group, *flags, "--dry-run", "--json").json
    assert dry["moved"] is False
    assert admin.committed_offsets(group) == {TopicPartition(topic, 0): 50}
    done = shell.fine("offsets", "move", group, *flags, "--json").json
    assert done["partitions"] == dry["partitions"]
    (row,) = done["partitions"]
    assert (row["from"], row["to"]) == (50, after)
    assert (row["read_again"], row["skipped"]) == (max(0, 50 - after), max(0, after - 50))
    assert admin.committed_offsets(group) == {TopicPartition(topic, 0): after}


def test_skipping_is_asked_for_and_going_back_is_not(admin: Admin, shell: Shell, group: str, topic: str) -> None:
    admin.alter_group_offsets(group, {TopicPartition(topic, 0): 50})
    refused = shell.riverrun("offsets", "move", group, "--to-latest")
    assert refused.code == 2
    assert f"{topic}[0] 50 → 100: skips 50" in refused.err
    assert shell.at_terminal("offsets", "move", group, "--to-latest", typed="n\n").code == 1
    assert admin.committed_offsets(group) == {TopicPartition(topic, 0): 50}
    assert shell.at_terminal("offsets", "move", group, "--to-latest", typed="y\n").code == 0
    assert admin.committed_offsets(group) == {TopicPartition(topic, 0): 100}
    assert "90 offsets to read again" in shell.fine("offsets", "move", group, "--to-earliest").err


def test_what_is_clamped_is_said(admin: Admin, shell: Shell, group: str, topic: str) -> None:
    admin.alter_group_offsets(group, {TopicPartition(topic, 0): 50})
    assert "3 is gone: 10 is the nearest there is" in shell.fine("offsets", "move", group, "--to-offset", "3").out


def test_one_partition_of_one_topic(admin: Admin, group: str, topic: str) -> None:
    admin.alter_group_offsets(group, {TopicPartition(topic, 0): 50, TopicPartition(topic, 1): 0})
    moves = plan_offset_moves(admin, group, OffsetTarget("earliest"), topics=[topic], partitions=[1])
    assert [move.topic_partition for move in moves.moves] == [TopicPartition(topic, 1)]
    moves = plan_offset_moves(admin, group, OffsetTarget("earliest"), topics=[topic], partitions=[0])
    apply_offset_moves(admin, moves)
    assert admin.committed_offsets(group) == {TopicPartition(topic, 0): 10, TopicPartition(topic, 1): 0}
    with pytest.raises(UsageError, match="no partition 7"):
        plan_offset_moves(admin, group, OffsetTarget("earliest"), topics=[topic], partitions=[7])
    with pytest.raises(UsageError, match="one topic"):
        plan_offset_moves(admin, group, OffsetTarget("earliest"), partitions=[0])


def test_a_group_can_be_started(admin: Admin, shell: Shell, group: str, topic: str) -> None:
    done = shell.fine("offsets", "move", group, "--topic", topic, "--to-time", "2026-07-01T10:00:20Z")
    assert f"The group {group} does not exist yet" in done.err
    assert admin.committed_offsets(group) == {TopicPartition(topic, 0): 20, TopicPartition(topic, 1): 0}
    with pytest.raises(GroupNotFoundError):
        plan_offset_moves(admin, f"{group}-other", OffsetTarget("earliest"))


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_live_group_is_not_moved(
    protocol: Literal["classic", "consumer"], admin: Admin, shell: Shell, group: str, topic: str
) -> None:
    with member(admin.connection, group, topic, protocol=protocol, read=1, name="worker-7"):
        refused = shell.riverrun("offsets", "move", group, "--to-earliest")
        assert refused.code == 1
        assert refused.err.startswith(f"GROUP_NOT_EMPTY  The group {group} is live (stable)")
        assert "worker-7 on 127.0.0.1" in refused.err
        before = admin.committed_offsets(group)
        # A plan from before the group came to life is refused by the cluster itself.
        with pytest.raises(GroupNotEmptyError):
            apply_offset_moves(
                admin,
                OffsetMovePlan(
                    group, new=False, moves=tuple(OffsetMove(each, at, at + 1) for each, at in before.items())
                ),
            )
        assert admin.committed_offsets(group) == before


def test_show(admin: Admin, shell: Shell, group: str, topic: str) -> None:
    admin.alter_group_offsets(group, {TopicPartition(topic, 0): 90})
    row, *others = shell.fine("offsets", "show", group, "--json").json
    assert all(other["committed"] is None for other in others), "partitions without a commit are shown too"
    assert (row["topic"], row["partition"], row["committed"], row["end"], row["lag"]) == (topic, 0, 90, 100, 10)
    assert row["lag_seconds"] > 0


def test_exactly_one_place_to_move_to(shell: Shell, group: str) -> None:
    for flags in ([], ["--to-earliest", "--shift", "1"]):
        done = shell.riverrun("offsets", "move", group, *flags)
        assert done.code == 2
        assert "exactly one of" in done.err
