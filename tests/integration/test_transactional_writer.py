"""Parts of a batch into a topic: once, whoever dies and whoever comes back."""

import os
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from riverrun.errors import BatchChangedError, CheckpointError, RiverrunError, StreamFailedError, StreamTakenOverError
from riverrun.kafka.admin.admin import Admin
from riverrun.kafka.commit_markers import (
    Claim,
    CommitMarker,
    CommitMarkerReader,
    OutputBatch,
    OutputTopic,
    claim_output,
    last_committed_marker,
    marker_partition_count,
)
from riverrun.kafka.connection import Connection
from riverrun.kafka.exactly_once import (
    BATCH_HEADER,
    Row,
    TransactionalWriter,
    abort_open_transactions,
    check_removed_tasks,
    write_task_output,
)
from riverrun.testing import KafkaUnderTest

pytestmark = pytest.mark.kafka

Make = Callable[[str], OutputTopic]


@pytest.fixture
def target(kafka: KafkaUnderTest, kafka_topic: Callable[..., str]) -> Make:
    admin = Admin(kafka.connection)

    def make(generation: str = "first") -> OutputTopic:
        return OutputTopic(kafka.connection.properties(), topic, marks, f"app.{topic}", generation)

    topic = kafka_topic(partitions=2)
    marks = f"{topic}.marks"
    admin.create_topic(marks, partitions=marker_partition_count(3), replicas=0, config={"cleanup.policy": "compact"})
    return make


def rows(*values: str) -> Iterator[Row]:
    return ((value.encode(), value.encode()) for value in values)


def marked(goal: OutputTopic, part: int) -> CommitMarker | None:
    """The mark, when all that was committed can be seen: a commit is answered a moment before that."""
    abort_open_transactions(goal, [part])
    return last_committed_marker(goal, part)


def read(connection: Connection, goal: OutputTopic, fence: Iterable[int] = (0, 1)) -> list[tuple[str, str]]:
    """What a reader of committed records gets: value and batch, by partition in order."""
    abort_open_transactions(goal, fence)
    topic = goal.topic
    consumer = Consumer(
        connection.properties({"group.id": "reader", "isolation.level": "read_committed", "enable.partition.eof": True})
    )
    found: list[tuple[str, str]] = []
    try:
        for part in (0, 1):
            consumer.assign([TopicPartition(topic, part, 0)])
            while (message := consumer.poll(10)) is not None and message.error() is None:
                value, headers = message.value(), message.headers()
                assert value is not None
                assert headers is not None
                found.append((value.decode(), bytes(dict(headers)[BATCH_HEADER]).decode()))  # type: ignore[arg-type]
            assert message is not None, "no answer from the broker"
    finally:
        consumer.close()
    return found


def wait_for_records(connection: Connection, topic: str) -> None:
    """Until the broker has records of the topic, committed or not."""
    consumer = Consumer(connection.properties({"group.id": "reader", "isolation.level": "read_uncommitted"}))
    deadline = time.monotonic() + 30
    try:
        while not any(consumer.get_watermark_offsets(TopicPartition(topic, part), 10)[1] for part in (0, 1)):
            assert time.monotonic() < deadline, f"no records came to {topic}"
    finally:
        consumer.close()


def values(connection: Connection, goal: OutputTopic) -> Counter[str]:
    return Counter(value for value, _ in read(connection, goal))


def test_rows_are_there_once_with_their_batch(kafka: KafkaUnderTest, target: Make) -> None:
    goal = target("one")
    assert write_task_output(goal, OutputBatch(0, 2), 0, rows("a", "b")) == (2, True)
    assert write_task_output(goal, OutputBatch(0, 2), 1, rows("c")) == (1, True)
    assert write_task_output(goal, OutputBatch(1, 2), 0, rows("d")) == (1, True)
    assert sorted(read(kafka.connection, goal)) == [
        ("a", "one/0"), ("b", "one/0"), ("c", "one/0"), ("d", "one/1"),
    ]  # fmt: skip
    assert marked(goal, 0) == CommitMarker("one", OutputBatch(1, 2))
    assert marked(goal, 2) is None


