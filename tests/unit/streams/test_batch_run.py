"""A batch run that was cut off is gone on with over the very same records, or not at all."""

from pathlib import Path

import pytest

from riverrun.streams.batch_run import BatchRun
from riverrun.streams.checkpoint import Offsets

IDS = {"in": "first", "other": "second"}
BEGIN: Offsets = {"in": {0: 5, 1: 0}, "other": {0: 0}}
END: Offsets = {"in": {0: 9, 1: 4}, "other": {0: 3}}


def begun(folder: Path) -> BatchRun:
    return BatchRun.begin_over(folder / "made" / "batch-run.json", "code", IDS, BEGIN, END)


def test_a_run_is_read_as_it_was_begun(tmp_path: Path) -> None:
    run = begun(tmp_path)
    assert BatchRun.read(run.file) == run
    run.over()
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
    assert begun(tmp_path).outdated(code, ids, begin, end) == why


def test_the_same_offsets_of_another_topic_are_other_records(tmp_path: Path) -> None:
    one = begun(tmp_path)
    other = BatchRun.begin_over(one.file, "code", {**IDS, "in": "third"}, BEGIN, END)
    assert one.digest != other.digest
