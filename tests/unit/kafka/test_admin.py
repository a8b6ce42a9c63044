"""A long-lived admin client, without a cluster: whom it asks when a group's coordinator has moved."""

import time
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError as ClientError
from confluent_kafka import KafkaException
from confluent_kafka import TopicPartition as ClientPartition

from riverrun.errors import AuthorizationError, BrokerUnreachableError
from riverrun.kafka.admin import admin as module
from riverrun.kafka.admin.admin import Admin
from riverrun.model.cluster_state import TopicPartition
from unit.kafka.fake_client import NOWHERE


class StaleClient:
    """One that goes on asking the broker that coordinated the group when it was made."""

    made: list["StaleClient"]
    # Of so many clients on, the right broker is asked.
    right_from: int

    def __init__(self, *_: Any, **__: Any) -> None:
        self.made.append(self)
        self.number = len(self.made)

    def poll(self, seconds: float) -> int:
        time.sleep(seconds)
        return 0

    def _error(self) -> ClientError | None:
        return None if self.number >= self.right_from else ClientError(ClientError.NOT_COORDINATOR)

    def alter_consumer_group_offsets(self, requests: Any, **_: Any) -> dict[str, "Future[Any]"]:
        done: Future[Any] = Future()
        partition = ClientPartition("t", 0, 7)
        done.set_result(
            SimpleNamespace(topic_partitions=[SimpleNamespace(topic="t", partition=0, error=self._error())])
        )
        assert partition.offset == requests[0].topic_partitions[0].offset
        return {requests[0].group_id: done}

    def delete_consumer_groups(self, names: list[str], **_: Any) -> dict[str, "Future[Any]"]:
        done: Future[Any] = Future()
        error = self._error()
        done.set_exception(KafkaException(error)) if error else done.set_result(None)
        return {names[0]: done}


@pytest.fixture
def clients(monkeypatch: pytest.MonkeyPatch) -> type[StaleClient]:
    StaleClient.made, StaleClient.right_from = [], 2
    monkeypatch.setattr(module, "AdminClient", StaleClient)
    monkeypatch.setattr(module, "_RENEW_SECONDS", 0.0)
    return StaleClient


def test_offsets_are_moved_though_the_coordinator_has_moved(clients: type[StaleClient]) -> None:
    Admin(NOWHERE).alter_group_offsets("g", {TopicPartition("t", 0): 7})
    assert len(clients.made) == 2


def test_a_group_is_deleted_though_its_coordinator_has_moved(clients: type[StaleClient]) -> None:
    Admin(NOWHERE).delete_group("g")
    assert len(clients.made) == 2


def test_a_cluster_that_never_settles_ends_with_its_error(clients: type[StaleClient]) -> None:
    clients.right_from = 1_000_000
    with pytest.raises(BrokerUnreachableError, match="NOT_COORDINATOR"):
        Admin(NOWHERE).alter_group_offsets("g", {TopicPartition("t", 0): 7})


def test_no_client_is_made_anew_more_often_than_once_in_a_while(
    clients: type[StaleClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    clients.right_from = 1_000_000
    monkeypatch.setattr(module, "_RENEW_SECONDS", 100.0)
    admin = Admin(NOWHERE)
    with pytest.raises(BrokerUnreachableError):
        admin.delete_group("g")
    assert len(clients.made) == 2


def test_a_right_that_is_missing_is_named_with_what_it_is_on(
    clients: type[StaleClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    clients.right_from = 0
    monkeypatch.setattr(StaleClient, "_error", lambda _: ClientError(ClientError.GROUP_AUTHORIZATION_FAILED))
    with pytest.raises(AuthorizationError) as caught:
        Admin(NOWHERE).delete_group("billing")
    assert "the right Delete on the group billing is missing" in str(caught.value)
    assert "--operation Delete --group billing" in caught.value.hint
