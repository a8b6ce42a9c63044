"""The producer against a real broker: what is acknowledged is there, once and in order; what is not is told."""

import os
import re
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from riverrun.errors import (
    DeliveryError,
    EventInvalidError,
    HandlerError,
    RecordTooLargeError,
    TopicNotFoundError,
    UsageError,
)
from riverrun.kafka.producer.metrics import ProducerMetrics
from riverrun.kafka.producer.producer import Producer
from riverrun.model.topic import Topic
from riverrun.testing.pytest_plugin import KafkaUnderTest
from support.producing import NOON, SCHEMA, MakeTopic, Reading, numbers, read, reading, values

pytestmark = pytest.mark.kafka


# --- one record --------------------------------------------------------------------------------------------------------


def test_a_record_is_where_its_receipt_says(kafka: KafkaUnderTest, kafka_topic: MakeTopic) -> None:
    topic = Topic(kafka_topic(partitions=4), Reading, partitions=4)
    before = datetime.now(UTC)
    with Producer(kafka.connection) as producer:
        receipts = [producer.send(topic, reading(n)) for n in range(20)]
    found = {(each.partition(), each.offset()): each for each in read(kafka, topic.name)}
    assert len(found) == 20
    for number, receipt in enumerate(receipts):
        message = found[receipt.partition, receipt.offset]
        assert SCHEMA.decode(message.value() or b"") == reading(number)
        assert message.key() == f"house-{number % 17}".encode()
        assert message.headers() == [("riverrun.schema", b"Reading/1")]
        assert receipt.timestamp.timestamp() * 1000 == pytest.approx(message.timestamp()[1])
        assert before - timedelta(seconds=1) < receipt.timestamp < datetime.now(UTC), (
            "the time of sending, not the event's"
        )
        assert str(receipt) == f"{topic.name}[{receipt.partition}]@{receipt.offset}"


def test_keys_go_where_java_puts_them(kafka: KafkaUnderTest, kafka_topic: MakeTopic) -> None:
    """Partitions as Kafka's own DefaultPartitioner chooses them: murmur2 of the key, positive, modulo."""

    def murmur2(data: bytes) -> int:
        mask, m = 0xFFFFFFFF, 0x5BD1E995
        h = (0x9747B28C ^ len(data)) & mask
        whole = len(data) - len(data) % 4
        for i in range(0, whole, 4):
            k = int.from_bytes(data[i : i + 4], "little") * m & mask
            h = (h * m & mask) ^ ((k ^ k >> 24) * m & mask)
        if rest := data[whole:]:
            h = ((h ^ int.from_bytes(rest, "little")) * m) & mask
        h = ((h ^ h >> 13) * m) & mask
        return h ^ h >> 15

    topic = kafka_topic(partitions=7)
    with Producer(kafka.connection) as producer:
        for name in ("a", "house-1", "Häuser", "x" * 33, "21"):
            assert producer.send(topic, b"", key=name).partition == (murmur2(name.encode()) & 0x7FFFFFFF) % 7


def test_all_that_can_be_chosen_about_a_record(kafka: KafkaUnderTest, kafka_topic: MakeTopic) -> None:
    topic = kafka_topic(partitions=3)
    when = datetime(2026, 2, 3, tzinfo=UTC)
    with Producer(kafka.connection) as producer:
        receipt = producer.send(
            topic, {"a": 1}, key=b"\x00k", partition=2, headers={"h": "x", "n": None}, timestamp=when
        )
        producer.send(topic, reading(5), partition=2)
        producer.send(topic, None, key="gone", partition=2)
    first, second, third = read(kafka, topic)
    assert (receipt.partition, receipt.timestamp) == (2, when)
    assert (first.value(), first.key(), first.headers()) == (b'{"a":1}', b"\x00k", [("h", b"x"), ("n", None)])
    assert (second.key(), second.headers()) == (b"house-5", [("riverrun.schema", b"Reading/1")])
    assert (third.value(), third.key()) == (None, b"gone")


def test_a_synchronous_send_does_not_linger(kafka: KafkaUnderTest, kafka_topic: MakeTopic) -> None:
    with Producer(kafka.connection, linger_ms=2000) as producer:
        producer.send(topic := kafka_topic(), b"")
        started = time.monotonic()
        for _ in range(5):
            producer.send(topic, b"")
        assert time.monotonic() - started < 2
        started = time.monotonic()
        assert producer.send_soon(topic, b"").result().offset == 6
        assert time.monotonic() - started < 2


def test_deliveries_and_callbacks(kafka: KafkaUnderTest, kafka_topic: MakeTopic) -> None:
    topic = Topic(kafka_topic(), Reading)
    called: list[int] = []
    with Producer(kafka.connection) as producer:
        deliveries = [
            producer.send_soon(topic, reading(n), on_delivery=lambda d: called.append(d.result().offset))
            for n in range(1000)
        ]
        assert [delivery.result().offset for delivery in deliveries] == list(range(1000))
        assert all(delivery.done() and delivery.exception() is None for delivery in deliveries)
    assert called == list(range(1000)), "each once, in the order of the partition"
    assert numbers(read(kafka, topic.name)) == list(range(1000))


