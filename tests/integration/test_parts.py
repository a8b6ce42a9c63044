"""Parts of a batch into a topic: once, whoever dies and whoever comes back."""

from collections import Counter
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Consumer, TopicPartition

from riverrun.errors import CheckpointError, FencedError, RiverrunError
from riverrun.kafka.admin.admin import Admin
from riverrun.kafka.connection import Connection
from riverrun.kafka.parts import BATCH, Mark, PartWriter, Row, Target, check_left, last_mark, release, write_part
from riverrun.testing import KafkaUnderTest

pytestmark = pytest.mark.kafka

Make = Callable[[str], Target]


@pytest.fixture
def target(kafka: KafkaUnderTest, kafka_topic: Callable[..., str]) -> Make:
    admin = Admin(kafka.connection)

    def make(generation: str = "first") -> Target:
        return Target(kafka.connection.properties(), topic, marks, f"app.{topic}", generation)

    topic = kafka_topic(partitions=2)
    marks = f"{topic}.marks"
    admin.create_topic(marks, partitions=3, replicas=0, config={"cleanup.policy": "compact"})
    return make


def rows(*values: str) -> Iterator[Row]:
    return ((value.encode(), value.encode()) for value in values)


def marked(goal: Target, part: int) -> Mark | None:
    """The mark, when all that was committed can be seen: a commit is answered a moment before that."""
    release(goal, [part])
    return last_mark(goal, part)


def read(connection: Connection, goal: Target) -> list[tuple[str, str]]:
    """What a reader of committed records gets: value and batch, by partition in order."""
    release(goal, [0, 1])
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
                found.append((value.decode(), bytes(dict(headers)[BATCH]).decode()))  # type: ignore[arg-type]
            assert message is not None, "no answer from the broker"
    finally:
        consumer.close()
    return found


def values(connection: Connection, goal: Target) -> Counter[str]:
    return Counter(value for value, _ in read(connection, goal))


def test_rows_are_there_once_with_their_batch(kafka: KafkaUnderTest, target: Make) -> None:
    goal = target("one")
    assert write_part(goal, 0, 0, 2, rows("a", "b")) == (2, True)
    assert write_part(goal, 0, 1, 2, rows("c")) == (1, True)
    assert write_part(goal, 1, 0, 2, rows("d")) == (1, True)
    assert sorted(read(kafka.connection, goal)) == [
        ("a", "one/0"), ("b", "one/0"), ("c", "one/0"), ("d", "one/1"),
    ]  # fmt: skip
    assert marked(goal, 0) == Mark("one", 1, 2)
    assert marked(goal, 2) is None


def test_a_part_that_was_written_is_computed_and_not_written_again(kafka: KafkaUnderTest, target: Make) -> None:
    goal = target("one")
    first = PartWriter(goal, 0)
    first.open()
    assert first.write(0, 1, rows("a", "b")) == (2, True)
    again = PartWriter(goal, 0)
    again.open()
    taken = []

    def computed() -> Iterator[Row]:
        for each in rows("a", "b"):
            taken.append(each)
            yield each

    assert again.write(0, 1, computed()) == (2, False)
    assert len(taken) == 2
    assert again.write(1, 1, rows("c")) == (1, True)
    assert values(kafka.connection, goal) == Counter("abc")


def test_a_writer_that_was_thought_dead_cannot_commit(kafka: KafkaUnderTest, target: Make) -> None:
    goal = target("one")
    zombie = PartWriter(goal, 0)
    zombie.open()
    heir = PartWriter(goal, 0)

    def interrupted() -> Iterator[Row]:
        yield from rows("a")
        heir.open()
        assert heir.write(0, 1, rows("a", "b")) == (2, True)
        yield from rows("b")

    with pytest.raises(FencedError):
        zombie.write(0, 1, interrupted())
    assert values(kafka.connection, goal) == Counter("ab")


