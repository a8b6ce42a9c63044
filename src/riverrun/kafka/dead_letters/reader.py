"""The dead letters in a topic: where they are, why they failed, and which of them are selected."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from riverrun.errors import TopicNotFoundError, UsageError
from riverrun.kafka.admin.admin import Admin
from riverrun.kafka.connection import Connection
from riverrun.kafka.consumer.dead_letter import DEFAULT_TOPIC, DeadLetter
from riverrun.kafka.consumer.record import Record, RecordDecoder
from riverrun.kafka.reading.partition_reader import OffsetRange, PartitionReader, resolve_offset_ranges
from riverrun.model.cluster_state import TopicPartition, TopicState
from riverrun.model.filters import FieldFilter
from riverrun.model.positions import EARLIEST
from riverrun.model.record import decode_json, format_timestamp
from riverrun.model.topic import check_topic_name

DEAD_LETTER_SUFFIX = DEFAULT_TOPIC.removeprefix("{topic}")

_ANY_DECODER: RecordDecoder[Any] = RecordDecoder({})
_REASON_CHARACTERS = 160
# What differs between dead letters without being another reason: positions, quoted values, numbers that are no limits.
_HINT = re.compile(r"\s*Its bytes are in `record\.raw`\.?")
_POSITION = re.compile(r"[a-zA-Z0-9._-]+\[\d+\]@\d+")
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")
_NUMBER = re.compile(r"(?<![\w.$`])(?<![<>=] )-?\d[\d.,:eE+TZ-]*(?![\w`])")


def reason_pattern(error: str, message: str) -> str:
    """The reason of a dead letter without its own details, so that dead letters of one cause are counted together."""
    lines = message.strip().splitlines()
    text = _HINT.sub("", lines[0]) if lines else ""
    text = _NUMBER.sub("#", _QUOTED.sub("'…'", _POSITION.sub("…", text)))
    shown = f"{error}: {text}" if text else error
    return shown if len(shown) <= _REASON_CHARACTERS else f"{shown[:_REASON_CHARACTERS]}…"


@dataclass(frozen=True)
class DeadLetterRecord:
    """A dead letter in its topic: the record there, and what its headers say."""

    record: Record[Any]
    details: DeadLetter

    @property
    def origin(self) -> str:
        """Where the original record was, or where it came from if it never was in the topic."""
        details = self.details
        if details.was_record:
            return f"{details.topic}[{details.partition}]@{details.offset}"
        return f"{details.source or details.group} for {details.topic}"

    @property
    def reason_pattern(self) -> str:
        return reason_pattern(self.details.error, self.details.message)

    def __str__(self) -> str:
        return f"{self.record} (of {self.origin})"

    def row(self, *, redriven: bool) -> dict[str, Any]:
        """Everything known about it, for programs. Bytes are text where they are UTF-8, else hexadecimal."""
        details, record = self.details, self.record
        return {
            "letter": str(record),
            "from": self.origin,
            "at": details.at.isoformat(),
            "timestamp": None if details.timestamp_ms is None else format_timestamp(details.timestamp_ms),
            "error": details.error,
            "message": details.message,
            "group": details.group,
            "attempts": details.attempts,
            "redriven": redriven,
            **_readable("key", record.key),
            **_readable("value", record.raw),
            "headers": [_readable("value", value) | {"name": name} for name, value in details.headers],
        }


def _readable(name: str, value: bytes | None) -> dict[str, str | None]:
    if value is None:
        return {name: None}
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_hex": value.hex()}


@dataclass(frozen=True)
class DeadLetterSelector:
    """Selects dead letters: all conditions must hold. `offset` and `partition` are those of the dead letter itself."""

    reason: str = ""
    conditions: Sequence[FieldFilter] = ()
    partition: int | None = None
    offset: int | None = None

    @property
    def covers_all(self) -> bool:
        """Whether every dead letter is read."""
        return self.partition is None and self.offset is None

    def matches(self, letter: DeadLetterRecord) -> bool:
        if self.reason:
            sought = self.reason.casefold()
            full = f"{letter.details.error}: {letter.details.message}".casefold()
            if sought not in full and sought.rstrip("…") not in letter.reason_pattern.casefold():
                return False
        if not self.conditions:
            return True
        is_json, value = decode_json(letter.record.raw)
        return is_json and all(condition.matches(value) for condition in self.conditions)

    def offset_ranges(self, admin: Admin, dead: str) -> dict[TopicPartition, OffsetRange]:
        """The offsets to read; UsageError if the partition or offset does not exist."""
        ranges = resolve_offset_ranges(
            admin, [dead], start=EARLIEST, partitions=() if self.partition is None else (self.partition,)
        )
        if self.offset is None:
            return ranges
        if len(ranges) > 1:
            raise UsageError(
                f"{dead} has {len(ranges)} partitions, and an offset is a place in one", hint="Say --partition as well"
            )
        partition, offset_range = next(iter(ranges.items()))
        end = offset_range.end or 0
        if not offset_range.start <= self.offset < end:
            raise UsageError(
                f"There is no letter {partition}@{self.offset}",
                found=f"offsets {offset_range.start} to {end - 1}"
                if end > offset_range.start
                else "an empty partition",
                topic=dead,
                offset=self.offset,
            )
        return {partition: OffsetRange(self.offset, self.offset + 1)}


def read_dead_letters(
    connection: Connection,
    ranges: Mapping[TopicPartition, OffsetRange],
    *,
    on_gone: Callable[[TopicPartition, int, int], None] = lambda _partition, _first, _count: None,
) -> Iterator[DeadLetterRecord | None]:
    """The dead letters there, in order within a partition; None for a record that is not one."""
    with PartitionReader(connection, ranges, on_gone=on_gone) as reader:
        for batch in reader:
            for message in batch:
                record: Record[Any] = Record(message, _ANY_DECODER)  # type: ignore[arg-type]
                details = DeadLetter.from_record(record)
                yield None if details is None else DeadLetterRecord(record, details)


def count_offsets(ranges: Mapping[TopicPartition, OffsetRange]) -> int:
    """The number of records, at most."""
    return sum(max(0, (offset_range.end or 0) - offset_range.start) for offset_range in ranges.values())


def dead_letter_topics(admin: Admin) -> list[str]:
    """Every topic with the name of a dead-letter topic."""
    return [name for name in admin.topic_names() if name.endswith(DEAD_LETTER_SUFFIX) and not name.startswith("__")]


def find_dead_letter_topic(admin: Admin, name: str) -> str:
    """The dead-letter topic that `name` refers to: its own name, or the topic its dead letters come from.

    TopicNotFoundError when the cluster has no such topic; "" when it has it, and it never had dead letters.
    """
    check_topic_name(name)
    existing = admin.topics([name, f"{name}{DEAD_LETTER_SUFFIX}"], config=False)
    if name in existing and name.endswith(DEAD_LETTER_SUFFIX):
        return name
    if f"{name}{DEAD_LETTER_SUFFIX}" in existing:
        return f"{name}{DEAD_LETTER_SUFFIX}"
    if name not in existing:
        error = admin.topic_not_found(name.removesuffix(DEAD_LETTER_SUFFIX))
        hint = error.hint if error.hint.endswith("?") else "`riverrun dlq list` shows what is dead"
        raise TopicNotFoundError(error.what, hint=hint, **error.fields)
    # Consumers may write dead letters to a topic of any name (`dead_letter=…`): then its first record is a dead letter.
    first = next(read_dead_letters(admin.connection, resolve_offset_ranges(admin, [name], start=EARLIEST)), None)
    return name if first is not None else ""


class OriginTopics:
    """The topics that dead letters came from, each looked up once."""

    def __init__(self, admin: Admin) -> None:
        self._admin = admin
        self._known: dict[str, TopicState | None] = {}

    def __getitem__(self, name: str) -> TopicState | None:
        """The topic's current state; None when it does not exist any more."""
        if name not in self._known:
            self._known[name] = self._admin.topics([name]).get(name)
        return self._known[name]

    def topic_id(self, name: str) -> str:
        state = self[name]
        return state.topic_id if state is not None else ""

    def existing(self) -> list[TopicState]:
        return [state for state in self._known.values() if state is not None]
