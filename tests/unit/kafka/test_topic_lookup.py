"""Offsets that are looked up while the cluster is not settled."""

from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, KafkaError, KafkaException
from confluent_kafka import TopicPartition as ClientPartition

from riverrun.errors import AuthorizationError, BrokerUnreachableError
from riverrun.kafka.consumer.topic_lookup import TopicLookup, TopicSelection
from riverrun.model.cluster_state import TopicPartition

PLACE = TopicPartition("t", 0)


class Client:
    """Answers with these errors first, or always with the first of them."""

    def __init__(self, *codes: int, always: bool = False) -> None:
        self.codes = list(codes)
        self.always = always

    def offsets_for_times(self, times: list[ClientPartition], **_: Any) -> list[ClientPartition]:
        if self.codes:
            raise KafkaException(KafkaError(self.codes[0] if self.always else self.codes.pop(0)))
        return [ClientPartition(time.topic, time.partition, 7) for time in times]


def looked_up(client: Any, timeout: float = 5.0) -> dict[TopicPartition, int]:
    lookup = TopicLookup(
        client, TopicSelection(("t",)), bootstrap_servers="here", timeout=timeout, on_wait=lambda: None
    )
    return lookup.offsets_at([PLACE], OFFSET_BEGINNING)


def test_a_topic_without_a_leader_yet_is_asked_again() -> None:
    codes = (KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._TRANSPORT)
    assert looked_up(Client(*codes)) == {PLACE: 7}


def test_one_that_does_not_settle_is_told_in_time() -> None:
    with pytest.raises(BrokerUnreachableError, match="did not settle"):
        looked_up(Client(KafkaError.LEADER_NOT_AVAILABLE, always=True), timeout=0.3)


def test_what_no_later_answer_changes_is_told_at_once() -> None:
    client = Client(KafkaError.TOPIC_AUTHORIZATION_FAILED)
    with pytest.raises(AuthorizationError):
        looked_up(client)
    assert client.codes == []