def test_what_a_dead_writer_had_sent_is_never_seen(
    kafka: KafkaUnderTest, target: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("riverrun.kafka.parts.SPOOL_BYTES", 1)
    goal = target("one")
    dead = PartWriter(goal, 0)
    dead.open()

    def cut_off() -> Iterator[Row]:
        yield from rows("a", "b")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        dead.write(0, 1, cut_off())
    release(goal, [0])
    # Whoever waits for committed records is not held up by the dead one.
    assert values(kafka.connection, goal) == Counter()
    assert write_part(goal, 0, 0, 1, rows("a", "b", "c")) == (3, True)
    assert values(kafka.connection, goal) == Counter("abc")


def test_a_large_part_goes_out_in_pieces_and_is_still_one(
    kafka: KafkaUnderTest, target: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("riverrun.kafka.parts.SPOOL_BYTES", 500)
    goal = target("one")
    many = [f"{number:04}" for number in range(1000)]
    assert write_part(goal, 0, 0, 1, rows(*many)) == (1000, True)
    assert values(kafka.connection, goal) == Counter(many)


def test_a_part_without_rows_leaves_nothing(kafka: KafkaUnderTest, target: Make) -> None:
    goal = target("one")
    assert write_part(goal, 0, 0, 1, rows()) == (0, True)
    assert last_mark(goal, 0) is None
    assert write_part(goal, 1, 0, 1, rows("a")) == (1, True)
    assert marked(goal, 0) == Mark("one", 1, 1)


def test_another_life_of_the_checkpoint_begins_anew(kafka: KafkaUnderTest, target: Make) -> None:
    assert write_part(target("one"), 5, 0, 1, rows("a")) == (1, True)
    assert write_part(target("two"), 0, 0, 1, rows("a")) == (1, True)
    assert values(kafka.connection, target("one")) == Counter({"a": 2})


@pytest.mark.parametrize(("batch", "parts"), [(4, 2), (5, 3)])
def test_a_checkpoint_that_is_behind_its_output_is_refused(target: Make, batch: int, parts: int) -> None:
    assert write_part(target("one"), 5, 0, 2, rows("a")) == (1, True)
    with pytest.raises(CheckpointError, match="its output is elsewhere"):
        write_part(target("one"), batch, 0, parts, rows("a"))


def test_a_batch_that_was_written_as_one_is_written_however_it_is_split_later(
    kafka: KafkaUnderTest, target: Make
) -> None:
    assert write_part(target("one"), 5, 0, 1, rows("a", "b")) == (2, True)
    assert write_part(target("one"), 5, 0, 2, rows("a")) == (1, False)
    assert write_part(target("one"), 5, 1, 2, rows("b")) == (1, False)
    assert write_part(target("one"), 6, 1, 2, rows("c")) == (1, True)
    assert values(kafka.connection, target("one")) == Counter("abc")


def test_a_batch_of_which_parts_are_written_is_not_written_as_one(target: Make) -> None:
    assert write_part(target("one"), 5, 1, 2, rows("b")) == (1, True)
    release(target("one"), [1, 2])
    check_left(target("one"), [1, 2], 6, 1)
    with pytest.raises(CheckpointError, match="Finish that batch at the speed it was begun with"):
        check_left(target("one"), [1, 2], 5, 1)


def test_a_mark_is_found_behind_many_that_were_aborted(kafka: KafkaUnderTest, target: Make) -> None:
    goal = target("one")
    assert write_part(goal, 0, 0, 1, rows("a")) == (1, True)
    writer = PartWriter(goal, 0)
    writer.open()
    raw = writer._producer
    for number in range(100):
        raw.begin_transaction()
        raw.produce(goal.marks, Mark("one", 99, 1).encode(), partition=0)
        raw.flush()
        raw.abort_transaction()
        assert number < 100
    assert marked(goal, 0) == Mark("one", 0, 1)


def test_a_row_that_is_too_large_is_said(target: Make) -> None:
    with pytest.raises(RiverrunError, match="too large"):
        write_part(target("one"), 0, 0, 1, rows("x" * 3_000_000))
