"""The `kafka` fixture that everything else stands on."""

from collections.abc import Callable

from riverrun.kafka.probe import ClusterProbe, is_kafka_responding
from riverrun.testing.pytest_plugin import KafkaUnderTest


def test_the_fixture_is_a_real_broker(kafka: KafkaUnderTest) -> None:
    seen = ClusterProbe(kafka.connection.properties()).fetch_metadata(10)
    assert seen.brokers
    host, _, port = kafka.bootstrap_servers.split(",")[0].rpartition(":")
    assert is_kafka_responding(host, int(port), 5.0)


def test_topics_have_names_of_their_own(kafka: KafkaUnderTest, kafka_topic: Callable[..., str]) -> None:
    first, second = kafka_topic(), kafka_topic()
    assert first != second
    assert first.startswith("test-topics-have-names-of-their-own-")
