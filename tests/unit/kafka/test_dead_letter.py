"""What a dead letter carries."""

from datetime import UTC, datetime
from typing import Any

import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME, KafkaError, Message

from riverrun.config import KafkaSettings
from riverrun.errors import RecordTooLargeError
from riverrun.kafka.connection import Connection
from riverrun.kafka.consumer.dead_letter import HEADER_PREFIX, DeadLetter, DeadLetterProducer, dead_letter_headers
from riverrun.kafka.consumer.record import Record, RecordDecoder

AT = datetime(2026, 1, 1, tzinfo=UTC)
DECODING: RecordDecoder[object] = RecordDecoder({"t": None})


def record(headers: list[tuple[str, str | bytes | None]] | None = None) -> Record[object]:
    message = Message(
        topic="t", partition=3, offset=41, value=b"\xff\x00", timestamp=(TIMESTAMP_CREATE_TIME, 5), headers=headers
    )
    return Record(message, DECODING)


def dead(letter: Record[object], error: Exception, attempts: int = 4) -> Record[object]:
    """The record as it is read from the dead-letter topic."""
    headers = dead_letter_headers(letter, error, attempts, "alerts", AT)
    message = Message(topic="t.dead", partition=0, offset=0, key=letter.key, value=letter.raw, headers=headers)
    return Record(message, DECODING)


def test_a_dead_letter_tells_where_it_was_and_why_it_died() -> None:
    found = DeadLetter.from_record(dead(record([("trace", b"\xfe")]), ValueError("no such höuse")))
    assert found == DeadLetter(
        topic="t",
        partition=3,
        offset=41,
        timestamp_ms=5,
        error="ValueError",
        message="no such höuse",
        attempts=4,
        group="alerts",
        at=AT,
        headers=(("trace", b"\xfe"),),
    )


def test_the_records_own_headers_come_first_and_unchanged() -> None:
    own: list[tuple[str, str | bytes | None]] = [("a", b"1"), ("a", b"2")]
    headers = dead_letter_headers(record(own), ValueError(), 1, "", AT)
    assert headers[:2] == own
    assert all(name.startswith(HEADER_PREFIX) for name, _ in headers[2:])


def test_a_second_death_replaces_the_first() -> None:
    once = dead(record([("a", b"1")]), ValueError("first"))
    found = DeadLetter.from_record(dead(once, KeyError("second"), attempts=1))
    assert found is not None
    assert (found.topic, found.error, found.attempts, found.headers) == ("t.dead", "KeyError", 1, (("a", b"1"),))


def test_an_endless_message_is_cut() -> None:
    found = DeadLetter.from_record(dead(record(), ValueError("x" * 100_000)))
    assert found is not None
    assert len(found.message) == 2000


def test_an_ordinary_record_is_no_dead_letter() -> None:
    assert DeadLetter.from_record(record([("a", b"1")])) is None
    assert DeadLetter.from_record(record([(HEADER_PREFIX + "topic", b"t")])) is None


def test_the_topic_of_dead_letters_follows_the_name() -> None:
    connection = Connection(KafkaSettings(bootstrap_servers="127.0.0.1:1"))
    assert DeadLetterProducer(connection, "g").topic_for("orders") == "orders.dead"
    assert DeadLetterProducer(connection, "g", "all-dead").topic_for("orders") == "all-dead"


class Small:
    """A producer whose topic takes records of so many bytes."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.written: list[Message] = []
        self.tried = 0

    def produce(self, topic: str, value: bytes | None, *, key: Any, headers: Any, on_delivery: Any) -> None:
        self.tried += 1
        size = len(value or b"") + len(key or b"") + sum(len(name) + len(each or b"") for name, each in headers)
        message = Message(topic=topic, partition=0, offset=len(self.written), key=key, value=value, headers=headers)
        if size > self.limit:
            on_delivery(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE), message)
            return
        self.written.append(message)
        on_delivery(None, message)

    def poll(self, _: float) -> None:
        pass

    def flush(self, _: float) -> int:
        return 0


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize(
    ("limit", "value", "headers"),
    [(20_000, b"x" * 50_000, 0), (4_000, b"x" * 50_000, 100), (2_000, b"x" * 1000, 1000), (2_000, None, 1000)],
)
def test_a_letter_that_is_larger_than_its_topic_takes_is_cut_and_says_so(
    monkeypatch: pytest.MonkeyPatch, limit: int, value: bytes | None, headers: int, many: bool
) -> None:
    """A topic for dead letters that was there before may take less: then nothing went on behind the record."""
    letters = DeadLetterProducer(Connection(KafkaSettings(bootstrap_servers="127.0.0.1:1")), "alerts")
    small = Small(limit)
    monkeypatch.setattr(letters, "_ensure", lambda topic: f"{topic}.dead")
    monkeypatch.setattr(letters, "_open", lambda: small)
    own: Any = [(f"h{number}", b"y" * 300) for number in range(headers)]
    given: Record[object] = Record(
        Message(topic="t", partition=3, offset=41, key=b"k", value=value, headers=own), DECODING
    )
    problem = ValueError("ö" * 5000)
    if many:
        assert letters.write_all([(given, problem)]) == 1
    else:
        assert letters.write(given, problem, 1) == "t.dead[0]@0"
    (message,) = small.written
    told = DeadLetter.from_record(Record(message, DECODING))
    assert told is not None
    assert (told.topic, told.partition, told.offset, told.original_size) == ("t", 3, 41, len(value or b""))
    assert "ö" in told.message
    assert (message.value() is None) == (value is None)


def test_a_topic_that_takes_nothing_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    letters = DeadLetterProducer(Connection(KafkaSettings(bootstrap_servers="127.0.0.1:1")), "alerts")
    small = Small(10)
    monkeypatch.setattr(letters, "_ensure", lambda topic: f"{topic}.dead")
    monkeypatch.setattr(letters, "_open", lambda: small)
    with pytest.raises(RecordTooLargeError):
        letters.write(record(), ValueError("no"), 1)
    assert small.tried == 4
