"""What a verdict makes of late records."""

import pytest

from riverrun.cli.verify import _show
from riverrun.streams.verify.verifier import Verdict, explain_late


@pytest.mark.parametrize(
    ("wrong", "explainable", "late", "state", "explained", "left"),
    [
        ({"differs": 11}, {"differs": 11}, 11, "equal", 11, {}),
        ({"differs": 7, "missing": 4}, {"differs": 7, "missing": 4}, 30, "equal", 11, {}),
        ({"differs": 11}, {"differs": 11}, 10, "differs", 0, {"differs": 11}),
        ({"differs": 11, "extra": 1}, {"differs": 11}, 11, "differs", 11, {"extra": 1}),
        ({"differs": 12}, {"differs": 11}, 11, "differs", 11, {"differs": 1}),
        ({"twice": 1}, {}, 11, "differs", 0, {"twice": 1}),
        ({}, {}, 11, "equal", 0, {}),
    ],
)
def test_late_records_explain_no_more_than_they_can(
    wrong: dict[str, int], explainable: dict[str, int], late: int, state: str, explained: int, left: dict[str, int]
) -> None:
    verdict = Verdict("kept", "kept", wrong=wrong)
    explain_late(verdict, explainable, late)
    assert (verdict.state, verdict.late, verdict.dropped, verdict.wrong) == (state, explained, late, left)


def test_rows_of_late_records_are_told_in_a_word(capsys: pytest.CaptureFixture[str]) -> None:
    _show(Verdict("kept", "out", batch=7, records=898, rows=312, equal=301, late=11, dropped=30))
    out = capsys.readouterr().out
    assert out.startswith(
        "kept: equal, but for 11 rows that late records can explain. 898 records read up to batch 7, 312 rows in out."
    )
    # A row that was lost looks like one that lacks a late record: no more is said than is known.
    assert "It has counted 30, so up to 11 of these rows can be of late records." in out
    assert "is not proved" in out
    assert "Nothing else differs" not in out
