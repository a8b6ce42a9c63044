"""The record counts of one stream, from Spark's progress reports, and its offsets, committed to a consumer group.

The group's offsets are behind what Spark has committed, never ahead: they move when the batch is counted and its dead
letters are in their topic. `counted_offsets` and the counts are written to a file together, so that a crash between a batch
and its counting is noticed: the records in between are counted, without the rows they produced, and the counts are marked as
not exact any more.
"""

import contextlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from riverrun.errors import CheckpointError, KafkaError
from riverrun.kafka.admin.admin import Admin
from riverrun.kafka.reading.record_counter import count_records
from riverrun.model.cluster_state import TopicPartition
from riverrun.model.progress import RecordCounts, StreamProgress, unix_seconds
from riverrun.streams.checkpoint import Offsets, parse_offsets
from riverrun.streams.compile.compiler import OUT_OBSERVATION, CompiledStream
from riverrun.streams.compile.sources import COUNT, DEAD, input_observation
from riverrun.streams.run.dead_letter_writer import DeadLetterWriter
from riverrun.streams.run.rate import RecordRate
from riverrun.streams.run.topic_watch import find_offset_regression

# A smaller batch says nothing about the throughput.
MIN_RATED_ROWS = 1000
# The note of record counts whose file is broken: what was read before is not known.
UNREADABLE_COUNTS = "the record counts of earlier runs could not be read, and begin at zero"
# More offsets than that are not read to count their records: the thread that does it looks after all streams.
MAX_COUNTED_OFFSETS = 100_000


