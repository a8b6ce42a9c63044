"""The account of a stream, from Spark's reports as they are; the cluster is asked for nothing but offsets."""

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import StructType

from riverrun.errors import BrokerUnreachableError, CheckpointError
from riverrun.model.cluster_state import TopicPartition
from riverrun.model.pipeline import SourceLine, Stream
from riverrun.model.progress import StreamProgress
from riverrun.streams.compile.compiler import CompiledStream
from riverrun.streams.compile.query_analysis import AnalyzedQuery
from riverrun.streams.run.progress import ProgressTracker, read_peak_rate, read_streamed_offsets


class Cluster:
    """Remembers commits; knows where the topic begins."""

    def __init__(self, earliest: int = 0) -> None:
        self.earliest = earliest
        self.connection = None
        self.committed: dict[TopicPartition, int] = {}

    def offsets(self, places: Collection[TopicPartition], _at: str) -> dict[TopicPartition, int]:
        return dict.fromkeys(places, self.earliest)

    def alter_group_offsets(self, _group: str, offsets: Mapping[TopicPartition, int]) -> None:
        self.committed |= offsets


class Swept:
    """Sweeps only when told."""

    def __init__(self) -> None:
        self.at: dict[TopicPartition, int] = {}
        self.batches: list[tuple[str, int]] = []

    def add_batch(self, topic: str, _begin: Mapping[int, int], _end: Mapping[int, int], dead: int) -> None:
        self.batches.append((topic, dead))

    def written_offset(self, place: TopicPartition) -> int:
        return self.at.get(place, 0)


def compiled(*nodes: str) -> CompiledStream:
    query = AnalyzedQuery(
        nodes=nodes,
        joins_streams=False,
        joins_tables=False,
        python_functions=(),
        grouping=None,
        windowed=False,
        watermarked=False,
        random_columns=(),
        repeated_sources=False,
        plan=None,
    )
    stream = Stream("load", SourceLine("app.py", 1))
    return CompiledStream(stream, ("readings",), StructType(), (), "", 0, "append", emits_updates=False, query=query)


def books(file: Path, cluster: Cluster, swept: Swept, *nodes: str) -> ProgressTracker:
    options: dict[str, Any] = {"admin": cluster, "dead_letters": swept}
    return ProgressTracker(
        compiled(*nodes or ("Filter", "StreamingRelationV2")), {"readings": True}, "city.load", file, **options
    )


def report(
    batch: int, first: int, last: int, *, dead: int = 0, out: int = 0, late: int = 0, read: int = -1
) -> dict[str, Any]:
    rows = last - first if read < 0 else read
    return {
        "batchId": batch,
        "timestamp": f"2026-01-01T00:00:0{batch}.000Z",
        "numInputRows": rows,
        "batchDuration": 500,
        "inputRowsPerSecond": 10.0,
        "sources": [{"startOffset": {"readings": {"0": first}}, "endOffset": {"readings": {"0": last}}}],
        "observedMetrics": {"in readings": {"n": rows, "dead": dead}, "out": {"n": out}},
        "stateOperators": [{"numRowsDroppedByWatermark": late, "numRowsTotal": 7, "memoryUsedBytes": 9}],
    }


def test_the_account_closes(tmp_path: Path) -> None:
    found = books(tmp_path / "a.json", Cluster(), swept := Swept())
    progress = StreamProgress("load")
    found.record_batch(report(0, 0, 100, dead=3, out=60, late=7), progress)
    found.record_batch(report(1, 100, 150, out=50), progress)
    account = found.record_counts
    assert (account.read, account.dead_letters, account.late, account.filtered, account.out) == (150, 3, 7, 30, 110)
    assert account.exact
    assert account.balanced
    assert swept.batches == [("readings", 3), ("readings", 0)]
    assert (progress.batch, progress.batch_ms, progress.state_rows, progress.state_bytes) == (1, 500, 7, 9)