def test_callbacks_come_while_nobody_calls(kafka: KafkaUnderTest, kafka_topic: MakeTopic) -> None:
    threads: list[str] = []
    called = threading.Event()

    def on_delivery(_: Any) -> None:
        threads.append(threading.current_thread().name)
        called.set()

    with Producer(kafka.connection) as producer:
        producer.send_soon(kafka_topic(), b"x", on_delivery=on_delivery)
        assert called.wait(5)
    assert threads == ["riverrun-producer"]


# --- many records ------------------------------------------------------------------------------------------------------


def test_send_all_sends_all_in_order(kafka: KafkaUnderTest, kafka_topic: MakeTopic) -> None:
    topic = Topic(kafka_topic(partitions=4), Reading, partitions=4)
    with Producer(kafka.connection) as producer:
        assert producer.send_all(topic, (reading(n) for n in range(50_000))) == 50_000
        assert producer.metrics() == ProducerMetrics(
            sent=50_000,
            acknowledged=50_000,
            failed=0,
            queued=0,
            bytes=sum(len(SCHEMA.encode(reading(n))) for n in range(50_000)),
        )
        assert producer.send_all(topic, []) == 0
    found = read(kafka, topic.name)
    assert sorted(numbers(found)) == list(range(50_000))
    by_house: dict[bytes, list[int]] = {}
    for message, number in zip(found, numbers(found), strict=True):
        assert message.headers() == [("riverrun.schema", b"Reading/1")]
        by_house.setdefault(message.key() or b"", []).append(number)
    assert len(by_house) == 17
    assert all(each == sorted(each) for each in by_house.values())


def test_send_all_keeps_its_place_among_other_sends(kafka: KafkaUnderTest, kafka_topic: MakeTopic) -> None:
    topic = Topic(kafka_topic(), Reading)
    with Producer(kafka.connection, linger_ms=500) as producer:
        producer.send_all(topic, [reading(0)])
        for n in range(1, 10):
            producer.send_soon(topic, reading(n))
        producer.send_all(topic, [reading(n) for n in range(10, 20)])
        producer.send(topic, reading(20))
    assert numbers(read(kafka, topic.name)) == list(range(21))


def test_send_all_takes_values_of_any_kind(kafka: KafkaUnderTest, kafka_topic: MakeTopic) -> None:
    topic = kafka_topic()
    with Producer(kafka.connection) as producer:
        assert producer.send_all(topic, [{"n": 1}, b"raw", "text", reading(3)]) == 4
        assert producer.send_all(topic, ({"n": n} for n in range(3)), key=lambda value: str(value["n"])) == 3
    found = read(kafka, topic)
    assert [each.value() for each in found[:3]] == [b'{"n":1}', b"raw", b"text"]
    assert [each.key() for each in found] == [None, None, None, b"house-3", b"0", b"1", b"2"]


