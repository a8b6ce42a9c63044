"""Records and batches as a consumer hands them out."""

from datetime import UTC, datetime
from typing import Any

import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME, TIMESTAMP_NOT_AVAILABLE, Message

from riverrun.errors import RecordUnreadableError, RegistryUnavailableError
from riverrun.kafka.consumer.record import Batch, Record, RecordDecoder
from riverrun.model.cluster_state import TopicPartition
from riverrun.model.event import Event, field, key, schema_of


class Reading(Event):
    house_id: str = key()
    load_kw: float = field(ge=0)


TYPED: RecordDecoder[Reading] = RecordDecoder({"readings": schema_of(Reading)})
GOOD = b'{"house_id":"h1","load_kw":1.5}'
BAD = b'{"house_id":"h1","load_kw":-1}'


def message(value: bytes | None = GOOD, offset: int = 41, topic: str = "readings") -> Message:
    return Message(
        topic=topic,
        partition=3,
        offset=offset,
        key=b"h1",
        value=value,
        headers=[("a", b"1"), ("b", b"2"), ("a", b"3")],
        timestamp=(TIMESTAMP_CREATE_TIME, 1_767_225_600_123),
    )


def test_a_record_has_its_event_and_everything_else() -> None:
    record = Record[Reading](message(), TYPED)
    assert record.value == Reading(house_id="h1", load_kw=1.5)
    assert record.value is record.value
    assert (record.raw, record.key, record.size) == (GOOD, b"h1", len(GOOD) + 2)
    assert record.headers == [("a", b"1"), ("b", b"2"), ("a", b"3")]
    assert (record.header("a"), record.header("c")) == (b"3", None)
    assert record.timestamp == datetime(2026, 1, 1, 0, 0, 0, 123_000, tzinfo=UTC)
    assert (record.topic_partition, record.offset, str(record)) == (TopicPartition("readings", 3), 41, "readings[3]@41")
    assert repr(record) == "<Record readings[3]@41>"
    assert not record.deleted


def test_a_record_without_headers_or_time() -> None:
    bare = Message(topic="t", partition=0, offset=0, value=b"1", timestamp=(TIMESTAMP_NOT_AVAILABLE, 0))
    record: Record[object] = Record(bare, RecordDecoder({"t": None}))
    assert (record.headers, record.timestamp, record.key, record.value) == ([], None, None, 1)


def test_an_unreadable_record_says_where_it_is_and_why() -> None:
    with pytest.raises(RecordUnreadableError) as caught:
        _ = Record[Reading](message(BAD), TYPED).value
    error = caught.value
    assert str(error).startswith("The record readings[3]@41 is not a Reading. Found ")
    assert "load_kw" in error.fields["reason"]
    assert (error.fields["topic"], error.fields["partition"], error.fields["offset"]) == ("readings", 3, 41)


def test_an_unreadable_record_says_what_it_was_written_as() -> None:
    written = Message(topic="readings", partition=0, offset=1, value=b"{}", headers=[("riverrun.schema", b"Reading/2")])
    with pytest.raises(RecordUnreadableError, match="written as Reading/2, and is read as Reading/1"):
        _ = Record[Reading](written, TYPED).value


def test_a_topic_without_a_type_holds_any_json() -> None:
    untyped: RecordDecoder[object] = RecordDecoder({"t": None})
    assert Record[object](message(b'{"a":[1]}', topic="t"), untyped).value == {"a": [1]}
    with pytest.raises(RecordUnreadableError, match="is not JSON"):
        _ = Record[object](message(b"\xff", topic="t"), untyped).value


DEEP = b"[" * 5000 + b"]" * 5000


def test_brackets_without_end_are_unreadable() -> None:
    for decoding, topic in ((TYPED, "readings"), (RecordDecoder[Any]({"t": None}), "t")):
        bad = message(b'{"house_id":"h1","load_kw":1,"more":%s}' % DEEP, topic=topic)
        with pytest.raises(RecordUnreadableError, match="RecursionError"):
            _ = Record[Any](bad, decoding).value
        left_out: list[int] = []
        batch = Batch[Any]([message(topic=topic), bad, message(topic=topic)], decoding)
        assert len(batch.values(on_unreadable=lambda record, _error, out=left_out: out.append(record.offset))) == 2  # type: ignore[misc]
        assert left_out == [41]


class Priced(Event):
    currency: str

    def __post_init__(self) -> None:
        _ = {"EUR": 1.0}[self.currency]


def test_whatever_an_event_raises_says_that_it_is_unreadable() -> None:
    decoding: RecordDecoder[Priced] = RecordDecoder({"prices": schema_of(Priced)})
    with pytest.raises(RecordUnreadableError) as caught:
        _ = Record[Priced](message(b'{"currency":"XXX"}', topic="prices"), decoding).value
    assert (caught.value.fields["event"], caught.value.fields["reason"]) == ("Priced", "KeyError: 'XXX'")
    with pytest.raises(RecordUnreadableError, match="KeyError: 'XXX'"):
        schema_of(Priced).decode(b'{"currency":"XXX"}')


def test_a_registry_that_does_not_answer_says_nothing_about_a_record() -> None:
    asked: list[bytes] = []

    def load(raw: bytes) -> None:
        asked.append(raw)
        raise RegistryUnavailableError("It is down")

    untyped: RecordDecoder[object] = RecordDecoder({"t": None})
    untyped._loads["t"] = untyped.single_decode = load
    with pytest.raises(RegistryUnavailableError):
        _ = Record[object](message(b"1", topic="t"), untyped).value
    with pytest.raises(RegistryUnavailableError):
        Batch[object]([message(b"2", topic="t"), message(b"3", topic="t")], untyped).values(print)
    # Each time it may wait for long: once is enough.
    assert asked == [b"1", b"2"]


def test_a_deletion_has_no_value() -> None:
    record = Record[Reading](message(None), TYPED)
    assert record.deleted
    with pytest.raises(RecordUnreadableError, match="deleted"):
        _ = record.value


def test_a_batch_reads_all_values() -> None:
    batch = Batch[Reading]([message(offset=each) for each in range(5)], TYPED)
    assert batch.values() == [Reading(house_id="h1", load_kw=1.5)] * 5
    assert [record.offset for record in batch] == [0, 1, 2, 3, 4]
    assert (len(batch), batch[-1].offset, [each.offset for each in batch[1:3]]) == (5, 4, [1, 2])


def test_a_batch_names_the_record_that_cannot_be_read() -> None:
    batch = Batch[Reading]([message(offset=1), message(BAD, offset=2), message(offset=3)], TYPED)
    with pytest.raises(RecordUnreadableError, match=r"readings\[3\]@2 "):
        batch.values()
    left_out: list[str] = []
    values = batch.values(on_unreadable=lambda record, error: left_out.append(f"{record} {error.code}"))
    assert len(values) == 2
    assert left_out == ["readings[3]@2 RECORD_UNREADABLE"]


def test_a_batch_of_several_topics_reads_each_as_its_type() -> None:
    mixed: RecordDecoder[object] = RecordDecoder({"readings": schema_of(Reading), "t": None})
    batch = Batch[object]([message(), message(b"[1]", topic="t")], mixed)
    assert batch.values() == [Reading(house_id="h1", load_kw=1.5), [1]]
