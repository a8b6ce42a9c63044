"""What of a dead-letter topic has been re-driven: a compacted topic beside it, `<dead-letter topic>.redriven`.

One entry for each letter that was sent back, keyed by the letter's `partition/offset`, written in the very transaction that
sends it. So a letter is in its topic again and in the ledger, or in neither, whatever happens on the way; what was filtered
out or left is in the ledger of nobody and stays to be found.

An entry holds for one letter, not for one offset: it names the letter's timestamp, because a dead-letter topic that was
deleted and made again counts from 0 again. And it names the record that died, by a hash of its place, its timestamp, its
bytes and its topic's id: a record that several groups gave up, or one group twice, has several letters and is sent back
once, and a record at the same offset of a topic that was made again is another one.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping

import msgspec

from riverrun.errors import AuthorizationError, RecordUnreadableError
from riverrun.kafka.admin.admin import Admin
from riverrun.kafka.consumer.reader import Reader, spans
from riverrun.kafka.dead_letters.letter import Letter
from riverrun.kafka.ledger import make_compacted
from riverrun.model.record import RawRecord
from riverrun.model.state import Place
from riverrun.model.topic import check_topic_name
from riverrun.model.when import EARLIEST

ENDING = ".redriven"


class Entry(msgspec.Struct, frozen=True):
    """A letter that was sent back: its own timestamp, the record it had been (`identity_of`, and its place), and when."""

    letter_timestamp: int | None
    record: str
    came_from: str
    at: str


_encode: Callable[[Entry], bytes] = msgspec.json.Encoder().encode
_decode: Callable[[bytes], Entry] = msgspec.json.Decoder(Entry).decode


def ledger_of(dead: str) -> str:
    return check_topic_name(f"{dead}{ENDING}")


def identity_of(letter: Letter, topic_id: str) -> bytes:
    """The record that died: the same for all its letters, and for those of no other record."""
    record, told = letter.record, letter.told
    # What never was a record has no place but its letter's: two equal messages of a device are two.
    spot = (told.partition, told.offset) if told.was_record else ("letter", record.partition, record.offset)
    place = f"{told.topic}/{topic_id}/{'/'.join(map(str, spot))}/{told.timestamp_ms}"
    parts = (place.encode(), record.key, record.raw)
    found = hashlib.blake2b(digest_size=12)
    for each in parts:
        found.update(b"-" if each is None else b"%d:%b" % (len(each), each))
    return found.digest()


def entry_for(letter: Letter, topic_id: str, at: str) -> tuple[bytes, bytes]:
    """The key and the value to write for a letter."""
    entry = Entry(letter.record.timestamp_ms, identity_of(letter, topic_id).hex(), letter.came_from, at)
    return b"%d/%d" % (letter.record.partition, letter.record.offset), _encode(entry)


class Redriven:
    """The ledger of one dead-letter topic, in memory."""

    def __init__(self) -> None:
        self._letters: dict[tuple[int, int], int | None] = {}
        self._records: set[bytes] = set()

    def take(self, key: bytes, value: bytes | None) -> None:
        """An entry as it is in the topic; ValueError when it is none. One without a value takes the earlier one back."""
        partition, _, offset = key.partition(b"/")
        place = int(partition), int(offset)
        if value is None:
            self._letters.pop(place, None)
            return
        entry = _decode(value)
        self._letters[place] = entry.letter_timestamp
        self._records.add(bytes.fromhex(entry.record))

    def has_letter(self, letter: Letter) -> bool:
        """Whether this very letter was sent back, or counted as sent with another of the same record."""
        place = letter.record.partition, letter.record.offset
        return place in self._letters and self._letters[place] == letter.record.timestamp_ms

    def has_record(self, letter: Letter, topic_id: str) -> bool:
        """Whether the record that died was sent back, with this letter or another, to the topic of this id."""
        return identity_of(letter, topic_id) in self._records

    def has(self, letter: Letter, topic_id: str) -> bool:
        return self.has_letter(letter) or self.has_record(letter, topic_id)

    def gone(self, earliest: Mapping[Place, int]) -> Iterator[bytes]:
        """The keys of letters that retention has removed: nobody can ask for them any more."""
        first = {place.partition: offset for place, offset in earliest.items()}
        for partition, offset in self._letters:
            if offset < first.get(partition, 0):
                yield b"%d/%d" % (partition, offset)


def _there(admin: Admin, name: str) -> bool:
    try:
        return name in admin.topics([name], config=False)
    except AuthorizationError as error:
        raise _no_right(name, error) from error


def _no_right(name: str, error: AuthorizationError) -> AuthorizationError:
    return AuthorizationError(
        f"The topic {name}, in which riverrun notes what was re-driven, cannot be used: {error.what}",
        found=error.found,
        hint="Nothing was sent. Ask the cluster's owner for the right to describe, create, read and write it",
        **error.fields | {"topic": name},
    )


def read_ledger(admin: Admin, dead: str) -> Redriven:
    """The ledger as it stands now; empty when nothing was ever re-driven."""
    found, name = Redriven(), ledger_of(dead)
    if not _there(admin, name):
        return found
    try:
        with Reader(admin.connection, spans(admin, [name], start=EARLIEST)) as reader:
            for batch in reader:
                for record in batch:
                    _take(found, name, record)
    except AuthorizationError as error:
        raise _no_right(name, error) from error
    return found


def _take(found: Redriven, name: str, record: RawRecord) -> None:
    try:
        found.take(record.key() or b"", record.value())
    except (ValueError, msgspec.MsgspecError) as error:
        # To go on without it could send a letter twice.
        raise RecordUnreadableError(
            f"The record {name}[{record.partition()}]@{record.offset()} is no entry of what was re-driven",
            found=str(error),
            hint=f"Only riverrun may write to {name}",
            topic=name,
        ) from error


def make_ledger(admin: Admin, dead: str) -> str:
    """The ledger's topic, made where it is missing."""
    name = ledger_of(dead)
    try:
        make_compacted(admin, name)
    except AuthorizationError as error:
        raise _no_right(name, error) from error
    return name
