"""Consumer groups of both protocols on a real cluster: who reads what, and how far behind."""

import secrets
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest

from riverrun.errors import GroupNotEmptyError, GroupNotFoundError
from riverrun.kafka.admin.admin import Admin
from riverrun.kafka.admin.groups import GroupLag, delete_group, group_lags
from riverrun.kafka.producer.producer import Producer
from riverrun.model.cluster_state import TopicPartition
from riverrun.testing.pytest_plugin import KafkaUnderTest
from support.cluster import wait_for
from support.kafka_tools import described_group
from support.members import member
from support.shell import Shell

pytestmark = pytest.mark.kafka

BOTH = pytest.mark.parametrize("protocol", ["classic", "consumer"])


@pytest.fixture
def admin(kafka: KafkaUnderTest) -> Admin:
    return Admin(kafka.connection)


@pytest.fixture
def shell(kafka: KafkaUnderTest, tmp_path: Path) -> Shell:
    return Shell(tmp_path, kafka.bootstrap_servers)


@pytest.fixture
def group() -> str:
    return f"group-{secrets.token_hex(4)}"


def fill(admin: Admin, topic: str, count: int, *, partition: int = 0, seconds_ago: float = 0.0) -> None:
    """Records of which the first was written so long ago, the next a second later, and so on."""
    began = round((time.time() - seconds_ago) * 1000)
    with Producer(admin.connection) as producer:
        for number in range(count):
            producer.send_soon(topic, b"%d" % number, partition=partition, timestamp=began + number * 1000)


def lag_of(admin: Admin, group: str) -> GroupLag:
    (found,) = group_lags(admin, [group])
    return found


def test_lag_in_seconds_is_the_age_of_the_oldest_unread_record(
    admin: Admin, group: str, kafka_topic: Callable[..., str]
) -> None:
    topic = kafka_topic(partitions=2)
    fill(admin, topic, 10, seconds_ago=100)
    admin.alter_group_offsets(group, {TopicPartition(topic, 0): 4, TopicPartition(topic, 1): 0})
    found = lag_of(admin, group)
    assert found.lag == 6
    assert found.lag_seconds == pytest.approx(96, abs=5)
    first, second = found.partitions
    assert (first.committed, first.end, first.lag) == (4, 10, 6)
    assert (second.lag, second.lag_seconds) == (0, 0.0)


def test_groups_at_different_places_of_one_partition(admin: Admin, group: str, kafka_topic: Callable[..., str]) -> None:
    topic = kafka_topic()
    fill(admin, topic, 50, seconds_ago=200)
    admin.alter_group_offsets(f"{group}-a", {TopicPartition(topic, 0): 0})
    admin.alter_group_offsets(f"{group}-b", {TopicPartition(topic, 0): 40})
    admin.alter_group_offsets(f"{group}-c", {TopicPartition(topic, 0): 50})
    ages = [group_lag.lag_seconds for group_lag in group_lags(admin, [f"{group}-{letter}" for letter in "abc"])]
    assert ages == [pytest.approx(200, abs=5), pytest.approx(160, abs=5), 0.0]


def test_what_cannot_be_read_has_no_age(admin: Admin, group: str, kafka_topic: Callable[..., str]) -> None:
    topic = kafka_topic()
    fill(admin, topic, 10)
    admin.alter_group_offsets(group, {TopicPartition(topic, 0): 2})
    admin.delete_records({TopicPartition(topic, 0): 5})
    found = lag_of(admin, group)
    assert (found.lag, found.lag_seconds) == (8, None)


def test_only_a_marker_of_a_transaction_is_left(admin: Admin, group: str, kafka_topic: Callable[..., str]) -> None:
    topic = kafka_topic()
    with Producer(admin.connection, transactional_id=group) as producer, producer.transaction() as transaction:
        transaction.send(topic, b"1")
    # The cluster writes the marker after it has answered the commit.
    wait_for(
        lambda: admin.offsets([TopicPartition(topic, 0)], "latest") == {TopicPartition(topic, 0): 2}, 30, "no marker"
    )
    admin.alter_group_offsets(group, {TopicPartition(topic, 0): 1})
    found = lag_of(admin, group)
    assert (found.lag, found.lag_seconds) == (1, None)


def test_offsets_of_a_deleted_topic_are_no_lag(admin: Admin, group: str, kafka_topic: Callable[..., str]) -> None:
    gone, topic = kafka_topic("gone"), kafka_topic()
    fill(admin, topic, 3)
    admin.alter_group_offsets(group, {TopicPartition(gone, 0): 0, TopicPartition(topic, 0): 1})
    admin.delete_topics([gone])
    assert lag_of(admin, group).lag == 2


