"""Commits one at a time, in order, with a deadline; the cluster is a function that the test holds in its hand."""

import threading
from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaError as ClientError
from confluent_kafka import KafkaException
from confluent_kafka import TopicPartition as ClientPartition

from riverrun.errors import CommitError
from riverrun.kafka.committer import Committer
from riverrun.model.state import Place

A, B = Place("t", 0), Place("t", 1)


class Cluster:
    """Takes commits; waits before it answers while `gate` is closed, and answers with `errors` first."""

    def __init__(self) -> None:
        self.requests: list[dict[Place, int]] = []
        self.errors: list[int] = []
        self.gate = threading.Event()
        self.gate.set()
        self.asked = threading.Semaphore(0)

    def commit(self, offsets: list[ClientPartition]) -> list[ClientPartition]:
        self.requests.append({Place(each.topic, each.partition): each.offset for each in offsets})
        self.asked.release()
        assert self.gate.wait(10)
        if self.errors:
            raise KafkaException(ClientError(self.errors.pop(0)))
        return offsets


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
def committer(cluster: Cluster) -> Iterator[Committer]:
    made = Committer(cluster.commit, "g")
    yield made
    made.close()


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
    cluster.gate.clear()
    committer.put({A: 1})
    assert cluster.asked.acquire(timeout=5)
    for offset in (2, 3, 4):
        committer.put({A: offset})
    cluster.gate.set()
    committer.wait(5)
    assert cluster.requests == [{A: 1}, {A: 4}]


def test_no_answer_ends_the_wait_at_its_deadline(cluster: Cluster, committer: Committer) -> None:
    cluster.gate.clear()
    committer.put({A: 1})
    with pytest.raises(CommitError, match=r"within 0.05 s. Found no answer for t\[0\]@1"):
        committer.wait(0.05)
    cluster.gate.set()
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
    committer.put({A: 1})
    assert cluster.asked.acquire(timeout=5)
    while committer.failed == 0:
        assert not cluster.asked.acquire(timeout=0.01)
    committer.put({A: 2})
    assert cluster.asked.acquire(timeout=5)
    while committer.commits == 0:
        assert not cluster.asked.acquire(timeout=0.01)
    committer.raise_failure()


def test_nothing_is_committed_for_what_was_forgotten(cluster: Cluster, committer: Committer) -> None:
    cluster.gate.clear()
    committer.put({B: 1})
    assert cluster.asked.acquire(timeout=5)
    committer.put({A: 9, B: 2})
    committer.forget([A])
    cluster.gate.set()
    committer.wait(5)
    assert cluster.requests == [{B: 1}, {B: 2}]


def test_what_was_forgotten_under_way_does_not_count_as_committed(cluster: Cluster, committer: Committer) -> None:
    cluster.gate.clear()
    committer.put({A: 9})
    assert cluster.asked.acquire(timeout=5)
    committer.forget([A], seconds=0.01)
    cluster.gate.set()
    committer.put({A: 3})
    committer.wait(5)
    assert cluster.requests == [{A: 9}, {A: 3}]


def test_a_closed_committer_commits_nothing(cluster: Cluster, committer: Committer) -> None:
    committer.close()
    committer.put({A: 1})
    assert cluster.requests == []
