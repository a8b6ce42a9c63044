"""Topics on a real cluster: declared, compared, created, altered, deleted."""

import secrets
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from riverrun.errors import (
    BrokerUnreachableError,
    DeclarationError,
    RiverrunError,
    TopicDiffersError,
    TopicExistsError,
    TopicNotFoundError,
)
from riverrun.kafka.admin.admin import Admin
from riverrun.kafka.admin.topics import apply_topics
from riverrun.kafka.connection import Connection
from riverrun.kafka.producer.producer import Producer
from riverrun.model.cluster_state import TopicPartition
from riverrun.model.event import Event
from riverrun.model.topic import Topic
from riverrun.testing.pytest_plugin import KafkaUnderTest
from support.shell import Shell

pytestmark = pytest.mark.kafka


@pytest.fixture
def admin(kafka: KafkaUnderTest) -> Admin:
    return Admin(kafka.connection)


@pytest.fixture
def shell(kafka: KafkaUnderTest, tmp_path: Path) -> Shell:
    return Shell(tmp_path, kafka.bootstrap_servers)


@pytest.fixture
def name() -> str:
    return f"topic-{secrets.token_hex(4)}"


def declared(name: str, **options: object) -> Topic[Event]:
    return Topic(name, **options)  # type: ignore[arg-type]


# --- the administration client ----------------------------------------------------------------------------------------


def test_a_created_topic_can_be_written_to_at_once(admin: Admin, name: str) -> None:
    admin.create_topic(name, partitions=3, replicas=0, config={"retention.ms": "3600000"})
    topic = admin.topic(name)
    assert [partition.leader is not None for partition in topic.partitions] == [True, True, True]
    assert (topic.config["retention.ms"].value, topic.config["retention.ms"].origin) == ("3600000", "topic")
    assert topic.config["cleanup.policy"].origin == "default"
    with Producer(admin.connection) as producer:
        assert producer.send(name, b"1", partition=2).offset == 0


def test_offsets_records_and_times(admin: Admin, name: str) -> None:
    admin.create_topic(name, partitions=2, replicas=0, config={"retention.ms": "-1"})
    first, second = TopicPartition(name, 0), TopicPartition(name, 1)
    with Producer(admin.connection) as producer:
        for number in range(10):
            producer.send(name, b"x", partition=0, timestamp=1_700_000_000_000 + number * 1000)
    assert admin.offsets([first, second], "earliest") == {first: 0, second: 0}
    assert admin.offsets([first, second], "latest") == {first: 10, second: 0}
    assert admin.offsets([first, second], 1_700_000_004_000) == {first: 4, second: 0}
    assert admin.offsets([first], 1_700_000_099_000) == {first: 10}
    assert admin.delete_records({first: 7}) == {first: 7}
    assert admin.offsets([first], "earliest") == {first: 7}


def test_errors_have_their_class(admin: Admin, name: str) -> None:
    admin.create_topic(name, partitions=1, replicas=0, config={})
    with pytest.raises(TopicExistsError):
        admin.create_topic(name, partitions=1, replicas=0, config={})
    with pytest.raises(DeclarationError, match=r"retentio\.ms"):
        admin.create_topic(f"{name}-x", partitions=1, replicas=0, config={"retentio.ms": "1"})
    with pytest.raises(TopicNotFoundError) as caught:
        admin.topic(f"{name}s")
    assert caught.value.hint == f"Did you mean {name}?"


def test_no_broker_is_said_at_the_deadline(kafka: KafkaUnderTest) -> None:
    settings = replace(kafka.settings, bootstrap_servers="127.0.0.1:1", request_timeout_seconds=1)
    with pytest.raises(BrokerUnreachableError) as caught:
        Admin(Connection(settings)).brokers()
    assert caught.value.fields["bootstrap"] == "127.0.0.1:1"


# --- declared against real --------------------------------------------------------------------------------------------


def test_what_is_declared_is_made_once(admin: Admin, name: str) -> None:
    topic = declared(name, partitions=3, retention="2 days", retention_size="1 GiB")
    assert apply_topics(admin, [topic], dry_run=True)[0].action == "create"
    assert admin.topics([name]) == {}
    assert apply_topics(admin, [topic])[0].action == "create"
    assert apply_topics(admin, [topic])[0].action == "nothing"
    assert len(admin.topic(name).partitions) == 3
    assert admin.topic(name).config["retention.bytes"].value == str(2**30)


