"""What a consumer says and does when records, topics or brokers are gone."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import riverrun as rr
from riverrun.cluster.kafka.local import LocalKafka
from riverrun.config import KafkaSettings
from riverrun.errors import CommitError, OffsetOutOfRangeError, TopicNotFoundError
from riverrun.kafka.connection import Connection
from riverrun.kafka.consumer.offset_gap import OffsetGap
from riverrun.testing.pytest_plugin import KafkaUnderTest, local_kafka
from support.cluster import wait_for
from support.consuming import Bench

pytestmark = pytest.mark.kafka


@pytest.fixture
def bench(kafka: KafkaUnderTest, kafka_topic: Callable[..., str]) -> Bench:
    return Bench(kafka.connection, kafka_topic)


@pytest.fixture
def wide(kafka: KafkaUnderTest, kafka_topic: Callable[..., str]) -> Bench:
    return Bench(kafka.connection, kafka_topic, partitions=2)


# --- records that are gone --------------------------------------------------------------------------------------------


def ignore(_record: rr.Record[object]) -> None:
    pass


def lose(bench: Bench, before: int, *, partition: int = 0) -> None:
    bench.admin.delete_records({bench.place(partition): before})


def test_a_reader_behind_the_log_is_told_and_goes_on(wide: Bench, caplog: pytest.LogCaptureFixture) -> None:
    wide.fill(200)
    wide.admin.alter_group_offsets(wide.group, {wide.place(0): 10, wide.place(1): 20})
    lose(wide, 50)
    told: list[OffsetOutOfRangeError] = []
    with wide.consumer(on_gone=told.append) as consumer:
        read = [(record.partition, record.offset) for record in consumer]
        assert consumer.metrics().gone == 40
    assert sorted(read) == [(0, offset) for offset in range(50, 100)] + [(1, offset) for offset in range(20, 100)]
    (error,) = told
    assert error.fields["count"] == 40
    assert error.fields["gaps"] == (OffsetGap(wide.place(0), 10, 50, 100),)
    assert f"40 records of {wide.topic} are gone" in caplog.text
    assert f"{wide.topic}[0] from 10 to 49" in caplog.text


def test_a_reader_told_to_stop_stops_and_skips_nothing(bench: Bench) -> None:
    bench.fill(100)
    bench.admin.alter_group_offsets(bench.group, {bench.place(): 10})
    lose(bench, 50)
    with bench.consumer(on_gone="stop") as consumer:
        with pytest.raises(OffsetOutOfRangeError):
            next(consumer)
        with pytest.raises(OffsetOutOfRangeError) as caught:
            next(consumer)
        assert (caught.value.fields["partition"], caught.value.fields["count"]) == (0, 40)
        # Whoever says where to go on, goes on.
        consumer.seek_to_beginning()
        assert next(consumer).offset == 50
    with bench.consumer(group="", on_gone="stop") as consumer:
        consumer.seek(0, 3)
        with pytest.raises(OffsetOutOfRangeError):
            next(consumer)


def test_records_lost_while_they_are_read_are_noticed(bench: Bench) -> None:
    bench.fill(10)
    with bench.consumer(follow=True) as consumer:
        for _ in range(10):
            next(consumer)
        consumer.pause()
        bench.fill(100, first=10)
        lose(bench, 60)
        consumer.resume()
        assert next(consumer).offset == 60
        assert consumer.metrics().gone == 50


@pytest.mark.parametrize("batches", [False, True])
def test_what_was_fetched_before_retention_came_is_handed_out(bench: Bench, batches: bool) -> None:
    for first in range(0, 200, 20):
        bench.fill(20, first=first)
    # The client fetches little ahead, so that retention can overtake it.
    little = {"queued.min.messages": 10, "max.partition.fetch.bytes": 400}
    with bench.consumer(properties=little) as consumer:
        seen = [next(consumer).value]
        lose(bench, 200)
        bench.fill(5, first=200)
        if batches:
            seen += [value for batch in consumer.batches(50) for value in batch.values()]
        else:
            seen += [record.value for record in consumer]
        gone = consumer.metrics().gone
    assert 0 < gone < 200
    assert seen == [*range(200 - gone), *range(200, 205)]
    assert bench.committed() == {0: 205}


def test_run_notices_as_well_and_commits_behind_the_gap(bench: Bench) -> None:
    bench.fill(100)
    bench.admin.alter_group_offsets(bench.group, {bench.place(): 10})
    lose(bench, 100)
    with bench.consumer() as consumer:
        metrics = consumer.run(ignore)
    # Nothing is left to read, and the group is not behind any more.
    assert (metrics.gone, metrics.handled) == (90, 0)
    assert bench.committed() == {0: 100}
    bench.admin.alter_group_offsets(bench.group, {bench.place(): 10})
    with bench.consumer(on_gone="stop") as consumer, pytest.raises(OffsetOutOfRangeError):
        consumer.run(ignore)
    assert bench.committed() == {0: 10}


def test_a_new_group_is_no_false_alarm(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.fill(100)
    lose(bench, 50)
    with bench.consumer(on_gone="stop") as consumer:
        assert next(consumer).offset == 50
        assert consumer.metrics().gone == 0
    with bench.consumer(on_gone="stop", start="latest", group="l" + bench.group) as consumer:
        assert list(consumer) == []
    assert caplog.text == ""


# --- topics that are gone ---------------------------------------------------------------------------------------------


def test_a_topic_deleted_while_it_is_read_is_said(bench: Bench) -> None:
    bench.fill(3)
    with bench.consumer(follow=True) as consumer:
        next(consumer)
        bench.admin.delete_topics([bench.topic])
        with pytest.raises(TopicNotFoundError, match="deleted while it was read"):
            list(consumer)


def test_a_topic_made_anew_is_read_from_its_beginning_and_said(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.fill(100)
    with bench.consumer() as consumer:
        assert len(list(consumer)) == 100
    bench.admin.delete_topics([bench.topic])
    bench.admin.create_topic(bench.topic, partitions=1, replicas=0, config={})
    bench.fill(5)
    bench.admin.alter_group_offsets(bench.group, {bench.place(): 100})
    with bench.consumer() as consumer:
        assert [record.value for record in consumer] == [0, 1, 2, 3, 4]
    assert "made anew" in caplog.text
    assert bench.committed() == {0: 5}


# --- brokers that are gone --------------------------------------------------------------------------------------------


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[LocalKafka]:
    with local_kafka(tmp_path, KafkaSettings()) as running:
        yield running


def bench_on(broker: LocalKafka) -> Bench:
    settings = replace(broker.settings, bootstrap_servers=broker.bootstrap_servers, request_timeout_seconds=3)
    bench = Bench(Connection(settings), lambda **_: "t", topic="t")
    bench.admin.create_topic("t", partitions=1, replicas=0, config={})
    return bench


@pytest.mark.slow
def test_a_broker_that_hangs_keeps_nobody_from_leaving_and_one_that_is_back_is_read_on(broker: LocalKafka) -> None:
    bench = bench_on(broker)
    bench.fill(10)
    pid = broker.nodes[0].pid
    began = 0.0
    try:
        consumer = bench.consumer(follow=True, close_seconds=2)
        next(consumer)
        os.kill(pid, signal.SIGSTOP)
        began = time.monotonic()
        with pytest.raises(CommitError):
            consumer.commit()
        with pytest.raises(CommitError):
            consumer.close()
    finally:
        os.kill(pid, signal.SIGCONT)
    # 3 s for the commit, 2 s for the commit at the end, 2 s to leave.
    assert time.monotonic() - began < 12
    seen: list[int] = []
    with bench.consumer(follow=True) as consumer:
        thread = threading.Thread(target=lambda: consumer.run(lambda record: seen.append(record.value)))
        thread.start()
        # The commit nobody waited for any more may have been done all the same.
        wait_for(lambda: seen[-1:] == [9], 60, "it is not read on")
        broker.nodes[0].kill()
        broker.nodes[0].restart()
        wait_for(lambda: back(bench), 60, "the broker is not back")
        bench.fill(5, first=10)
        wait_for(lambda: seen[-5:] == [10, 11, 12, 13, 14], 60, "it is not read on after a restart")
        consumer.stop()
        thread.join(60)
        assert not thread.is_alive()
    assert bench.committed() == {0: 15}


def back(bench: Bench) -> bool:
    try:
        return bool(bench.admin.brokers())
    except rr.RiverrunError:
        return False
