"""Plain loops over a real broker: what is handed out, what is committed, and where reading goes on."""

import re
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from confluent_kafka import OFFSET_INVALID, KafkaError, Producer

import riverrun as rr
from riverrun.errors import (
    BrokerUnreachableError,
    CommitError,
    MaxPollExceededError,
    RecordUnreadableError,
    TopicNotFoundError,
    UsageError,
)
from riverrun.kafka.connection import connect
from riverrun.kafka.consumer.consumer import Consumer
from riverrun.model.cluster_state import TopicPartition
from riverrun.testing.pytest_plugin import KafkaUnderTest
from support.cluster import wait_for
from support.consuming import Bench

pytestmark = pytest.mark.kafka


class Reading(rr.Event):
    house_id: str = rr.key()
    load_kw: float = rr.field(ge=0)


@pytest.fixture
def bench(kafka: KafkaUnderTest, kafka_topic: Callable[..., str]) -> Bench:
    return Bench(kafka.connection, kafka_topic)


@pytest.fixture
def wide(kafka: KafkaUnderTest, kafka_topic: Callable[..., str]) -> Bench:
    return Bench(kafka.connection, kafka_topic, partitions=3)


# --- records and commits ----------------------------------------------------------------------------------------------


def test_typed_records_with_all_that_belongs_to_them(bench: Bench) -> None:
    before = datetime.now(UTC)
    bench.send([(b'{"house_id":"h1","load_kw":1.5}', b"h1", 0)], headers=[("trace", b"\x01")])
    with Consumer(rr.Topic(bench.topic, Reading), group=bench.group, connection=bench.connection) as consumer:
        record = next(consumer)
    assert record.value == Reading(house_id="h1", load_kw=1.5)
    assert record.raw == b'{"house_id":"h1","load_kw":1.5}'
    assert (record.key, record.headers) == (b"h1", [("trace", b"\x01")])
    assert str(record) == f"{bench.topic}[0]@0"
    assert record.timestamp is not None
    assert abs((record.timestamp - before).total_seconds()) < 30


def test_a_loop_reads_all_and_commits_what_it_read(wide: Bench) -> None:
    wide.fill(3000)
    with wide.consumer() as consumer:
        assert sorted(record.value for record in consumer) == list(range(3000))
        assert consumer.position() == {wide.place(each): 1000 for each in range(3)}
        metrics = consumer.metrics()
    assert (metrics.handled, metrics.lag, metrics.gone) == (3000, 0, 0)
    assert wide.committed() == {0: 1000, 1: 1000, 2: 1000}
    assert wide.rest() == []


def test_an_exception_leaves_the_record_in_hand(bench: Bench) -> None:
    bench.fill(10)

    def handle() -> None:
        with bench.consumer() as consumer:
            for record in consumer:
                _ = 1 / (record.value - 4)

    with pytest.raises(ZeroDivisionError):
        handle()
    assert bench.committed() == {0: 4}
    assert bench.rest() == [4, 5, 6, 7, 8, 9]


def test_a_break_counts_the_record_in_hand_as_done(bench: Bench) -> None:
    bench.fill(10)
    with bench.consumer() as consumer:
        for record in consumer:
            if record.value == 4:
                break
    assert bench.rest() == [5, 6, 7, 8, 9]


def test_nothing_read_is_nothing_committed(bench: Bench) -> None:
    bench.fill(10)
    with bench.consumer():
        pass
    assert bench.committed() == {}


def test_each_record_is_committed_before_the_next_is_handed_out(bench: Bench) -> None:
    bench.fill(5)
    with bench.consumer(commit="record") as consumer:
        for record in consumer:
            assert bench.committed() == ({0: record.offset} if record.offset else {})


def test_an_interval_commits_while_the_loop_goes_on(bench: Bench) -> None:
    bench.fill(1)
    with bench.consumer(commit="interval", commit_interval_seconds=0.05, follow=True) as consumer:
        next(consumer)
        threading.Timer(1.0, consumer.stop).start()
        # Nothing more comes; the first record is done and must be committed meanwhile.
        assert list(consumer) == []
        assert bench.committed() == {0: 1}


def test_a_batch_of_the_loop_is_committed_when_it_is_used_up(bench: Bench) -> None:
    bench.fill(3)
    with bench.consumer(commit="batch", follow=True) as consumer:
        for _ in range(3):
            next(consumer)
        assert bench.committed() == {}
        bench.fill(1, first=3)
        next(consumer)
        assert bench.committed() == {0: 3}


