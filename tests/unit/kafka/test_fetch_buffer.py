"""What a plain loop gave out and may commit."""

from confluent_kafka import Message

from riverrun.kafka.consumer.fetch_buffer import FetchBuffer
from riverrun.kafka.consumer.subscription import FetchedRecords
from riverrun.model.cluster_state import TopicPartition

A, B = TopicPartition("t", 0), TopicPartition("t", 1)


def message(offset: int, place: TopicPartition = A) -> Message:
    return Message(topic=place.topic, partition=place.partition, offset=offset, value=b"v")


def hand(*messages: Message, ends: dict[TopicPartition, int] | None = None) -> FetchBuffer:
    made = FetchBuffer()
    made.put(FetchedRecords(list(messages), ends or {}))
    return made


def test_a_record_is_done_when_it_is_settled_and_not_before() -> None:
    made = hand(message(5), message(6))
    first = made.take_one()
    assert first is not None
    assert (first.offset(), made.done, made.delivered_positions()) == (5, {}, {A: 6})
    assert made.mark_done() == 1
    assert (made.done, made.delivered_positions()) == ({A: 6}, {})
    assert made.mark_done() == 0


def test_an_end_counts_after_the_records_before_it() -> None:
    made = hand(message(5), ends={A: 9})
    made.take_one()
    assert made.done == {}
    made.mark_done()
    assert made.done == {A: 9}
    assert made.take_one() is None


def test_an_end_does_not_count_while_the_record_before_it_is_in_hand() -> None:
    made = hand(message(5))
    made.take_one()
    made.put(FetchedRecords([], {A: 9}))
    assert made.done == {}
    made.mark_done()
    made.put(FetchedRecords())
    assert made.done == {A: 9}


def test_an_end_alone_counts_at_once() -> None:
    assert hand(ends={B: 3}).done == {B: 3}


def test_a_batch_of_all_stands_where_the_client_says() -> None:
    made = hand(message(5), message(1, B), ends={A: 8})
    assert len(made) == 2
    assert [each.offset() for each in made.take_batch(10, {A: 8, B: 2})] == [5, 1]
    assert (made.done, len(made)) == ({}, 0)
    assert made.mark_done() == 2
    assert made.done == {A: 8, B: 2}


def test_a_batch_of_some_stands_behind_its_last_records() -> None:
    made = hand(message(5), message(6), message(1, B), message(7))
    assert len(made.take_batch(3, {A: 8, B: 2})) == 3
    assert made.delivered_positions() == {A: 7, B: 2}
    made.mark_done()
    assert len(made.take_batch(3, {A: 8, B: 2})) == 1
    made.mark_done()
    assert made.done == {A: 8, B: 2}


def test_what_was_not_given_out_after_all_comes_again() -> None:
    made = hand(message(5), message(6))
    made.take_one()
    made.return_delivered()
    assert made.mark_done() == 0
    again = made.take_one()
    assert again is not None
    assert (again.offset(), made.done) == (5, {})


def test_a_partition_that_went_takes_all_of_its_with_it() -> None:
    made = hand(message(4), message(5), message(1, B), ends={A: 6})
    made.take_one()
    made.mark_done()
    made.take_one()
    made.forget([A])
    assert made.mark_done() == 0
    assert made.done == {}
    left = made.take_one()
    assert left is not None
    assert left.partition() == 1
    made.take_batch(5, {A: 9, B: 2})
    made.forget([A])
    made.mark_done()
    assert made.done == {B: 2}


def test_dropping_says_where_to_read_on() -> None:
    made = hand(message(4), message(5), message(1, B))
    assert made.first_buffered() == {A: 4, B: 1}
    assert made.drop_buffered([A]) == {A: 4}
    assert len(made) == 1
