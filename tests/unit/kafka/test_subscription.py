"""Partitions that come, go and move, and what the client says of them meanwhile."""

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import OFFSET_INVALID

from riverrun.errors import UsageError
from riverrun.kafka.consumer import subscription
from riverrun.kafka.consumer.consumer import Consumer
from riverrun.kafka.consumer.record import Record
from riverrun.model.cluster_state import TopicPartition
from unit.kafka.fake_client import FakeClient

A, B = TopicPartition("t", 0), TopicPartition("t", 1)


def nothing() -> None:
    """In this poll nothing happens."""


def one_by_one(consumer: Consumer[Any]) -> list[int]:
    return [record.value for record in consumer]


def in_batches(consumer: Consumer[Any]) -> list[int]:
    return [value for batch in consumer.batches(4, wait_seconds=0.1) for value in batch.values()]


def in_parallel(consumer: Consumer[Any]) -> list[int]:
    seen: list[int] = []
    consumer.run(lambda record: seen.append(record.value), workers=1)
    return seen


EACH_WAY = pytest.mark.parametrize("read", [one_by_one, in_batches, in_parallel])


# --- offsets that are gone --------------------------------------------------------------------------------------------


@EACH_WAY
def test_what_was_fetched_before_retention_overtook_is_handed_out(
    client: FakeClient, read: Callable[[Consumer[Any]], list[int]]
) -> None:
    client.logs[A] = range(9)
    client.committed_offsets[A] = 0
    # Three at a time: a batch of four has three ahead when this happens.
    client.most = 2
    client.in_poll += [nothing, lambda: client.stall(A, 5, range(60, 63), fetched=[3, 4])]
    with client.consumer(follow=False) as consumer:
        assert read(consumer) == [0, 1, 2, 3, 4, 60, 61, 62]
        assert (consumer.metrics().gone, consumer.metrics().handled) == (55, 8)
    assert client.committed_offsets == {A: 63}


def test_a_gap_is_done_with_only_behind_what_was_fetched_before_it(client: FakeClient) -> None:
    client.logs[A] = range(9)
    client.committed_offsets[A] = 0
    client.most = 0

    def overtake() -> None:
        client.stall(A, 3, range(60, 60), fetched=[1, 2])
        client.most = 5

    client.in_poll += [nothing, overtake]

    def handle() -> None:
        with client.consumer() as consumer:
            for record in consumer:
                _ = 1 / (record.value - 2)

    with pytest.raises(ZeroDivisionError):
        handle()
    assert client.committed_offsets == {A: 2}


def test_a_topic_made_anew_while_it_is_handled_is_committed_from_its_beginning(client: FakeClient) -> None:
    client.logs[A] = range(5)
    seen: list[int] = []
    with client.consumer(commit="record", follow=True) as consumer:

        def handle(record: Record[Any]) -> None:
            seen.append(record.value)

        def make_anew() -> None:
            if client.committed_offsets == {A: 5}:
                client.stall(A, 5, range(3))
            elif client.committed_offsets == {A: 3}:
                consumer.stop()
            client.in_poll.append(make_anew)

        make_anew()
        giving_up = threading.Timer(5, consumer.stop)
        giving_up.start()
        consumer.run(handle, workers=1)
        giving_up.cancel()
    assert seen == [0, 1, 2, 3, 4, 0, 1, 2]
    assert client.committed_offsets == {A: 3}


def test_a_handler_that_has_a_record_of_the_old_log_commits_nothing_of_it(client: FakeClient) -> None:
    client.committed_offsets[A] = 0
    began, moved, ended = threading.Event(), threading.Event(), threading.Event()

    def handle(record: Record[Any]) -> None:
        if record.offset == 4:
            began.set()
            assert moved.wait(5)
            ended.set()
        elif moved.is_set():
            assert ended.wait(5)
            time.sleep(0.05)

    def make_anew() -> None:
        if began.is_set():
            client.stall(A, 5, range(3))
        client.in_poll.append(moved.set if began.is_set() else make_anew)

    client.logs[A] = range(5)
    make_anew()
    with client.consumer(commit="record", follow=False) as consumer:
        consumer.run(handle, workers=2)
    assert {A: 5} not in client.requests
    assert client.committed_offsets == {A: 3}


def test_a_log_that_lost_its_end_does_not_stop_the_reader(client: FakeClient, caplog: pytest.LogCaptureFixture) -> None:
    client.logs[A] = range(9)
    client.committed_offsets[A] = 0
    client.most = 1
    # The client says only that the log was truncated, and stops.
    client.in_poll += [nothing, lambda: client.stall(A, OFFSET_INVALID, range(1))]
    with client.consumer(follow=False) as consumer:
        assert one_by_one(consumer) == [0, 1, 0]
    assert "lost its end" in caplog.text


def test_a_group_that_has_no_offset_after_all_does_not_undo_a_seek(client: FakeClient) -> None:
    client.logs[A] = range(3)
    with client.consumer(follow=False) as consumer:
        consumer.seek(0, 1)
        client.stall(A, OFFSET_INVALID, range(3))
        assert one_by_one(consumer) == [1, 2]


def test_the_start_of_a_new_group_is_pinned_once(client: FakeClient) -> None:
    client.logs[A] = range(5)
    with client.consumer(follow=False, start="latest") as consumer:
        assert one_by_one(consumer) == []
    assert client.committed_offsets == {A: 5}


# --- what was told before a move --------------------------------------------------------------------------------------


