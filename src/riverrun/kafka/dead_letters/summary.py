"""How many letters a dead-letter topic holds, how many of them were re-driven, and why they died."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from riverrun.kafka.admin.admin import Admin
from riverrun.kafka.dead_letters.ledger import read_ledger
from riverrun.kafka.dead_letters.letter import Letter, Origins, Selection, count_of, read_letters
from riverrun.kafka.dead_letters.redrive import REDRIVEN

# Messages can be of any kind: beyond this many reasons, the rest is counted as one.
_REASONS = 1000
OTHER_REASONS = "(other reasons)"


@dataclass
class Count:
    """Letters, and how many of them were re-driven."""

    letters: int = 0
    redriven: int = 0

    @property
    def waiting(self) -> int:
        return self.letters - self.redriven

    def add(self, redriven: bool) -> None:
        self.letters += 1
        self.redriven += redriven


@dataclass
class Summary:
    """One dead-letter topic. `again`: letters of records that had been re-driven; `other`: records that are no letters."""

    topic: str
    count: Count = field(default_factory=Count)
    again: int = 0
    other: int = 0
    oldest: datetime | None = None
    newest: datetime | None = None
    reasons: dict[str, Count] = field(default_factory=dict)

    def add(self, letter: Letter, redriven: bool) -> None:
        self.count.add(redriven)
        self.again += any(name == REDRIVEN for name, _ in letter.told.headers)
        at = letter.told.at
        self.oldest = at if self.oldest is None else min(self.oldest, at)
        self.newest = at if self.newest is None else max(self.newest, at)
        reason = letter.pattern
        if reason not in self.reasons and len(self.reasons) >= _REASONS:
            reason = OTHER_REASONS
        self.reasons.setdefault(reason, Count()).add(redriven)

    def row(self) -> dict[str, Any]:
        return {
            "topic": self.topic,
            "letters": self.count.letters,
            "redriven": self.count.redriven,
            "waiting": self.count.waiting,
            "died_again": self.again,
            "no_letters": self.other,
            "oldest": self.oldest.isoformat(timespec="seconds") if self.oldest else None,
            "newest": self.newest.isoformat(timespec="seconds") if self.newest else None,
        }

    def reason_rows(self) -> list[dict[str, Any]]:
        """Most frequent first."""
        found = sorted(self.reasons.items(), key=lambda each: (-each[1].letters, each[0]))
        return [{"letters": count.letters, "waiting": count.waiting, "reason": reason} for reason, count in found]


def summarize(admin: Admin, dead: str, on_progress: Callable[[int, int], None] = lambda _done, _all: None) -> Summary:
    """Read every letter of the topic and count."""
    found, origins, redriven = Summary(dead), Origins(admin), read_ledger(admin, dead)
    where = Selection().spans(admin, dead)
    total = count_of(where)
    for number, letter in enumerate(read_letters(admin.connection, where), start=1):
        if letter is None:
            found.other += 1
        else:
            found.add(letter, redriven.has(letter, origins.topic_id(letter.told.topic)))
        on_progress(number, total)
    return found