class ProgressTracker:
    """Updates the record counts and offsets of a stream from Spark's progress reports."""

    def __init__(
        self,
        compiled: CompiledStream,
        topics: Mapping[str, bool],
        group: str,
        file: Path,
        *,
        admin: Admin,
        dead_letters: DeadLetterWriter,
    ) -> None:
        """`topics` are those the stream reads, each with whether its records have a type, so that some may be dead
        letters."""
        self._compiled = compiled
        self._topics = list(topics)
        self._typed_topics = {topic for topic, typed in topics.items() if typed}
        self._file = file
        self._admin = admin
        self._dead_letters = dead_letters
        self.group = group
        self.record_counts, self.counted_offsets = read_record_counts(file)
        self.record_counts.exact = compiled.query.one_to_one and self.record_counts.note == ""
        if not compiled.query.one_to_one and not self.record_counts.note:
            self.record_counts.note = _why_not_exact(compiled)
        self._committed: dict[TopicPartition, int] = {}
        self._peak_rate = read_peak_rate(file)
        self._rate = RecordRate()
        # Whether what is accounted was read by way of the checkpoint: a batch over everything reads past it.
        self._streamed = bool(read_streamed_offsets(file))

    def record_batch(self, report: Mapping[str, Any], progress: StreamProgress) -> None:
        """Count one batch of a streaming query, from Spark's progress as JSON."""
        observed = report.get("observedMetrics") or {}
        begin, end = _source_offsets(report, "startOffset"), _source_offsets(report, "endOffset")
        if regression := find_offset_regression(begin, end):
            # Not counted: the saved offsets stay ahead of the checkpoint, so that the next start refuses it too.
            name = self._compiled.stream.name
            raise CheckpointError(
                f"The stream {name} has read {regression}: it was cut, or made again. "
                "Records before that end may never be read",
                hint=f"Begin again with `riverrun run FILE --fresh {name}`, which reads all there is",
                stream=name,
            )
        late = sum(operator.get("numRowsDroppedByWatermark", 0) for operator in report.get("stateOperators") or [])
        counts = {name: {key: int(value or 0) for key, value in metrics.items()} for name, metrics in observed.items()}
        rows_out = counts.get(OUT_OBSERVATION, {}).get(COUNT, 0)
        # The progress of an idle trigger repeats the last batch's number and reads nothing.
        if not report.get("numInputRows") and not rows_out and not late:
            self._fill_progress(report, progress)
            self._advance_offsets(end)
            return
        self._streamed = True
        self._update_peak_rate(int(report.get("numInputRows") or 0), int(report.get("batchDuration") or 0))
        self._add_counts(begin, end, counts, late=late, rows=int(report.get("numInputRows") or 0))
        self._fill_progress(report, progress)

    def _update_peak_rate(self, rows: int, millis: int) -> None:
        """Keep the best rate of any batch: it is used to estimate how long reading everything again takes."""
        if rows >= MIN_RATED_ROWS and millis:
            self._peak_rate = max(self._peak_rate, rows / millis * 1000)

    def record_full_run(self, begin: Offsets, end: Offsets, counts: Mapping[str, Mapping[str, int]]) -> None:
        """Count a batch run over everything: the record counts start from zero."""
        note = self.record_counts.note
        self._streamed = False
        self.record_counts = RecordCounts(exact=self._compiled.query.one_to_one, note=note)
        read = sum(counts.get(input_observation(topic), {}).get(COUNT, 0) for topic in self._topics)
        self._add_counts(begin, end, counts, late=0, rows=read)
        self._save()

    def _add_counts(
        self, begin: Offsets, end: Offsets, counts: Mapping[str, Mapping[str, int]], *, late: int, rows: int
    ) -> None:
        rows_out = counts.get(OUT_OBSERVATION, {}).get(COUNT, 0)
        record_counts = self.record_counts
        dead = 0
        for topic in self._topics:
            first, last = begin.get(topic, {}), end.get(topic, {})
            topic_counts = counts.get(input_observation(topic), {})
            if not last:
                continue
            self._count_missed(topic, first)
            dead_records = topic_counts.get(DEAD, 0)
            dead += dead_records
            record_counts.expired += self._count_expired(topic, first, last, topic_counts.get(COUNT, rows))
            if topic in self._typed_topics:
                self._dead_letters.add_batch(topic, first, last, dead_records)
        record_counts.read += rows
        record_counts.dead_letters += dead
        record_counts.late += late
        record_counts.out += rows_out
        if self._compiled.query.one_to_one:
            record_counts.filtered += max(0, rows - dead - late - rows_out)
        self._advance_offsets(end)

    def _advance_offsets(self, end: Offsets) -> None:
        moved = False
        for topic, partitions in end.items():
            if topic in self._topics and self.counted_offsets.get(topic) != partitions:
                self.counted_offsets[topic] = dict(partitions)
                moved = True
        if moved:
            self._save()

    def _count_missed(self, topic: str, first: Mapping[int, int]) -> None:
        """Count the records of a batch that was committed, but not counted because of a crash."""
        before = self.counted_offsets.get(topic)
        if before is None:
            return
        ranges = {
            TopicPartition(topic, partition): (before[partition], offset)
            for partition, offset in first.items()
            if partition in before
        }
        passed = sum(max(0, end - begin) for begin, end in ranges.values())
        if not passed:
            return
        # These are offsets, which include transaction markers.
        missed, about = passed, "up to "
        if passed <= MAX_COUNTED_OFFSETS:
            with contextlib.suppress(KafkaError):
                missed, about = sum(count_records(self._admin.connection, ranges).values()), ""
        if missed:
            self.record_counts.read += missed
            self.record_counts.exact = False
            self.record_counts.note = (
                f"{about}{missed} records were read by a batch that a crash kept from being counted"
            )

    def _count_expired(self, topic: str, first: Mapping[int, int], last: Mapping[int, int], rows_read: int) -> int:
        """How many records of this range retention deleted before they were read."""
        if rows_read >= sum(last[number] - first.get(number, last[number]) for number in last) or not first:
            return 0
        partitions = [TopicPartition(topic, number) for number in first if last.get(number, 0) > first[number]]
        earliest_offsets = self._admin.offsets(partitions, "earliest")
        return sum(
            max(0, min(last[partition.partition], earliest) - first[partition.partition])
            for partition, earliest in earliest_offsets.items()
        )

    def commit_group_offsets(self) -> None:
        """Commit the counted offsets to the consumer group."""
        offsets = {
            TopicPartition(topic, number): self._committable_offset(TopicPartition(topic, number), offset)
            for topic, partitions in self.counted_offsets.items()
            for number, offset in partitions.items()
        }
        changed = {
            partition: offset for partition, offset in offsets.items() if self._committed.get(partition) != offset
        }
        if changed:
            self._admin.alter_group_offsets(self.group, changed)
            self._committed |= changed

    def _committable_offset(self, partition: TopicPartition, offset: int) -> int:
        """The offset, but not beyond records whose dead letters are not written yet."""
        return (
            min(offset, self._dead_letters.written_offset(partition))
            if partition.topic in self._typed_topics
            else offset
        )

    def lag(self, ends: Mapping[TopicPartition, int]) -> int:
        """How many offsets are not read yet: of records, and of transaction markers."""
        lag = 0
        for partition, end in ends.items():
            if partition.topic in self._topics:
                lag += max(0, end - self.counted_offsets.get(partition.topic, {}).get(partition.partition, 0))
        return lag

    def _fill_progress(self, report: Mapping[str, Any], progress: StreamProgress) -> None:
        progress.batch = int(report.get("batchId", -1))
        progress.batch_ms = int(report.get("batchDuration") or 0)
        rows_in = int(report.get("numInputRows") or 0)
        rows_out = int(((report.get("observedMetrics") or {}).get(OUT_OBSERVATION) or {}).get(COUNT) or 0)
        if (began := unix_seconds(str(report.get("timestamp", "")))) is not None:
            ended = began + progress.batch_ms / 1000
            progress.rows_in_per_second, progress.rows_out_per_second = self._rate.add(began, ended, rows_in, rows_out)
        if rows_in:
            progress.last_record_at = str(report.get("timestamp", ""))
        progress.watermark = str((report.get("eventTime") or {}).get("watermark", ""))
        operators = report.get("stateOperators") or []
        progress.state_rows = sum(operator.get("numRowsTotal", 0) for operator in operators)
        progress.state_bytes = sum(operator.get("memoryUsedBytes", 0) for operator in operators)
        progress.record_counts = self.record_counts

    def _save(self) -> None:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        temporary = self._file.with_suffix(".tmp")
        temporary.write_text(
            json.dumps(
                {
                    "record_counts": asdict(self.record_counts),
                    "counted_offsets": self.counted_offsets,
                    "rate": round(self._peak_rate, 1),
                    "streamed": self._streamed,
                }
            ),
            encoding="utf-8",
        )
        temporary.replace(self._file)


