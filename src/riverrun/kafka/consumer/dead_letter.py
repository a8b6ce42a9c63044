"""Records that could not be handled, kept with everything known about them.

A dead letter has the value, the key and the headers of the record as they were, and headers that say where it was and why
it failed. All in-sync replicas have it before its offset is committed, so a record that was given up is always in one topic
or the other.
"""

import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from threading import Lock
from typing import Any

from confluent_kafka import KafkaError as ClientError
from confluent_kafka import KafkaException, Message, Producer

from riverrun.errors import DeliveryError, RiverrunError, TopicExistsError, TopicNotFoundError
from riverrun.kafka.admin.admin import Admin
from riverrun.kafka.connection import Connection
from riverrun.kafka.consumer.record import Record
from riverrun.kafka.error_mapping import client_log, translate
from riverrun.model.topic import check_topic_name

HEADER_PREFIX = "riverrun.dead."
DEFAULT_TOPIC = "{topic}.dead"

_DELIVERY_SECONDS = 30.0
# A dead letter is its record and these headers; only the message has no limit of its own.
_MESSAGE_CHARACTERS = 2000
_HEADER_BYTES = 16_384
# What is kept of a dead letter larger than its topic allows: of the value, of each header, and how many headers.
_TRUNCATED_BYTES = 16_384
_TRUNCATED_HEADER_BYTES = 256
_TRUNCATED_HEADERS = 8
_RETENTION_MS = 30 * 86_400_000

# Value, key and headers.
_LetterContent = tuple[bytes | None, bytes | None, list[Any]]


@dataclass(frozen=True)
class DeadLetter:
    """What the headers of a dead letter say. `timestamp_ms` is the record's own, `at` when it was given up."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int | None
    error: str
    message: str
    attempts: int
    group: str
    at: datetime
    headers: tuple[tuple[str, bytes | None], ...]
    # For input that a connector could not turn into a record: where it came from (a file and offset, an MQTT topic), and how
    # many bytes it had if only a part of it was kept.
    source: str = ""
    original_size: int = 0

    @property
    def was_record(self) -> bool:
        """Whether it was a record of the topic before; what a connector could not turn into one never was."""
        return self.offset >= 0

    @classmethod
    def from_record(cls, record: Record[Any]) -> "DeadLetter | None":
        """Read the headers of a record in a dead-letter topic; None when it is not a dead letter."""
        values = {name: value or b"" for name, value in record.headers if name.startswith(HEADER_PREFIX)}
        try:
            text = {name.removeprefix(HEADER_PREFIX): value.decode() for name, value in values.items()}
            return cls(
                topic=text["topic"],
                partition=int(text["partition"]),
                offset=int(text["offset"]),
                timestamp_ms=int(text["timestamp"]) if text["timestamp"] else None,
                error=text["error"],
                message=text["message"],
                attempts=int(text["attempts"]),
                group=text["group"],
                at=datetime.fromisoformat(text["at"]),
                headers=tuple((name, value) for name, value in record.headers if not name.startswith(HEADER_PREFIX)),
                source=text.get("source", ""),
                original_size=int(text.get("cut", 0)),
            )
        except (KeyError, ValueError):
            return None


@dataclass(frozen=True)
class RecordCopy:
    """A record that something other than a consumer has read, such as Spark, with what a dead letter needs of it."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int | None
    key: bytes | None
    raw: bytes | None
    headers: list[tuple[str, bytes | None]]

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}]@{self.offset}"


def dead_letter_headers(
    record: Record[Any] | RecordCopy, error: BaseException, attempts: int, group: str, at: datetime
) -> list[Any]:
    """The record's own headers, then ours. Headers of an earlier failure are replaced: they describe the record before."""
    stamp = record.timestamp_ms
    values = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": "" if stamp is None else stamp,
        "error": type(error).__name__,
        "message": str(error)[:_MESSAGE_CHARACTERS],
        "attempts": attempts,
        "group": group,
        "at": at.isoformat(),
    }
    own = [(name, value) for name, value in record.headers if not name.startswith(HEADER_PREFIX)]
    return own + [(HEADER_PREFIX + name, str(value).encode(errors="replace")) for name, value in values.items()]