def test_the_group_waits_for_the_dead_letters(tmp_path: Path) -> None:
    cluster, swept = Cluster(), Swept()
    found = books(tmp_path / "a.json", cluster, swept)
    found.record_batch(report(0, 0, 100, dead=3, out=97), StreamProgress("load"))
    swept.at[TopicPartition("readings", 0)] = 40
    found.commit_group_offsets()
    assert cluster.committed == {TopicPartition("readings", 0): 40}
    swept.at[TopicPartition("readings", 0)] = 100
    found.commit_group_offsets()
    assert cluster.committed == {TopicPartition("readings", 0): 100}
    assert found.lag({TopicPartition("readings", 0): 130, TopicPartition("other", 0): 5}) == 30


@pytest.mark.parametrize(("records", "read", "note"), [(21, 151, "21 records"), (None, 160, "up to 30 records")])
def test_the_account_goes_on_after_a_restart_and_a_crash_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, records: int | None, read: int, note: str
) -> None:
    """Of the offsets that it passed some are markers of transactions; they are counted where Kafka answers."""

    def counted(_: object, ranges: Mapping[TopicPartition, tuple[int, int]]) -> dict[TopicPartition, int]:
        assert ranges == {TopicPartition("readings", 0): (120, 150)}
        if records is None:
            raise BrokerUnreachableError("gone")
        return {TopicPartition("readings", 0): records}

    monkeypatch.setattr("riverrun.streams.run.progress.count_records", counted)
    file = tmp_path / "a.json"
    books(file, Cluster(), Swept()).record_batch(report(0, 0, 100, out=100), StreamProgress("load"))
    again = books(file, Cluster(), Swept())
    again.record_batch(report(1, 100, 120, out=20), StreamProgress("load"))
    assert again.record_counts.balanced
    # A batch from 120 to 150 was done, and the process killed before it was booked.
    later = books(file, Cluster(), Swept())
    later.record_batch(report(3, 150, 160, out=10), StreamProgress("load"))
    assert later.record_counts.read == read
    assert not later.record_counts.exact
    assert later.record_counts.note.startswith(f"{note} were read by a batch that a crash kept from being counted")


