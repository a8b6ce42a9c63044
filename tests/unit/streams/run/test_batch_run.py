"""A batch run that was cut off is gone on with over the very same records, or not at all."""

import socket
from pathlib import Path

import pytest

from riverrun.errors import CheckpointError
from riverrun.kafka.commit_markers import Claim
from riverrun.streams.checkpoint import Offsets
from riverrun.streams.run.batch_run import BatchRun, go_on_or_begin

IDS = {"in": "first", "other": "second"}
BEGIN: Offsets = {"in": {0: 5, 1: 0}, "other": {0: 0}}
END: Offsets = {"in": {0: 9, 1: 4}, "other": {0: 3}}


def begun(folder: Path) -> BatchRun:
    return BatchRun.create(folder / "made" / "batch-run.json", "code", IDS, BEGIN, END)


def test_a_run_is_read_as_it_was_begun(tmp_path: Path) -> None:
    run = begun(tmp_path)
    assert BatchRun.read(run.file) == run
    run.finish()
    assert BatchRun.read(run.file) is None


@pytest.mark.parametrize(
    ("code", "ids", "begin", "end", "why"),
    [
        ("code", IDS, BEGIN, END, ""),
        # More has come since.
        ("code", IDS, BEGIN, {**END, "in": {0: 90, 1: 40, 2: 7}}, ""),
        ("new", IDS, BEGIN, END, "its code has changed since"),
        ("code", {**IDS, "in": "third"}, BEGIN, END, "in, which it reads, was deleted and made again since"),
        ("code", {"other": "second"}, BEGIN, END, "in, which it reads, was deleted and made again since"),
        ("code", IDS, BEGIN, {**END, "in": {0: 8, 1: 4}}, "records of in[0] that it was over are gone since"),
        ("code", IDS, {**BEGIN, "in": {0: 5, 1: 1}}, END, "records of in[1] that it was over are gone since"),
    ],
)
def test_why_a_run_is_not_gone_on_with(
    tmp_path: Path, code: str, ids: dict[str, str], begin: Offsets, end: Offsets, why: str
) -> None:
    assert begun(tmp_path).stale_reason(code, ids, begin, end) == why


def test_the_same_offsets_of_another_topic_are_other_records(tmp_path: Path) -> None:
    one = begun(tmp_path)
    other = BatchRun.create(one.file, "code", {**IDS, "in": "third"}, BEGIN, END)
    assert one.digest != other.digest


def claimed(generation: str, *, ended: bool | None = False) -> Claim:
    return Claim(generation, "other-host", 7, ended)


def test_a_run_that_was_cut_off_on_another_host_is_not_begun_again(tmp_path: Path) -> None:
    """Its rows are in the topic, and the file that says over which records it was is there: they would be written twice."""
    file, said = tmp_path / "sums" / "batch-run.json", list[str]()
    with pytest.raises(CheckpointError, match=r"batch-1 of other-host, process 7.*Copy .*sums from .*--fresh sums"):
        go_on_or_begin(file, "code", (IDS, BEGIN, END), claimed("batch-1"), said.append)
    assert not file.exists()
    # One that is over, one of a riverrun that did not say so, and one that is no batch run are followed by another.
    for last in (claimed("batch-1", ended=True), claimed("batch-1", ended=None), claimed("6f0d"), None):
        assert go_on_or_begin(file, "code", (IDS, BEGIN, END), last, said.append).id.startswith("batch-")
        file.unlink()
    assert said == []


def test_a_run_that_was_cut_off_here_is_gone_on_with_if_no_other_followed(tmp_path: Path) -> None:
    said: list[str] = []
    run = begun(tmp_path)
    for last in (claimed(run.id), claimed("batch-2", ended=True), None):
        assert go_on_or_begin(run.file, "code", (IDS, BEGIN, END), last, said.append) == run
    assert "goes on with a batch that was cut off" in said[0]
    # Given up here, for this one.
    before = Claim("batch-2", socket.gethostname(), 7, ended=False)
    assert go_on_or_begin(run.file, "code", (IDS, BEGIN, END), before, said.append) == run
    with pytest.raises(CheckpointError, match="batch-2 of other-host"):
        go_on_or_begin(run.file, "code", (IDS, BEGIN, END), claimed("batch-2"), said.append)
