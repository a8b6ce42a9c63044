"""Partitions that move between members of a group: nothing is lost, nothing skipped, and little handled twice."""

import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Literal

import pytest

import riverrun as rr
from riverrun.kafka.consumer.consumer import Consumer
from riverrun.model.cluster_state import TopicPartition
from riverrun.testing.pytest_plugin import KafkaUnderTest
from support.cluster import wait_for
from support.consuming import Bench

pytestmark = pytest.mark.kafka

Protocol = Literal["classic", "consumer"]
BOTH = pytest.mark.parametrize("protocol", ["classic", "consumer"])


@pytest.fixture
def bench(kafka: KafkaUnderTest, kafka_topic: Callable[..., str]) -> Bench:
    return Bench(kafka.connection, kafka_topic, partitions=6)


class Feed:
    """Records, 60 at a time, until it is to end."""

    def __init__(self, bench: Bench) -> None:
        self.count = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._live, args=(bench,))
        self._thread.start()

    def _live(self, bench: Bench) -> None:
        while not self._ended.wait(0.03):
            bench.fill(60, first=self.count)
            self.count += 60

    def end(self) -> int:
        self._ended.set()
        self._thread.join(60)
        return self.count


class Member:
    """One consumer in a thread, which counts what it handled."""

    def __init__(
        self,
        bench: Bench,
        work: Callable[[Consumer[Any], "Member"], None],
        *,
        commit_on_revoke: bool = False,
        **options: Any,
    ) -> None:
        self.seen: list[tuple[int, int]] = []
        self.held: set[TopicPartition] = set()
        self.problems: list[BaseException] = []
        self.revoked: list[TopicPartition] = []
        self.lost: list[TopicPartition] = []
        self.consumer: Consumer[Any] = bench.consumer(
            follow=True,
            on_assigned=self._came,
            on_revoked=self._go,
            on_lost=self.lost.extend,
            **options,
        )
        self._work = work
        self._commit_on_revoke = commit_on_revoke
        self.thread = threading.Thread(target=self._live)
        self.thread.start()

    def _came(self, places: list[TopicPartition]) -> None:
        self.held.update(places)

    def _go(self, places: list[TopicPartition]) -> None:
        if self._commit_on_revoke:
            self.consumer.commit()
        self.held.difference_update(places)
        self.revoked.extend(places)

    def _live(self) -> None:
        try:
            with self.consumer:
                self._work(self.consumer, self)
        except BaseException as error:  # noqa: BLE001  -- told by the test's own thread
            self.problems.append(error)

    def leave(self) -> None:
        self.consumer.stop()
        self.thread.join(60)
        assert not self.thread.is_alive()
        assert self.problems == []


def loop(consumer: Consumer[Any], member: Member) -> None:
    for record in consumer:
        time.sleep(0.0005)
        member.seen.append((record.partition, record.offset))


def in_batches(consumer: Consumer[Any], member: Member) -> None:
    for batch in consumer.batches(50, wait_seconds=0.05):
        time.sleep(0.01)
        member.seen += [(record.partition, record.offset) for record in batch]


def in_parallel(consumer: Consumer[Any], member: Member) -> None:
    def handle(record: rr.Record[Any]) -> None:
        time.sleep(0.002)
        member.seen.append((record.partition, record.offset))

    consumer.run(handle, workers=4, order="key", max_in_flight=100)