def test_threads_share_a_producer(kafka: KafkaUnderTest, kafka_topic: MakeTopic) -> None:
    topic = Topic(kafka_topic(partitions=2), Reading, partitions=2)
    with Producer(kafka.connection) as producer:

        def work(base: int) -> None:
            for n in range(base, base + 1000):
                producer.send_soon(topic, reading(n, f"t{base}"))
            producer.send(topic, reading(base + 1000, f"t{base}"))
            producer.send_all(topic, [reading(n, f"t{base}") for n in range(base + 1001, base + 2000)])

        threads = [threading.Thread(target=work, args=(base * 10_000,)) for base in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        producer.flush()
        assert producer.metrics().acknowledged == 8000
    found = read(kafka, topic.name)
    assert len(found) == 8000
    for base in range(4):
        mine = [n for n in numbers(found) if n // 10_000 == base]
        assert mine == list(range(base * 10_000, base * 10_000 + 2000)), "each thread's own records in its order"


# --- mistakes ----------------------------------------------------------------------------------------------------------


def test_an_unknown_topic_is_said_soon(kafka: KafkaUnderTest, kafka_topic: MakeTopic) -> None:
    there = kafka_topic()
    with Producer(kafka.connection) as producer:
        for send in (producer.send, producer.send_soon):
            started = time.monotonic()
            with pytest.raises(TopicNotFoundError, match=re.escape(f"Did you mean {there}?")) as caught:
                send(there[:-1], b"")
            assert time.monotonic() - started < 4
            assert caught.value.fields["topic"] == there[:-1]
        with pytest.raises(TopicNotFoundError):
            producer.send_all("no-such-topic", [b""])
        producer.send(there, b"")


def test_a_topic_that_is_made_a_moment_later_is_found(kafka: KafkaUnderTest, kafka_topic: MakeTopic) -> None:
    with Producer(kafka.connection) as producer:
        with pytest.raises(TopicNotFoundError):
            producer.send("not-yet", b"")
        producer.send(kafka_topic(), b"")


def test_a_partition_that_is_not_there(kafka: KafkaUnderTest, kafka_topic: MakeTopic) -> None:
    with Producer(kafka.connection) as producer, pytest.raises(UsageError, match="has no partition 2"):
        producer.send(kafka_topic(partitions=2), b"", partition=2)


def test_records_too_large_for_the_producer_and_for_the_topic(kafka: KafkaUnderTest, kafka_topic: MakeTopic) -> None:
    topic = kafka_topic(config={"max.message.bytes": "2000"})
    with Producer(kafka.connection) as producer:
        with pytest.raises(RecordTooLargeError, match="1000001 bytes"):
            producer.send(topic, b"x" * 1_000_001)
        with pytest.raises(RecordTooLargeError, match="The cluster refused a batch"):
            producer.send(topic, os.urandom(5000))
        producer.send_soon(topic, os.urandom(5000))
        with pytest.raises(DeliveryError, match="1 record was not delivered") as caught:
            producer.flush()
        assert isinstance(caught.value.undelivered[0].error, RecordTooLargeError)
        assert len(caught.value.undelivered[0].value or b"") == 5000
        with pytest.raises(DeliveryError) as caught:
            producer.send_all(topic, [b"small", os.urandom(5000)])
        producer.send(topic, b"fits")


def test_a_wrong_event_is_not_sent(kafka: KafkaUnderTest, kafka_topic: MakeTopic) -> None:
    topic = Topic(kafka_topic(), Reading)
    with Producer(kafka.connection) as producer:
        with pytest.raises(EventInvalidError):
            producer.send(topic, Reading(house_id="h", number="1", at=NOON))  # type: ignore[arg-type]
        with pytest.raises(EventInvalidError) as caught:
            producer.send_all(
                topic, [reading(0), reading(1), Reading(house_id="h", number=2, at=NOON.replace(tzinfo=None))]
            )
        assert not hasattr(caught.value, "__notes__")
    assert numbers(read(kafka, topic.name)) == [0, 1], "what came before it was delivered"


def test_metrics_tell_latencies(kafka: KafkaUnderTest, kafka_topic: MakeTopic) -> None:
    seen: list[ProducerMetrics] = []
    enough = threading.Event()

    def on_metrics(metrics: ProducerMetrics) -> None:
        seen.append(metrics)
        if metrics.latency_ms is not None:
            enough.set()

    topic = kafka_topic()
    with Producer(kafka.connection, on_metrics=on_metrics, metrics_seconds=0.2) as producer:
        deadline = time.monotonic() + 20
        while not enough.wait(0.01):
            assert time.monotonic() < deadline
            producer.send(topic, b"x")
    last = next(each for each in seen if each.latency_ms is not None)
    assert last.queue_ms is not None
    assert last.broker_ms is not None
    assert 0 < last.latency_ms == pytest.approx(last.queue_ms + last.broker_ms)  # type: ignore[operator]
    assert last.sent == last.acknowledged + last.queued


# --- back pressure and trouble -----------------------------------------------------------------------------------------


def test_a_program_that_forgets_to_close_loses_nothing(kafka: KafkaUnderTest, kafka_topic: MakeTopic) -> None:
    topic = kafka_topic()
    code = (
        "import sys, riverrun as rr\n"
        "producer = rr.Producer(rr.connect(sys.argv[1]), linger_ms=1000)\n"
        "for n in range(100): producer.send_soon(sys.argv[2], str(n))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, kafka.bootstrap_servers, topic],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "")
    assert "A producer was not closed; 100 records were waiting, and have been delivered now" in done.stderr
    assert values(read(kafka, topic)) == [str(n).encode() for n in range(100)]


def test_a_forked_child_makes_its_own_producer(kafka: KafkaUnderTest, kafka_topic: MakeTopic) -> None:
    topic = kafka_topic()
    code = """
import os, sys, riverrun as rr
producer = rr.Producer(rr.connect(sys.argv[1]))
producer.send(sys.argv[2], "parent")
pending = producer.send_soon(sys.argv[2], "parent, before the fork")
child = os.fork()
if child == 0:
    try:
        producer.send(sys.argv[2], "never")
    except rr.RiverrunError as error:
        print(error.code, flush=True)
    with rr.Producer(rr.connect(sys.argv[1])) as own:
        own.send(sys.argv[2], "child")
    sys.exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
pending.result()
producer.send(sys.argv[2], "parent again")
producer.close()
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", code, kafka.bootstrap_servers, topic],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "USAGE\n", "")
    found = values(read(kafka, topic))
    assert sorted(found, key=str) == sorted([b"parent", b"parent, before the fork", b"child", b"parent again"], key=str)


def test_callbacks_may_send(kafka: KafkaUnderTest, kafka_topic: MakeTopic) -> None:
    """Also to a topic that is used for the first time, which is looked up by another thread."""
    one, two = kafka_topic("one"), kafka_topic("two")
    with Producer(kafka.connection) as producer:
        for n in range(100):
            producer.send_soon(one, str(n), on_delivery=lambda d: producer.send_soon(two, str(d.result().offset)))
        producer.flush()
        producer.send_soon(one, b"", on_delivery=lambda _: producer.send_soon("no-such-topic", b""))
        with pytest.raises(HandlerError, match="TopicNotFoundError"):
            producer.flush()
    assert values(read(kafka, two)) == [str(n).encode() for n in range(100)]