def test_a_safe_difference_is_altered(admin: Admin, name: str) -> None:
    apply_topics(admin, [declared(name, retention="2 days")])
    changes = apply_topics(admin, [declared(name, retention="3 days", config={"compression.type": "zstd"})])
    assert changes[0].action == "alter"
    config = admin.topic(name).config
    assert (config["retention.ms"].value, config["compression.type"].value) == (str(3 * 86_400_000), "zstd")


def test_a_refusal_changes_nothing_anywhere(admin: Admin, name: str) -> None:
    apply_topics(admin, [declared(name, partitions=2, retention="2 days")])
    with pytest.raises(TopicDiffersError) as caught:
        apply_topics(admin, [declared(f"{name}-new"), declared(name, partitions=1, retention="1 hour")])
    assert caught.value.fields["topic"] == name
    assert [(row["setting"], row["action"]) for row in caught.value.fields["differences"]] == [
        ("partitions", "refuse"),
        ("retention.ms", "refuse"),
    ]
    assert admin.topics([f"{name}-new"]) == {}
    assert admin.topic(name).config["retention.ms"].value == str(2 * 86_400_000)


def test_more_partitions_only_when_asked(admin: Admin, name: str) -> None:
    apply_topics(admin, [declared(name, partitions=2)])
    with pytest.raises(TopicDiffersError):
        apply_topics(admin, [declared(name, partitions=4)])
    apply_topics(admin, [declared(name, partitions=4)], allow_more_partitions=True)
    assert len(admin.topic(name).partitions) == 4


