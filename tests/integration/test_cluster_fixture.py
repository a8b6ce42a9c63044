"""The `kafka` fixture that everything else stands on."""

from collections.abc import Callable

from riverrun.kafka.probe import Probe, answers
from riverrun.testing.pytest_plugin import KafkaUnderTest


def test_the_fixture_is_a_real_broker(kafka: KafkaUnderTest) -> None:
    seen = Probe(kafka.connection.properties()).look(10)
    assert seen.brokers
    host, _, port = kafka.bootstrap_servers.split(",")[0].rpartition(":")
    assert answers(host, int(port), 5.0)


def test_topics_have_names_of_their_own(kafka: KafkaUnderTest, kafka_topic: Callable[..., str]) -> None:
    first, second = kafka_topic(), kafka_topic()
    assert first != second
    assert first.startswith("test-topics-have-names-of-their-own-")
