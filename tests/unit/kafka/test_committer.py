"""Commits one at a time, in order, with a deadline; the cluster is an object that the test holds in its hand."""

import threading
from collections import deque

import pytest
from confluent_kafka import KafkaError as ClientError
from confluent_kafka import KafkaException
from confluent_kafka import TopicPartition as ClientPartition

from riverrun.errors import CommitError
from riverrun.kafka.committer import Committer
from riverrun.model.state import Place

A, B = Place("t", 0), Place("t", 1)


class Cluster:
    """Takes commits and answers when it is polled, with `errors` first; while `silent`, not at all."""

    def __init__(self) -> None:
        self.committer = Committer(self, "g")
        self.requests: list[dict[Place, int]] = []
        self.errors: list[int] = []
        self.silent = False
        self.in_callback = False
        self.may_poll = True
        self._waiting: deque[list[ClientPartition]] = deque()

    def send_commit(self, offsets: list[ClientPartition]) -> None:
        self.requests.append({Place(each.topic, each.partition): each.offset for each in offsets})
        self._waiting.append(offsets)

    def commit_now(self, offsets: list[ClientPartition]) -> list[ClientPartition]:
        self.requests.append({Place(each.topic, each.partition): each.offset for each in offsets})
        if self.errors:
            raise KafkaException(ClientError(self.errors.pop(0)))
        return offsets

    def serve(self, seconds: float) -> None:  # noqa: ARG002
        if self.silent or not self._waiting:
            return
        offsets = self._waiting.popleft()
        error = ClientError(self.errors.pop(0)) if self.errors else None
        self.committer.answered(error, offsets)


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
def committer(cluster: Cluster) -> Committer:
    return cluster.committer


def test_waiting_means_committed(cluster: Cluster, committer: Committer) -> None:
    committer.put({A: 5, B: 7})
    committer.wait(5)
    assert cluster.requests == [{A: 5, B: 7}]
    assert committer.committed() == {A: 5, B: 7}
    assert (committer.commits, committer.failed) == (1, 0)


def test_a_plain_tuple_is_a_place(cluster: Cluster, committer: Committer) -> None:
    committer.put({("t", 0): 5})  # type: ignore[dict-item]
    committer.wait(5)
    assert cluster.requests == [{A: 5}]


def test_the_same_or_less_is_not_committed_again(cluster: Cluster, committer: Committer) -> None:
    committer.put({A: 5})
    committer.wait(5)
    committer.put({A: 5})
    committer.put({A: 3})
    committer.wait(5)
    assert cluster.requests == [{A: 5}]


def test_while_one_is_under_way_only_the_newest_waits(cluster: Cluster, committer: Committer) -> None:
    committer.put({A: 1})
    committer.pump()
    for offset in (2, 3, 4):
        committer.put({A: offset})
        committer.pump()
    committer.wait(5)
    assert cluster.requests == [{A: 1}, {A: 4}]


def test_no_answer_ends_the_wait_at_its_deadline(cluster: Cluster, committer: Committer) -> None:
    cluster.silent = True
    committer.put({A: 1})
    with pytest.raises(CommitError, match=r"within 0.05 s. Found no answer for t\[0\]@1"):
        committer.wait(0.05)
    cluster.silent = False
    committer.wait(5)
    assert committer.committed() == {A: 1}


def test_a_group_that_is_shared_out_anew_is_asked_again(cluster: Cluster, committer: Committer) -> None:
    cluster.errors = [ClientError.REBALANCE_IN_PROGRESS, ClientError.ILLEGAL_GENERATION]
    committer.put({A: 1})
    committer.wait(10)
    assert cluster.requests == [{A: 1}] * 3
    assert (committer.commits, committer.failed) == (1, 2)
    committer.raise_failure()


def test_a_failure_nobody_waited_for_is_raised_once_by_the_next(cluster: Cluster, committer: Committer) -> None:
    cluster.errors = [ClientError.GROUP_AUTHORIZATION_FAILED]
    committer.put({A: 1})
    with pytest.raises(CommitError) as caught:
        committer.wait(5)
    assert caught.value.fields["kafka_error"] == "GROUP_AUTHORIZATION_FAILED"
    assert caught.value.fields["group"] == "g"
    committer.raise_failure()
    committer.put({A: 1})
    committer.wait(5)
    assert committer.committed() == {A: 1}


def test_a_failure_is_forgotten_when_the_same_is_committed_later(cluster: Cluster, committer: Committer) -> None:
    cluster.errors = [ClientError.INVALID_COMMIT_OFFSET_SIZE]
    for offset in (1, 2):
        committer.put({A: offset})
        committer.pump()
        cluster.serve(0)
    assert (committer.commits, committer.failed) == (1, 1)
    committer.raise_failure()


def test_nothing_is_committed_for_what_was_forgotten(cluster: Cluster, committer: Committer) -> None:
    committer.put({B: 1})
    committer.pump()
    committer.put({A: 9, B: 2})
    committer.forget([A])
    committer.wait(5)
    assert cluster.requests == [{B: 1}, {B: 2}]


def test_a_late_answer_about_what_was_forgotten_does_not_count(cluster: Cluster, committer: Committer) -> None:
    committer.put({A: 9})
    committer.pump()
    committer.forget([A])
    committer.put({A: 3})
    committer.pump()
    assert cluster.requests == [{A: 9}, {A: 3}]
    cluster.serve(0)
    assert committer.committed() == {}, "that was the answer to 9"
    cluster.serve(0)
    assert committer.committed() == {A: 3}


def test_inside_of_a_callback_the_newest_is_committed_at_once(cluster: Cluster, committer: Committer) -> None:
    committer.put({A: 1, B: 1})
    committer.pump()
    committer.put({A: 2})
    cluster.in_callback = True
    committer.wait(5)
    assert cluster.requests == [{A: 1, B: 1}, {A: 2, B: 1}]
    assert committer.committed() == {A: 2, B: 1}
    cluster.serve(0)
    assert committer.committed() == {A: 2, B: 1}, "the late answer to the first changes nothing"


def test_a_failure_inside_of_a_callback_is_raised(cluster: Cluster, committer: Committer) -> None:
    cluster.in_callback = True
    cluster.errors = [ClientError.ILLEGAL_GENERATION]
    committer.put({A: 1})
    with pytest.raises(CommitError) as caught:
        committer.wait(5)
    assert caught.value.fields["kafka_error"] == "ILLEGAL_GENERATION"


def test_a_partition_that_goes_away_while_its_commit_is_awaited_is_told(
    cluster: Cluster, committer: Committer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "serve", lambda _: committer.forget([A]))
    committer.put({A: 1})
    with pytest.raises(CommitError, match=r"gave t\[0\] to another member"):
        committer.wait(5)


def test_a_thread_that_may_not_poll_leaves_it_to_the_one_that_does(cluster: Cluster, committer: Committer) -> None:
    cluster.may_poll = False
    committer.put({A: 1})
    committer.start()
    assert cluster.requests == []
    waiting = threading.Thread(target=committer.wait, args=(10,))
    waiting.start()
    committer.pump()
    cluster.serve(0)
    waiting.join(5)
    assert not waiting.is_alive()
    assert committer.committed() == {A: 1}


def test_a_closed_committer_commits_nothing(cluster: Cluster, committer: Committer) -> None:
    committer.close()
    committer.put({A: 1})
    committer.pump()
    assert cluster.requests == []
