"""The newest dead letters of a topic and why they failed, however many there are."""

import heapq
from dataclasses import dataclass

from riverrun.kafka.admin.admin import Admin
from riverrun.kafka.dead_letters.reader import (
    DeadLetterRecord,
    DeadLetterSelector,
    OriginTopics,
    count_offsets,
    read_dead_letters,
)
from riverrun.kafka.dead_letters.redrive_log import read_redrive_log
from riverrun.kafka.dead_letters.summary import DeadLetterSummary
from riverrun.kafka.reading.partition_reader import resolve_offset_ranges
from riverrun.model.positions import EARLIEST, OffsetSpec


@dataclass
class NewestDeadLetters:
    """`letters` are newest first, each with whether it was re-driven; `summary` counts the `scanned` newest of `total`."""

    summary: DeadLetterSummary
    letters: list[tuple[DeadLetterRecord, bool]]
    scanned: int
    total: int


def read_newest_dead_letters(
    admin: Admin, dead: str, *, max_scanned: int, limit: int, reason: str = ""
) -> NewestDeadLetters:
    """Go through the last `max_scanned` letters of each partition; keep the newest `limit` of this reason (of any)."""
    ranges = resolve_offset_ranges(admin, [dead], start=OffsetSpec("last", max_scanned))
    total = count_offsets(resolve_offset_ranges(admin, [dead], start=EARLIEST))
    redrive_log, origins, selector = read_redrive_log(admin, dead), OriginTopics(admin), DeadLetterSelector(reason)
    summary = DeadLetterSummary(dead)
    heap: list[tuple[float, int, DeadLetterRecord, bool]] = []
    for number, dead_letter in enumerate(read_dead_letters(admin.connection, ranges)):
        if dead_letter is None:
            summary.other_records += 1
            continue
        redriven = redrive_log.has(dead_letter, origins.topic_id(dead_letter.details.topic))
        summary.add(dead_letter, redriven)
        if selector.matches(dead_letter):
            heapq.heappush(heap, (dead_letter.details.at.timestamp(), number, dead_letter, redriven))
            if len(heap) > limit:
                heapq.heappop(heap)
    letters = [
        (dead_letter, redriven) for _, _, dead_letter, redriven in sorted(heap, key=lambda item: item[:2], reverse=True)
    ]
    return NewestDeadLetters(summary, letters, count_offsets(ranges), total)
