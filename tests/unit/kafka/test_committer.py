"""Commits one at a time, in order, with a deadline; the cluster is an object that the test holds in its hand."""

import logging
import threading
from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError as ClientError
from confluent_kafka import KafkaException
from confluent_kafka import TopicPartition as ClientPartition

from riverrun.errors import CommitError
from riverrun.kafka.consumer.committer import Committer
from riverrun.model.cluster_state import TopicPartition

A, B = TopicPartition("t", 0), TopicPartition("t", 1)


class Cluster:
    """Takes commits and answers when it is polled, with `errors` first; while `silent`, not at all. Polling takes 10 ms."""

    def __init__(self) -> None:
        self.now = 0.0
        self.committer = Committer(self.send, "g", clock=lambda: self.now)
        self.requests: list[dict[TopicPartition, int]] = []
        self.errors: list[int] = []
        self.silent = False
        self._waiting: deque[list[ClientPartition]] = deque()

    def send(self, offsets: list[ClientPartition]) -> None:
        self.requests.append({TopicPartition(offset.topic, offset.partition): offset.offset for offset in offsets})
        self._waiting.append(offsets)

    def poll(self) -> None:
        self.now += 0.01
        if not self.silent and self._waiting:
            offsets = self._waiting.popleft()
            self.committer.on_response(ClientError(self.errors.pop(0)) if self.errors else None, offsets)

    def serve(self) -> None:
        self.committer.send_pending()
        self.poll()

    def commit(self, seconds: float = 5) -> None:
        self.committer.wait_polling(self.serve, seconds)


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
def committer(cluster: Cluster) -> Committer:
    return cluster.committer


def test_waiting_means_committed(cluster: Cluster, committer: Committer) -> None:
    committer.put({A: 5, B: 7})
    cluster.commit()
    assert cluster.requests == [{A: 5, B: 7}]
    assert committer.committed() == {A: 5, B: 7}
    assert (committer.commits, committer.failed) == (1, 0)


def test_a_plain_tuple_is_a_place(cluster: Cluster, committer: Committer) -> None:
    committer.put({("t", 0): 5})  # type: ignore[dict-item]
    cluster.commit()
    assert committer.committed() == {A: 5}


def test_the_same_or_less_is_not_committed_again(cluster: Cluster, committer: Committer) -> None:
    committer.put({A: 5})
    cluster.commit()
    committer.put({A: 5})
    committer.put({A: 3})
    cluster.commit()
    assert cluster.requests == [{A: 5}]


def test_while_one_is_on_its_way_only_the_newest_waits(cluster: Cluster, committer: Committer) -> None:
    for offset in (1, 2, 3, 4):
        committer.put({A: offset})
        committer.send_pending()
    cluster.commit()
    assert cluster.requests == [{A: 1}, {A: 4}]


def test_what_must_go_at_once_does_not_wait_for_the_one_before(cluster: Cluster, committer: Committer) -> None:
    committer.put({A: 1})
    committer.send_pending()
    committer.put({A: 2})
    committer.send_pending(at_once=True)
    assert cluster.requests == [{A: 1}, {A: 2}]
    cluster.poll()
    assert committer.committed() == {}
    cluster.poll()
    assert committer.committed() == {A: 2}


def test_no_answer_ends_the_wait_at_its_deadline(cluster: Cluster, committer: Committer) -> None:
    cluster.silent = True
    committer.put({A: 1})
    with pytest.raises(CommitError, match=r"within 5 s. Found no answer for t\[0\]@1"):
        cluster.commit(5)
    assert 5 <= cluster.now < 5.1
    cluster.silent = False
    cluster.commit()
    assert committer.committed() == {A: 1}


