"""What the client library's errors become."""

import pytest
from confluent_kafka import KafkaError as ClientError
from confluent_kafka import KafkaException

from riverrun.errors import AuthorizationError, BrokerUnreachableError, KafkaError
from riverrun.kafka.error_mapping import RETRIABLE_CODES, translate


@pytest.mark.parametrize("code", sorted(RETRIABLE_CODES))
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


@pytest.mark.parametrize(
    ("code", "doing", "fields", "missing", "command"),
    [
        (ClientError.TOPIC_AUTHORIZATION_FAILED, "describing topics", {"topic": "orders", "right": "Describe"},
         "the right Describe on the topic orders is missing", "--operation Describe --topic orders"),
        (ClientError.TOPIC_AUTHORIZATION_FAILED, "sending to orders", {"topic": "orders"},
         "the right Write on the topic orders is missing", "--operation Write --topic orders"),
        (ClientError.GROUP_AUTHORIZATION_FAILED, "reading orders", {"group": "billing"},
         "the right Read on the group billing is missing", "--operation Read --group billing"),
        (ClientError.CLUSTER_AUTHORIZATION_FAILED, "creating the topic t", {"topic": "t", "right": "Create"},
         "the right Create on the cluster is missing", "--operation Create --cluster"),
        (ClientError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "beginning a transaction", {},
         "the right Write on the transactional id is missing", "--operation Write --transactional-id …"),
        (ClientError.TOPIC_AUTHORIZATION_FAILED, "choosing what to read", {},
         "a right on the topic is missing", "--operation OPERATION --topic …"),
    ],
)  # fmt: skip
def test_a_missing_right_is_named(code: int, doing: str, fields: dict[str, str], missing: str, command: str) -> None:
    found = translate(ClientError(code), doing, **fields)
    assert isinstance(found, AuthorizationError)
    assert found.what == f"The cluster does not allow {doing}: {missing}"
    assert found.hint.endswith(command)
