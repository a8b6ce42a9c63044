"""The newest records of a topic, for display: few of them, soon, and whatever is in them."""

import time
from dataclasses import dataclass, field

from riverrun.kafka.admin.admin import Admin
from riverrun.kafka.reading.partition_reader import PartitionReader, newest_per_topic, resolve_offset_ranges
from riverrun.kafka.registry.json_view import records_to_json
from riverrun.model.positions import OffsetSpec
from riverrun.model.record import RawRecord

# A transaction ends with a marker that takes an offset: twice as many offsets hold enough records.
_OFFSETS_PER_RECORD = 2
MAX_BYTES = 32_000_000
MAX_SECONDS = 5.0


@dataclass
class NewestRecords:
    """Records, newest first. Not `complete`: reading took too long or was too much, so that newer ones may be missing."""

    records: list[RawRecord] = field(default_factory=list)
    complete: bool = True


def read_newest_records(
    admin: Admin, topic: str, count: int, *, max_bytes: int = MAX_BYTES, max_seconds: float = MAX_SECONDS
) -> NewestRecords:
    """The last `count` records of all partitions. TopicNotFoundError when the topic does not exist."""
    ranges = resolve_offset_ranges(admin, [topic], start=OffsetSpec("last", count * _OFFSETS_PER_RECORD))
    result = NewestRecords()
    deadline = time.monotonic() + max_seconds
    size = 0
    newest_records: list[RawRecord] = []
    with PartitionReader(admin.connection, ranges) as reader:
        for batch in reader:
            newest_records = newest_per_topic([newest_records, batch], count)
            size += sum(len(record.value() or b"") for record in batch)
            if size > max_bytes or time.monotonic() > deadline:
                result.complete = False
                break
    result.records = list(records_to_json(admin.connection.registry, newest_records[::-1]))
    return result