def test_manual_commits_are_the_only_ones(bench: Bench) -> None:
    bench.fill(10)
    with bench.consumer(commit="manual") as consumer:
        for record in consumer:
            if record.value == 3:
                consumer.commit()
            if record.value == 6:
                consumer.commit(wait=False)
    assert bench.committed() == {0: 7}
    with bench.consumer(commit="manual") as consumer:
        assert len(list(consumer)) == 3
        consumer.commit()
    assert bench.committed() == {0: 10}


def test_a_commit_can_stop_at_a_record(bench: Bench) -> None:
    bench.fill(10)
    with bench.consumer(commit="manual") as consumer:
        records = list(next(consumer.batches(10)))
        consumer.commit(through=records[6])
    assert bench.committed() == {0: 7}


def test_at_most_once_commits_before_it_hands_out(bench: Bench) -> None:
    bench.fill(10)

    def handle() -> None:
        with bench.consumer(delivery="at-most-once") as consumer:
            for record in consumer:
                assert bench.committed() == {0: record.offset + 1}
                _ = 1 / (record.value - 3)

    with pytest.raises(ZeroDivisionError):
        handle()
    assert bench.rest() == [4, 5, 6, 7, 8, 9]


def test_at_most_once_commits_a_batch_before_it_hands_it_out(bench: Bench) -> None:
    bench.fill(10)

    def handle() -> None:
        with bench.consumer(delivery="at-most-once") as consumer:
            for batch in consumer.batches(4):
                assert bench.committed() == {0: 4}
                _ = 1 / batch[0].value

    with pytest.raises(ZeroDivisionError):
        handle()
    assert bench.rest() == [4, 5, 6, 7, 8, 9]


def test_without_a_group_everything_is_read_and_nothing_stored(wide: Bench) -> None:
    wide.fill(30)
    for _ in range(2):
        with wide.consumer(group="") as consumer:
            assert sorted(record.value for record in consumer) == list(range(30))
    assert wide.group not in wide.admin.group_names()


def test_chosen_partitions_are_the_only_ones_read(wide: Bench) -> None:
    wide.fill(30)
    with wide.consumer(partitions=[1]) as consumer:
        assert sorted(record.value for record in consumer) == [n for n in range(30) if n % 3 == 1]
    assert wide.committed() == {1: 10}
    with pytest.raises(TopicNotFoundError, match=r"no partition .*\[9\]"), wide.consumer(partitions=[9]) as consumer:
        next(consumer)


def test_transactions_hide_what_was_aborted_and_their_markers_are_no_lag(bench: Bench) -> None:
    producer = Producer(bench.connection.properties({"transactional.id": bench.topic}))
    producer.init_transactions(30)
    for number, commits in enumerate([True, False, True]):
        producer.begin_transaction()
        producer.produce(bench.topic, str(number).encode())
        producer.flush(30)
        producer.commit_transaction(30) if commits else producer.abort_transaction(30)
    with bench.consumer() as consumer:
        assert [record.value for record in consumer] == [0, 2]
        assert consumer.lag() == {bench.place(): 0}
    # Three records and a marker behind each.
    assert bench.committed() == {0: 6}
    with bench.consumer(group="", isolation="uncommitted") as consumer:
        assert [record.value for record in consumer] == [0, 1, 2]


# --- batches ----------------------------------------------------------------------------------------------------------


def test_batches_are_full_and_committed_when_the_next_is_asked_for(wide: Bench) -> None:
    wide.fill(2500)
    sizes: list[int] = []
    seen: list[int] = []
    with wide.consumer(commit="batch") as consumer:
        for batch in consumer.batches(1000):
            assert sum(wide.committed().values()) == len(seen)
            sizes.append(len(batch))
            seen += batch.values()
    assert sizes == [1000, 1000, 500]
    assert sorted(seen) == list(range(2500))
    assert sum(wide.committed().values()) == 2500


def test_a_batch_that_is_not_full_does_not_wait_for_ever(bench: Bench) -> None:
    bench.fill(3)
    with bench.consumer(follow=True) as consumer:
        batches = consumer.batches(1000, wait_seconds=0.3)
        began = time.monotonic()
        assert len(next(batches)) == 3
        assert time.monotonic() - began < 10


