"""Handling in parallel on a real broker: order, bounds, retries, dead letters, and what is committed."""

import os
import secrets
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import riverrun as rr
from riverrun.errors import HandlerError, RecordUnreadableError, TopicNotFoundError, UsageError
from riverrun.kafka.consumer.consumer import Consumer
from riverrun.kafka.consumer.dead_letter import DeadLetter
from riverrun.kafka.consumer.retry import Retry
from riverrun.testing.pytest_plugin import KafkaUnderTest
from support.cluster import wait_for
from support.consuming import Bench

pytestmark = pytest.mark.kafka

QUICK = Retry(times=2, first_seconds=0.01)


class Reading(rr.Event):
    house_id: str = rr.key()
    load_kw: float = rr.field(ge=0)


@pytest.fixture
def bench(kafka: KafkaUnderTest, kafka_topic: Callable[..., str]) -> Bench:
    return Bench(kafka.connection, kafka_topic)


@pytest.fixture
def wide(kafka: KafkaUnderTest, kafka_topic: Callable[..., str]) -> Bench:
    return Bench(kafka.connection, kafka_topic, partitions=4)


def fail(_record: rr.Record[Any]) -> None:
    raise ZeroDivisionError


def ignore(_record: rr.Record[Any]) -> None:
    pass


class Log:
    """What handlers saw, in the order they saw it, and how many were at work at once."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.seen: list[rr.Record[Any]] = []
        self.busy: dict[Any, int] = defaultdict(int)
        self.most_busy = 0
        self.overlaps: list[Any] = []

    def begin(self, record: rr.Record[Any], lane: Any) -> None:
        with self.lock:
            self.seen.append(record)
            self.busy[lane] += 1
            if self.busy[lane] > 1:
                self.overlaps.append(lane)
            self.most_busy = max(self.most_busy, sum(self.busy.values()))

    def end(self, lane: Any) -> None:
        with self.lock:
            self.busy[lane] -= 1

    def values(self) -> list[Any]:
        return [record.value for record in self.seen]


# --- order ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["partition", "key", "none"])
def test_order_is_kept_where_it_must_be_and_nowhere_else(wide: Bench, order: Any) -> None:
    wide.fill(400, keys=23)
    log = Log()
    lanes: dict[str, Callable[[rr.Record[Any]], Any]] = {
        "partition": lambda record: record.partition,
        "key": lambda record: (record.partition, record.key),
        "none": lambda record: record.value,
    }

    def handle(record: rr.Record[Any]) -> None:
        lane = lanes[order](record)
        log.begin(record, lane)
        time.sleep(0.001)
        log.end(lane)

    with wide.consumer() as consumer:
        metrics = consumer.run(handle, workers=8, order=order)
    assert sorted(log.values()) == list(range(400))
    assert log.overlaps == []
    by_lane: dict[Any, list[int]] = defaultdict(list)
    for record in log.seen:
        by_lane[lanes[order](record)].append(record.value)
    assert all(values == sorted(values) for values in by_lane.values())
    assert log.most_busy > (4 if order != "partition" else 1)
    assert (metrics.handled, metrics.in_flight, metrics.lag) == (400, 0, 0)
    assert wide.committed() == dict.fromkeys(range(4), 100)


# --- slow handlers ----------------------------------------------------------------------------------------------------


def test_a_slow_handler_bounds_what_is_in_flight_and_keeps_its_partitions(wide: Bench) -> None:
    wide.fill(5000)
    most: list[int] = []
    lost: list[Any] = []
    gate = threading.Event()
    options: dict[str, Any] = {"session_timeout_seconds": 6, "max_poll_seconds": 6, "follow": True}
    with wide.consumer(**options, on_lost=lost.append) as consumer:

        def handle(record: rr.Record[Any]) -> None:
            most.append(consumer.metrics().in_flight)
            # Longer than a plain loop may take: the group must see that this consumer lives.
            gate.wait(8)

        threading.Timer(8, gate.set).start()

        def stop_when_done() -> None:
            wait_for(lambda: len(most) >= 5000, 60, "not all were handled")
            consumer.stop()

        stopper = threading.Thread(target=stop_when_done)
        stopper.start()
        metrics = consumer.run(handle, workers=4, max_in_flight=200)
        stopper.join()
    assert max(most) <= 200
    assert (metrics.handled, lost) == (5000, [])
    assert wide.rest() == []


def test_a_bound_in_bytes_holds_as_well(bench: Bench) -> None:
    bench.send((b'"%s"' % (b"x" * 100_000), None, 0) for _ in range(60))
    most: list[int] = []
    with bench.consumer() as consumer:

        def handle(record: rr.Record[Any]) -> None:
            most.append(consumer.metrics().in_flight_bytes)
            time.sleep(0.005)

        consumer.run(handle, workers=2, max_in_flight_mb=1)
    assert max(most) <= 1024 * 1024 + 100_002
    assert len(most) == 60


def test_one_partition_that_is_stuck_does_not_stop_the_others(wide: Bench) -> None:
    for partition in range(4):
        wide.fill(2000, first=partition * 10_000, partition=partition)
    gate = threading.Event()
    log = Log()

    def handle(record: rr.Record[Any]) -> None:
        log.begin(record, record.partition)
        if record.partition == 0:
            gate.wait(60)
        log.end(record.partition)

    with wide.consumer(follow=True) as consumer:
        thread = threading.Thread(target=lambda: consumer.run(handle, workers=4, max_in_flight=400))
        thread.start()
        try:
            wait_for(lambda: len(log.seen) >= 6001, 60, "the others did not go on")
        finally:
            gate.set()
        wait_for(lambda: len(log.seen) >= 8000, 60, "the stuck one did not go on")
        consumer.stop()
        thread.join(30)
    zero = [record.offset for record in log.seen if record.partition == 0]
    assert zero == list(range(2000))
    assert log.overlaps == []
    assert wide.committed() == dict.fromkeys(range(4), 2000)


# --- errors -----------------------------------------------------------------------------------------------------------


def test_a_handler_that_fails_is_tried_again_while_others_go_on(wide: Bench) -> None:
    wide.fill(40)
    log = Log()
    failures: dict[int, int] = defaultdict(int)

    def handle(record: rr.Record[Any]) -> None:
        log.begin(record, record.partition)
        log.end(record.partition)
        if record.value % 10 == 0 and failures[record.value] < 2:
            failures[record.value] += 1
            raise ConnectionError(str(record.value))

    with wide.consumer() as consumer:
        metrics = consumer.run(handle, workers=4, retry=QUICK)
    assert (metrics.handled, metrics.failed, metrics.retried) == (40, 8, 8)
    for partition in range(4):
        offsets = [record.offset for record in log.seen if record.partition == partition]
        assert offsets == sorted(offsets)
    assert wide.rest() == []


def test_stop_names_the_record_and_commits_nothing_from_it_on(bench: Bench) -> None:
    bench.fill(20)

    def handle(record: rr.Record[Any]) -> None:
        if record.value == 7:
            raise ValueError("no such house")

    with bench.consumer() as consumer:
        with pytest.raises(HandlerError) as caught:
            consumer.run(handle, retry=QUICK)
        fields = caught.value.fields
        assert (fields["topic"], fields["partition"], fields["offset"], fields["attempts"]) == (bench.topic, 0, 7, 3)
        assert isinstance(caught.value.__cause__, ValueError)
        assert bench.committed() == {0: 7}
        # The consumer can still be used, and goes on with that record.
        assert next(consumer).value == 7
    assert bench.committed() == {0: 8}


def test_stop_lets_other_keys_finish_and_commits_only_up_to_the_failed_one(bench: Bench) -> None:
    bench.fill(20, keys=5)
    began = threading.Barrier(2, timeout=30)

    def handle(record: rr.Record[Any]) -> None:
        if record.value == 3:
            began.wait()
            raise ValueError
        if record.value == 4:
            began.wait()
            time.sleep(0.2)

    with pytest.raises(HandlerError), bench.consumer() as consumer:
        consumer.run(handle, workers=5, order="key", retry=0)
    assert bench.committed() == {0: 3}


def test_a_dead_letter_has_the_record_as_it_was_and_why_it_died(bench: Bench) -> None:
    value, key, headers = b'{"n": 1, "bytes": "\xc3\xa4"}', b"\x00\xff", [("trace", b"\x01\x02"), ("trace", b"")]
    bench.send([(value, key, 0)], headers=headers, timestamp=1_767_225_600_000)
    bench.fill(3)

    def handle(record: rr.Record[Any]) -> None:
        if record.offset == 0:
            raise KeyError("house")

    with bench.consumer() as consumer:
        metrics = consumer.run(handle, retry=QUICK, on_error="dead-letter")
    assert (metrics.handled, metrics.dead, metrics.failed) == (3, 1, 3)
    assert bench.committed() == {0: 4}
    (dead,) = dead_letters(bench)
    assert (dead.raw, dead.key) == (value, key)
    assert dead.headers[:2] == headers
    told = DeadLetter.from_record(dead)
    assert told is not None
    assert (told.topic, told.partition, told.offset) == (bench.topic, 0, 0)
    assert (told.error, told.message, told.attempts, told.group) == ("KeyError", "'house'", 3, bench.group)
    assert told.timestamp_ms == 1_767_225_600_000
    assert dead.timestamp is not None
    assert abs((dead.timestamp - told.at).total_seconds()) < 30


def dead_letters(bench: Bench, topic: str = "") -> list[rr.Record[Any]]:
    with Consumer(topic or f"{bench.topic}.dead", connection=bench.connection, follow=False) as consumer:
        return list(consumer)


def test_a_dead_letter_is_written_before_its_offset_is_committed(bench: Bench) -> None:
    bench.fill(1)
    order: list[str] = []
    with bench.consumer(commit="record") as consumer:
        send = consumer._subscription.committer._send

        def count_and_send(offsets: Any) -> None:
            order.append(f"{len(dead_letters(bench))} dead")
            send(offsets)

        consumer._subscription.committer._send = count_and_send
        consumer.run(fail, retry=0, on_error="dead-letter")
    assert order == ["1 dead"]


def test_the_largest_record_a_topic_takes_has_room_in_its_dead_letters(
    kafka: KafkaUnderTest, kafka_topic: Callable[..., str]
) -> None:
    topic = kafka_topic(config={"max.message.bytes": "2000"})
    bench = Bench(kafka.connection, kafka_topic, topic=topic)
    bench.send([(secrets.token_bytes(1850), None, 0)])
    with bench.consumer() as consumer:
        assert consumer.run(ignore, on_unreadable="dead-letter").dead == 1
    assert len(dead_letters(bench)) == 1


def test_a_dead_letter_that_is_too_large_for_the_topic_there_is_keeps_what_fits(
    bench: Bench, kafka_topic: Callable[..., str]
) -> None:
    small = kafka_topic("small", config={"max.message.bytes": "2000"})
    value = secrets.token_bytes(50_000)
    bench.send([(value, None, 0), (b"x", None, 0)])
    with bench.consumer() as consumer:
        assert consumer.run(ignore, on_unreadable="dead-letter", dead_letter=small).dead == 2
    letters = dead_letters(bench, small)
    told = [DeadLetter.from_record(letter) for letter in letters]
    assert [each and (each.offset, each.original_size) for each in told] == [(0, 50_000), (1, 0)]
    assert value.startswith(letters[0].raw or b"-")


def test_without_a_dead_letter_topic_nothing_is_dropped(bench: Bench) -> None:
    bench.fill(3)
    with bench.consumer() as consumer, pytest.raises(TopicNotFoundError) as caught:
        consumer.run(fail, on_error="dead-letter", retry=0, create_dead_letter=False)
    assert caught.value.fields["topic"] == f"{bench.topic}.dead"
    assert bench.committed() == {}


def test_dead_letters_can_go_to_a_topic_of_ones_choice(bench: Bench) -> None:
    bench.fill(2)
    name = f"graveyard-{secrets.token_hex(4)}"
    with bench.consumer() as consumer:
        consumer.run(fail, on_error="dead-letter", retry=0, dead_letter=name)
    assert len(dead_letters(bench, name)) == 2


def test_skipping_is_counted_and_said(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.fill(3)

    def handle(record: rr.Record[Any]) -> None:
        if record.value == 1:
            raise ValueError("odd")

    with bench.consumer() as consumer:
        metrics = consumer.run(handle, retry=0, on_error="skip")
    assert (metrics.handled, metrics.skipped) == (2, 1)
    assert f"Skipped {bench.topic}[0]@1: ValueError: odd" in caplog.text
    assert bench.committed() == {0: 3}


def test_unreadable_records_go_their_own_way_and_are_not_tried_again(bench: Bench) -> None:
    bench.send([(b'{"house_id":"a","load_kw":1}', b"a", 0), (b'{"house_id":"a"}', b"a", 0), (None, b"a", 0)])
    topic = rr.Topic(bench.topic, Reading)
    options: dict[str, Any] = {"group": bench.group, "connection": bench.connection, "follow": False}
    seen: list[rr.Record[Reading]] = []
    with Consumer(topic, **options) as consumer:
        with pytest.raises(RecordUnreadableError) as caught:
            consumer.run(seen.append, retry=5)
        assert caught.value.fields["offset"] == 1
    assert bench.committed() == {0: 1}
    with Consumer(topic, **options) as consumer:
        metrics = consumer.run(seen.append, on_unreadable="dead-letter")
    assert (metrics.handled, metrics.dead, metrics.failed, metrics.retried) == (1, 1, 1, 0)
    assert [(record.offset, record.deleted) for record in seen] == [(0, False), (2, True)]
    (dead,) = dead_letters(bench)
    told = DeadLetter.from_record(dead)
    assert told is not None
    assert (dead.raw, told.error) == (b'{"house_id":"a"}', "RecordUnreadableError")
    assert "load_kw" in told.message


# --- commits and the end ----------------------------------------------------------------------------------------------


def test_at_most_once_commits_before_a_handler_begins(bench: Bench) -> None:
    bench.fill(5)
    committed: list[int] = []
    with bench.consumer(delivery="at-most-once") as consumer:
        consumer.run(lambda record: committed.append(bench.committed()[0] - record.offset), workers=1)
    assert len(committed) == 5
    assert min(committed) >= 1


@pytest.mark.parametrize("commit", ["record", "batch", "interval"])
def test_commits_follow_while_it_runs(wide: Bench, commit: Any) -> None:
    wide.fill(400)
    options: dict[str, Any] = {"commit": commit, "commit_interval_seconds": 0.1, "follow": True}
    with wide.consumer(**options) as consumer:
        thread = threading.Thread(target=lambda: consumer.run(ignore, workers=2))
        thread.start()
        wait_for(lambda: sum(wide.committed().values()) == 400, 20, "not all is committed")
        consumer.stop()
        thread.join(30)
        assert not thread.is_alive()


def test_a_handler_may_commit_by_itself(bench: Bench) -> None:
    bench.fill(10)
    with bench.consumer(commit="manual") as consumer:
        consumer.run(lambda record: consumer.commit() if record.value == 5 else None, workers=1)
    assert bench.committed() == {0: 5}


def test_a_consumer_does_one_thing_at_a_time(bench: Bench) -> None:
    bench.fill(1)
    problems: list[Exception] = []
    with bench.consumer() as consumer:

        def handle(record: rr.Record[Any]) -> None:
            try:
                consumer.pause()
            except UsageError as error:
                problems.append(error)

        consumer.run(handle)
        with pytest.raises(UsageError):
            consumer.run(handle, workers=0)
    assert len(problems) == 1


PROGRAM = """
    import sys, time
    import riverrun as rr

    topic, group, bootstrap, done = sys.argv[1:]
    with open(done, "w", buffering=1) as file, rr.Consumer(topic, group=group, connection=rr.connect(bootstrap)) as consumer:
        def handle(record):
            time.sleep(0.02)
            print(record.value, file=file)
        metrics = consumer.run(handle, workers=4, max_in_flight=50)
    print("handled", metrics.handled)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_with_exactly_what_was_done_committed(
    wide: Bench, tmp_path: Path, number: signal.Signals
) -> None:
    wide.fill(2000)
    program, done = tmp_path / "program.py", tmp_path / "done"
    program.write_text(textwrap.dedent(PROGRAM))
    arguments = [wide.topic, wide.group, wide.connection.bootstrap_servers, str(done)]
    with subprocess.Popen([sys.executable, program, *arguments], stdout=subprocess.PIPE, text=True) as child:
        try:
            wait_for(lambda: done.exists() and len(done.read_text().split()) > 100, 60, "it does not handle")
            os.kill(child.pid, number)
            out, _ = child.communicate(timeout=30)
        finally:
            child.kill()
    assert child.returncode == 0
    handled = [int(each) for each in done.read_text().split()]
    assert out == f"handled {len(handled)}\n"
    assert len(handled) == len(set(handled)) < 2000
    assert sum(wide.committed().values()) == len(handled)
    assert sorted(handled + wide.rest()) == list(range(2000))
