"""What can be chosen about a producer, and what it says about the rest."""

from dataclasses import fields
from typing import Any, get_type_hints

import pytest

from riverrun.config import KafkaSettings
from riverrun.errors import ConfigError, UsageError
from riverrun.kafka.connection import Connection
from riverrun.kafka.producer.options import ProducerKeywords, ProducerOptions
from riverrun.kafka.producer.producer import Producer

NOWHERE = Connection(KafkaSettings(bootstrap_servers="127.0.0.1:1", client={"socket.keepalive.enable": "true"}))


def test_the_keywords_are_the_options() -> None:
    assert set(get_type_hints(ProducerKeywords)) == {field.name for field in fields(ProducerOptions)}


def test_what_a_producer_promises_is_in_its_properties() -> None:
    found = ProducerOptions(queue_mb=2, delivery_timeout_seconds=1.5).client_properties(NOWHERE)
    assert found["acks"] == "all"
    assert found["enable.idempotence"] is True
    assert found["partitioner"] == "murmur2_random"
    assert found["queue.buffering.max.kbytes"] == 2048
    assert found["message.timeout.ms"] == 1500
    assert found["socket.keepalive.enable"] == "true", "of [kafka.client]"
    assert "transactional.id" not in found


def test_properties_of_the_users_come_last() -> None:
    found = ProducerOptions(properties={"batch.size": 5, "client.id": "me"}).client_properties(NOWHERE)
    assert (found["batch.size"], found["client.id"]) == (5, "me")


def test_a_record_cannot_outlive_its_transaction() -> None:
    found = ProducerOptions(transactional_id="t", transaction_timeout_seconds=10).client_properties(NOWHERE)
    assert (found["transaction.timeout.ms"], found["message.timeout.ms"]) == (10_000, 10_000)
    found = ProducerOptions(transactional_id="t", delivery_timeout_seconds=5).client_properties(NOWHERE)
    assert (found["transaction.timeout.ms"], found["message.timeout.ms"]) == (60_000, 5_000)


@pytest.mark.parametrize(
    ("option", "value"),
    [("queue_records", 0), ("queue_mb", 0), ("queue_timeout_seconds", -1), ("delivery_timeout_seconds", 0),
     ("linger_ms", -1), ("metrics_seconds", 0), ("transaction_timeout_seconds", 0), ("compression", "zip")],
)  # fmt: skip
def test_values_out_of_range_name_their_option(option: str, value: Any) -> None:
    with pytest.raises(UsageError, match=f"A producer cannot have {option}=") as caught:
        Producer(NOWHERE, **{option: value})
    assert caught.value.fields["option"] == option


@pytest.mark.parametrize(
    ("name", "use"),
    [("linger.ms", "linger_ms"), ("transactional.id", "transactional_id"), ("stats_cb", "on_metrics"),
     ("delivery.report.only.error", "send_all"), ("message.timeout.ms", "delivery_timeout_seconds")],
)  # fmt: skip
def test_properties_a_producer_sets_itself_say_what_to_use(name: str, use: str) -> None:
    with pytest.raises(UsageError, match=f"A producer sets {name} itself") as caught:
        Producer(NOWHERE, properties={name: 1})
    assert use in caught.value.hint


@pytest.mark.parametrize(
    ("name", "value"),
    [("foo.bar", 1), ("acks", 1), ("batch.size", "many"), ("retries", -5), ("enable.idempotence", "perhaps")],
)
def test_a_property_the_library_refuses_is_named(name: str, value: Any) -> None:
    with pytest.raises(UsageError, match=f"The producer's property {name} is refused") as caught:
        Producer(NOWHERE, properties={name: value})
    assert caught.value.fields["property"] == name
    assert caught.value.__cause__ is not None


def test_a_property_of_the_settings_that_is_refused_is_a_problem_of_the_configuration() -> None:
    connection = Connection(KafkaSettings(bootstrap_servers="127.0.0.1:1", client={"foo.bar": "1"}))
    with pytest.raises(ConfigError, match=r"foo\.bar"):
        Producer(connection)