@BOTH
@pytest.mark.parametrize("work", [loop, in_batches, in_parallel])
def test_members_come_and_go_and_every_record_is_handled(bench: Bench, work: Any, protocol: Protocol) -> None:
    feed = Feed(bench)
    members = [Member(bench, work, protocol=protocol)]
    try:
        wait_for(lambda: len(members[0].seen) > 300, 60, "the first member does not handle")
        members.append(Member(bench, work, protocol=protocol))
        wait_for(lambda: len(members[1].seen) > 300, 60, "the second member does not handle")
        members.append(Member(bench, work, protocol=protocol))
        wait_for(lambda: len(members[2].seen) > 100, 60, "the third member does not handle")
        members[0].leave()
        count = feed.end()
        wait_for(lambda: sum(bench.committed().values()) == count, 90, "not all is committed")
    finally:
        for member in members:
            member.leave()
        count = feed.end()
    handled = Counter(each for member in members for each in member.seen)
    assert set(handled) == {(partition, offset) for partition in range(6) for offset in range(count // 6)}
    # Partitions changed hands, and what was done went with them: nobody was lost, so nothing is handled twice.
    assert members[0].revoked
    assert [member.lost for member in members] == [[], [], []]
    assert {each: times for each, times in handled.items() if times > 1} == {}
    assert bench.rest(protocol=protocol) == []


def test_cooperation_moves_only_what_must_move(bench: Bench) -> None:
    bench.fill(60)
    one = Member(bench, loop)
    wait_for(lambda: len(one.held) == 6, 30, "the first member has not all partitions")
    two = Member(bench, loop)
    try:
        wait_for(lambda: len(one.held) == len(two.held) == 3, 30, "they did not share")
        assert len(one.revoked) == 3
        assert one.held.isdisjoint(two.held)
    finally:
        two.leave()
        one.leave()


@BOTH
def test_a_member_that_comes_later_reads_its_part_before_it_ends(bench: Bench, protocol: Protocol) -> None:
    bench.fill(60)
    # It commits nothing, so that the part it gives up is read again.
    one = Member(bench, loop, protocol=protocol, commit="manual")
    try:
        wait_for(lambda: len(one.seen) == 60, 30, "the first member has not read all")
        with bench.consumer(protocol=protocol) as two:
            part = [(record.partition, record.offset) for record in two]
        assert {partition for partition, _ in part} == {place.partition for place in one.revoked}
        assert len(part) == 30
    finally:
        one.leave()


def test_a_revoked_partition_waits_for_the_record_a_handler_has(bench: Bench) -> None:
    bench.fill(60)
    gate, began = threading.Event(), threading.Event()
    finished: list[tuple[int, int]] = []

    def slow(consumer: Consumer[Any], member: Member) -> None:
        def handle(record: rr.Record[Any]) -> None:
            member.seen.append((record.partition, record.offset))
            if record.offset == 0:
                began.set()
                gate.wait(60)
            finished.append((record.partition, record.offset))

        consumer.run(handle, workers=6)

    one = Member(bench, slow)
    assert began.wait(30)
    wait_for(lambda: len(one.seen) == 6, 30, "not all handlers are at work")
    two = Member(bench, loop)
    try:
        wait_for(lambda: bool(one.revoked), 30, "nothing is revoked")
        assert bench.committed() == {}
        gate.set()
        wait_for(lambda: sum(bench.committed().values()) == 60, 60, "not all is committed")
    finally:
        gate.set()
        two.leave()
        one.leave()
    handled = Counter(finished + two.seen)
    assert set(handled) == {(partition, offset) for partition in range(6) for offset in range(10)}
    assert max(handled.values()) == 1


def test_a_handler_that_does_not_finish_loses_its_partition_but_not_its_record(bench: Bench) -> None:
    bench.fill(6)
    gate = threading.Event()

    def stuck(consumer: Consumer[Any], member: Member) -> None:
        def handle(record: rr.Record[Any]) -> None:
            member.seen.append((record.partition, record.offset))
            gate.wait(60)

        consumer.run(handle, workers=6, stop_seconds=0.5)

    one = Member(bench, stuck)
    wait_for(lambda: len(one.seen) == 6, 30, "not all handlers are at work")
    two = Member(bench, loop)
    try:
        # What is not done when the time is up is not committed: the next owner handles it.
        wait_for(lambda: len(two.seen) == 3, 60, "the second member did not get the records")
        assert {partition for partition, _ in two.seen} == {place.partition for place in one.revoked}
    finally:
        gate.set()
        two.leave()
        one.leave()


def test_manual_commits_can_be_made_when_partitions_go(bench: Bench) -> None:
    bench.fill(60)
    one = Member(bench, loop, commit="manual", commit_on_revoke=True)
    wait_for(lambda: len(one.seen) == 60, 30, "not all is handled")
    two = Member(bench, loop)
    try:
        wait_for(lambda: len(one.revoked) == 3, 30, "nothing is revoked")
        wait_for(lambda: len(bench.committed()) == 6, 30, "nothing is committed")
    finally:
        two.leave()
        one.leave()
    assert two.seen == []
