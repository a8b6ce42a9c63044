"""Rows of streams while a demo runs: each counts once, whoever reads it."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from riverrun.demo import results
from riverrun.demo.results import StreamResults
from riverrun.model.cluster_state import TopicPartition


@dataclass
class Row:
    offset: int
    topic: str = "balls"

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, 0)

    def header(self, _name: str) -> bytes:
        return b"life/3"


class Reads:
    """A consumer that has read so many rows already."""

    def __init__(self, *_topics: Any, **_options: Any) -> None:
        self.rows: list[Row] = []

    def batches(self, _most: int, *, wait_seconds: float) -> Iterator[list[Row]]:  # noqa: ARG002
        yield self.rows


def test_a_row_that_two_read_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that follows was slow to end: what is left is read beside it."""
    monkeypatch.setattr(results, "Consumer", Reads)
    found, slow, last = StreamResults(["balls"]), Reads(), Reads()
    slow.rows, last.rows = [Row(each) for each in range(4)], [Row(each) for each in range(6)]
    for each in (slow, last, slow):
        found._read(each)  # type: ignore[arg-type]
    assert found.rows() == {"balls": 6}