def test_an_exception_leaves_the_batch_in_hand(bench: Bench) -> None:
    bench.fill(10)

    def handle() -> None:
        with bench.consumer() as consumer:
            for batch in consumer.batches(3):
                _ = 1 / (batch[0].value - 6)

    with pytest.raises(ZeroDivisionError):
        handle()
    assert bench.committed() == {0: 6}


def test_loops_and_batches_can_be_mixed(bench: Bench) -> None:
    bench.fill(1000)
    with bench.consumer() as consumer:
        seen = [next(consumer).value for _ in range(10)]
        seen += next(consumer.batches(20)).values()
        seen += [record.value for record in consumer]
    assert seen == list(range(1000))


# --- unreadable records -----------------------------------------------------------------------------------------------


def test_an_unreadable_record_raises_with_its_place_and_can_be_skipped(bench: Bench) -> None:
    bench.send([(b"1", None, 0), (b"no json", None, 0), (b"3", None, 0)])

    def handle() -> None:
        with bench.consumer() as consumer:
            for record in consumer:
                _ = record.value

    with pytest.raises(RecordUnreadableError) as caught:
        handle()
    assert (caught.value.fields["topic"], caught.value.fields["offset"]) == (bench.topic, 1)
    assert bench.committed() == {0: 1}
    values, bad = [], []
    with bench.consumer() as consumer:
        for record in consumer:
            try:
                values.append(record.value)
            except RecordUnreadableError:
                bad.append(record.raw)
    assert (values, bad) == ([3], [b"no json"])
    assert bench.committed() == {0: 3}


# --- elsewhere --------------------------------------------------------------------------------------------------------


def test_seeking_back_and_forth(wide: Bench) -> None:
    wide.fill(30)
    with wide.consumer() as consumer:
        assert len(list(consumer)) == 30
        consumer.seek_to_beginning()
        assert sorted(record.value for record in consumer) == list(range(30))
        consumer.seek(1, 8)
        assert [record.value for record in consumer] == [25, 28]
        consumer.seek(TopicPartition(wide.topic, 0), 0)
        consumer.seek_to_end(0)
        assert list(consumer) == []
        consumer.seek_to_beginning(2)
    # A seek says that what lies before is done, and nothing behind it.
    assert wide.committed() == {0: 10, 1: 10, 2: 0}


def test_seeking_in_the_middle_of_a_loop_drops_what_was_fetched_ahead(bench: Bench) -> None:
    bench.fill(100)
    seen = []
    with bench.consumer() as consumer:
        for record in consumer:
            seen.append(record.value)
            if len(seen) == 5:
                consumer.seek(0, 90)
    assert seen == [0, 1, 2, 3, 4, *range(90, 100)]
    assert bench.committed() == {0: 100}


def test_seeking_to_a_time(bench: Bench) -> None:
    # Not long ago: retention looks at these times too.
    begin = datetime.now(UTC).replace(microsecond=0) - timedelta(hours=1)
    for number in range(3):
        stamp = begin + timedelta(seconds=number)
        bench.send([(str(number).encode(), None, 0)], timestamp=round(stamp.timestamp() * 1000))
    with bench.consumer() as consumer:
        consumer.seek_to_time(begin + timedelta(seconds=1))
        assert [record.value for record in consumer] == [1, 2]
        consumer.seek_to_time(begin + timedelta(minutes=5))
        assert list(consumer) == []


def test_a_seek_holds_though_the_group_is_told_later_that_it_has_no_offset(bench: Bench) -> None:
    bench.fill(3)
    with bench.consumer() as consumer:
        consumer.seek(0, 1)
        # The client asks for the group's offset as it gets a partition. On a busy machine the answer takes until now.
        consumer._subscription._handle_event(_Told(bench.place()))  # type: ignore[arg-type]
        assert [record.value for record in consumer] == [1, 2]


