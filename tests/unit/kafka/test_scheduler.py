"""Which record is next and what may be committed, with a clock that is moved by hand."""

import random

from confluent_kafka import Message

from riverrun.kafka.consumer.record import Record, RecordDecoder
from riverrun.kafka.consumer.scheduler import Order, WorkItem, WorkScheduler
from riverrun.model.cluster_state import TopicPartition

A, B = TopicPartition("t", 0), TopicPartition("t", 1)
DECODING: RecordDecoder[object] = RecordDecoder({"t": None})


def record(offset: int, place: TopicPartition = A, key: bytes | None = None) -> Record[object]:
    message = Message(topic=place.topic, partition=place.partition, offset=offset, key=key, value=b"12345678")
    return Record(message, DECODING)


def schedule(order: Order = "partition", *records: Record[object]) -> WorkScheduler[object]:
    made: WorkScheduler[object] = WorkScheduler(order)
    made.open([A, B])
    made.add(records, 0.0)
    return made


def taken(made: WorkScheduler[object], now: float = 0.0) -> WorkItem[object]:
    work = made.take(now)
    assert work is not None
    return work


def test_a_partition_gives_one_record_at_a_time_and_in_order() -> None:
    made = schedule("partition", record(1), record(2), record(7, B))
    first, other = taken(made), taken(made)
    assert [str(first.record), str(other.record)] == ["t[0]@1", "t[1]@7"]
    assert made.take(0.0) is None
    made.finish(first, 0.0)
    assert taken(made).record.offset == 2


def test_keys_of_a_partition_go_side_by_side_and_each_in_order() -> None:
    made = schedule("key", record(1, key=b"x"), record(2, key=b"y"), record(3, key=b"x"), record(4))
    running = [taken(made) for _ in range(3)]
    assert [work.record.offset for work in running] == [1, 2, 4]
    assert made.take(0.0) is None
    made.finish(running[0], 0.0)
    assert taken(made).record.offset == 3


def test_without_order_all_go_at_once() -> None:
    made = schedule("none", *(record(offset, key=b"x") for offset in range(5)))
    assert [taken(made).record.offset for _ in range(5)] == [0, 1, 2, 3, 4]


def test_only_what_is_done_without_a_hole_can_be_committed() -> None:
    made = schedule("none", record(10), record(11), record(15))
    works = [taken(made) for _ in range(3)]
    assert made.committable() == {}
    made.finish(works[2], 0.0)
    assert made.committable() == {}
    made.finish(works[0], 0.0)
    assert made.committable() == {A: 11}
    made.finish(works[1], 0.0)
    # 12 to 14 are not there: a compacted topic, or markers of transactions.
    assert made.committable() == {A: 16}


def test_the_end_of_a_partition_counts_when_all_before_it_is_done() -> None:
    made = schedule("none", record(10), record(11))
    works = [taken(made), taken(made)]
    made.partitions[A].mark_end(14)
    made.finish(works[1], 0.0)
    assert made.committable() == {}
    made.finish(works[0], 0.0)
    assert made.committable() == {A: 14}
    # An end that was told before the last records came does not take back.
    made.partitions[A].mark_end(12)
    assert made.committable() == {A: 14}


def test_an_end_without_records_can_be_committed_at_once() -> None:
    made = schedule()
    made.partitions[B].mark_end(5)
    assert made.committable() == {B: 5}


def test_a_record_to_try_again_holds_its_lane_and_no_other() -> None:
    made = schedule("key", record(1, key=b"x"), record(2, key=b"x"), record(3, key=b"y"))
    work = taken(made)
    made.retry_at(work, at=5.0)
    assert taken(made, 1.0).record.offset == 3
    assert made.take(4.9) is None
    assert made.next_due() == 5.0
    again = taken(made, 5.0)
    assert (again.record.offset, again.attempts) == (1, 2)
    made.finish(again, 5.0)
    assert taken(made, 5.0).record.offset == 2


def test_the_one_due_first_is_tried_first() -> None:
    made = schedule("none", record(1), record(2))
    one, two = taken(made), taken(made)
    made.retry_at(one, at=9.0)
    made.retry_at(two, at=3.0)
    assert made.next_due() == 3.0
    assert taken(made, 10.0).record.offset == 2
    assert taken(made, 10.0).record.offset == 1


def test_counts_are_of_all_that_is_in_hand() -> None:
    made = schedule("none", record(1), record(2, B))
    assert (made.records, made.bytes, made.running()) == (2, 16, 0)
    first, second = taken(made), taken(made)
    assert made.running([A]) == 1
    made.finish(first, 0.0)
    assert (made.records, made.bytes, made.running()) == (1, 8, 1)
    made.finish(second, 0.0)
    assert (made.records, made.bytes, made.running()) == (0, 0, 0)


def test_records_of_partitions_that_are_not_ours_are_left_out() -> None:
    made = schedule("partition", record(1, TopicPartition("t", 9)))
    assert made.take(0.0) is None
    assert made.records == 0


def test_giving_up_a_partition_drops_what_nobody_began_and_commits_what_is_done() -> None:
    made = schedule("none", record(1), record(2), record(3))
    first, second = taken(made), taken(made)
    made.partitions[A].mark_end(4)
    made.drain([A])
    assert made.take(0.0) is None
    made.finish(first, 0.0)
    assert made.running([A]) == 1
    made.finish(second, 0.0)
    # Not 4: record 3 was dropped, and whoever is next must get it.
    assert made.committable([A]) == {A: 3}
    made.close([A])
    assert made.committable() == {}
    assert made.records == 0