def test_a_group_that_is_shared_out_anew_is_asked_again_without_a_word(
    cluster: Cluster, committer: Committer, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.errors = [ClientError.REBALANCE_IN_PROGRESS, ClientError.ILLEGAL_GENERATION]
    committer.put({A: 1})
    cluster.commit()
    assert cluster.requests == [{A: 1}] * 3
    assert (committer.commits, committer.failed) == (1, 2)
    committer.raise_failure()
    assert caplog.records == []
    assert 0.5 < cluster.now < 0.6


def test_a_group_that_does_not_settle_is_told(
    cluster: Cluster, committer: Committer, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.errors = [ClientError.REBALANCE_IN_PROGRESS] * 20
    committer.put({A: 1})
    cluster.commit(60)
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_a_failure_nobody_waited_for_is_raised_once_by_the_next(cluster: Cluster, committer: Committer) -> None:
    cluster.errors = [ClientError.GROUP_AUTHORIZATION_FAILED]
    committer.put({A: 1})
    committer.send_pending()
    cluster.poll()
    with pytest.raises(CommitError) as caught:
        committer.raise_failure()
    assert caught.value.fields["kafka_error"] == "GROUP_AUTHORIZATION_FAILED"
    assert caught.value.fields["group"] == "g"
    committer.raise_failure()
    committer.put({A: 1})
    cluster.commit()
    assert committer.committed() == {A: 1}


def test_a_failure_of_one_partition_leaves_the_others_committed(cluster: Cluster, committer: Committer) -> None:
    committer.put({A: 1, B: 1})
    committer.send_pending()
    problem = ClientError(ClientError.OFFSET_METADATA_TOO_LARGE)
    bad: Any = SimpleNamespace(topic="t", partition=1, offset=1, error=problem)
    committer.on_response(None, [ClientPartition(*A, 1), bad])
    assert committer.committed() == {A: 1}
    with pytest.raises(CommitError, match="could not commit"):
        cluster.commit()


def test_a_failure_is_forgotten_when_the_same_is_committed_later(cluster: Cluster, committer: Committer) -> None:
    cluster.errors = [ClientError.INVALID_COMMIT_OFFSET_SIZE]
    committer.put({A: 1})
    committer.send_pending()
    cluster.poll()
    committer.put({A: 2})
    committer.send_pending()
    cluster.poll()
    committer.raise_failure()


def test_an_answer_without_partitions_is_of_all(cluster: Cluster, committer: Committer) -> None:
    committer.put({A: 1})
    committer.send_pending()
    committer.on_response(ClientError(ClientError.INVALID_GROUP_ID), [])
    assert committer.idle
    with pytest.raises(CommitError):
        committer.raise_failure()


def test_a_request_the_client_does_not_take_is_a_failure() -> None:
    def refuse(offsets: list[ClientPartition]) -> None:
        raise KafkaException(ClientError(ClientError._STATE))

    committer = Committer(refuse, "g")
    committer.put({A: 1})
    committer.send_pending()
    with pytest.raises(CommitError):
        committer.raise_failure()


def test_nothing_is_committed_for_what_was_forgotten(cluster: Cluster, committer: Committer) -> None:
    committer.put({B: 1})
    committer.send_pending()
    committer.put({A: 9, B: 2})
    committer.forget([A])
    cluster.poll()
    committer.send_pending()
    assert cluster.requests == [{B: 1}, {B: 2}]


def test_whoever_waits_is_told_that_a_partition_went_before_its_commit(cluster: Cluster, committer: Committer) -> None:
    committer.put({B: 1})
    committer.send_pending()
    committer.put({A: 9})

    def poll() -> None:
        cluster.serve()
        committer.forget([A])

    with pytest.raises(CommitError, match=r"took t\[0\] away"):
        committer.wait_polling(poll, 5)


def test_what_is_about_to_go_is_sent_first_and_not_again(cluster: Cluster, committer: Committer) -> None:
    committer.put({A: 1, B: 1})
    committer.send_pending()
    committer.put({A: 2, B: 2})
    committer.release([A])
    assert cluster.requests == [{A: 1, B: 1}, {A: 2, B: 2}]
    cluster.poll()
    cluster.errors = [ClientError.ILLEGAL_GENERATION]
    cluster.poll()
    with pytest.raises(CommitError):
        cluster.commit(1)
    # B is ours and tried again; A is another member's by now, and that it failed was told.
    assert cluster.requests[2:] == [{B: 2}]
    assert committer.committed() == {B: 2}


def test_a_wait_ends_well_when_a_partition_goes_after_its_commit(cluster: Cluster, committer: Committer) -> None:
    committer.put({A: 1})

    def poll() -> None:
        committer.send_pending()
        if cluster.now == 0:
            committer.release([A])
        cluster.poll()

    committer.wait_polling(poll, 5)
    assert committer.committed() == {}
    assert committer.commits == 1


def test_what_was_forgotten_on_its_way_does_not_count_as_committed(cluster: Cluster, committer: Committer) -> None:
    committer.put({A: 9})
    committer.send_pending()
    committer.forget([A])
    cluster.poll()
    committer.put({A: 3})
    cluster.commit()
    assert cluster.requests == [{A: 9}, {A: 3}]
    assert committer.committed() == {A: 3}


def test_another_thread_waits_for_the_one_that_polls() -> None:
    cluster = Cluster()
    committer = Committer(cluster.send, "g")
    cluster.committer = committer
    committer.put({A: 1})
    waiting = threading.Thread(target=committer.wait, args=(10,))
    waiting.start()
    committer.send_pending()
    cluster.poll()
    waiting.join(10)
    assert not waiting.is_alive()
    assert committer.committed() == {A: 1}
