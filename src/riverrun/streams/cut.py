"""Which records the next batch of a stopped query reads: Spark runs a batch that is in its offset log as it is there.

Spark's Kafka source knows no end for a stream. But a batch is planned in the checkpoint's `offsets/` before it runs, and
one that is planned and not committed is what a query runs first when it starts: that is how Spark goes on after a crash. So
an entry that is written there while the query is stopped makes it read exactly up to some offsets, with a watermark of our
choice. Tried with Spark 4.3; tests/integration/test_replay.py fails when a later one does otherwise.
"""

import json
import math
import os
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from riverrun.errors import TopicNotFoundError
from riverrun.kafka.admin.admin import Admin
from riverrun.kafka.marks import Target, last_mark, parts_in
from riverrun.kafka.parts import release
from riverrun.streams.checkpoint import Offsets, newest_entry, offsets_of
from riverrun.streams.remote_files import Folder


def planned(folder: Folder) -> int:
    """The newest batch in the offset log; -1 when there is none."""
    return _newest(folder / "offsets")


def committed(folder: Folder) -> int:
    """The newest batch that ended; -1 when none has."""
    return _newest(folder / "commits")


def is_cut_off(folder: Folder) -> bool:
    """Whether a batch was planned and has not ended."""
    return planned(folder) > committed(folder)


def reached_watermark(folder: Folder) -> int:
    """How far the events of the batches so far would move the event-time clock."""
    found = 0
    for each in (folder / "commits").iterdir():
        if each.name.isdigit():
            content = json.loads(each.read_text(encoding="utf-8").splitlines()[1])
            found = max(found, int(content.get("nextBatchWatermarkMs") or 0))
    return found


def planned_offsets(folder: Folder, batch: int) -> Offsets:
    """Up to where a planned batch reads."""
    found: Offsets = {}
    for line in (folder / "offsets" / str(batch)).read_text(encoding="utf-8").splitlines()[2:]:
        if line.strip() != "-":
            found |= offsets_of(json.loads(line))
    return found


def plan_batch(folder: Path, batch: int, ends: Offsets, watermark_ms: int) -> None:
    """Put a batch into the offset log, or replace the one that was planned there and has not begun: up to `ends`, for the
    topics that are named, and else where the entry it is made of ends. The query must not run."""
    log = folder / "offsets"
    pattern = log / str(batch if (log / str(batch)).exists() else batch - 1)
    version, head, *sources = pattern.read_text(encoding="utf-8").splitlines()
    metadata = json.loads(head)
    metadata |= {"batchWatermarkMs": watermark_ms, "batchTimestampMs": round(time.time() * 1000)}
    lines = [version, json.dumps(metadata, separators=(",", ":")), *[_moved(line, ends) for line in sources]]
    temporary = log / f".{batch}.riverrun.tmp"
    with temporary.open("w", encoding="utf-8") as file:
        file.write("\n".join(lines))
        file.flush()
        os.fsync(file.fileno())
    # The checksum that Hadoop's local file system keeps beside each file is of the entry before; without one it asks none.
    (log / f".{batch}.crc").unlink(missing_ok=True)
    temporary.replace(log / str(batch))


def _moved(line: str, ends: Offsets) -> str:
    if line.strip() == "-":
        return line
    source = offsets_of(json.loads(line))
    moved = {topic: {**parts, **ends.get(topic, {})} for topic, parts in source.items()}
    return json.dumps({topic: {str(part): offset for part, offset in parts.items()} for topic, parts in moved.items()})


def bite(begin: Offsets, cap: Offsets, rows: int) -> Offsets:
    """A part of what lies between `begin` and `cap`, about so many records, as evenly as the partitions are long."""
    share = rows / max(1, missing(begin, cap))
    found: Offsets = {}
    for topic, parts in cap.items():
        found[topic] = {}
        for part, last in parts.items():
            first = begin.get(topic, {}).get(part, 0)
            found[topic][part] = max(first, min(last, first + math.ceil((last - first) * share)))
    return found


def missing(begin: Offsets, end: Offsets) -> int:
    """How many offsets lie between two places."""
    return sum(
        max(0, last - begin.get(topic, {}).get(part, 0)) for topic, parts in end.items() for part, last in parts.items()
    )


def lowest(one: Offsets, other: Mapping[str, Mapping[int, int]]) -> Offsets:
    """The places of `one`, nowhere beyond those of `other`."""
    return {
        topic: {part: min(offset, other.get(topic, {}).get(part, offset)) for part, offset in parts.items()}
        for topic, parts in one.items()
    }


def is_written(admin: Admin, target: Target, generation: str, batch: int) -> bool:
    """Whether rows of a batch that was cut off are in their topic. Its writers are fenced first: none comes back."""
    try:
        parts = range(parts_in(len(admin.topic(target.marks).partitions)))
    except TopicNotFoundError:
        return False
    mine = replace(target, generation=generation)
    release(mine, parts)
    marks = [last_mark(mine, part) for part in parts]
    return any(mark is not None and mark.generation == generation and mark.batch.number >= batch for mark in marks)


def _newest(folder: Folder) -> int:
    try:
        return newest_entry(folder)
    except FileNotFoundError:
        return -1