def read_record_counts(file: Path) -> tuple[RecordCounts, Offsets]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        return RecordCounts(**content["record_counts"]), parse_offsets(content["counted_offsets"])
    except FileNotFoundError:
        return RecordCounts(), {}
    except (OSError, ValueError, KeyError, TypeError):
        return RecordCounts(note=UNREADABLE_COUNTS), {}


def read_streamed_offsets(file: Path) -> Offsets:
    """The offsets a stream has read up to through its checkpoint; empty if the last thing counted was a batch run."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        return parse_offsets(content["counted_offsets"]) if content.get("streamed") else {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def read_peak_rate(file: Path) -> float:
    """The most records per second that a batch of the stream has read; 0 if no batch was large enough to measure."""
    try:
        return float(json.loads(file.read_text(encoding="utf-8")).get("rate") or 0.0)
    except (OSError, ValueError, TypeError, AttributeError):
        return 0.0


def _source_offsets(report: Mapping[str, Any], which: str) -> Offsets:
    """The offsets of all sources of a query, by topic and partition."""
    offsets: Offsets = {}
    for source in report.get("sources") or []:
        value = source.get(which)
        if isinstance(value, str):
            value = json.loads(value)
        offsets |= parse_offsets(value or {})
    return offsets


def _why_not_exact(compiled: CompiledStream) -> str:
    if compiled.query.aggregated:
        return "many records become one row; what the stream's own code filters before that is not counted"
    if compiled.query.joins_streams or compiled.query.joins_tables:
        return "a join makes no row of a record, or many"
    return "its operators make no row of a record, or many"
