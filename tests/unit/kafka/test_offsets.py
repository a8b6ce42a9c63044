"""Plans of offset moves, without a cluster."""

import pytest

from riverrun.kafka.admin.offsets import OffsetMove, OffsetMovePlan, OffsetTarget, plan_partition_moves
from riverrun.model.cluster_state import TopicPartition

A, B = TopicPartition("orders", 0), TopicPartition("orders", 1)


def moved(
    target: OffsetTarget, before: int | None = 50, *, first: int = 10, end: int = 100, at_time: int = 70
) -> OffsetMove:
    committed = {} if before is None else {A: before}
    (move,) = plan_partition_moves(
        target, committed=committed, earliest={A: first}, latest={A: end}, at_time={A: at_time}
    )
    return move


@pytest.mark.parametrize(
    ("target", "after", "again", "skipped"),
    [
        (OffsetTarget("earliest"), 10, 40, 0),
        (OffsetTarget("latest"), 100, 0, 50),
        (OffsetTarget("offset", 60), 60, 0, 10),
        (OffsetTarget("offset", 50), 50, 0, 0),
        (OffsetTarget("time"), 70, 0, 20),
        (OffsetTarget("shift", -15), 35, 15, 0),
        (OffsetTarget("shift", 5), 55, 0, 5),
    ],
)
def test_a_move_counts_what_is_read_again_and_what_is_skipped(
    target: OffsetTarget, after: int, again: int, skipped: int
) -> None:
    move = moved(target)
    assert (move.before, move.after, move.reread, move.skipped, move.note) == (50, after, again, skipped, "")


@pytest.mark.parametrize(
    ("target", "after", "note"),
    [
        (OffsetTarget("offset", 3), 10, "3 is gone: 10 is the nearest there is"),
        (OffsetTarget("offset", 500), 100, "500 is not written yet: 100 is the nearest there is"),
        (OffsetTarget("shift", -500), 10, "-450 is gone: 10 is the nearest there is"),
        (OffsetTarget("shift", 500), 100, "550 is not written yet: 100 is the nearest there is"),
    ],
)
def test_an_offset_that_is_not_there_is_clamped_and_said(target: OffsetTarget, after: int, note: str) -> None:
    move = moved(target)
    assert (move.after, move.note) == (after, note)


def test_a_partition_without_a_commit_starts_and_skips_nothing() -> None:
    move = moved(OffsetTarget("latest"), None)
    assert (move.before, move.after, move.reread, move.skipped) == (None, 100, 0, 0)


def test_a_shift_needs_something_to_shift_from() -> None:
    move = moved(OffsetTarget("shift", -5), None)
    assert (move.after, move.note) == (None, "nothing committed to shift from")


def test_what_retention_removed_is_not_counted_as_skipped() -> None:
    assert moved(OffsetTarget("earliest"), 4).skipped == 0
    assert moved(OffsetTarget("latest"), 4).skipped == 90


def test_every_partition_moves_and_only_real_changes_are_committed() -> None:
    moves = plan_partition_moves(
        OffsetTarget("earliest"), committed={A: 10, B: 8}, earliest={B: 0, A: 10}, latest={A: 20, B: 9}
    )
    plan = OffsetMovePlan("billing", new=False, moves=tuple(moves))
    assert [move.topic_partition for move in moves] == [A, B]
    assert plan.changes == {B: 0}
    assert (plan.reread, plan.skipped) == (8, 0)


def test_rows_are_for_tables_and_programs() -> None:
    assert moved(OffsetTarget("latest")).row() == {
        "topic": "orders", "partition": 0, "from": 50, "to": 100, "read_again": 0, "skipped": 50, "note": "",
    }  # fmt: skip
