"""Plans which records the next batch of a stopped query reads: Spark runs a batch of its offset log exactly as logged.

Spark's Kafka source has no end offsets for a stream. But a batch is planned in the checkpoint's `offsets/` before it runs,
and a query that starts first runs the batch that is planned and not committed: that is how Spark recovers from a crash. So
an entry that is written there while the query is stopped makes it read exactly up to some offsets, with a watermark of our
choice. Tested with Spark 4.3; tests/integration/test_replay.py fails when a later one does otherwise.
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
    """The newest committed batch; -1 when there is none."""
    return _newest(folder / "commits")


def has_uncommitted_batch(folder: CheckpointFolder) -> bool:
    """Whether a batch was planned and is not committed."""
    return last_planned_batch(folder) > last_committed_batch(folder)


def reached_watermark(folder: CheckpointFolder) -> int:
    """The watermark that the events of the batches so far would reach."""
    watermark_ms = 0
    for entry in (folder / "commits").iterdir():
        if entry.name.isdigit():
            content = json.loads(entry.read_text(encoding="utf-8").splitlines()[1])
            watermark_ms = max(watermark_ms, int(content.get("nextBatchWatermarkMs") or 0))
    return watermark_ms


def planned_offsets(folder: CheckpointFolder, batch: int) -> Offsets:
    """The offsets at which a planned batch ends."""
    offsets: Offsets = {}
    for line in (folder / "offsets" / str(batch)).read_text(encoding="utf-8").splitlines()[2:]:
        if line.strip() != "-":
            offsets |= parse_offsets(json.loads(line))
    return offsets


def plan_batch(folder: Path, batch: int, ends: Offsets, watermark_ms: int) -> None:
    """Write a batch to the offset log, or replace one that was planned and has not begun. It ends at `ends`, or, for
    topics that `ends` does not name, where the entry it is copied from ends. The query must not run."""
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
    # Hadoop's local file system keeps a checksum beside each file, here of the old entry; without the file it checks
    # nothing.
    (log / f".{batch}.crc").unlink(missing_ok=True)
    temporary.replace(log / str(batch))


def _with_ends(line: str, ends: Offsets) -> str:
    if line.strip() == "-":
        return line
    source = parse_offsets(json.loads(line))
    offsets = {topic: {**partitions, **ends.get(topic, {})} for topic, partitions in source.items()}
    return json.dumps(
        {
            topic: {str(partition): offset for partition, offset in partitions.items()}
            for topic, partitions in offsets.items()
        }
    )


def batch_end_offsets(begin: Offsets, limit: Offsets, rows: int) -> Offsets:
    """The end offsets of a batch of about `rows` records between `begin` and `limit`, the same share of every partition."""
    share = rows / max(1, count_offsets_between(begin, limit))
    end_offsets: Offsets = {}
    for topic, partitions in limit.items():
        end_offsets[topic] = {}
        for partition, last in partitions.items():
            first = begin.get(topic, {}).get(partition, 0)
            end_offsets[topic][partition] = max(first, min(last, first + math.ceil((last - first) * share)))
    return end_offsets


def count_offsets_between(begin: Offsets, end: Offsets) -> int:
    """How many offsets lie between `begin` and `end`, over all partitions."""
    return sum(
        max(0, last - begin.get(topic, {}).get(partition, 0))
        for topic, partitions in end.items()
        for partition, last in partitions.items()
    )


def min_offsets(one: Offsets, other: Mapping[str, Mapping[int, int]]) -> Offsets:
    """The offsets of `one`, each at most that of `other`."""
    return {
        topic: {
            partition: min(offset, other.get(topic, {}).get(partition, offset))
            for partition, offset in partitions.items()
        }
        for topic, partitions in one.items()
    }


def is_batch_written(admin: Admin, target: OutputTopic, generation: str, batch: int) -> bool:
    """Whether rows of an interrupted batch are in their topic. Its producers are fenced first, so that none writes later."""
    try:
        tasks = range(max_tasks(len(admin.topic(target.marker_topic).partitions)))
    except TopicNotFoundError:
        return False
    own_target = replace(target, generation=generation)
    abort_open_transactions(own_target, tasks)
    markers = [last_committed_marker(own_target, task) for task in tasks]
    return any(
        marker is not None and marker.generation == generation and marker.batch.number >= batch for marker in markers
    )


def _newest(folder: CheckpointFolder) -> int:
    try:
        return newest_entry(folder)
    except FileNotFoundError:
        return -1
