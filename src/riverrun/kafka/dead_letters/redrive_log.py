"""Which dead letters of a topic have been re-driven: a compacted topic beside it, `<dead-letter topic>.redriven`.

One entry for each dead letter that was sent back, keyed by its `partition/offset`, written in the same transaction that
sends it. So a dead letter is in its topic again and in the log, or in neither, whatever happens on the way; dead letters
that were filtered out or left have no entry and can be re-driven later.

An entry is for one dead letter, not for one offset: it has the dead letter's timestamp, because a dead-letter topic that was
deleted and created again starts at offset 0 again. It also identifies the original record, by a hash of its position, its
timestamp, its bytes and its topic's id: a record that several groups gave up, or one group twice, has several dead letters
and is sent back once, and a record at the same offset of a topic that was created again is a different one.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping

import msgspec

from riverrun.errors import AuthorizationError, RecordUnreadableError
from riverrun.kafka.admin.admin import Admin
from riverrun.kafka.compacted_topic import ensure_compacted_topic
from riverrun.kafka.dead_letters.reader import DeadLetterRecord
from riverrun.kafka.reading.partition_reader import PartitionReader, resolve_offset_ranges
from riverrun.model.cluster_state import TopicPartition
from riverrun.model.positions import EARLIEST
from riverrun.model.record import RawRecord
from riverrun.model.topic import check_topic_name

REDRIVEN_SUFFIX = ".redriven"


class RedriveEntry(msgspec.Struct, frozen=True):
    """A dead letter that was sent back: its timestamp, the original record (`record_identity` and position), and when."""

    letter_timestamp: int | None
    record: str
    came_from: str
    at: str


_encode: Callable[[RedriveEntry], bytes] = msgspec.json.Encoder().encode
_decode: Callable[[bytes], RedriveEntry] = msgspec.json.Decoder(RedriveEntry).decode


def redrive_topic_of(dead: str) -> str:
    return check_topic_name(f"{dead}{REDRIVEN_SUFFIX}")


def record_identity(letter: DeadLetterRecord, topic_id: str) -> bytes:
    """Identifies the original record: the same for all its dead letters, and different for every other record."""
    record, details = letter.record, letter.details
    # What never was a record has only its dead letter's position: two equal messages of a device are two.
    position = (
        (details.partition, details.offset) if details.was_record else ("letter", record.partition, record.offset)
    )
    location = f"{details.topic}/{topic_id}/{'/'.join(map(str, position))}/{details.timestamp_ms}"
    fields = (location.encode(), record.key, record.raw)
    digest = hashlib.blake2b(digest_size=12)
    for field in fields:
        digest.update(b"-" if field is None else b"%d:%b" % (len(field), field))
    return digest.digest()


def encode_entry(letter: DeadLetterRecord, topic_id: str, at: str) -> tuple[bytes, bytes]:
    """The key and the value to write for a dead letter."""
    entry = RedriveEntry(letter.record.timestamp_ms, record_identity(letter, topic_id).hex(), letter.origin, at)
    return b"%d/%d" % (letter.record.partition, letter.record.offset), _encode(entry)


class RedriveLog:
    """The re-drive log of one dead-letter topic, in memory."""

    def __init__(self) -> None:
        self._letters: dict[tuple[int, int], int | None] = {}
        self._records: set[bytes] = set()

    def apply(self, key: bytes, value: bytes | None) -> None:
        """Apply an entry of the topic; ValueError when it is not one. A tombstone removes the earlier entry."""
        partition, _, offset = key.partition(b"/")
        position = int(partition), int(offset)
        if value is None:
            self._letters.pop(position, None)
            return
        entry = _decode(value)
        self._letters[position] = entry.letter_timestamp
        self._records.add(bytes.fromhex(entry.record))

    def has_letter(self, letter: DeadLetterRecord) -> bool:
        """Whether this dead letter was sent back, or counted as sent with another of the same record."""
        position = letter.record.partition, letter.record.offset
        return position in self._letters and self._letters[position] == letter.record.timestamp_ms

    def has_record(self, letter: DeadLetterRecord, topic_id: str) -> bool:
        """Whether the original record was sent back, with this dead letter or another, to the topic of this id."""
        return record_identity(letter, topic_id) in self._records

    def has(self, letter: DeadLetterRecord, topic_id: str) -> bool:
        return self.has_letter(letter) or self.has_record(letter, topic_id)

    def expired_keys(self, earliest: Mapping[TopicPartition, int]) -> Iterator[bytes]:
        """The keys of dead letters that retention has removed: nobody can ask for them any more."""
        first = {topic_partition.partition: offset for topic_partition, offset in earliest.items()}
        for partition, offset in self._letters:
            if offset < first.get(partition, 0):
                yield b"%d/%d" % (partition, offset)


def _topic_exists(admin: Admin, name: str) -> bool:
    try:
        return name in admin.topics([name], config=False)
    except AuthorizationError as error:
        raise _authorization_error(name, error) from error


def _authorization_error(name: str, error: AuthorizationError) -> AuthorizationError:
    return AuthorizationError(
        f"The topic {name}, in which riverrun notes what was re-driven, cannot be used: {error.what}",
        found=error.found,
        hint="Nothing was sent. Ask the cluster's owner for the right to describe, create, read and write it",
        **error.fields | {"topic": name},
    )


def read_redrive_log(admin: Admin, dead: str) -> RedriveLog:
    """The current log; empty when nothing was ever re-driven."""
    log, name = RedriveLog(), redrive_topic_of(dead)
    if not _topic_exists(admin, name):
        return log
    try:
        with PartitionReader(admin.connection, resolve_offset_ranges(admin, [name], start=EARLIEST)) as reader:
            for batch in reader:
                for record in batch:
                    _apply_record(log, name, record)
    except AuthorizationError as error:
        raise _authorization_error(name, error) from error
    return log


def _apply_record(log: RedriveLog, name: str, record: RawRecord) -> None:
    try:
        log.apply(record.key() or b"", record.value())
    except (ValueError, msgspec.MsgspecError) as error:
        # Ignoring it could send a dead letter twice.
        raise RecordUnreadableError(
            f"The record {name}[{record.partition()}]@{record.offset()} is no entry of what was re-driven",
            found=str(error),
            hint=f"Only riverrun may write to {name}",
            topic=name,
        ) from error


def ensure_redrive_topic(admin: Admin, dead: str) -> str:
    """The name of the log's topic, which is created if it is missing."""
    name = redrive_topic_of(dead)
    try:
        ensure_compacted_topic(admin, name)
    except AuthorizationError as error:
        raise _authorization_error(name, error) from error
    return name
