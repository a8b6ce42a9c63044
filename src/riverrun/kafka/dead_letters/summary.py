"""How many dead letters a topic holds, how many of them were re-driven, and why they failed."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from riverrun.kafka.admin.admin import Admin
from riverrun.kafka.dead_letters.reader import (
    DeadLetterRecord,
    DeadLetterSelector,
    OriginTopics,
    count_offsets,
    read_dead_letters,
)
from riverrun.kafka.dead_letters.redrive import REDRIVEN_HEADER
from riverrun.kafka.dead_letters.redrive_log import read_redrive_log

# Messages can be anything: beyond this many reasons, the rest is counted as one.
_MAX_REASONS = 1000
OTHER_REASONS = "(other reasons)"


@dataclass
class DeadLetterCount:
    """Dead letters, and how many of them were re-driven."""

    letters: int = 0
    redriven: int = 0

    @property
    def waiting(self) -> int:
        return self.letters - self.redriven

    def add(self, redriven: bool) -> None:
        self.letters += 1
        self.redriven += redriven


@dataclass
class DeadLetterSummary:
    """One dead-letter topic. `died_again`: letters of records that had been re-driven; `other_records`: records that are no
    letters."""

    topic: str
    count: DeadLetterCount = field(default_factory=DeadLetterCount)
    died_again: int = 0
    other_records: int = 0
    oldest: datetime | None = None
    newest: datetime | None = None
    reasons: dict[str, DeadLetterCount] = field(default_factory=dict)

    def add(self, letter: DeadLetterRecord, redriven: bool) -> None:
        self.count.add(redriven)
        self.died_again += any(name == REDRIVEN_HEADER for name, _ in letter.details.headers)
        at = letter.details.at
        self.oldest = at if self.oldest is None else min(self.oldest, at)
        self.newest = at if self.newest is None else max(self.newest, at)
        reason = letter.reason_pattern
        if reason not in self.reasons and len(self.reasons) >= _MAX_REASONS:
            reason = OTHER_REASONS
        self.reasons.setdefault(reason, DeadLetterCount()).add(redriven)

    def row(self) -> dict[str, Any]:
        return {
            "topic": self.topic,
            "letters": self.count.letters,
            "redriven": self.count.redriven,
            "waiting": self.count.waiting,
            "died_again": self.died_again,
            "no_letters": self.other_records,
            "oldest": self.oldest.isoformat(timespec="seconds") if self.oldest else None,
            "newest": self.newest.isoformat(timespec="seconds") if self.newest else None,
        }

    def reason_rows(self) -> list[dict[str, Any]]:
        """Most frequent first."""
        ordered = sorted(self.reasons.items(), key=lambda item: (-item[1].letters, item[0]))
        return [{"letters": count.letters, "waiting": count.waiting, "reason": reason} for reason, count in ordered]


def summarize(
    admin: Admin, dead: str, on_progress: Callable[[int, int], None] = lambda _done, _all: None
) -> DeadLetterSummary:
    """Read every dead letter of the topic and count."""
    summary, origins, redriven = DeadLetterSummary(dead), OriginTopics(admin), read_redrive_log(admin, dead)
    ranges = DeadLetterSelector().offset_ranges(admin, dead)
    total = count_offsets(ranges)
    for number, dead_letter in enumerate(read_dead_letters(admin.connection, ranges), start=1):
        if dead_letter is None:
            summary.other_records += 1
        else:
            summary.add(dead_letter, redriven.has(dead_letter, origins.topic_id(dead_letter.details.topic)))
        on_progress(number, total)
    return summary