@dataclass
class _Told:
    """What the client says of a partition of which the group has no offset."""

    place: TopicPartition

    def error(self) -> KafkaError:
        return KafkaError(KafkaError._AUTO_OFFSET_RESET)

    def topic(self) -> str:
        return self.place.topic

    def partition(self) -> int:
        return self.place.partition

    def offset(self) -> int:
        return OFFSET_INVALID


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
@pytest.mark.parametrize("in_run", [False, True])
def test_partitions_begin_where_they_are_told_as_they_come(wide: Bench, protocol: Any, in_run: bool) -> None:
    wide.fill(30)
    wide.admin.alter_group_offsets(wide.group, {wide.place(0): 4})
    seen: list[tuple[int, int]] = []

    def came(places: list[TopicPartition]) -> None:
        for place in places:
            if place.partition:
                consumer.seek(place, 7 + place.partition)

    def note(record: rr.Record[Any]) -> None:
        seen.append((record.partition, record.offset))

    consumer = wide.consumer(protocol=protocol, on_assigned=came)
    with consumer:
        if in_run:
            consumer.run(note)
        else:
            for record in consumer:
                note(record)
    assert sorted(seen) == [*((0, offset) for offset in range(4, 10)), (1, 8), (1, 9), (2, 9)]
    assert wide.committed() == {0: 10, 1: 10, 2: 10}


def test_a_commit_of_another_thread_hands_nothing_out_twice(bench: Bench) -> None:
    bench.fill(2000)
    seen: list[int] = []
    ended = threading.Event()
    with bench.consumer(commit="manual", follow=True) as consumer:

        def commit() -> None:
            while not ended.is_set():
                consumer.commit()

        thread = threading.Thread(target=commit)
        thread.start()
        try:
            for record in consumer:
                seen.append(record.value)
                if record.value == 1999:
                    # Nothing more comes: the reader is inside its client nearly all the time.
                    threading.Timer(1.0, consumer.stop).start()
        finally:
            ended.set()
            thread.join(30)
        assert not thread.is_alive()
    assert seen == list(range(2000))
    assert bench.committed() == {0: 2000}


def test_a_new_group_starts_where_it_is_told(bench: Bench) -> None:
    bench.fill(5)
    with bench.consumer(start="latest", follow=True, group="l" + bench.group) as consumer:
        assert consumer.lag() == {bench.place(): 0}
        bench.fill(2, first=5)
        assert [next(consumer).value, next(consumer).value] == [5, 6]
        assert consumer.metrics().gone == 0
    middle = datetime.now(UTC) + timedelta(seconds=1)
    bench.send([(b"7", None, 0)], timestamp=round(middle.timestamp() * 1000) + 1000)
    with bench.consumer(start=middle, group="t" + bench.group) as consumer:
        assert [record.value for record in consumer] == [7]


def test_the_start_of_a_new_group_does_not_move_before_its_first_record(bench: Bench) -> None:
    bench.fill(5)
    with bench.consumer(start="latest") as consumer:
        assert list(consumer) == []
    bench.fill(2, first=5)
    # Without a commit of the start, this one would begin behind what came meanwhile.
    with bench.consumer(start="latest") as consumer:
        assert [record.value for record in consumer] == [5, 6]


def test_paused_partitions_wait_while_others_go_on(wide: Bench) -> None:
    wide.fill(300)
    with wide.consumer(follow=True) as consumer:
        first = next(consumer)
        consumer.pause(first.partition)
        others = [next(consumer) for _ in range(200)]
        assert {record.partition for record in others} == {0, 1, 2} - {first.partition}
        consumer.resume()
        late = [next(consumer) for _ in range(99)]
    assert [record.offset for record in late] == list(range(1, 100))
    assert wide.committed() == {0: 100, 1: 100, 2: 100}


def test_lag_is_what_is_left(wide: Bench) -> None:
    wide.fill(30)
    with wide.consumer() as consumer:
        assert consumer.lag() == {wide.place(each): 10 for each in range(3)}
        for _ in range(5):
            next(consumer)
        assert sum(consumer.lag().values()) == 26
    with wide.consumer() as consumer:
        assert sum(consumer.lag().values()) == 25


