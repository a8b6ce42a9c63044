"""A topic as it is declared."""

from typing import Any

import pytest

from riverrun.errors import DeclarationError
from riverrun.model.event import Event, key
from riverrun.model.topic import Topic, check_topic_name


class Keyed(Event):
    id: str = key()


class Unkeyed(Event):
    id: str


def test_what_is_declared_becomes_kafkas_settings() -> None:
    topic = Topic(
        "t", Keyed, partitions=4, retention="7 days", retention_size="1 GiB", config={"max.message.bytes": "5"}
    )
    assert topic.full_config() == {
        "retention.ms": "604800000",
        "retention.bytes": "1073741824",
        "max.message.bytes": "5",
    }
    assert Topic("t").full_config() == {}
    assert topic.schema is not None
    assert topic.schema.key_field == "id"
    assert Topic("t").schema is None


@pytest.mark.parametrize(
    ("options", "policy"),
    [
        ({"compact": True}, "compact"),
        ({"compact": True, "retention": "1 day"}, "compact,delete"),
        ({"compact": True, "retention": "forever"}, "compact"),
        ({"compact": True, "retention_size": 10}, "compact,delete"),
    ],
)
def test_compaction(options: dict[str, Any], policy: str) -> None:
    assert Topic("t", Keyed, **options).declared_config()["cleanup.policy"] == policy


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"partitions": 0}, "cannot have partitions=0"),
        ({"replicas": -1}, "cannot have replicas=-1"),
        ({"event": Unkeyed, "compact": True}, "Unkeyed has no key"),
        ({"retention": "1 day", "config": {"retention.ms": "5"}}, r"sets retention\.ms twice"),
        ({"retention": "soon"}, "retention of t cannot be understood"),
        ({"event": int}, "is not an event class"),
    ],
)
def test_what_cannot_be_declared(options: dict[str, Any], message: str) -> None:
    with pytest.raises(DeclarationError, match=message):
        Topic("t", **options)


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "ü", "a/b", "x" * 250, "a\n"])
def test_names_kafka_would_refuse(name: str) -> None:
    with pytest.raises(DeclarationError, match="cannot be the name of a topic"):
        check_topic_name(name)


@pytest.mark.parametrize("name", ["a", "a.b-c_D9", "x" * 249, "..."])
def test_names_kafka_allows(name: str) -> None:
    assert check_topic_name(name) == name
