"""Acknowledged is durable: brokers die with kill -9 while records are sent; none missing, none twice, none out of order."""

import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from riverrun.app import App
from riverrun.cluster.kafka.local import LocalKafka
from riverrun.config import KafkaSettings
from riverrun.kafka.admin.admin import Admin
from riverrun.kafka.admin.topics import apply_topics
from riverrun.kafka.connection import Connection
from riverrun.kafka.producer.producer import Producer
from riverrun.model.event import Event, key

COUNT = 200_000
PARTITIONS = 6


class Numbered(Event):
    lane: str = key()
    number: int


app = App("kill")
numbers = app.topic("numbers", Numbered, partitions=PARTITIONS, replicas=3, config={"min.insync.replicas": "2"})


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalKafka]:
    settings = KafkaSettings(brokers=3, replication=3, min_insync=2)
    with LocalKafka(tmp_path_factory.mktemp("three"), settings, first_port=random.randrange(12000, 28000, 10)) as kafka:
        yield kafka


def read_all(servers: str, topic: str, partitions: int) -> dict[int, list[tuple[str, int]]]:
    """Everything in the topic, read by the bare client: (lane, number) by partition, in order."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "check", "enable.auto.commit": False})
    try:
        places = [TopicPartition(topic, each) for each in range(partitions)]
        ends = {place.partition: consumer.get_watermark_offsets(place, timeout=30)[1] for place in places}
        consumer.assign([TopicPartition(topic, each, OFFSET_BEGINNING) for each in range(partitions)])
        found: dict[int, list[tuple[str, int]]] = {each: [] for each in range(partitions)}
        reached = dict.fromkeys(range(partitions), 0)
        deadline = time.monotonic() + 90
        while any(reached[each] < ends[each] for each in found):
            assert time.monotonic() < deadline, f"read {reached} of {ends}"
            for message in consumer.consume(10_000, timeout=1.0):
                assert message.error() is None
                event = numbers.schema.decode(message.value())  # type: ignore[union-attr,arg-type]
                found[message.partition()].append((event.lane, event.number))  # type: ignore[index]
                reached[message.partition()] = message.offset() + 1  # type: ignore[index,operator]
        return found
    finally:
        consumer.close()


@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.timeout(240)
def test_brokers_die_while_records_are_sent(three: LocalKafka) -> None:
    connection = Connection(KafkaSettings(bootstrap_servers=three.bootstrap_servers))
    apply_topics(Admin(connection), [numbers])
    killed: list[str] = []

    def events() -> Iterator[Numbered]:
        for number in range(COUNT):
            if number == COUNT // 4:
                three.brokers[0].kill()
                killed.append(three.brokers[0].name)
            if number == COUNT // 2:
                three.brokers[0].restart()
            if number == COUNT * 3 // 4:
                wait_for_copies(connection)
                three.brokers[1].kill()
                killed.append(three.brokers[1].name)
            yield Numbered(lane=f"lane-{number % 100}", number=number)

    with Producer(connection) as producer:
        assert producer.send_all(numbers, events()) == COUNT
    three.brokers[1].restart()
    assert killed == ["broker-1", "broker-2"]

    found = read_all(three.bootstrap_servers, "numbers", PARTITIONS)
    everything = [number for records in found.values() for _, number in records]
    assert len(everything) == COUNT, "none missing, none twice"
    assert set(everything) == set(range(COUNT))
    lanes: dict[str, list[int]] = {}
    for records in found.values():
        sent = [number for _, number in records]
        assert sent == sorted(sent), "order kept within a partition"
        for lane, number in records:
            lanes.setdefault(lane, []).append(number)
    assert len(lanes) == 100


def wait_for_copies(connection: Connection) -> None:
    """Until the broker that came back has caught up: two dead of three would be one too many."""
    admin = Admin(connection)
    deadline = time.monotonic() + 60
    while any(len(partition.in_sync) < 3 for partition in admin.topic("numbers").partitions):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_data_of_three_brokers_fits_the_folder_given(three: LocalKafka) -> None:
    assert {Path(broker.folder).parent for broker in three.brokers} == {three.home.data / "kafka"}