def test_a_pattern_reads_all_topics_that_match_and_new_ones(
    kafka: KafkaUnderTest, kafka_topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("riverrun.kafka.consumer.subscription._NEW_TOPICS_SECONDS", 0.5)
    stem = f"pattern-{secrets.token_hex(4)}"
    one = Bench(kafka.connection, kafka_topic, topic=kafka_topic(f"{stem}-a"))
    other = Bench(kafka.connection, kafka_topic, topic=kafka_topic(f"not-{stem}"))
    one.fill(1)
    other.fill(1, first=100)
    options: dict[str, Any] = {"group": one.group, "connection": kafka.connection}
    with Consumer(re.compile(rf"{stem}-.*"), **options) as consumer:
        assert next(consumer).topic == one.topic
        new = Bench(kafka.connection, kafka_topic, topic=kafka_topic(f"{stem}-b"))
        new.fill(1, first=7)
        found = next(consumer)
    assert (found.topic, found.value) == (new.topic, 7)


def test_several_topics_are_read_each_as_its_type(kafka: KafkaUnderTest, kafka_topic: Callable[..., str]) -> None:
    plain = Bench(kafka.connection, kafka_topic)
    typed = Bench(kafka.connection, kafka_topic)
    plain.fill(1)
    typed.send([(b'{"house_id":"h","load_kw":1}', b"h", 0)])
    topics: list[Any] = [plain.topic, rr.Topic(typed.topic, Reading)]
    with Consumer(topics, group=plain.group, connection=kafka.connection, follow=False) as consumer:
        assert {record.topic: record.value for record in consumer} == {
            plain.topic: 0,
            typed.topic: Reading(house_id="h", load_kw=1.0),
        }
        with pytest.raises(UsageError, match="of which topic"):
            consumer.seek(0, 0)


# --- what goes wrong --------------------------------------------------------------------------------------------------


def test_an_unknown_topic_is_named_with_the_one_that_was_meant(bench: Bench) -> None:
    misspelt = bench.topic.replace("t", "tt", 1)
    consumer = Consumer(misspelt, group=bench.group, connection=bench.connection)
    with consumer, pytest.raises(TopicNotFoundError) as caught:
        next(consumer)
    assert caught.value.fields["topic"] == misspelt
    assert bench.topic in caught.value.hint


def test_no_broker_is_said_within_the_request_timeout() -> None:
    nowhere = connect("127.0.0.1:1", request_timeout_seconds=1)
    began = time.monotonic()
    with Consumer("t", group="g", connection=nowhere) as consumer, pytest.raises(BrokerUnreachableError):
        next(consumer)
    assert time.monotonic() - began < 5


def test_a_record_that_takes_too_long_is_explained(bench: Bench) -> None:
    bench.fill(3)
    options: dict[str, Any] = {"session_timeout_seconds": 6, "max_poll_seconds": 6, "follow": True}
    with bench.consumer(**options) as consumer:
        first = next(consumer)
        wait_for(lambda: not members(bench), 30, "the group still has its member")
        with pytest.raises(CommitError, match=bench.group):
            consumer.commit()
        with pytest.raises(MaxPollExceededError) as caught:
            for _ in consumer:
                pass
        assert caught.value.fields["max_poll_seconds"] == 6
        # Nothing was committed for what was lost; the loop may go on, and reads it again.
        assert bench.committed() == {}
        again = next(consumer)
        assert (again.offset, first.offset) == (0, 0)


def members(bench: Bench) -> int:
    return len(bench.admin.group(bench.group).members)


def test_metrics_are_told_from_time_to_time(bench: Bench) -> None:
    bench.fill(10)
    told: list[Any] = []
    with bench.consumer(follow=True, on_metrics=told.append, metrics_seconds=0.1) as consumer:
        for _ in range(10):
            next(consumer)
        threading.Timer(1.0, consumer.stop).start()
        assert list(consumer) == []
    assert len(told) >= 3
    assert (told[-1].handled, told[-1].lag) == (10, 0)


def test_leaving_the_group_is_seen_at_once(bench: Bench) -> None:
    bench.fill(1)
    with bench.consumer() as consumer:
        next(consumer)
        assert members(bench) == 1
    assert members(bench) == 0


def test_a_static_member_keeps_its_partitions_while_it_is_away(bench: Bench) -> None:
    bench.fill(2)
    came: list[list[TopicPartition]] = []
    with bench.consumer(instance="one", session_timeout_seconds=30, on_assigned=came.append) as consumer:
        next(consumer)
    assert members(bench) == 1
    with bench.consumer(instance="one", session_timeout_seconds=30, on_assigned=came.append) as consumer:
        assert [record.value for record in consumer] == [1]
    assert came == [[bench.place()], [bench.place()]]


def test_kafkas_new_group_protocol_does_the_same(wide: Bench) -> None:
    wide.fill(300)
    with wide.consumer(protocol="consumer") as consumer:
        assert sorted(record.value for record in consumer) == list(range(300))
    assert wide.committed() == {0: 100, 1: 100, 2: 100}
    assert wide.rest(protocol="consumer") == []
