"""The newest letters of a dead-letter topic and why they died, however many there are."""

import heapq
from dataclasses import dataclass

from riverrun.kafka.admin.admin import Admin
from riverrun.kafka.consumer.reader import spans
from riverrun.kafka.dead_letters.ledger import read_ledger
from riverrun.kafka.dead_letters.letter import Letter, Origins, Selection, count_of, read_letters
from riverrun.kafka.dead_letters.summary import Summary
from riverrun.model.when import EARLIEST, Position


@dataclass
class Newest:
    """`letters` are newest first, each with whether it was re-driven; `summary` counts the `looked` newest of `total`."""

    summary: Summary
    letters: list[tuple[Letter, bool]]
    looked: int
    total: int


def newest_letters(admin: Admin, dead: str, *, most: int, limit: int, reason: str = "") -> Newest:
    """Go through the last `most` letters of each partition; keep the newest `limit` of this reason (of any)."""
    where = spans(admin, [dead], start=Position("last", most))
    total = count_of(spans(admin, [dead], start=EARLIEST))
    ledger, origins, selection = read_ledger(admin, dead), Origins(admin), Selection(reason)
    summary = Summary(dead)
    kept: list[tuple[float, int, Letter, bool]] = []
    for number, letter in enumerate(read_letters(admin.connection, where)):
        if letter is None:
            summary.other += 1
            continue
        redriven = ledger.has(letter, origins.topic_id(letter.told.topic))
        summary.add(letter, redriven)
        if selection.takes(letter):
            heapq.heappush(kept, (letter.told.at.timestamp(), number, letter, redriven))
            if len(kept) > limit:
                heapq.heappop(kept)
    letters = [(letter, redriven) for _, _, letter, redriven in sorted(kept, key=lambda each: each[:2], reverse=True)]
    return Newest(summary, letters, count_of(where), total)