def test_two_at_once_both_succeed(kafka: KafkaUnderTest, name: str) -> None:
    problems: list[RiverrunError] = []
    barrier = threading.Barrier(2)

    def apply() -> None:
        mine = Admin(kafka.connection)
        barrier.wait(30)
        try:
            apply_topics(mine, [declared(name, partitions=2)])
        except RiverrunError as error:
            problems.append(error)

    threads = [threading.Thread(target=apply) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert problems == []
    assert len(Admin(kafka.connection).topic(name).partitions) == 2


# --- the command ------------------------------------------------------------------------------------------------------


def test_list_hides_what_is_kafkas_own(shell: Shell, admin: Admin, name: str) -> None:
    shell.fine("topics", "create", name, "--partitions", "2", "--retention", "1 day", "--compact")
    admin.alter_group_offsets(
        f"group-{name}", {TopicPartition(name, 0): 0}
    )  # makes __consumer_offsets, if nobody has yet
    rows = {row["topic"]: row for row in shell.fine("topics", "--json").json}
    assert rows[name]["partitions"] == 2
    assert (rows[name]["retention_ms"], rows[name]["cleanup"]) == (86_400_000, "compact,delete")
    assert (rows[name]["offsets"], rows[name]["state"]) == (0, "ok")
    assert "__consumer_offsets" not in rows
    assert "__consumer_offsets" in [row["topic"] for row in shell.fine("topics", "list", "--all", "--json").json]
    assert name in shell.fine("topics").out


def test_describe_shows_partitions_and_settings(shell: Shell, kafka_topic: Callable[..., str]) -> None:
    topic = kafka_topic(partitions=2, config={"retention.ms": "60000"})
    shell.fine("produce", topic, "--text", stdin="one\ntwo\n")
    found = shell.fine("topics", "describe", topic, "--json").json
    assert sum(each["offsets"] for each in found["partitions"]) == 2
    assert found["config"]["retention.ms"] == {"value": "60000", "origin": "topic"}
    assert "60000 (1 minute)" in shell.fine("topics", "describe", topic).out
    assert "segment.bytes" in shell.fine("topics", "describe", topic, "--all").out


def test_create_twice(shell: Shell, name: str) -> None:
    assert shell.fine("topics", "create", name, "--json").json["topic"] == name
    again = shell.riverrun("topics", "create", name)
    assert again.code == 1
    assert again.err.startswith("TOPIC_EXISTS")
    assert "there already" in shell.fine("topics", "create", name, "--if-not-exists").err


def test_alter_asks_before_it_loses(shell: Shell, admin: Admin, kafka_topic: Callable[..., str]) -> None:
    topic = kafka_topic(config={"retention.ms": "600000"})
    refused = shell.riverrun("topics", "alter", topic, "--retention", "1 minute")
    assert refused.code == 2
    assert "deletes records that are older" in refused.err
    assert shell.at_terminal("topics", "alter", topic, "--retention", "1 minute", typed="n\n").code == 1
    assert admin.topic(topic).config["retention.ms"].value == "600000"
    assert shell.at_terminal("topics", "alter", topic, "--retention", "1 minute", typed="y\n").code == 0
    assert admin.topic(topic).config["retention.ms"].value == "60000"
    shell.fine("topics", "alter", topic, "--retention", "1 hour", "--config", "compression.type=lz4")
    shell.fine("topics", "alter", topic, "--unset", "compression.type")
    config = admin.topic(topic).config
    assert (config["retention.ms"].value, config["compression.type"].origin) == ("3600000", "default")


def test_alter_adds_partitions_and_never_takes_them(
    shell: Shell, admin: Admin, kafka_topic: Callable[..., str]
) -> None:
    topic = kafka_topic(partitions=2)
    assert shell.riverrun("topics", "alter", topic, "--partitions", "1", "--yes").err.startswith("TOPIC_DIFFERS")
    assert shell.riverrun("topics", "alter", topic, "--partitions", "3").code == 2
    dry = shell.fine("topics", "alter", topic, "--partitions", "3", "--dry-run", "--json").json
    assert dry == [{"setting": "partitions", "from": "2", "to": "3"}]
    assert len(admin.topic(topic).partitions) == 2
    shell.fine("topics", "alter", topic, "--partitions", "3", "--yes")
    assert len(admin.topic(topic).partitions) == 3


def test_delete_names_what_is_lost(shell: Shell, admin: Admin, kafka_topic: Callable[..., str]) -> None:
    topic, other = kafka_topic("lost"), kafka_topic("kept")
    shell.fine("produce", topic, stdin="1\n2\n3\n")
    admin.alter_group_offsets(f"reader-{topic}", {TopicPartition(topic, 0): 1})
    rows = shell.fine("topics", "delete", topic, "--dry-run", "--json").json
    assert rows == [{"topic": topic, "partitions": 1, "offsets": 3, "groups": [f"reader-{topic}"]}]
    refused = shell.riverrun("topics", "delete", topic)
    assert refused.code == 2
    assert f"{topic}: 3 offsets in 1 partition; read by reader-{topic}" in refused.err
    assert shell.riverrun("topics", "delete", topic, f"{topic}x", "--yes").err.startswith("TOPIC_NOT_FOUND")
    assert set(admin.topics([topic, other])) == {topic, other}
    shell.fine("topics", "delete", topic, "--yes")
    assert set(admin.topics([topic, other])) == {other}
    assert shell.riverrun("topics", "delete", "__consumer_offsets", "--yes").code == 2


def test_apply_makes_what_the_app_declares(shell: Shell, admin: Admin, name: str) -> None:
    (shell.root / "app.py").write_text(
        f'import riverrun as rr\napp = rr.App("a")\napp.topic("{name}", partitions=2, retention="2 days")\n',
        encoding="utf-8",
    )
    (shell.root / "riverrun.toml").write_text('[project]\napp = "app.py"\n', encoding="utf-8")
    assert shell.fine("topics", "apply", "--dry-run", "--json").json[0]["action"] == "create"
    shell.fine("topics", "apply")
    assert len(admin.topic(name).partitions) == 2
    admin.alter_config(name, {"compression.type": "lz4"})
    again = shell.fine("topics", "apply", "--json")
    assert [row["action"] for row in again.json] == ["nothing"]
    assert "compression.type" in again.err
    (shell.root / "other.py").write_text(
        f'import riverrun as rr\napp = rr.App("a")\napp.topic("{name}", partitions=3, retention="1 day")\n',
        encoding="utf-8",
    )
    refused = shell.riverrun("topics", "apply", "--app", "other.py", "--more-partitions")
    assert refused.code == 1
    assert f"riverrun topics alter {name} --config retention.ms=86400000" in refused.err
    assert len(admin.topic(name).partitions) == 2