@BOTH
def test_a_live_group_shows_its_members(
    protocol: Literal["classic", "consumer"], admin: Admin, shell: Shell, group: str, kafka_topic: Callable[..., str]
) -> None:
    topic = kafka_topic(partitions=2)
    fill(admin, topic, 6, seconds_ago=60)
    with member(admin.connection, group, topic, protocol=protocol, read=4, name="reader"):
        found = shell.fine("groups", "describe", group, "--json").json
        assert (found["state"], found["kind"], found["lag"]) == ("stable", protocol, 2)
        assert [(each["client"], each["host"]) for each in found["members"]] == [("reader", "127.0.0.1")]
        rows = {row["partition"]: row for row in found["partitions"]}
        assert (rows[0]["committed"], rows[0]["end"], rows[0]["lag"], rows[0]["client"]) == (4, 6, 2, "reader")
        assert (rows[1]["committed"], rows[1]["lag"], rows[1]["client"]) == (None, 0, "reader")
        listed = {row["group"]: row for row in shell.fine("groups", "--json").json}
        assert (listed[group]["members"], listed[group]["topics"], listed[group]["lag"]) == (1, [topic], 2)
        assert 50 < listed[group]["lag_seconds"] < 120
        with pytest.raises(GroupNotEmptyError) as caught:
            delete_group(admin, group)
        assert caught.value.fields == {"group": group, "members": 1}
    assert shell.fine("groups", "describe", group, "--json").json["state"] == "empty"


def test_delete_forgets(admin: Admin, shell: Shell, group: str, kafka_topic: Callable[..., str]) -> None:
    topic = kafka_topic()
    fill(admin, topic, 3)
    admin.alter_group_offsets(group, {TopicPartition(topic, 0): 3})
    assert shell.fine("groups", "delete", group, "--dry-run", "--json").json == [
        {"topic": topic, "partition": 0, "committed": 3}
    ]
    refused = shell.riverrun("groups", "delete", group)
    assert refused.code == 2
    assert f"{topic}[0] committed at 3" in refused.err
    assert shell.at_terminal("groups", "delete", group, typed="y\n").code == 0
    with pytest.raises(GroupNotFoundError):
        admin.group(group)


def test_an_unknown_group_has_a_near_name(
    admin: Admin, shell: Shell, group: str, kafka_topic: Callable[..., str]
) -> None:
    admin.alter_group_offsets(group, {TopicPartition(kafka_topic(), 0): 0})
    for command in (["groups", "describe"], ["groups", "delete"], ["offsets", "show"]):
        done = shell.riverrun(*command, f"{group}x")
        assert done.code == 1
        assert done.err == (
            f"GROUP_NOT_FOUND  There is no consumer group {group}x at {admin.connection.bootstrap_servers}. "
            f"Did you mean {group}?\n"
        )


def test_a_table_for_people(admin: Admin, shell: Shell, group: str, kafka_topic: Callable[..., str]) -> None:
    topic = kafka_topic()
    admin.alter_group_offsets(group, {TopicPartition(topic, 0): 0})
    (line,) = (line for line in shell.fine("groups").lines if line.startswith(group))
    assert line.split() == [group, "empty", "classic", "0", topic, "0", "0.0"]
    assert shell.fine("groups", "list").lines[0].split() == [
        "GROUP", "STATE", "KIND", "MEMBERS", "TOPICS", "LAG", "LAG", "SECONDS",
    ]  # fmt: skip


def test_kafkas_own_tool_agrees(
    kafka: KafkaUnderTest, admin: Admin, shell: Shell, group: str, kafka_topic: Callable[..., str]
) -> None:
    topic = kafka_topic(partitions=3)
    for partition in range(3):
        fill(admin, topic, 100 * partition, partition=partition)
    admin.alter_group_offsets(
        group, {TopicPartition(topic, 0): 0, TopicPartition(topic, 1): 60, TopicPartition(topic, 2): 120}
    )
    shell.fine("offsets", "move", group, "--shift", "-20")
    ours = {
        (row["topic"], row["partition"]): (row["committed"], row["end"], row["lag"])
        for row in shell.fine("groups", "describe", group, "--json").json["partitions"]
    }
    assert ours == {(topic, 0): (0, 0, 0), (topic, 1): (40, 100, 60), (topic, 2): (100, 200, 100)}
    assert described_group(kafka.bootstrap_servers, group) == ours


def test_a_cluster_that_has_just_started_is_asked_for_groups(tmp_path: Path) -> None:
    """Nobody coordinates them yet. In a process of its own: what went wrong here most of the time was a crash."""
    code = """if True:
        import sys
        from dataclasses import replace
        from pathlib import Path
        from riverrun.config import KafkaSettings
        from riverrun.kafka.admin.admin import Admin
        from riverrun.kafka.connection import Connection
        from riverrun.testing.pytest_plugin import local_kafka
        with local_kafka(Path(sys.argv[1]), KafkaSettings()) as kafka:
            settings = replace(kafka.settings, bootstrap_servers=kafka.bootstrap_servers)
            print([Admin(Connection(settings)).committed_offsets(f"nobody-{each}") for each in range(10)])
    """
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=90, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, str([{}] * 10)), done.stderr
