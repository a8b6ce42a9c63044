"""The letters in a dead-letter topic: where they are, why they died, which of them are meant."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from riverrun.errors import TopicNotFoundError, UsageError
from riverrun.kafka.admin.admin import Admin
from riverrun.kafka.connection import Connection
from riverrun.kafka.consumer.dead_letter import DEFAULT_TOPIC, DeadLetter
from riverrun.kafka.consumer.reader import Reader, Span, spans
from riverrun.kafka.consumer.record import Decoding, Record
from riverrun.model.record import json_value, moment
from riverrun.model.state import Place, TopicState
from riverrun.model.topic import check_topic_name
from riverrun.model.when import EARLIEST
from riverrun.model.where import Condition

ENDING = DEFAULT_TOPIC.removeprefix("{topic}")

_ANY: Decoding[Any] = Decoding({})
_REASON_CHARACTERS = 160
# What differs from letter to letter without being another reason: places, quoted values, numbers that are no limits.
_HINT = re.compile(r"\s*Its bytes are in `record\.raw`\.?")
_PLACE = re.compile(r"[a-zA-Z0-9._-]+\[\d+\]@\d+")
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")
_NUMBER = re.compile(r"(?<![\w.$`])(?<![<>=] )-?\d[\d.,:eE+TZ-]*(?![\w`])")


def pattern_of(error: str, message: str) -> str:
    """The reason of a letter without what is only its own, so that letters of one cause are counted together."""
    lines = message.strip().splitlines()
    text = _HINT.sub("", lines[0]) if lines else ""
    text = _NUMBER.sub("#", _QUOTED.sub("'…'", _PLACE.sub("…", text)))
    shown = f"{error}: {text}" if text else error
    return shown if len(shown) <= _REASON_CHARACTERS else f"{shown[:_REASON_CHARACTERS]}…"


@dataclass(frozen=True)
class Letter:
    """A dead letter as it lies in its topic: the record there, and what its headers tell."""

    record: Record[Any]
    told: DeadLetter

    @property
    def came_from(self) -> str:
        """Where the record that died was, or where it came from if it never was in the topic."""
        told = self.told
        if told.was_record:
            return f"{told.topic}[{told.partition}]@{told.offset}"
        return f"{told.source or told.group} for {told.topic}"

    @property
    def pattern(self) -> str:
        return pattern_of(self.told.error, self.told.message)

    def __str__(self) -> str:
        return f"{self.record} (of {self.came_from})"

    def row(self, *, redriven: bool) -> dict[str, Any]:
        """All that is known, for programs. Bytes are text where they are UTF-8, else hexadecimal."""
        told, record = self.told, self.record
        return {
            "letter": str(record),
            "from": self.came_from,
            "at": told.at.isoformat(),
            "timestamp": None if told.timestamp_ms is None else moment(told.timestamp_ms),
            "error": told.error,
            "message": told.message,
            "group": told.group,
            "attempts": told.attempts,
            "redriven": redriven,
            **_readable("key", record.key),
            **_readable("value", record.raw),
            "headers": [_readable("value", value) | {"name": name} for name, value in told.headers],
        }


def _readable(name: str, value: bytes | None) -> dict[str, str | None]:
    if value is None:
        return {name: None}
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_hex": value.hex()}


@dataclass(frozen=True)
class Selection:
    """Which letters are meant: all of these must hold. `offset` and `partition` are the letter's own place."""

    reason: str = ""
    conditions: Sequence[Condition] = ()
    partition: int | None = None
    offset: int | None = None

    @property
    def whole(self) -> bool:
        """Whether every letter is looked at."""
        return self.partition is None and self.offset is None

    def takes(self, letter: Letter) -> bool:
        if self.reason:
            wanted = self.reason.casefold()
            full = f"{letter.told.error}: {letter.told.message}".casefold()
            if wanted not in full and wanted.rstrip("…") not in letter.pattern.casefold():
                return False
        if not self.conditions:
            return True
        is_json, value = json_value(letter.record.raw)
        return is_json and all(each.holds(value) for each in self.conditions)

    def spans(self, admin: Admin, dead: str) -> dict[Place, Span]:
        """Where to look; UsageError where there is no such place."""
        there = spans(admin, [dead], start=EARLIEST, partitions=() if self.partition is None else (self.partition,))
        if self.offset is None:
            return there
        if len(there) > 1:
            raise UsageError(
                f"{dead} has {len(there)} partitions, and an offset is a place in one", hint="Say --partition as well"
            )
        place, span = next(iter(there.items()))
        end = span.end or 0
        if not span.start <= self.offset < end:
            raise UsageError(
                f"There is no letter {place}@{self.offset}",
                found=f"offsets {span.start} to {end - 1}" if end > span.start else "an empty partition",
                topic=dead,
                offset=self.offset,
            )
        return {place: Span(self.offset, self.offset + 1)}


def read_letters(
    connection: Connection,
    where: Mapping[Place, Span],
    *,
    on_gone: Callable[[Place, int, int], None] = lambda _place, _first, _count: None,
) -> Iterator[Letter | None]:
    """The letters there, in order within a partition; None for a record that is none."""
    with Reader(connection, where, on_gone=on_gone) as reader:
        for batch in reader:
            for message in batch:
                record: Record[Any] = Record(message, _ANY)  # type: ignore[arg-type]
                told = DeadLetter.of(record)
                yield None if told is None else Letter(record, told)


def count_of(where: Mapping[Place, Span]) -> int:
    """How many records there are at most."""
    return sum(max(0, (span.end or 0) - span.start) for span in where.values())


def dead_topics(admin: Admin) -> list[str]:
    """Every topic that is named as one of dead letters."""
    return [name for name in admin.topic_names() if name.endswith(ENDING) and not name.startswith("__")]


def find_dead_topic(admin: Admin, name: str) -> str:
    """The dead-letter topic that is meant by `name`: its own name, or the topic its letters come from.

    TopicNotFoundError when the cluster has no such topic; "" when it has it, and nothing of it was ever dead.
    """
    check_topic_name(name)
    there = admin.topics([name, f"{name}{ENDING}"], config=False)
    if name in there and name.endswith(ENDING):
        return name
    if f"{name}{ENDING}" in there:
        return f"{name}{ENDING}"
    if name not in there:
        error = admin.no_topic(name.removesuffix(ENDING))
        near = error.hint if error.hint.endswith("?") else "`riverrun dlq list` shows what is dead"
        raise TopicNotFoundError(error.what, hint=near, **error.fields)
    # Consumers may write dead letters to a topic of any name (`dead_letter=…`): then its first record is one.
    first = next(read_letters(admin.connection, spans(admin, [name], start=EARLIEST)), None)
    return name if first is not None else ""


class Origins:
    """The topics letters came from, asked for once each."""

    def __init__(self, admin: Admin) -> None:
        self._admin = admin
        self._known: dict[str, TopicState | None] = {}

    def __getitem__(self, name: str) -> TopicState | None:
        """The topic as it is now; None when it is not there any more."""
        if name not in self._known:
            self._known[name] = self._admin.topics([name]).get(name)
        return self._known[name]

    def topic_id(self, name: str) -> str:
        found = self[name]
        return found.topic_id if found is not None else ""

    def there(self) -> list[TopicState]:
        return [each for each in self._known.values() if each is not None]