def test_many_offsets_that_a_crash_kept_from_the_books_are_not_read_to_be_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five million records are read for seconds, in the thread that looks after all streams."""
    monkeypatch.setattr("riverrun.streams.run.progress.count_records", lambda *_: pytest.fail("they are read"))
    file = tmp_path / "a.json"
    books(file, Cluster(), Swept()).record_batch(report(0, 0, 100, out=100), StreamProgress("load"))
    later = books(file, Cluster(), Swept())
    later.record_batch(report(2, 5_000_100, 5_000_110, out=10), StreamProgress("load"))
    assert later.record_counts.read == 5_000_110
    assert later.record_counts.note.startswith("up to 5000000 records were read by a batch that a crash kept")


def test_records_that_retention_took_are_counted(tmp_path: Path) -> None:
    found = books(tmp_path / "a.json", Cluster(earliest=80), Swept())
    found.record_batch(report(0, 0, 100, read=20, out=20), StreamProgress("load"))
    assert (found.record_counts.expired, found.record_counts.read) == (80, 20)


def test_an_idle_trigger_counts_nothing(tmp_path: Path) -> None:
    found = books(tmp_path / "a.json", Cluster(), Swept())
    found.record_batch(report(0, 0, 100, out=100), StreamProgress("load"))
    found.record_batch(report(0, 100, 100), StreamProgress("load"))
    assert found.record_counts.read == 100


def test_an_aggregate_says_why_it_is_not_exact(tmp_path: Path) -> None:
    found = books(tmp_path / "a.json", Cluster(), Swept(), "Aggregate", "StreamingRelationV2")
    found.record_batch(report(0, 0, 100, out=4), StreamProgress("load"))
    assert (found.record_counts.exact, found.record_counts.filtered) == (False, 0)
    assert "many records become one row" in found.record_counts.note


@pytest.mark.parametrize(
    "content", ["", "{", '{"record_counts": {}}', '{"record_counts": {"colour": 1}, "counted_offsets": {}}']
)
def test_a_damaged_file_begins_a_new_account_and_says_so(tmp_path: Path, content: str) -> None:
    file = tmp_path / "a.json"
    file.write_text(content)
    found = books(file, Cluster(), Swept())
    assert "could not be read" in found.record_counts.note
    found.record_batch(report(0, 0, 10, out=10), StreamProgress("load"))
    assert json.loads(file.read_text())["record_counts"]["read"] == 10


def test_the_best_rate_of_a_large_batch_is_kept(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    found = books(file, Cluster(), Swept())
    found.record_batch(report(0, 0, 100, out=100), StreamProgress("load"))
    assert read_peak_rate(file) == 0
    found.record_batch(report(1, 100, 10_100, out=100), StreamProgress("load"))
    found.record_batch(report(2, 10_100, 12_100, out=100), StreamProgress("load"))
    assert read_peak_rate(file) == 20_000
    books(file, Cluster(), Swept()).record_batch(report(3, 12_100, 12_200, out=1), StreamProgress("load"))
    assert read_peak_rate(file) == 20_000
    assert read_peak_rate(tmp_path / "none.json") == 0


def test_a_log_that_goes_back_is_not_booked(tmp_path: Path) -> None:
    found = books(tmp_path / "a.json", Cluster(), Swept())
    found.record_batch(report(0, 0, 100, out=100), StreamProgress("load"))
    with pytest.raises(CheckpointError, match=r"readings\[0\] up to 100, and its log ended at 90 .*--fresh load"):
        found.record_batch(report(1, 100, 90, read=0), StreamProgress("load"))
    assert found.counted_offsets == {"readings": {0: 100}}


def test_a_batch_over_everything_says_nothing_of_the_checkpoint(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    found = books(file, Cluster(), Swept())
    found.record_batch(report(0, 0, 100, out=100), StreamProgress("load"))
    assert read_streamed_offsets(file) == {"readings": {0: 100}}
    assert books(file, Cluster(), Swept())._streamed
    found.record_full_run({"readings": {0: 0}}, {"readings": {0: 150}}, {"in readings": {"n": 150}, "out": {"n": 150}})
    assert read_streamed_offsets(file) == {}
    found.record_batch(report(1, 100, 160, out=60), StreamProgress("load"))
    assert read_streamed_offsets(file) == {"readings": {0: 160}}


def test_the_rate_is_what_was_read_over_the_time_that_passed(tmp_path: Path) -> None:
    """Not what Spark says of one batch: ten records that lay ready are not 96 a second."""
    found = books(tmp_path / "a.json", Cluster(), Swept())
    progress = StreamProgress("load")
    first = {**report(0, 0, 10, out=5), "batchDuration": 8000, "inputRowsPerSecond": 96.0}
    found.record_batch(first, progress)
    assert (progress.rows_in_per_second, progress.rows_out_per_second) == (10 / 8, 5 / 8)
    second = {**report(1, 10, 20, out=5), "timestamp": "2026-01-01T00:00:10.000Z", "batchDuration": 10_000}
    found.record_batch({**second, "inputRowsPerSecond": float("nan")}, progress)
    assert (progress.rows_in_per_second, progress.rows_out_per_second) == (20 / 20, 10 / 20)
    # Nothing more to read: after half a minute it is 0.
    for at in ("00:00:30", "00:00:40", "00:00:50", "00:01:00"):
        idle = {**report(1, 20, 20), "timestamp": f"2026-01-01T{at}.000Z", "batchDuration": 1}
        found.record_batch(idle, progress)
    assert (progress.rows_in_per_second, progress.rows_out_per_second) == (0.0, 0.0)
