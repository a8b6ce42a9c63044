"""Transactions against a real broker: readers of committed records see all of one or none of it."""

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer as BareConsumer

from riverrun.errors import DeliveryError, ProducerFencedError, RecordTooLargeError, TransactionError, UsageError
from riverrun.kafka.consumer.consumer import Consumer
from riverrun.kafka.producer.producer import Producer
from riverrun.model.topic import Topic
from riverrun.testing.pytest_plugin import KafkaUnderTest
from support.producing import MakeTopic, Reading, numbers, read, reading, values

pytestmark = pytest.mark.kafka


def test_a_transaction_is_all_or_none(kafka: KafkaUnderTest, kafka_topic: MakeTopic) -> None:
    one, two = Topic(kafka_topic("one"), Reading), Topic(kafka_topic("two"), Reading)
    with Producer(kafka.connection, transactional_id=one.name) as producer:
        with producer.transaction() as tx:
            receipt = tx.send(one, reading(0))
            delivery = tx.send_soon(two, reading(1))
            assert tx.send_all(two, [reading(2), reading(3)]) == 2
            assert read(kafka, one.name) == [], "not visible yet"
            assert len(read(kafka, one.name, committed=False)) == 1
        assert (receipt.offset, delivery.result().offset) == (0, 0)
        with pytest.raises(ZeroDivisionError), producer.transaction() as tx:
            _ = tx.send(one, reading(4)), tx.send_soon(two, reading(1 // 0))
        with producer.transaction() as tx:
            tx.send_soon(one, reading(5))
        with producer.transaction():
            pass
    assert numbers(read(kafka, one.name)) == [0, 5]
    assert numbers(read(kafka, two.name)) == [1, 2, 3]
    assert numbers(read(kafka, one.name, committed=False)) == [0, 4, 5]


def test_a_transaction_with_an_undelivered_record_is_aborted(kafka: KafkaUnderTest, kafka_topic: MakeTopic) -> None:
    fine, small = kafka_topic("fine"), kafka_topic("small", config={"max.message.bytes": "2000"})
    with Producer(kafka.connection, transactional_id=fine) as producer:
        doomed = [(fine, b"x"), (small, os.urandom(5000))]
        with pytest.raises(TransactionError, match="none of its records") as caught, producer.transaction() as tx:
            _ = [tx.send_soon(*each) for each in doomed]
        # Which of the two depends on whether the broker's answer or the end of the transaction comes first.
        cause = caught.value.__cause__
        assert isinstance(cause.__cause__ if isinstance(cause, DeliveryError) else cause, RecordTooLargeError)
        with producer.transaction() as tx:
            tx.send(fine, b"y")
    assert values(read(kafka, fine)) == [b"y"]


def test_a_newer_producer_takes_over(kafka: KafkaUnderTest, kafka_topic: MakeTopic) -> None:
    topic = kafka_topic()
    with (
        Producer(kafka.connection, transactional_id=topic) as old,
        Producer(kafka.connection, transactional_id=topic) as new,
    ):

        def overtaken() -> None:
            with old.transaction() as tx:
                tx.send(topic, b"old, open when it is fenced")
                with new.transaction() as taken:
                    taken.send(topic, b"new")
                tx.send(topic, b"too late")

        def again() -> None:
            with old.transaction() as tx:
                tx.send_soon(topic, b"too late")

        with old.transaction() as tx:
            tx.send(topic, b"old")
        for late in (overtaken, again):
            with pytest.raises(ProducerFencedError):
                late()
    assert values(read(kafka, topic)) == [b"old", b"new"]


def test_a_transaction_fenced_at_its_commit(kafka: KafkaUnderTest, kafka_topic: MakeTopic) -> None:
    topic = kafka_topic()
    old, new = (Producer(kafka.connection, transactional_id=topic) for _ in range(2))
    with old, new:
        tx = old.transaction()
        tx.begin()
        tx.send(topic, b"old")
        with new.transaction() as taken:
            taken.send(topic, b"new")
        with pytest.raises(ProducerFencedError):
            tx.commit()
    assert values(read(kafka, topic)) == [b"new"]


def test_transactions_do_not_nest(kafka: KafkaUnderTest, kafka_topic: MakeTopic) -> None:
    topic = kafka_topic()
    with Producer(kafka.connection, transactional_id=topic) as producer:
        with producer.transaction() as tx:
            tx.send(topic, b"x")
            with pytest.raises(UsageError, match="open already"), producer.transaction():
                pass
        with pytest.raises(UsageError, match="not open"):
            tx.send(topic, b"y")
    assert len(read(kafka, topic)) == 1


def test_closing_in_a_transaction_aborts_it(kafka: KafkaUnderTest, kafka_topic: MakeTopic) -> None:
    topic = kafka_topic()
    producer = Producer(kafka.connection, transactional_id=topic)
    tx = producer.transaction()
    tx.begin()
    tx.send(topic, b"x")
    producer.close()
    assert read(kafka, topic) == []


class DiedError(Exception):
    """A worker's death, in the middle of things."""


def raw_batches(kafka: KafkaUnderTest, source: str) -> Iterator[tuple[Any, list[bytes]]]:
    """The bare client, as its users would use it: (consumer, values) until the end."""
    properties = {
        "group.id": source,
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
        "enable.partition.eof": True,
    }
    consumer = BareConsumer(kafka.connection.properties(properties))
    consumer.subscribe([source])
    try:
        more = True
        while more:
            batch = consumer.consume(60, timeout=0.5)
            records = [each.value() or b"" for each in batch if each.error() is None]
            more = len(records) == len(batch)
            yield consumer, records
    finally:
        consumer.close()


def our_batches(kafka: KafkaUnderTest, source: str) -> Iterator[tuple[Any, list[bytes]]]:
    with Consumer(source, group=source, connection=kafka.connection, commit="manual", follow=False) as consumer:
        for batch in consumer.batches(60):
            yield consumer, [each.raw or b"" for each in batch]


@pytest.mark.parametrize("batches", [raw_batches, our_batches])
def test_read_transform_write_exactly_once(
    kafka: KafkaUnderTest,
    kafka_topic: MakeTopic,
    batches: Callable[[KafkaUnderTest, str], Iterator[tuple[Any, list[bytes]]]],
) -> None:
    """A worker that dies again and again, before and after it has told its offsets, changes each record once."""
    source, target = kafka_topic("source"), kafka_topic("target")
    with Producer(kafka.connection) as producer:
        producer.send_all(source, [str(n) for n in range(500)])
    deaths = iter([(0, 3), (0, 60), (2, 0), (1, 59), (1, 60), (3, 1)])

    def work() -> None:
        batch_of_death, record_of_death = next(deaths, (-1, -1))
        with (
            Producer(kafka.connection, transactional_id=source) as producer,
            contextlib.closing(batches(kafka, source)) as reading,  # type: ignore[type-var]
        ):
            for number, (consumer, records) in enumerate(reading):
                with producer.transaction() as tx:
                    for position, value in enumerate(records):
                        if (number, position) == (batch_of_death, record_of_death):
                            raise DiedError
                        tx.send_soon(target, b"changed " + value)
                    tx.commit_offsets(consumer)
                    if number == batch_of_death and record_of_death >= len(records):
                        raise DiedError

    for _ in range(6):
        with pytest.raises(DiedError):
            work()
    work()
    assert values(read(kafka, target)) == [f"changed {n}".encode() for n in range(500)]


def test_a_consumer_that_commits_by_itself_cannot_be_part_of_a_transaction(
    kafka: KafkaUnderTest, kafka_topic: MakeTopic
) -> None:
    topic = kafka_topic()
    with (
        Producer(kafka.connection, transactional_id=topic) as producer,
        Consumer(topic, group=topic, connection=kafka.connection) as consumer,
        producer.transaction() as tx,
        pytest.raises(UsageError, match="cannot be part of a transaction"),
    ):
        tx.commit_offsets(consumer)