def test_an_end_told_before_a_seek_does_not_count_after_it(client: FakeClient) -> None:
    client.logs[A] = range(3)
    client.most = 0

    def handle() -> None:
        with client.consumer() as consumer:
            next(consumer)
            client.silent = True
            client.in_poll += [nothing] * 5 + [lambda: setattr(client, "silent", False)]
            # While it waits it takes what comes: two records and the end.
            consumer.commit()
            consumer.seek(0, 0)
            assert [next(consumer).value, next(consumer).value] == [0, 1]
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        handle()
    assert client.committed_offsets == {A: 1}


def test_an_end_told_before_a_partition_went_does_not_count_when_it_is_back(client: FakeClient) -> None:
    client.logs[A] = range(3)
    client.committed_offsets[A] = 0
    client.most = 0

    def handle() -> None:
        with client.consumer() as consumer:
            next(consumer)
            # Two records and the end; then it goes, and comes back.
            client.rebalances += [("", ())] * 3 + [("revoke", [A]), ("assign", [A])]
            for _ in range(5):
                consumer._subscription.keep_alive(1000)
            assert [next(consumer).value, next(consumer).value] == [0, 1]
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        handle()
    assert client.committed_offsets == {A: 1}


def test_what_came_while_a_commit_was_awaited_is_paused_as_well(wide: FakeClient) -> None:
    wide.logs = {A: range(3), B: range(3)}
    wide.most = 0
    with wide.consumer(follow=False, commit="manual") as consumer:
        assert next(consumer).partition == 0
        consumer.commit()
        assert [message.partition() for message in consumer._subscription._buffered.messages] == [0]
        consumer.pause(0)
        assert [next(consumer).partition for _ in range(3)] == [1, 1, 1]
        consumer.resume(0)
        assert [record.offset for record in consumer] == [1, 2]


# --- groups that move partitions --------------------------------------------------------------------------------------


@pytest.fixture
def soon_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(subscription._REBALANCE_QUIET_SECONDS, "classic", 0.3)


@pytest.mark.usefixtures("soon_quiet")
@EACH_WAY
def test_a_member_that_gets_its_partitions_in_the_second_round_does_not_end_in_the_first(
    client: FakeClient, read: Callable[[Consumer[Any]], list[int]]
) -> None:
    client.logs[A] = range(3)
    client.rebalances.clear()
    client.rebalances += [("assign", []), ("", ()), ("", ()), ("assign", [A])]
    with client.consumer(follow=False) as consumer:
        assert read(consumer) == [0, 1, 2]


@pytest.mark.usefixtures("soon_quiet")
def test_a_member_that_gets_no_partitions_ends(client: FakeClient) -> None:
    client.rebalances.clear()
    client.rebalances.append(("assign", []))
    began = time.monotonic()
    with client.consumer(follow=False) as consumer:
        assert one_by_one(consumer) == []
    assert 0.3 <= time.monotonic() - began < 3


@pytest.mark.usefixtures("soon_quiet")
def test_a_member_that_gives_up_a_partition_it_has_half_read_is_there_when_it_comes_back(wide: FakeClient) -> None:
    wide.logs = {A: range(3), B: range(1)}
    wide.most = 0
    wide.rebalances += [("revoke", [A]), *[("", ())] * 5, ("assign", [A])]
    with wide.consumer(follow=False) as consumer:
        assert sorted({(record.partition, record.offset) for record in consumer}) == [(0, 0), (0, 1), (0, 2), (1, 0)]


def test_one_member_alone_does_not_wait_for_others(client: FakeClient) -> None:
    client.logs[A] = range(3)
    began = time.monotonic()
    with client.consumer(follow=False) as consumer:
        assert one_by_one(consumer) == [0, 1, 2]
    assert time.monotonic() - began < 2


# --- callbacks --------------------------------------------------------------------------------------------------------


@EACH_WAY
def test_partitions_can_be_told_where_to_begin_as_they_come(
    wide: FakeClient, read: Callable[[Consumer[Any]], list[int]]
) -> None:
    wide.logs = {A: range(5), B: range(10, 12)}
    wide.committed_offsets = {A: 1, B: 11}
    consumer: Consumer[Any] = wide.consumer(follow=False, on_assigned=lambda _: consumer.seek(0, 3))
    with consumer:
        assert sorted(read(consumer)) == [3, 4, 11]
    assert wide.committed_offsets == {A: 5, B: 12}


def test_a_partition_that_is_here_already_can_be_moved_when_another_comes(wide: FakeClient) -> None:
    wide.logs = {A: range(3), B: range(10, 12)}
    wide.rebalances.clear()
    wide.rebalances += [("assign", [A]), ("assign", [B])]
    wide.most = 0

    def came(places: list[TopicPartition]) -> None:
        if places == [B]:
            consumer.seek_to_beginning()

    consumer = wide.consumer(follow=False, on_assigned=came)
    with consumer:
        assert sorted(set(one_by_one(consumer))) == [0, 1, 2, 10, 11]


def test_partitions_can_be_paused_as_they_come(wide: FakeClient) -> None:
    wide.logs = {A: range(3), B: range(10, 12)}
    wide.committed_offsets = {A: 0, B: 10}
    consumer: Consumer[Any] = wide.consumer(on_assigned=lambda _: consumer.pause(0))
    with consumer:
        assert [next(consumer).value, next(consumer).value] == [10, 11]
        consumer.resume()
        assert next(consumer).value == 0


def test_partitions_that_go_cannot_be_moved(client: FakeClient) -> None:
    client.logs[A] = range(3)
    client.most = 0
    client.rebalances.append(("revoke", [A]))
    consumer: Consumer[Any] = client.consumer(on_revoked=lambda _: consumer.seek(0, 0))
    with consumer, pytest.raises(UsageError, match="while partitions go"):
        list(consumer)
    assert client.assigned == {}