def _truncated_variants(record: Record[Any] | RecordCopy, headers: list[Any]) -> Iterator[_LetterContent]:
    """Shortened versions of a dead letter too large for its topic, ever smaller, with how many bytes the value had."""
    raw = record.raw or b""
    size_header = [(f"{HEADER_PREFIX}cut", str(len(raw)).encode())] if raw else []
    yield record.raw and raw[:_TRUNCATED_BYTES], record.key, headers + size_header
    ours = [
        # Whole characters: headers that cannot be decoded make it no dead letter.
        (
            name,
            value[:_TRUNCATED_HEADER_BYTES].decode(errors="ignore").encode()
            if name == f"{HEADER_PREFIX}message"
            else value,
        )
        for name, value in headers
        if name.startswith(HEADER_PREFIX)
    ]
    own = [
        (name[:_TRUNCATED_HEADER_BYTES], value and value[:_TRUNCATED_HEADER_BYTES])
        for name, value in headers
        if not name.startswith(HEADER_PREFIX)
    ]
    yield record.raw and raw[:_TRUNCATED_HEADER_BYTES], None, own[:_TRUNCATED_HEADERS] + ours + size_header
    yield record.raw and b"", None, ours + size_header


class DeadLetterProducer:
    """Writes dead letters to the topic `name`, where `{topic}` is replaced by the record's topic. Safe to share."""

    def __init__(self, connection: Connection, group: str, name: str = DEFAULT_TOPIC, *, create: bool = True) -> None:
        self._connection = connection
        self._group = group
        self._topic_template = name
        self._create = create
        self._lock = Lock()
        self._ready: set[str] = set()
        self._producer: Producer | None = None

    def topic_for(self, topic: str) -> str:
        return self._topic_template.replace("{topic}", topic)

    def prepare(self, topics: Collection[str]) -> None:
        """Make sure that these topics have a dead-letter topic, before there are any dead letters."""
        with self._lock:
            for topic in topics:
                self._ensure(topic)

    def write(self, record: Record[Any], error: BaseException, attempts: int) -> str:
        """Write a dead letter, wait until it is acknowledged, and return its position. If this raises, it is not written."""
        with self._lock:
            target = self._ensure(record.topic)
            producer = self._open()
        headers = dead_letter_headers(record, error, attempts, self._group, datetime.now(UTC))
        message = self._deliver(producer, target, record, headers)
        return f"{message.topic()}[{message.partition()}]@{message.offset()}"

    def _deliver(
        self, producer: Producer, target: str, record: Record[Any] | RecordCopy, headers: list[Any]
    ) -> Message:
        """Write a dead letter whole, or shortened if its topic does not allow the size."""
        failure: ClientError | None = None
        for value, key, own_headers in ((record.raw, record.key, headers), *_truncated_variants(record, headers)):
            failure, message = self._produce(
                producer, target, (value, key, own_headers), f"writing the dead letter of {record}"
            )
            if failure is None:
                return message
            if failure.code() != ClientError.MSG_SIZE_TOO_LARGE:
                break
        with self._lock:
            self._ready.discard(record.topic)
        assert failure is not None  # noqa: S101  -- else it was written
        raise self._write_error(failure, f"writing the dead letter of {record}", target)

    def _produce(
        self, producer: Producer, target: str, content: _LetterContent, doing: str
    ) -> tuple[ClientError | None, Message]:
        """The delivery result of one dead letter, once it is known."""
        value, key, headers = content
        outcome: list[tuple[ClientError | None, Message]] = []
        end = time.monotonic() + _DELIVERY_SECONDS + 5
        try:
            producer.produce(
                target,
                value,
                key=key,
                headers=headers,
                on_delivery=lambda failure, message: outcome.append((failure, message)),
            )
            while not outcome and time.monotonic() < end:
                producer.poll(0.1)
        except (KafkaException, BufferError) as refused:
            raise self._write_error(refused, doing, target) from refused
        if not outcome:
            raise DeliveryError(
                f"No answer while {doing} to {target}", hint="The record is not committed", topic=target
            )
        return outcome[0]

    def write_all(self, letters: Iterable[tuple[Record[Any] | RecordCopy, BaseException]]) -> int:
        """Write many, wait until all are acknowledged, and return how many. If this raises, some may be written, and the
        same call can be made again."""
        failures: list[tuple[ClientError, str]] = []
        too_large: list[tuple[str, Record[Any] | RecordCopy, list[Any]]] = []

        def answered(
            dead_letter: tuple[str, Record[Any] | RecordCopy, list[Any]], failure: ClientError | None, _: Message
        ) -> None:
            if failure is None:
                return
            if failure.code() == ClientError.MSG_SIZE_TOO_LARGE:
                too_large.append(dead_letter)
            else:
                failures.append((failure, f"writing a dead letter to {dead_letter[0]}"))

        count = 0
        with self._lock:
            producer = self._open()
        for record, error in letters:
            with self._lock:
                target = self._ensure(record.topic)
            headers = dead_letter_headers(record, error, 1, self._group, datetime.now(UTC))
            on_delivery = partial(answered, (target, record, headers))
            while True:
                try:
                    producer.produce(target, record.raw, key=record.key, headers=headers, on_delivery=on_delivery)
                    break
                except BufferError:
                    producer.poll(0.1)
                except KafkaException as refused:
                    raise self._write_error(refused, f"writing the dead letter of {record}", target) from refused
            producer.poll(0)
            count += 1
        left = producer.flush(_DELIVERY_SECONDS + 5)
        if failures:
            raise self._write_error(failures[0][0], failures[0][1], "")
        if left:
            raise DeliveryError(f"No answer for {left} dead letters", hint="They will be written again")
        for target, record, headers in too_large:
            self._deliver(producer, target, record, headers)
        return count

    def close(self) -> None:
        """Drop the producer. Nothing is pending: every `write` waited for its own delivery."""
        with self._lock:
            self._producer = None

    def _write_error(self, error: ClientError | KafkaException | BufferError, doing: str, target: str) -> RiverrunError:
        if isinstance(error, BufferError):
            return DeliveryError(f"The queue is full while {doing}", hint="The record is not committed", topic=target)
        return translate(error, doing, topic=target, bootstrap=self._connection.bootstrap_servers)

    def _open(self) -> Producer:
        if self._producer is None:
            properties = {
                "acks": "all",
                "enable.idempotence": True,
                "message.timeout.ms": round(_DELIVERY_SECONDS * 1000),
                "linger.ms": 0,
                "partitioner": "murmur2_random",
                # The topic decides how large a record may be; the client's own limit is lower than many topics'.
                "message.max.bytes": 100_000_000,
            }
            self._producer = Producer(self._connection.properties(properties), logger=client_log)
        return self._producer

    def _ensure(self, topic: str) -> str:
        target = check_topic_name(self.topic_for(topic))
        if topic in self._ready:
            return target
        admin = Admin(self._connection)
        if target not in admin.topics([target], config=False):
            if not self._create:
                raise TopicNotFoundError(
                    f"There is no topic {target} for the dead letters of {topic}",
                    hint=f"Create it: riverrun topics create {target}; or allow it with create_dead_letter=True",
                    topic=target,
                )
            self._create_topic(admin, topic, target)
        self._ready.add(topic)
        return target

    def _create_topic(self, admin: Admin, topic: str, target: str) -> None:
        source = admin.topics([topic]).get(topic)
        limit = source.config.get("max.message.bytes") if source else None
        config = {"retention.ms": str(_RETENTION_MS)}
        if limit is not None:
            config["max.message.bytes"] = str(int(limit.value) + _HEADER_BYTES)
        try:
            admin.create_topic(target, partitions=1, replicas=0, config=config)
        except TopicExistsError:
            return
        except RiverrunError as error:
            error.add_note(f"The topic {target} is needed for the records of {topic} that cannot be handled.")
            raise