def test_a_part_that_was_written_is_computed_and_not_written_again(kafka: KafkaUnderTest, target: Make) -> None:
    goal = target("one")
    first = TransactionalWriter(goal, 0)
    first.open()
    assert first.write(OutputBatch(0, 1), rows("a", "b")) == (2, True)
    again = TransactionalWriter(goal, 0)
    again.open()
    taken = []

    def computed() -> Iterator[Row]:
        for row in rows("a", "b"):
            taken.append(row)
            yield row

    assert again.write(OutputBatch(0, 1), computed()) == (2, False)
    assert len(taken) == 2
    assert again.write(OutputBatch(1, 1), rows("c")) == (1, True)
    assert values(kafka.connection, goal) == Counter("abc")


def test_a_writer_that_was_thought_dead_cannot_commit(kafka: KafkaUnderTest, target: Make) -> None:
    goal = target("one")
    zombie = TransactionalWriter(goal, 0)
    zombie.open()
    heir = TransactionalWriter(goal, 0)

    def interrupted() -> Iterator[Row]:
        yield from rows("a")
        heir.open()
        assert heir.write(OutputBatch(0, 1), rows("a", "b")) == (2, True)
        yield from rows("b")

    # No other run has claimed the stream: what is to be done is to try again, with a writer of today.
    with pytest.raises(StreamFailedError, match="Another writer has opened"):
        zombie.write(OutputBatch(0, 1), interrupted())
    assert values(kafka.connection, goal) == Counter("ab")


