"""What the client library's errors become."""

import pytest
from confluent_kafka import KafkaError as ClientError
from confluent_kafka import KafkaException

from riverrun.errors import BrokerUnreachableError, KafkaError
from riverrun.kafka.border import SETTLING, translate


@pytest.mark.parametrize("code", sorted(SETTLING))
def test_a_cluster_that_settles_is_worth_another_try(code: int) -> None:
    found = translate(KafkaException(ClientError(code)), "looking up offsets", bootstrap="127.0.0.1:9092")
    assert isinstance(found, BrokerUnreachableError)
    assert found.retryable
    assert "127.0.0.1:9092" in str(found)
    assert found.fields["kafka_error"] == ClientError(code).name()


def test_the_rest_is_told_as_it_is() -> None:
    found = translate(ClientError(ClientError.INVALID_CONFIG), "creating a topic")
    assert type(found) is KafkaError
    assert not found.retryable
    assert "INVALID_CONFIG" in found.found
