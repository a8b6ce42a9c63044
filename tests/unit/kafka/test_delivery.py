"""Failures that nobody was told of: counted, kept within bounds, told once."""

from datetime import UTC, datetime

import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME, Message
from confluent_kafka import KafkaError as ClientError

from riverrun.errors import (
    AuthorizationError,
    DeliveryError,
    HandlerError,
    ProducerFencedError,
    RecordTooLargeError,
    RiverrunError,
    TopicNotFoundError,
)
from riverrun.kafka.producer.delivery import KEPT_BYTES, KEPT_RECORDS, DeliveryFailures, receipt_of


def failed(code: int = ClientError._MSG_TIMED_OUT, value: bytes = b"v", partition: int = 2) -> Message:
    return Message(topic="t", partition=partition, key=b"k", value=value, error=ClientError(code))


def taken(failures: DeliveryFailures) -> RiverrunError:
    error = failures.take_error()
    assert error is not None
    return error


def test_a_receipt_prints_as_a_place() -> None:
    message = Message(topic="t", partition=3, offset=41, timestamp=(TIMESTAMP_CREATE_TIME, 1_767_225_600_123))
    receipt = receipt_of(message)
    assert str(receipt) == "t[3]@41"
    assert receipt.timestamp == datetime(2026, 1, 1, 0, 0, 0, 123_000, tzinfo=UTC)


def test_nothing_failed() -> None:
    assert DeliveryFailures("b").take_error() is None


def test_failures_are_told_once() -> None:
    failures = DeliveryFailures("b")
    failures.add(failed())
    failures.add(failed(value=b"w", partition=-1))
    error = taken(failures)
    assert isinstance(error, DeliveryError)
    assert error.fields["count"] == 2
    assert [(each.topic, each.partition, each.key, each.value) for each in error.undelivered] == [
        ("t", 2, b"k", b"v"), ("t", None, b"k", b"w"),
    ]  # fmt: skip
    assert error.__cause__ is error.undelivered[0].error
    assert failures.take_error() is None


def test_a_failure_that_somebody_asked_about_is_not_told_again() -> None:
    failures = DeliveryFailures("b")
    messages = [failed(value=bytes([n])) for n in range(3)]
    marks = [failures.add(message) for message in messages]
    failures.forget(messages[1], marks[1])
    error = taken(failures)
    assert isinstance(error, DeliveryError)
    assert [each.value for each in error.undelivered] == [b"\x00", b"\x02"]
    failures.forget(messages[0], marks[0])
    assert failures.take_error() is None, "asking after it was told changes nothing"


def test_many_failures_are_counted_and_few_are_kept() -> None:
    failures = DeliveryFailures("b")
    messages = [failed() for _ in range(KEPT_RECORDS + 50)]
    marks = [failures.add(message) for message in messages]
    failures.forget(messages[-1], marks[-1])
    error = taken(failures)
    assert isinstance(error, DeliveryError)
    assert error.fields["count"] == KEPT_RECORDS + 49
    assert len(error.undelivered) == KEPT_RECORDS


def test_large_failures_are_not_kept_beyond_a_size() -> None:
    failures = DeliveryFailures("b")
    large = b"x" * (KEPT_BYTES // 2)
    for _ in range(4):
        failures.add(failed(value=large))
    error = taken(failures)
    assert isinstance(error, DeliveryError)
    assert (error.fields["count"], len(error.undelivered)) == (4, 2)


def test_a_callback_that_raised_is_told() -> None:
    failures = DeliveryFailures("b")
    problem = ValueError("mine")
    failures.callback_failed(problem)
    failures.callback_failed(KeyError("other"))
    error = taken(failures)
    assert isinstance(error, HandlerError)
    assert error.__cause__ is problem
    assert (error.fields["count"], error.found) == (2, "first ValueError: mine")
    assert failures.take_error() is None


def test_undelivered_records_and_failed_callbacks_are_both_told() -> None:
    failures = DeliveryFailures("b")
    failures.add(failed())
    failures.callback_failed(ValueError("mine"))
    error = taken(failures)
    assert isinstance(error, DeliveryError)
    assert "first ValueError: mine" in error.__notes__[0]


@pytest.mark.parametrize(
    ("code", "kind", "words"),
    [
        (ClientError._MSG_TIMED_OUT, DeliveryError, "not acknowledged in time"),
        (ClientError._PURGE_QUEUE, DeliveryError, "given up before it was sent"),
        (ClientError._PURGE_INFLIGHT, DeliveryError, "may or may not have been written"),
        (ClientError.MSG_SIZE_TOO_LARGE, RecordTooLargeError, "this record has 1 B"),
        (ClientError.TOPIC_AUTHORIZATION_FAILED, AuthorizationError, "does not allow sending to t"),
        (ClientError.UNKNOWN_TOPIC_OR_PART, TopicNotFoundError, "no topic t"),
        (ClientError.INVALID_PRODUCER_EPOCH, ProducerFencedError, "newer producer"),
    ],
)
def test_reasons_in_our_words(code: int, kind: type[RiverrunError], words: str) -> None:
    found = DeliveryFailures("b").explain(failed(code))
    assert type(found) is kind
    assert words in str(found)
    assert found.fields["topic"] == "t"
    assert found.__cause__ is not None


def test_records_given_up_because_the_client_is_at_its_end_say_why() -> None:
    failures = DeliveryFailures("b")
    failures.fatal = ClientError(ClientError._FENCED, "fenced", fatal=True)
    assert type(failures.explain(failed(ClientError._PURGE_QUEUE))) is ProducerFencedError
    assert type(failures.explain(failed(ClientError.MSG_SIZE_TOO_LARGE))) is RecordTooLargeError