def test_what_a_dead_writer_had_sent_is_never_seen(
    kafka: KafkaUnderTest, target: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("riverrun.kafka.exactly_once.SPOOL_BYTES", 1)
    goal = target("one")
    dead = TransactionalWriter(goal, 0)
    dead.open()

    def cut_off() -> Iterator[Row]:
        yield from rows("a", "b")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        dead.write(OutputBatch(0, 1), cut_off())
    abort_open_transactions(goal, [0])
    # Whoever waits for committed records is not held up by the dead one.
    assert values(kafka.connection, goal) == Counter()
    assert write_task_output(goal, OutputBatch(0, 1), 0, rows("a", "b", "c")) == (3, True)
    assert values(kafka.connection, goal) == Counter("abc")


def test_a_large_part_goes_out_in_pieces_and_is_still_one(
    kafka: KafkaUnderTest, target: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("riverrun.kafka.exactly_once.SPOOL_BYTES", 500)
    goal = target("one")
    many = [f"{number:04}" for number in range(1000)]
    assert write_task_output(goal, OutputBatch(0, 1), 0, rows(*many)) == (1000, True)
    assert values(kafka.connection, goal) == Counter(many)


def test_a_part_without_rows_leaves_nothing(kafka: KafkaUnderTest, target: Make) -> None:
    goal = target("one")
    assert write_task_output(goal, OutputBatch(0, 1), 0, rows()) == (0, True)
    assert last_committed_marker(goal, 0) is None
    assert write_task_output(goal, OutputBatch(1, 1), 0, rows("a")) == (1, True)
    assert marked(goal, 0) == CommitMarker("one", OutputBatch(1, 1))


def test_another_life_of_the_checkpoint_begins_anew(kafka: KafkaUnderTest, target: Make) -> None:
    assert write_task_output(target("one"), OutputBatch(5, 1), 0, rows("a")) == (1, True)
    assert write_task_output(target("two"), OutputBatch(0, 1), 0, rows("a")) == (1, True)
    assert values(kafka.connection, target("one")) == Counter({"a": 2})


@pytest.mark.parametrize(("batch", "parts"), [(4, 2), (5, 3)])
def test_a_checkpoint_that_is_behind_its_output_is_refused(target: Make, batch: int, parts: int) -> None:
    assert write_task_output(target("one"), OutputBatch(5, 2), 0, rows("a")) == (1, True)
    with pytest.raises(CheckpointError, match="its output is elsewhere"):
        write_task_output(target("one"), OutputBatch(batch, parts), 0, rows("a"))


def test_a_batch_that_was_written_as_one_is_written_however_it_is_split_later(
    kafka: KafkaUnderTest, target: Make
) -> None:
    assert write_task_output(target("one"), OutputBatch(5, 1), 0, rows("a", "b")) == (2, True)
    assert write_task_output(target("one"), OutputBatch(5, 2), 0, rows("a")) == (1, False)
    assert write_task_output(target("one"), OutputBatch(5, 2), 1, rows("b")) == (1, False)
    assert write_task_output(target("one"), OutputBatch(6, 2), 1, rows("c")) == (1, True)
    assert values(kafka.connection, target("one")) == Counter("abc")


def test_a_batch_of_which_parts_are_written_is_not_written_as_one(target: Make) -> None:
    assert write_task_output(target("one"), OutputBatch(5, 2), 1, rows("b")) == (1, True)
    abort_open_transactions(target("one"), [1, 2])
    check_removed_tasks(target("one"), [1, 2], OutputBatch(6))
    with pytest.raises(CheckpointError, match="Finish that batch at the speed it was begun with"):
        check_removed_tasks(target("one"), [1, 2], OutputBatch(5))


def test_a_mark_is_found_behind_many_that_were_aborted(kafka: KafkaUnderTest, target: Make) -> None:
    goal = target("one")
    assert write_task_output(goal, OutputBatch(0, 1), 0, rows("a")) == (1, True)
    writer = TransactionalWriter(goal, 0)
    writer.open()
    raw = writer._producer
    for number in range(100):
        raw.begin_transaction()
        raw.produce(goal.marker_topic, CommitMarker("one", OutputBatch(99, 1)).encode(), partition=1)
        raw.flush()
        raw.abort_transaction()
        assert number < 100
    assert marked(goal, 0) == CommitMarker("one", OutputBatch(0, 1))


def test_a_row_that_is_too_large_is_said(target: Make) -> None:
    with pytest.raises(RiverrunError, match="too large"):
        write_task_output(target("one"), OutputBatch(0, 1), 0, rows("x" * 3_000_000))


@pytest.mark.parametrize(
    "again",
    [
        OutputBatch(5, 2, "other records", "split"),
        OutputBatch(5, 2, "records", "split otherwise"),
        OutputBatch(5, 1, "other records"),
    ],
)
def test_a_batch_of_other_records_is_refused_instead_of_skipped(target: Make, again: OutputBatch) -> None:
    assert write_task_output(target("one"), OutputBatch(5, 2, "records", "split"), 0, rows("a")) == (1, True)
    assert write_task_output(target("one"), OutputBatch(5, 2, "records", "split"), 0, rows("a")) == (1, False)
    with pytest.raises(BatchChangedError, match=r"Rows of batch 5 of .* the batch is not the same any more"):
        write_task_output(target("one"), again, 0, rows("b"))


def test_a_batch_of_other_records_than_one_that_was_written_as_one_is_refused(target: Make) -> None:
    assert write_task_output(target("one"), OutputBatch(5, input_digest="records"), 0, rows("a", "b")) == (2, True)
    assert write_task_output(target("one"), OutputBatch(5, 2, "records", "split"), 1, rows("b")) == (1, False)
    with pytest.raises(BatchChangedError):
        write_task_output(target("one"), OutputBatch(5, 2, "other records", "split"), 1, rows("b"))


def test_a_run_that_was_replaced_writes_nothing_more(kafka: KafkaUnderTest, target: Make) -> None:
    """Two drivers that both own batch 0, each with other parts of it: no transactional id tells them apart."""
    first = replace(target("one"), claim_offset=claim_output(target("one")))
    assert write_task_output(first, OutputBatch(0, 3), 0, rows("a")) == (1, True)
    second = replace(target("one"), claim_offset=claim_output(target("one")))
    abort_open_transactions(second, range(3))
    for part in range(3):
        # The first with a producer from before, the others without one.
        with pytest.raises(StreamTakenOverError, match=r"Another run of .* has begun"):
            write_task_output(first, OutputBatch(1, 3), part, rows("b"))
    assert write_task_output(second, OutputBatch(1, 3), 0, rows("c")) == (1, True)
    assert values(kafka.connection, second) == Counter("ac")


def test_a_run_that_was_replaced_does_not_fence_the_one_that_replaced_it(kafka: KafkaUnderTest, target: Make) -> None:
    first = replace(target("one"), claim_offset=claim_output(target("one")))
    second = replace(target("one"), claim_offset=claim_output(target("one")))
    assert write_task_output(second, OutputBatch(0), 0, rows("a")) == (1, True)
    late = TransactionalWriter(first, 0)
    with pytest.raises(StreamTakenOverError):
        late.open()
    # With the producer it has.
    assert write_task_output(second, OutputBatch(1), 0, rows("b")) == (1, True)
    assert values(kafka.connection, second) == Counter("ab")


def test_a_writer_from_before_a_release_of_its_own_run_is_not_used_again(kafka: KafkaUnderTest, target: Make) -> None:
    mine = replace(target("one"), claim_offset=claim_output(target("one")))
    assert write_task_output(mine, OutputBatch(0), 0, rows("a")) == (1, True)
    abort_open_transactions(mine, range(3))
    assert write_task_output(replace(mine, writer_epoch=1), OutputBatch(1), 0, rows("b")) == (1, True)
    assert values(kafka.connection, mine) == Counter("ab")


def test_readers_do_not_wait_for_a_writer_that_failed(
    kafka: KafkaUnderTest, target: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("riverrun.kafka.exactly_once.SPOOL_BYTES", 1)
    goal = target("one")

    def failing() -> Iterator[Row]:
        yield from rows("a", "b")
        # What is still in the client's queue is dropped, and nobody waits for it.
        wait_for_records(kafka.connection, goal.topic)
        raise ValueError("a bad row")

    with pytest.raises(ValueError, match="a bad row"):
        write_task_output(goal, OutputBatch(0), 0, failing())
    assert write_task_output(goal, OutputBatch(0, 2), 1, rows("c")) == (1, True)
    # Part 0 is not opened again before the readers look.
    assert Counter(value for value, _ in read(kafka.connection, goal, fence=[1])) == Counter("c")


def test_a_worker_keeps_no_writer_of_a_part_that_went_to_another(target: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two workers of Spark's that get the parts in turns: each would have a producer for every part, for ever."""
    first: dict[tuple[str, int], TransactionalWriter] = {}
    second: dict[tuple[str, int], TransactionalWriter] = {}
    goal = target("one")
    closed = []
    close = TransactionalWriter.close

    def counted(writer: TransactionalWriter) -> None:
        closed.append(writer.task)
        close(writer)

    monkeypatch.setattr(TransactionalWriter, "close", counted)
    for number, (worker, parts) in enumerate([(first, (0, 1, 2)), (second, (0, 1, 2)), (first, (0,)), (first, (0,))]):
        monkeypatch.setattr("riverrun.kafka.exactly_once._writers", worker)
        for part in parts:
            assert write_task_output(goal, OutputBatch(number, 3), part, rows("a")) == (1, True)
    assert [part for _, part in first] == [0]
    assert closed == [0, 1, 2], "and the one that is used goes on"


def test_a_writer_asks_by_one_consumer(target: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it may write, twice, and whether its part is written, alone or with all others."""
    mine = replace(target("one"), claim_offset=claim_output(target("one")))
    made = []

    def counted(*arguments: Any, **options: Any) -> Consumer:
        made.append(Consumer(*arguments, **options))
        return made[-1]

    monkeypatch.setattr("riverrun.kafka.commit_markers.Consumer", counted)
    assert write_task_output(mine, OutputBatch(0, 3), 1, rows("a")) == (1, True)
    assert len(made) == 1
    with pytest.raises(RuntimeError, match="closed"):
        made[0].poll(0)


def test_a_claim_says_whose_it_is_and_whether_it_is_over(target: Make) -> None:
    mine = target("batch-1")
    with CommitMarkerReader(mine) as reader:
        assert reader.last_claim() is None
    claim_output(mine)
    with CommitMarkerReader(mine) as reader:
        assert reader.last_claim() == Claim("batch-1", socket.gethostname(), os.getpid(), ended=False)
    claim_output(mine, ended=True)
    with CommitMarkerReader(mine) as reader:
        assert reader.last_claim() == Claim("batch-1", socket.gethostname(), os.getpid(), ended=True)