def test_what_waits_in_front_of_one_that_is_done_is_finished_first_and_what_is_behind_is_dropped() -> None:
    made = schedule("key", record(1, key=b"x"), record(2, key=b"x"), record(3, key=b"y"), record(4, key=b"x"))
    first, third = taken(made), taken(made)
    made.finish(third, 0.0)
    made.drain([A])
    assert made.unfinished([A]) == 2
    made.finish(first, 0.0)
    made.finish(taken(made), 0.0)
    assert (made.unfinished([A]), made.take(0.0)) == (0, None)
    assert made.committable() == {A: 4}


def test_what_fails_while_its_partition_goes_is_not_tried_again_and_ends_it() -> None:
    made = schedule("key", record(1, key=b"x"), record(2, key=b"x"), record(3, key=b"y"), record(4, key=b"z"))
    first, third, fourth = taken(made), taken(made), taken(made)
    made.finish(third, 0.0)
    made.drain([A])
    made.retry_at(first, at=1.0)
    # Record 2 would be handled for nothing: 1 has to be handled before it is committed. 4 is with its handler.
    assert made.unfinished([A]) == 1
    assert made.take(2.0) is None
    made.finish(fourth, 2.0)
    assert (made.unfinished([A]), made.committable()) == (0, {})


def test_what_waits_to_be_tried_again_does_not_hold_a_partition_that_goes() -> None:
    made = schedule("key", record(1, key=b"x"), record(2, key=b"y"), record(3, key=b"y"), record(4, key=b"z"))
    first, second, fourth = taken(made), taken(made), taken(made)
    made.retry_at(second, at=1.0)
    made.finish(fourth, 0.0)
    made.drain([A])
    made.finish(first, 0.0)
    assert (made.unfinished([A]), made.take(2.0)) == (0, None)
    assert made.committable() == {A: 2}


def test_a_handler_that_ends_after_its_partition_went_changes_nothing() -> None:
    made = schedule("partition", record(1), record(2))
    work = taken(made)
    made.close([A])
    assert work.revoked
    assert (made.records, made.running()) == (1, 1)
    made.open([A])
    made.add([record(1)], 0.0)
    made.finish(work, 0.0)
    assert made.committable() == {}
    assert taken(made).record.offset == 1
    assert (made.records, made.running()) == (1, 1)


def test_a_retry_of_a_partition_that_went_does_not_come_back() -> None:
    made = schedule("partition", record(1))
    made.retry_at(taken(made), at=1.0)
    made.close([A])
    made.open([A])
    assert made.take(2.0) is None


def test_a_partition_gives_back_its_newest_records_that_nobody_began() -> None:
    made = schedule("key", *(record(offset, key=b"%d" % (offset % 3)) for offset in range(10)))
    running = [taken(made) for _ in range(3)]
    made.partitions[A].mark_end(10)
    assert made.partitions[A].drop_unstarted(5, 1000) == 5
    assert made.records == 5
    made.add([record(offset, key=b"%d" % (offset % 3)) for offset in range(5, 10)], 0.0)
    seen = [work.record.offset for work in running]
    for work in running:
        made.finish(work, 0.0)
    while (next_one := made.take(0.0)) is not None:
        seen.append(next_one.record.offset)
        made.finish(next_one, 0.0)
    assert sorted(seen) == list(range(10))
    assert made.committable() == {A: 10}


def test_a_partition_does_not_give_back_what_was_begun() -> None:
    made = schedule("none", record(1), record(2))
    taken(made), taken(made)
    assert made.partitions[A].drop_unstarted(0, 0) is None
    assert made.records == 2


def test_a_partition_gives_back_down_to_a_size_and_keeps_its_first_record() -> None:
    made = schedule("partition", *(record(offset) for offset in range(10)))
    assert made.partitions[A].drop_unstarted(100, 24) == 3
    assert (made.records, made.bytes) == (3, 24)
    assert made.partitions[A].drop_unstarted(100, 1) == 1
    assert taken(made).record.offset == 0


def test_in_any_order_of_events_each_record_is_handled_once_and_commits_never_pass_an_unfinished_one() -> None:
    orders: tuple[Order, ...] = ("partition", "key", "none")
    for seed in range(60):
        chance = random.Random(seed)
        made = schedule(orders[seed % 3])
        offsets = {A: 0, B: 0}
        running: list[WorkItem[object]] = []
        finished: dict[TopicPartition, set[int]] = {A: set(), B: set()}
        now = 0.0
        for _ in range(400):
            now += 1
            step = chance.random()
            if step < 0.3:
                place = chance.choice([A, B])
                made.add([record(offsets[place], place, chance.choice([b"x", b"y", None]))], now)
                offsets[place] += chance.choice([1, 1, 1, 2])
            elif step < 0.6 and (work := made.take(now)) is not None:
                running.append(work)
            elif running:
                work = running.pop(chance.randrange(len(running)))
                if chance.random() < 0.2:
                    made.retry_at(work, now + chance.random() * 20)
                else:
                    assert work.record.offset not in finished[work.record.topic_partition]
                    finished[work.record.topic_partition].add(work.record.offset)
                    made.finish(work, now)
            for place, offset in made.committable().items():
                unfinished = [work.record.offset for work in made.partitions[place].in_flight if not work.done]
                assert all(each >= offset for each in unfinished)
        now += 1000
        while (last := running.pop() if running else made.take(now)) is not None:
            finished[last.record.topic_partition].add(last.record.offset)
            made.finish(last, now)
        assert made.records == made.running() == 0
