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
from riverrun.kafka.commit_markers import OutputTopic, last_committed_marker, max_tasks
from riverrun.kafka.exactly_once import abort_open_transactions
from riverrun.streams.checkpoint import Offsets, newest_entry, parse_offsets
from riverrun.streams.checkpoint_files import CheckpointFolder


def last_planned_batch(folder: CheckpointFolder) -> int:
    """The newest batch in the offset log; -1 when there is none."""
    return _newest(folder / "offsets")


def last_committed_batch(folder: CheckpointFolder) -> int:
    """The newest batch that ended; -1 when none has."""
    return _newest(folder / "commits")


def has_uncommitted_batch(folder: CheckpointFolder) -> bool:
    """Whether a batch was planned and has not ended."""
    return last_planned_batch(folder) > last_committed_batch(folder)


def reached_watermark(folder: CheckpointFolder) -> int:
    """How far the events of the batches so far would move the event-time clock."""
    watermark_ms = 0
    for each in (folder / "commits").iterdir():
        if each.name.isdigit():
            content = json.loads(each.read_text(encoding="utf-8").splitlines()[1])
            watermark_ms = max(watermark_ms, int(content.get("nextBatchWatermarkMs") or 0))
    return watermark_ms


def planned_offsets(folder: CheckpointFolder, batch: int) -> Offsets:
    """Up to where a planned batch reads."""
    offsets: Offsets = {}
    for line in (folder / "offsets" / str(batch)).read_text(encoding="utf-8").splitlines()[2:]:
        if line.strip() != "-":
            offsets |= parse_offsets(json.loads(line))
    return offsets


def plan_batch(folder: Path, batch: int, ends: Offsets, watermark_ms: int) -> None:
    """Put a batch into the offset log, or replace the one that was planned there and has not begun: up to `ends`, for the
    topics that are named, and else where the entry it is made of ends. The query must not run."""
    log = folder / "offsets"
    template = log / str(batch if (log / str(batch)).exists() else batch - 1)
    version, metadata_line, *sources = template.read_text(encoding="utf-8").splitlines()
    metadata = json.loads(metadata_line)
    metadata |= {"batchWatermarkMs": watermark_ms, "batchTimestampMs": round(time.time() * 1000)}
    lines = [version, json.dumps(metadata, separators=(",", ":")), *[_with_ends(line, ends) for line in sources]]
    temporary = log / f".{batch}.riverrun.tmp"
    with temporary.open("w", encoding="utf-8") as file:
        file.write("\n".join(lines))
        file.flush()
        os.fsync(file.fileno())
    # The checksum that Hadoop's local file system keeps beside each file is of the entry before; without one it asks none.
    (log / f".{batch}.crc").unlink(missing_ok=True)
    temporary.replace(log / str(batch))


def _with_ends(line: str, ends: Offsets) -> str:
    if line.strip() == "-":
        return line
    source = parse_offsets(json.loads(line))
    offsets = {topic: {**partitions, **ends.get(topic, {})} for topic, partitions in source.items()}
    return json.dumps(
        {topic: {str(part): offset for part, offset in partitions.items()} for topic, partitions in offsets.items()}
    )


def batch_end_offsets(begin: Offsets, limit: Offsets, rows: int) -> Offsets:
    """A part of what lies between `begin` and `limit`, about so many records, as evenly as the partitions are long."""
    share = rows / max(1, count_offsets_between(begin, limit))
    end_offsets: Offsets = {}
    for topic, parts in limit.items():
        end_offsets[topic] = {}
        for part, last in parts.items():
            first = begin.get(topic, {}).get(part, 0)
            end_offsets[topic][part] = max(first, min(last, first + math.ceil((last - first) * share)))
    return end_offsets


def count_offsets_between(begin: Offsets, end: Offsets) -> int:
    """How many offsets lie between two places."""
    return sum(
        max(0, last - begin.get(topic, {}).get(part, 0)) for topic, parts in end.items() for part, last in parts.items()
    )


def min_offsets(one: Offsets, other: Mapping[str, Mapping[int, int]]) -> Offsets:
    """The places of `one`, nowhere beyond those of `other`."""
    return {
        topic: {part: min(offset, other.get(topic, {}).get(part, offset)) for part, offset in parts.items()}
        for topic, parts in one.items()
    }


def is_batch_written(admin: Admin, target: OutputTopic, generation: str, batch: int) -> bool:
    """Whether rows of a batch that was cut off are in their topic. Its writers are fenced first: none comes back."""
    try:
        parts = range(max_tasks(len(admin.topic(target.marker_topic).partitions)))
    except TopicNotFoundError:
        return False
    mine = replace(target, generation=generation)
    abort_open_transactions(mine, parts)
    marks = [last_committed_marker(mine, part) for part in parts]
    return any(mark is not None and mark.generation == generation and mark.batch.number >= batch for mark in marks)


def _newest(folder: CheckpointFolder) -> int:
    try:
        return newest_entry(folder)
    except FileNotFoundError:
        return -1
